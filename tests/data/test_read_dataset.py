"""What a path or a name means, and what is said of one that means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probekit.data import read_dataset
from probekit.errors import InputError, NotFoundError


def test_what_exists_wins_colons_and_all(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "hf:photos/a/1.png", "digits/b/1.png", "digits/c/1.png")
    monkeypatch.chdir(tmp_path)
    assert read_dataset("hf:photos").by_name[""].class_names == ("a",)
    assert read_dataset("digits").by_name[""].class_names == ("b", "c")
    assert len(read_dataset("packaged:digits").by_name) == 2


def test_an_unknown_name_answers_with_packaged_names_and_files(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, "photos/a/1.png", "other/a/1.png")
    monkeypatch.chdir(tmp_path)
    for name, suggestion in (
        ("photso", "photos"),
        ("./phots", "photos"),
        ("digit", "digits"),
        ("packaged:minst", "mnist"),
        (f"{tmp_path}/othr", "other"),
    ):
        with pytest.raises(NotFoundError, match=suggestion) as caught:
            read_dataset(name)
        assert name.removeprefix("packaged:") in str(caught.value)
    with pytest.raises(NotFoundError, match=r"digits.*photos"):
        read_dataset("zzzzzz")
    with pytest.raises(NotFoundError, match="nowhere"):
        read_dataset("/nowhere/at/all")
    with pytest.raises(NotFoundError, match="folder:photos"):
        read_dataset("folder:photos")


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        read_dataset(name)


def test_a_folder_or_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none"):
        read_dataset(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(InputError, match=r"notes\.txt"):
        read_dataset(tmp_path)
    with pytest.raises(InputError, match=r"notes\.txt"):
        read_dataset(tmp_path / "notes.txt")
    (tmp_path / "vectors.npy").touch()
    with pytest.raises(InputError, match="import"):
        read_dataset(tmp_path / "vectors.npy")
