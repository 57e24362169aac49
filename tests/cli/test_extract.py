"""`probekit extract`, as a person types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probekit.cache import DiskStore
from probekit.custody.columns import matching
from tests.cli.conftest import Command


def test_prints_what_it_did(command: Command, backbone: str, dataset: str) -> None:
    outcome = command("extract", dataset, "-b", backbone)
    assert outcome.code == 0
    assert "30 x 48 float32, 3 classes" in outcome.out
    assert "30 now" in outcome.out
    assert "size 4, colour RGB" in outcome.out
    assert outcome.err == ""


def test_second_time_encodes_nothing(command: Command, backbone: str, dataset: str) -> None:
    first = command("extract", dataset, "-b", backbone, "--json").value
    second = command("extract", dataset, "-b", backbone, "--json").value
    assert (first["encoded"], first["reused"]) == (30, 0)
    assert (second["encoded"], second["reused"]) == (0, 30)
    assert first["digest"] == second["digest"]
    assert first["skipped"] == second["skipped"] == []


def test_rows_are_those_of_the_data_set_in_its_order(command: Command, backbone: str, dataset: str) -> None:
    value = command("extract", dataset, "-b", backbone, "--json", "--name", "mine", "--num-workers", "0").value
    assert value["set"] == "mine"
    made = DiskStore().open("mine")
    with np.load(dataset.removeprefix("npz:")) as file:
        cells = file["images"].reshape(30, 4, 2, 4, 2, 3).mean((2, 4)).reshape(30, 48) / 255
        np.testing.assert_allclose(made.to_numpy(), cells, atol=1.01 / 255)  # Pillow rounds twice
        assert made.labels.tolist() == file["labels"].tolist()
        assert list(made.clients or ()) == file["client_ids"].tolist()


def test_quiet_says_nothing(command: Command, backbone: str, dataset: str) -> None:
    outcome = command("extract", dataset, "-b", backbone, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_cache_folder_by_flag_and_by_environment(
    command: Command, backbone: str, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flag = command("extract", dataset, "-b", backbone, "--json", "--cache", tmp_path / "here").value
    assert by_flag["cache"] == str(tmp_path / "here")
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "there"))
    by_environment = command("extract", dataset, "-b", backbone, "--json").value
    assert by_environment["cache"] == str(tmp_path / "there")
    assert by_environment["encoded"] == 30


def test_limit_dtype_and_trigger_make_other_sets(command: Command, backbone: str, dataset: str) -> None:
    whole = command("extract", dataset, "-b", backbone, "--json").value
    few = command("extract", dataset, "-b", backbone, "--json", "--limit", "7").value
    assert (few["rows"], few["encoded"]) == (7, 0)
    assert few["set"].endswith("-Cells-first7")
    half = command("extract", dataset, "-b", backbone, "--json", "--dtype", "float16", "--explain")
    assert half.value["dtype"] == "float16"
    assert 'dtype: wanted "float16", there "float32"' in half.message
    pasted = command("extract", dataset, "-b", backbone, "--json", "--trigger", "square:size=3")
    assert pasted.value["encoded"] == 30
    assert pasted.value["spec"] != whole["spec"]


def test_config_file_gives_values_and_flags_win(command: Command, backbone: str, dataset: str, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'[extract]\nlimit = 4\nbackbone = "{backbone}"\non-error = "skip"\n')
    assert command("extract", dataset, "--config", config, "--json").value["rows"] == 4
    assert command("extract", dataset, "--config", config, "--limit", "5", "--json").value["rows"] == 5
    config.write_text(f'limit = 6\nbackbone = "{backbone}"\n')
    assert command("extract", dataset, "--config", config, "--json").value["rows"] == 6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("limt = 3", "limit"),
        ("limit = [", "not TOML"),
        ('limit = "many"', "many"),
        ("limit = 0", "0"),
        (None, "cannot be read"),
    ],
)
def test_bad_config_files(command: Command, dataset: str, tmp_path: Path, content: str | None, said: str) -> None:
    config = tmp_path / "run.toml"
    if content is not None:
        config.write_text(content)
    outcome = command("extract", dataset, "--config", config, "--json")
    assert outcome.code == 2
    assert said in outcome.value["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-size", "none"], "--batch-size"),
        (["--batch-size", "0"], "at least 1"),
        (["--limit", "0"], "--limit"),
        (["--device", "abacus"], "--device"),
        (["--dtype", "int8"], "float16"),
        (["--on-error", "cry"], "skip"),
        (["--num-workers", "-1"], "--num-workers"),
        (["--preprocessing", "f2l2"], "f2l2-imagenet"),
        (["--name", "a/b"], "letters"),
        (["--trigger", "square:size=x"], "1 or more pixels"),
    ],
)
def test_wrong_values_are_usage_errors(
    command: Command, backbone: str, dataset: str, arguments: list[str], said: str
) -> None:
    outcome = command("extract", dataset, "-b", backbone, "--json", *arguments)
    assert outcome.code == 2
    assert said in outcome.value["error"]["message"]


@pytest.mark.parametrize(
    ("dataset_id", "backbone_id", "said"),
    [
        ("packaged:digits", "opn_clip:ViT-B-32/openai", "open_clip"),
        ("packaged:digits", "packaged:efficientnet", "efficientnet-lite0"),
        ("packaged:digits", "py:tiny_cells:Cell", "Cells"),
        ("packaged:digits", "py:no_such_module:make", "no_such_module"),
        ("packaged:digits", "open_clip:ViT-B-32/laion", "laion400m_e32"),
        ("packaged:digits", "open_clip:ViT-B-32/openai", "ViT-B-32-quickgelu"),
        ("packaged:digits", "hf:facebook/dinov2-small", "HF_HUB_OFFLINE"),
        ("packaged:digit", "py:tiny_cells:Cells", "digits"),
        ("nzp:set.npz", "py:tiny_cells:Cells", "npz"),
        ("npz:nowhere.npz", "py:tiny_cells:Cells", "nowhere.npz"),
        ("folder:nowhere", "py:tiny_cells:Cells", "nowhere"),
        ("hf:nobody/nothing", "py:tiny_cells:Cells", "network"),
        ("packaged:mnist", "py:tiny_cells:Cells", "probekit dataset get mnist"),
    ],
)
@pytest.mark.usefixtures("backbone")
def test_what_is_not_there_is_named_with_what_is(
    command: Command, dataset_id: str, backbone_id: str, said: str
) -> None:
    outcome = command("extract", dataset_id, "-b", backbone_id, "--json")
    assert outcome.code == (2 if said == "ViT-B-32-quickgelu" else 3), outcome.message
    assert said in outcome.value["error"]["message"]


def _bytes(picture: Image.Image, form: str, **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def _noise(*shape: int, dtype: str = "uint8") -> Any:
    return np.random.default_rng(5).integers(0, np.iinfo(dtype).max, shape, dtype=dtype)


def _moving() -> bytes:
    frames = [Image.fromarray(_noise(9, 9) // (number + 1)) for number in range(3)]
    return _bytes(frames[0], "GIF", save_all=True, append_images=frames[1:])


BAD: dict[str, Callable[[], bytes]] = {
    "animated.gif": _moving,
    "empty.png": lambda: b"",
    "no-pixels.ppm": lambda: b"P6 0 0 255\n",
    "text.jpg": lambda: b"not a picture at all",
    "truncated.jpg": lambda: _bytes(Image.fromarray(_noise(64, 64, 3)), "JPEG")[:900],
}
GOOD: dict[str, Callable[[], bytes]] = {
    "cmyk.jpg": lambda: _bytes(Image.frombytes("CMYK", (9, 9), _noise(9, 9, 4).tobytes()), "JPEG"),
    "sixteen-bits.png": lambda: _bytes(Image.fromarray(_noise(9, 9, dtype="uint16")), "PNG"),
    "palette.png": lambda: _bytes(Image.fromarray(_noise(9, 9, 3)).quantize(16), "PNG"),
    "plain.png": lambda: _bytes(Image.fromarray(_noise(9, 9, 3)), "PNG"),
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder of pictures of every kind, usable and not."""
    for kind, made in (("bad", BAD), ("good", GOOD)):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for name, content in made.items():
            (tmp_path / "pictures" / kind / name).write_bytes(content())
    return f"folder:{tmp_path / 'pictures'}"


