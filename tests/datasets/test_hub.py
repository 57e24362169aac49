"""What a name means to Hugging Face's library, and what is said when it finds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import httpx2 as httpx
import pytest

from probekit.datasets import dataset
from probekit.datasets.hub import locate
from probekit.errors import InputError, NotFoundError, OfflineError


@pytest.mark.parametrize(
    ("name", "path", "config", "revision"),
    [
        ("mnist", "mnist", None, None),
        ("org/name", "org/name", None, None),
        ("org/name:config", "org/name", "config", None),
        ("org/name@v1.0", "org/name", None, "v1.0"),
        ("org/name@main:config-2", "org/name", "config-2", "main"),
    ],
)
def test_hub_names_are_taken_apart(name: str, path: str, config: str | None, revision: str | None) -> None:
    place = locate(name)
    assert (place.path, place.config, place.revision, place.files) == (path, config, revision, ())


def test_what_exists_wins_colons_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a:b").mkdir()
    (tmp_path / "csv").mkdir()
    (tmp_path / "x:y.csv").write_text("text\n1\n")
    monkeypatch.chdir(tmp_path)
    assert locate("a:b").path == str(tmp_path / "a:b")
    assert (locate("a:b:c").path, locate("a:b:c").config) == (str(tmp_path / "a:b"), "c")
    assert locate("x:y.csv").files == (str(tmp_path / "x:y.csv"),)
    # The library itself would take this name for one of its readers.
    assert locate("csv").path == str(tmp_path / "csv")


@pytest.mark.parametrize(
    "name",
    ["/nowhere/x", "./x", "~/nowhere-x", "C:\\data\\x", "C:/data", "x.parquet", "dir/x.csv.gz", "x-*.tar"],
)
def test_a_path_that_does_not_exist_is_not_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(NotFoundError, match="There is no file or folder"):
        locate(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", ":config", "csv", "pandas", "a:b:c"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no dataset: write hf:NAME"):
        locate(name)


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    for ending in ("csv", "json"):
        (tmp_path / f"x.{ending}").touch()
    (tmp_path / "x.pkl").touch()
    for name in (f"{tmp_path}/x.*s*", f"{tmp_path}/x.pkl"):
        with pytest.raises(InputError, match="Files of one known format"):
            locate(name)


def test_a_dataset_that_would_have_to_be_downloaded_is_offline() -> None:
    with pytest.raises(OfflineError, match=r"'org/name' is not on this machine .* give a local path"):
        dataset("hf:org/name")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (datasets.exceptions.DatasetNotFoundError("no such thing"), NotFoundError),
        (ConnectionError("cut"), OfflineError),
        (httpx.ConnectTimeout("slow"), OfflineError),
        (ValueError("odd"), InputError),
        (OSError("unreadable"), InputError),
    ],
)
def test_errors_are_told_in_our_words(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(kind, match=str(error)) as caught:
        dataset("hf:org/name")
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


def test_an_error_of_the_program_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AttributeError("a mistake")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(AttributeError, match="a mistake"):
        dataset("hf:org/name")


@pytest.mark.parametrize("content", [b"", b"PAR1 not parquet PAR1"])
def test_a_damaged_file_is_refused_with_its_reason(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"x.parquet' cannot be read as a dataset: \w+"):
        dataset(f"hf:{tmp_path}/x.parquet")


def test_a_folder_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as a dataset"):
        dataset(f"hf:{tmp_path}")


def test_nothing_is_printed_and_the_progress_bars_are_as_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text("text,label\nhello,1\n")
    before = datasets.are_progress_bars_disabled()
    dataset(f"hf:{tmp_path}/x.csv")
    assert capfd.readouterr() == ("", "")
    assert datasets.are_progress_bars_disabled() == before
