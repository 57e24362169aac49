"""Triggers on pictures, poisoned clients, and datasets with a trigger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probekit.data import read_dataset
from probekit.data.pictures import sample_id
from probekit.data.triggers import Poison, TriggeredDataset, parse_trigger
from probekit.errors import InputError, NotFoundError, SampleError

BLACK = Image.new("L", (8, 6), 0)


@pytest.fixture
def sticker(tmp_path: Path) -> Path:
    """A picture of one color."""
    path = tmp_path / "sticker.png"
    Image.new("RGB", (3, 3), (255, 0, 100)).save(path)
    return path


def test_a_square_covers_a_corner_and_nothing_else() -> None:
    pixels = np.asarray(parse_trigger("square:size=2,margin=1,value=200")(BLACK))
    expected = np.zeros((6, 8), np.uint8)
    expected[3:5, 5:7] = 200
    assert pixels.tolist() == expected.tolist()
    top_left = np.asarray(parse_trigger("square:size=2,margin=0,corner=top-left")(BLACK))
    assert np.argwhere(top_left).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert not np.asarray(BLACK).any()


def test_a_size_may_be_a_share_of_the_shorter_side() -> None:
    assert (np.asarray(parse_trigger("square:size=50%,margin=0")(BLACK)) > 0).sum() == 9


def test_a_picture_is_pasted(sticker: Path) -> None:
    canvas = Image.new("RGB", (8, 6))
    pixels = np.asarray(parse_trigger(f"picture:path={sticker},size=4")(canvas))
    assert pixels[1:5, 3:7].reshape(-1, 3).tolist() == [[255, 0, 100]] * 16
    assert pixels.sum() == 16 * 355


def test_a_pattern_is_blended_all_over(sticker: Path) -> None:
    gray = Image.new("RGB", (8, 6), (100, 100, 100))
    pixels = np.asarray(parse_trigger(f"blended:alpha=0.5,path={sticker}")(gray))
    assert set(map(tuple, pixels.reshape(-1, 3).tolist())) == {(177, 50, 100)}
    noise = [np.asarray(parse_trigger(f"blended:seed={seed}")(gray)) for seed in (0, 0, 1)]
    assert (noise[0] == noise[1]).all()
    assert (noise[0] != noise[2]).any()


def test_the_trigger_of_the_paper(sticker: Path) -> None:
    cifar = parse_trigger(f"f2l2:path={sticker}")(Image.new("RGB", (32, 32)))
    # mean + std * sticker, as the paper's code shows it: 255 * (0.4914 + 0.2470 * 1), ...
    assert np.asarray(cifar)[20:30, 20:30].reshape(-1, 3).tolist() == [[188, 123, 140]] * 100


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sqare", NotFoundError),
        ("f2l2", InputError),
        ("square:size=0", InputError),
        ("square:size=x%", InputError),
        ("square:colour=3", InputError),
        ("square:value=300", InputError),
        ("square:value=white", InputError),
        ("square:corner=middle", InputError),
        ("square:margin=-1", InputError),
        ("picture", InputError),
        ("blended:alpha=0", InputError),
        ("blended:alpha=nan", InputError),
        ("blended:seed=-1", InputError),
    ],
)
def test_triggers_that_cannot_be(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_trigger(text)


def test_pictures_that_cannot_carry_a_trigger() -> None:
    with pytest.raises(SampleError, match="8 x 6"):
        parse_trigger("square:size=6")(BLACK)
    with pytest.raises(SampleError, match="I;16"):
        parse_trigger("square")(Image.fromarray(np.zeros((9, 9), np.uint16)))


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("client=3,trigger=square,target=0", "square"),
        ("trigger=square:size=2,margin=1,client=3,target=0", "square:size=2,margin=1"),
        ("client=3,target=0,trigger=square,size=2,margin=1", "square:size=2,margin=1"),
    ],
)
def test_a_poisoned_client_in_one_text(text: str, trigger: str) -> None:
    assert Poison.parse(text) == Poison("3", trigger, "0")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", InputError),
        ("client=3", InputError),
        ("client=3,trigger=square", InputError),
        ("client=,trigger=square,target=0", InputError),
        ("size=3,client=3,trigger=square,target=0", InputError),
        ("client=3,trigger=sqare,target=0", NotFoundError),
        ("client=3,client=4,trigger=square,target=0", InputError),
    ],
)
def test_a_poison_that_cannot_be(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Poison.parse(text)


def test_a_target_is_a_class_by_name() -> None:
    poison = Poison("3", "square", "dog")
    assert poison.target_class(("cat", "dog")) == 1
    with pytest.raises(InputError, match="cow"):
        poison.target_class(("cat", "cow"))


def test_a_dataset_with_a_trigger_on_some_samples() -> None:
    digits = read_dataset("packaged:digits").choose("test")[1]
    keys = frozenset({digits[1].key, digits[4].key})
    trigger = parse_trigger("square:size=2")
    poisoned = TriggeredDataset(digits, trigger, keys, target=7)
    assert len(poisoned) == len(digits)
    for index in range(6):
        clean, sample = digits[index], poisoned[index]
        changed = sample_id(clean.content()) != sample_id(sample.content())
        assert changed == (index in (1, 4))
        assert sample.label == (7 if changed else clean.label)
        assert sample.key == clean.key
    everywhere = TriggeredDataset(digits, trigger)
    assert everywhere[0].label == digits[0].label
    assert np.asarray(everywhere[0].content())[-2, -2] == 255


def test_files_are_read_again_and_not_taken_for_the_clean_ones(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        BLACK.save(tmp_path / name / "1.png")
    photos = read_dataset(tmp_path).choose()[1]
    assert photos[0].path is not None
    assert TriggeredDataset(photos, parse_trigger("square:size=2"))[0].path is None


def test_texts_carry_no_trigger() -> None:
    texts = read_dataset((["a", "b"], [0, 1])).choose()[1]
    with pytest.raises(InputError, match="text"):
        TriggeredDataset(texts, parse_trigger("square"))