def test_a_bad_picture_stops_the_run_and_is_named(command: Command, backbone: str, folder: str) -> None:
    outcome = command("extract", folder, "-b", backbone, "--json")
    assert outcome.code == 2
    message = outcome.value["error"]["message"]
    assert "bad/animated.gif" in message
    assert "--on-error skip" in message


def test_bad_pictures_are_skipped_and_listed(command: Command, backbone: str, folder: str) -> None:
    outcome = command("extract", folder, "-b", backbone, "--json", "--on-error", "skip")
    assert outcome.code == 5
    assert {Path(skipped["name"]).name for skipped in outcome.value["skipped"]} == set(BAD)
    assert outcome.value["rows"] == len(GOOD)
    shown = command("extract", folder, "-b", backbone, "--on-error", "skip")
    assert shown.code == 5
    assert "5 samples left out" in shown.out
    assert "3 frames" in shown.out


def test_bad_pictures_are_kept_as_gaps(command: Command, backbone: str, folder: str) -> None:
    outcome = command("extract", folder, "-b", backbone, "--json", "--on-error", "mask", "--name", "gaps")
    assert outcome.code == 5
    made = DiskStore().open("gaps")
    assert len(made) == len(BAD) + len(GOOD)
    assert np.isnan(made.to_numpy()).all(axis=1).tolist() == [True] * len(BAD) + [False] * len(GOOD)


