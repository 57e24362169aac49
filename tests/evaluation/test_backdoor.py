"""Triggers, poisoned sets and backdoor success."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from probekit.datasets.triggers import Blended, Square, Sticker, trigger
from probekit.errors import InputError, MismatchError, NotFoundError, SampleError
from probekit.evaluation.backdoor import backdoor_success, poison
from probekit.federated.partition import partition
from probekit.federated.training import train
from probekit.models.serving import predict
from probekit.unlearning.method import Material
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.retrain import Retrain
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet
from tests.unlearning.conftest import embedding_set

GREY = Image.new("RGB", (28, 28), (100, 100, 100))


def changed(picture: Image.Image, original: Image.Image = GREY) -> tuple[int, int, int, int]:
    """The box of changed pixels: left, top, right, bottom (outside)."""
    apart = np.abs(np.asarray(picture, dtype=int) - np.asarray(original, dtype=int)).max(axis=2) > 0
    rows, cols = np.flatnonzero(apart.any(axis=1)), np.flatnonzero(apart.any(axis=0))
    return int(cols[0]), int(rows[0]), int(cols[-1]) + 1, int(rows[-1]) + 1


@pytest.fixture
def sticker(tmp_path: Path) -> Path:
    path = tmp_path / "sticker.png"
    Image.fromarray(np.random.default_rng(0).integers(150, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    return path


def test_squares_go_where_they_are_told() -> None:
    assert changed(trigger("square")(GREY)) == (22, 22, 27, 27)
    assert changed(trigger("square:size=3,corner=top-left,margin=0")(GREY)) == (0, 0, 3, 3)
    assert changed(trigger("square:size=4,x=2,y=9")(GREY)) == (2, 9, 6, 13)
    assert changed(trigger("square:size=50%,corner=top-right,margin=0")(GREY)) == (14, 0, 28, 14)
    assert np.asarray(trigger("square")(GREY)).max() == 255
    assert trigger("square:size=5").name == "square:size=5,corner=bottom-right,margin=1,value=255"
    assert GREY.getpixel((24, 24)) == (100, 100, 100)
    assert trigger("square")(Image.new("L", (28, 28))).mode == "L"
    assert trigger("square")(Image.new("P", (28, 28))).mode == "RGB"


def test_pictures_and_blends(sticker: Path, tmp_path: Path) -> None:
    paste = trigger(f"picture:path={sticker},size=10,margin=2")
    assert changed(paste(GREY)) == (16, 16, 26, 26)
    copy = tmp_path / "other name.png"
    copy.write_bytes(sticker.read_bytes())
    assert Sticker(10, margin=2, path=str(copy)).name == paste.name
    assert Sticker(11, margin=2, path=str(copy)).name != paste.name
    blend = trigger("blended:alpha=0.25")
    mixed = np.asarray(blend(GREY), dtype=float)
    pattern = np.asarray(Blended(0.25).pattern.resize((28, 28), Image.Resampling.BILINEAR), dtype=float)
    assert np.abs(mixed - (75 + 0.25 * pattern)).max() <= 1
    assert Blended(0.25, seed=1).name != blend.name
    assert trigger(f"blended:alpha=0.5,path={sticker}").name == Blended(0.5, path=str(sticker)).name


def test_the_papers_triggers_are_washed_out(sticker: Path) -> None:
    assert trigger("f2l2:mnist").name == Square(5).name
    fashion = np.asarray(trigger("f2l2:fashion-mnist")(Image.new("RGB", (28, 28))))
    assert fashion.max() == 163
    assert changed(Image.fromarray(fashion), Image.new("RGB", (28, 28))) == (20, 20, 27, 27)
    black = Image.new("RGB", (32, 32))
    there = trigger(f"f2l2:cifar10,path={sticker}")
    found = np.asarray(there(black), dtype=float)
    assert changed(there(black), black) == (20, 20, 30, 30)
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    original = np.asarray(Image.open(sticker).resize((10, 10), Image.Resampling.BILINEAR)) / 255
    # after their normalisation the pasted values are the sticker's own, in [0, 1]
    assert np.abs((found[20:30, 20:30] / 255 - mean) / std - original).max() < 0.01
    large = Image.new("RGB", (224, 224))
    assert changed(trigger(f"f2l2:domainnet,path={sticker}")(large), large) == (94, 94, 222, 222)


def test_bad_triggers_are_refused(sticker: Path) -> None:
    for text in ("circle", "f2l2:imagenet", "py:nowhere:nothing"):
        with pytest.raises(NotFoundError):
            trigger(text)
    for text in (
        "square:size=0",
        "square:size=x",
        "square:size=0%",
        "square:colour=1",
        "square:corner=middle",
        "square:value=300",
        "square:x=3",
        "square:x=-1,y=2",
        "picture:size=4",
        "blended:alpha=0",
        "blended:alpha=x",
    ):
        with pytest.raises(InputError):
            trigger(text)
    with pytest.raises(SampleError, match="does not fit"):
        trigger("square:size=30")(GREY)
    with pytest.raises(SampleError, match="does not fit"):
        trigger("square:size=5,x=25,y=0")(GREY)


def backdoor(seed: int = 0) -> tuple[EmbeddingSet, EmbeddingSet, EmbeddingSet, EmbeddingSet]:
    """Clean and triggered training and test sets: the trigger moves every embedding along one direction."""
    every = embedding_set(900, 12, 4, seed=seed)
    direction = np.zeros(12)
    direction[-1] = 6.0
    spec = replace(every.spec, trigger="square:test")
    pasted = replace(every, spec=spec, embeddings=every.to_numpy() + direction)
    train_rows, test_rows = np.arange(600), np.arange(600, 900)
    return every.select(train_rows), pasted.select(train_rows), every.select(test_rows), pasted.select(test_rows)


def test_a_backdoor_works_and_exact_removal_equals_retraining_to_the_last_sample() -> None:
    clean, pasted, test, pasted_test = backdoor()
    divided = partition(clean.labels, "iid", clients=5, seed=1)
    poisoned = poison(clean, pasted, rows=divided.clients["2"], target=0)
    trained = train(poisoned, divided, ridge=1e-3)
    before = backdoor_success(trained.head, pasted_test, target=0)
    request, material = UnlearnRequest.of(["2"]), Material(poisoned, divided)
    exact = Exact().unlearn(Removal(trained, request)).trained_after.head
    anew = Retrain().unlearn(Removal(trained, request, material)).trained_after.head
    after, retrained = (backdoor_success(head, pasted_test, target=0) for head in (exact, anew))
    assert before.excluding_target.value is not None
    assert before.excluding_target.value > 0.8
    assert after == retrained
    assert np.array_equal(predict(exact, pasted_test.embeddings), predict(anew, pasted_test.embeddings))
    assert after.excluding_target.value is not None
    assert after.excluding_target.value < 0.5
    assert before.base_rate == pytest.approx(float((test.labels == 0).mean()))
    assert before.all.count == 300
    assert before.excluding_target.count == int((test.labels != 0).sum())


def test_poisoning_changes_a_share_of_the_rows_and_nothing_else() -> None:
    clean, pasted, _, _ = backdoor()
    rows: NDArray[np.int64] = np.arange(100, 200)
    found = poison(clean, pasted, rows=rows, target=3, fraction=0.3, seed=2)
    moved = np.flatnonzero((found.to_numpy() != clean.to_numpy()).any(axis=1))
    assert len(moved) == 30
    assert set(moved) <= set(rows.tolist())
    assert (found.labels[moved] == 3).all()
    assert np.array_equal(found.to_numpy()[moved], pasted.to_numpy()[moved])
    rest = np.setdiff1d(np.arange(600), moved)
    assert np.array_equal(found.labels[rest], clean.labels[rest])
    assert found.spec == clean.spec
    assert [i for i in range(600) if found.ids[i] != clean.ids[i]] == moved.tolist()
    assert len(set(found.ids)) == 600
    again = poison(clean, pasted, rows=rows, target=3, fraction=0.3, seed=2)
    assert again.digest == found.digest


def test_only_the_poisoned_rows_need_the_trigger_in_any_order() -> None:
    clean, pasted, _, _ = backdoor()
    rows: NDArray[np.int64] = np.arange(40, 70)
    few = pasted.select(np.random.default_rng(0).permutation(np.arange(30, 80)))
    found = poison(clean, few, rows=rows, target=3, fraction=0.5, seed=2)
    assert found.digest == poison(clean, pasted, rows=rows, target=3, fraction=0.5, seed=2).digest
    with pytest.raises(MismatchError, match="10 of 40 have none"):
        poison(clean, few, rows=np.arange(20, 60), target=3)


def test_sets_that_do_not_belong_together_are_refused() -> None:
    clean, pasted, _, pasted_test = backdoor()
    rows: NDArray[np.int64] = np.arange(5)
    with pytest.raises(MismatchError, match="trigger"):
        poison(clean, clean, rows=rows, target=0)
    with pytest.raises(MismatchError, match="same samples"):
        poison(clean, pasted_test, rows=rows, target=0)
    with pytest.raises(InputError, match="between 0 and 3"):
        poison(clean, pasted, rows=rows, target=4)
    with pytest.raises(InputError, match="fraction"):
        poison(clean, pasted, rows=rows, target=0, fraction=0.0)
    with pytest.raises(InputError, match="rows between"):
        poison(clean, pasted, rows=np.array([600]), target=0)
    trained = train(clean, partition(clean.labels, "iid", clients=2), ridge=0.1)
    other = replace(pasted_test, spec=replace(pasted_test.spec, weights="1" * 64))
    with pytest.raises(MismatchError, match="encoded otherwise"):
        backdoor_success(trained.head, other, target=0)
