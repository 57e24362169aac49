"""Pictures in folders."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.datasets import Columns, dataset
from probekit.datasets.folder import _pictures
from probekit.errors import InputError, NotFoundError, SampleError


def _fill(root: Path, png: Any, *names: str) -> None:
    for value, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(value))


def test_classes_are_the_sorted_folders_and_rows_the_sorted_paths(tmp_path: Path, png: Any, decoded: list[Any]) -> None:
    _fill(tmp_path, png, "b/2.png", "b/deep/1.JPG", "a/9.png", "a-b/0.png", "b/10.png")
    (tmp_path / "c").mkdir()
    found = dataset(f"folder:{tmp_path}")
    samples = list(found)
    assert found.class_names == ("a", "a-b", "b", "c")
    assert [(sample.name, sample.label) for sample in samples] == [
        ("a/9.png", 0),
        ("a-b/0.png", 1),
        ("b/10.png", 2),
        ("b/2.png", 2),
        ("b/deep/1.JPG", 2),
    ]
    assert decoded == []
    assert [sample.content().getpixel((0, 0)) for sample in samples] == [2, 3, 4, 0, 1]


def test_hidden_files_are_left_out_and_others_counted(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png", "a/.2.png", ".git/3.png", "__MACOSX/a/4.png", "a/notes.txt", "read.me")
    found: Any = dataset(f"folder:{tmp_path}")
    assert ([sample.name for sample in found], found.ignored) == (["a/1.png"], 2)


def test_a_flat_folder_is_unlabelled(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "b.png", "a.png")
    found = dataset(f"folder:{tmp_path}")
    assert [(sample.name, sample.label) for sample in found] == [("a.png", -1), ("b.png", -1)]
    assert found.class_names == ()


def test_pictures_beside_class_folders_are_refused(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png", "loose.png")
    with pytest.raises(InputError, match=r"1 pictures beside them \(first: loose.png\)"):
        dataset(f"folder:{tmp_path}")


def test_splits_are_folders_above_the_classes(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "train/a/1.png", "train/b/2.png", "test/a/3.png", "test/b/4.png")
    found = dataset(f"folder:{tmp_path}")
    assert ([sample.name for sample in found], found.name) == (
        ["a/1.png", "b/2.png"],
        f"folder:{tmp_path}[train]",
    )
    assert [sample.name for sample in dataset(f"folder:{tmp_path}", split="test")] == ["a/3.png", "b/4.png"]
    with pytest.raises(NotFoundError, match=r"no split 'dev'. Known and close: test, train"):
        dataset(f"folder:{tmp_path}", split="dev")


def test_a_split_that_nobody_chose_is_told(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "train/a/1.png", "test/a/3.png")
    found: Any = dataset(f"folder:{tmp_path}", limit=1)
    assert "has the splits test, train; train is read. Choose another with `split`" in found.note
    chosen: Any = dataset(f"folder:{tmp_path}", split="test")
    assert chosen.note == ""
    _fill(tmp_path, png, "extra/a/1.png")
    mixed: Any = dataset(f"folder:{tmp_path}")
    assert (mixed.class_names, "taken for classes" in mixed.note) == (("extra", "test", "train"), True)


def test_a_link_to_itself_harms_its_own_row_only(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png")
    (tmp_path / "a/loop.png").symlink_to(tmp_path / "a/loop.png")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    good, bad = dataset(f"folder:{tmp_path}")
    assert good.content().size == (4, 3)
    with pytest.raises(SampleError, match=r"loop\.png"):
        bad.content()


def test_a_class_may_be_called_train(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "train/1.png", "tram/2.png")
    assert dataset(f"folder:{tmp_path}").class_names == ("train", "tram")


def test_several_splits_without_train_must_be_chosen_from(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "test/a/1.png", "val/a/2.png")
    with pytest.raises(InputError, match="has the splits test, val"):
        dataset(f"folder:{tmp_path}")


def test_metadata_gives_clients_and_labels(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "1.png", "2.png", "sub/3.png")
    text = "file_name,label,client_id\n2.png,dog,7\n./1.png,cat,north\nsub/3.png,,7\n"
    (tmp_path / "metadata.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    found: Any = dataset(f"folder:{tmp_path}")
    assert found.class_names == ("cat", "dog")
    assert [(sample.name, sample.label, sample.client) for sample in found] == [
        ("1.png", 0, "north"),
        ("2.png", 1, "7"),
        ("sub/3.png", -1, "7"),
    ]
    assert found.ignored == 0


def test_whole_numbers_in_metadata_are_class_numbers(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "1.png", "2.png", "3.png")
    (tmp_path / "metadata.csv").write_text("file_name,label\n1.png,10\n2.png,2\n3.png,\n")
    found = dataset(f"folder:{tmp_path}")
    assert ([sample.label for sample in found], found.class_names) == ([10, 2, -1], ())


def test_metadata_without_labels_leaves_the_folders_to_tell_them(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png", "b/2.png")
    (tmp_path / "metadata.csv").write_text("path,site\na/1.png,x\nb/2.png,y\n")
    found = dataset(f"folder:{tmp_path}", columns=Columns(image="path", client="site"))
    assert [(sample.label, sample.client) for sample in found] == [(0, "x"), (1, "y")]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("name,label\n1.png,a\n", Columns(), "no column 'file_name'; found name, label"),
        ("file_name,label\n1.png,a\n", Columns(client="site"), "no column 'site'"),
        ("file_name,label\n1.png,a\n1.png,b\n", Columns(), "line 3: '1.png' is listed twice"),
        ("file_name,label\n9.png,a\n", Columns(), "line 2: '9.png' is no picture in that folder"),
        ("file_name,client_id\n1.png,a\n", Columns(), "row 1: the client is missing"),
        ("file_name,label\n\xff", Columns(), "cannot be read as comma-separated UTF-8"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(
    tmp_path: Path, png: Any, text: str, columns: Columns, message: str
) -> None:
    _fill(tmp_path, png, "1.png", "2.png")
    (tmp_path / "metadata.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        dataset(f"folder:{tmp_path}", columns=columns)


def test_columns_without_metadata_are_refused(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png")
    with pytest.raises(InputError, match=r"no metadata.csv .* no column 'site'"):
        dataset(f"folder:{tmp_path}", columns=Columns(client="site"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(InputError, match="holds no pictures: found 1 other files"):
        dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize("name", ["", "/nowhere/at/all"])
def test_a_missing_folder_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError, match="There is no folder"):
        dataset(f"folder:{name}")


def test_links_may_leave_the_folder_but_not_run_in_circles(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path / "elsewhere", png, "1.png", "2.png")
    _fill(tmp_path / "set", png, "a/0.png")
    (tmp_path / "set/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/a/round").symlink_to(tmp_path / "set")
    (tmp_path / "set/a/file.png").symlink_to(tmp_path / "elsewhere/2.png")
    names = [sample.name for sample in dataset(f"folder:{tmp_path}/set")]
    assert names == ["a/0.png", "a/file.png", "b/1.png", "b/2.png"]


def test_a_broken_picture_or_link_harms_its_own_row_only(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png")
    (tmp_path / "a/2.png").write_bytes(png(1)[:40])
    (tmp_path / "a/3.png").symlink_to(tmp_path / "gone.png")
    first, second, third = dataset(f"folder:{tmp_path}")
    assert first.content().size == (4, 3)
    for sample in (second, third):
        with pytest.raises(SampleError):
            sample.content()


def test_names_of_any_bytes_can_be_written_as_text(tmp_path: Path, png: Any) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    (tmp_path / os.fsdecode(b"caf\xe9/1.png")).write_bytes(png(3))
    found = dataset(f"folder:{tmp_path}")
    assert (found.class_names, found[0].name) == (("caf\\xe9",), "caf\\xe9/1.png")
    found[0].name.encode()
    assert found[0].content().getpixel((0, 0)) == 3


def test_it_can_be_sent_to_another_process(tmp_path: Path, png: Any) -> None:
    _fill(tmp_path, png, "a/1.png", "b/2.png")
    found = pickle.loads(pickle.dumps(dataset(f"folder:{tmp_path}")))
    assert [sample.content().getpixel((0, 0)) for sample in found] == [0, 1]


@given(st.sets(st.lists(st.sampled_from("ab-_"), min_size=1, max_size=3).map("".join), min_size=1, max_size=6))
def test_rows_come_class_by_class_whatever_the_names(names: set[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).mkdir()
            for file in ("y.png", "x.png"):
                (Path(folder) / name / file).touch()
        files, _ = _pictures(Path(folder))
    assert [parts[0] for parts in files[::2]] == sorted(names)
    assert [parts[1] for parts in files] == ["x.png", "y.png"] * len(names)