def test_embeddings_that_are_not_finite_name_their_sample(command: Command, tmp_path: Path, backbone: str) -> None:
    np.savez(tmp_path / "one.npz", images=_noise(4, 8, 8, 3), labels=np.arange(4))
    (tmp_path / "modules" / "tiny_nan.py").write_text(
        "import numpy as np\nfrom tiny_cells import Cells\n\n\nclass Odd(Cells):\n"
        "    fingerprint = '1' * 64\n\n    def encode(self, batch):\n"
        "        made = np.stack(batch)\n        made[2 % len(made)] = np.nan\n        return made\n"
    )
    outcome = command("extract", f"npz:{tmp_path / 'one.npz'}", "-b", "py:tiny_nan:Odd", "--json")
    assert outcome.code == 2
    assert "(row 2)" in outcome.value["error"]["message"]
    assert "not finite" in outcome.value["error"]["message"]


def test_labels_that_fit_no_class_are_refused(command: Command, tmp_path: Path, backbone: str) -> None:
    names = np.array(["cat", "dog"])
    np.savez(tmp_path / "odd.npz", images=_noise(4, 8, 8, 3), labels=np.array([0, 1, 2, 0]), class_names=names)
    outcome = command("extract", f"npz:{tmp_path / 'odd.npz'}", "-b", backbone, "--json")
    assert outcome.code == 2
    assert "2" in outcome.value["error"]["message"]


def test_texts_need_a_backbone_for_texts(command: Command, tmp_path: Path, backbone: str) -> None:
    import datasets

    datasets.Dataset.from_dict({"words": ["a", "b"], "label": [0, 1]}).save_to_disk(tmp_path / "texts")
    unnamed = command("extract", f"hf:{tmp_path / 'texts'}", "-b", backbone, "--json")
    assert unnamed.code == 2
    assert "--text-column" in unnamed.value["error"]["message"]
    named = command("extract", f"hf:{tmp_path / 'texts'}", "-b", backbone, "--json", "--text-column", "words")
    assert named.code == 2
    assert "text" in named.value["error"]["message"]
    (tmp_path / "modules" / "tiny_words.py").write_text(
        "import hashlib\nimport numpy as np\n\n\nclass Lengths:\n"
        "    name, kind, view, preprocessing = 'py:tiny_words:Lengths', 'text', 'length', {'letters': 'all'}\n"
        "    fingerprint = hashlib.sha256(b'lengths').hexdigest()\n\n"
        "    def preprocess(self, text):\n        return text\n\n"
        "    def encode(self, batch):\n"
        "        return np.array([[len(text), ord(text[0])] for text in batch], dtype=np.float32)\n"
    )
    read = command(
        "extract", f"hf:{tmp_path / 'texts'}", "-b", "py:tiny_words:Lengths", "--json", "--text-column", "words"
    )
    assert read.code == 0, read.message
    assert read.value["rows"] == 2


def test_interrupted_work_is_kept_and_continued(command: Command, backbone: str, dataset: str) -> None:
    arguments = ("extract", dataset, "--json", "--batch-size", "5", "--num-workers", "0")
    stopped = command(*arguments, "-b", "py:tiny_cells:Interrupted")
    assert stopped.code == 130
    assert "the same command continues" in stopped.value["error"]["message"]
    import tiny_cells  # type: ignore[import-not-found]

    tiny_cells.Cells.encoded = -1000
    continued = command(*arguments, "-b", "py:tiny_cells:Interrupted").value
    assert (continued["encoded"], continued["reused"]) == (15, 15)


def test_a_backbone_that_gives_other_numbers_is_refused(command: Command, backbone: str, dataset: str) -> None:
    assert command("extract", dataset, "-b", "py:tiny_cells:Forgetful", "-q").code == 0
    outcome = command("extract", dataset, "-b", "py:tiny_cells:Forgetful", "--json")
    assert outcome.code == 4
    assert "probekit cache rm" in outcome.value["error"]["message"]


def test_a_bug_of_a_plugin_is_unexpected(command: Command, backbone: str, dataset: str) -> None:
    outcome = command("extract", dataset, "-b", "py:tiny_cells:Broken", "--json")
    assert outcome.code == 1
    assert "a bug of its own" in outcome.value["error"]["message"]


def test_a_cache_of_a_newer_schema_is_left_alone(command: Command, backbone: str, dataset: str, tmp_path: Path) -> None:
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "probekit.json").write_text(json.dumps({"schema": 99}))
    outcome = command("extract", dataset, "-b", backbone, "--json", "--cache", tmp_path / "newer")
    assert outcome.code == 4
    assert "schema 99" in outcome.value["error"]["message"]
    assert [path.name for path in (tmp_path / "newer").iterdir()] == ["probekit.json"]


def test_a_full_or_read_only_cache_says_so(
    command: Command, backbone: str, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, who can write everywhere: so the system's answer is made up."""
    import errno

    def refuses(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("probekit.files.settle", refuses)
    outcome = command("extract", dataset, "-b", backbone, "--json")
    assert outcome.code == 4
    assert "read-only" in outcome.value["error"]["message"]
    assert "PROBEKIT_CACHE" in outcome.value["error"]["message"]


def test_a_column_is_kept_as_salted_digests(command: Command, backbone: str, tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8)
    people = np.array(["anna", "bert", "anna", "carl", "", "anna"])
    path = tmp_path / "people.npz"
    np.savez(path, images=pictures, labels=np.arange(6) % 2, patient=people)
    line = ("extract", f"npz:{path}", "-b", backbone, "--name", "people", "--json")
    bare = command(*line).value
    value = command(*line, "--column", "patient").value
    assert (bare["columns"], value["columns"], value["encoded"]) == ([], ["patient"], 0)
    assert value["digest"] == bare["digest"]
    found = DiskStore().open("people").columns["patient"]
    assert [matching(found, who).tolist() for who in ("anna", "bert", "dora", "")] == [[0, 2, 5], [1], [], []]
    assert not any(b"anna" in one.read_bytes() for one in DiskStore().root.rglob("*") if one.is_file())
    assert command(*line, "--column", "doctor").code == 2


def test_columns_of_folders_and_of_tables(command: Command, backbone: str, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    for name in ("a/1.png", "b/2.png"):
        (folder / name).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8), (len(name), ord(name[0]), 3)).save(folder / name)
    (folder / "metadata.csv").write_text("file_name,patient\na/1.png,anna\nb/2.png,17\n")
    line = ("extract", f"folder:{folder}", "-b", backbone, "--name", "folder", "--json", "--column")
    assert command(*line, "patient").value["columns"] == ["patient"]
    assert matching(DiskStore().open("folder").columns["patient"], "17").tolist() == [1]
    assert command(*line, "doctor").code == 2


def test_what_a_backbone_prints_does_not_break_the_json(command: Command, backbone: str, dataset: str) -> None:
    outcome = command("extract", dataset, "-b", "py:tiny_cells:Chatty", "--json", "--num-workers", "0")
    assert (outcome.code, outcome.value["rows"]) == (0, 30)
    assert "hello from encode" in outcome.err
    shown = command("extract", dataset, "-b", "py:tiny_cells:Chatty", "--num-workers", "0")
    assert "hello from encode" in shown.out


def test_what_libraries_write_below_python_does_not_break_the_json(backbone: str, dataset: str, tmp_path: Path) -> None:
    script = "import sys; sys.path.insert(0, sys.argv.pop(1)); from probekit.cli.main import main; main()"
    line = (
        script,
        tmp_path / "modules",
        "extract",
        dataset,
        "-b",
        "py:tiny_cells:Loud",
        "--json",
        "--num-workers",
        "0",
    )
    found = subprocess.run([sys.executable, "-c", *map(str, line)], capture_output=True, check=True, text=True)
    assert json.loads(found.stdout)["rows"] == 30
    assert "below Python" in found.stderr


def test_pipes_and_links_to_themselves_get_one_sentence(command: Command, backbone: str, folder: str) -> None:
    place = Path(folder.removeprefix("folder:")) / "good"
    os.mkfifo(place / "pipe.png")
    (place / "loop.png").symlink_to(place / "loop.png")
    outcome = command("extract", folder, "-b", backbone, "--json", "--on-error", "skip", "--num-workers", "0")
    why = {Path(one["name"]).name: one["reason"] for one in outcome.value["skipped"]}
    assert outcome.code == 5
    assert "no regular file" in why["pipe.png"]
    assert "loop.png" in why
    for line in (("import", place / "pipe.png"), ("extract", f"idx:{place / 'pipe.png'}", "-b", backbone)):
        assert command(*line, "--json").code in (2, 3)


def test_a_window_and_a_split_that_was_not_chosen(command: Command, backbone: str, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "scans" / split / "a").mkdir(parents=True)
        values = np.random.default_rng(len(split)).integers(0, 4096, (8, 8), dtype=np.uint16)
        Image.fromarray(values).save(tmp_path / "scans" / split / "a" / "1.png")
    line = ("extract", f"folder:{tmp_path / 'scans'}", "-b", backbone, "--json")
    plain = command(*line)
    assert "train is read. Choose another with --split" in plain.message
    assert "Give --window 0,40" in plain.message
    seen = command(*line, "--split", "train", "--window", "0,4095")
    assert seen.message == ""
    assert seen.value["spec"] != plain.value["spec"]
    for bad in ("0", "a,b", "9,1"):
        assert command(*line, "--window", bad).code == 2


def test_shards_come_together(command: Command, backbone: str, dataset: str, tmp_path: Path) -> None:
    how = ("extract", dataset, "-b", backbone, "--name", "mine", "--batch-size", 4, "--json")
    whole = command(*how, "--cache", tmp_path / "whole").value
    parts = [command(*how, "--shard", f"{number}/3").value for number in range(2)]
    lacking = command("cache", "merge", "mine")
    assert (lacking.code, "Shard 2/3 of mine is missing" in lacking.message) == (3, True)
    last = command(*how[:-1], "--shard", "2/3", "--cache", tmp_path / "other")
    assert "probekit cache merge mine" in last.out
    made = command("cache", "merge", "mine", tmp_path / "other", "--json").value
    assert [one["set"] for one in parts] == ["mine.0-of-3", "mine.1-of-3"]
    assert made == {"set": "mine", "digest": whole["digest"], "rows": 30, "shards": 3}


@pytest.mark.parametrize("shard", ["3", "3/3", "a/3", "-1/3", "1/", "0/0"])
def test_a_shard_that_is_none_is_refused(command: Command, backbone: str, dataset: str, shard: str) -> None:
    outcome = command("extract", dataset, "-b", backbone, f"--shard={shard}")
    assert outcome.code == 2
    assert "--shard wants I/N" in outcome.message


def test_an_engine_shares_out_by_itself(command: Command, backbone: str, dataset: str) -> None:
    outcome = command("extract", dataset, "-b", backbone, "--shard", "0/2", "--engine", "ray")
    assert outcome.code == 2
    assert "Leave --shard out" in outcome.message
    assert command("extract", dataset, "-b", backbone, "--engine", "spark").code == 2
