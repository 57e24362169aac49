"""How a name or an object becomes a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import registry
from probekit.datasets import Columns, DatasetOptions, dataset
from probekit.errors import InputError, NotFoundError
from probekit.protocols import Dataset, Sample


class Words:
    """A plugin's dataset, which imports nothing of ours but what a test needs."""

    kind = "text"
    class_names = ("word",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> Sample:
        return Sample(str(row), 0, None, lambda: self.name)

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(3))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, DatasetOptions]]:
    calls: list[tuple[str, DatasetOptions]] = []

    def load(name: str, options: DatasetOptions) -> Dataset:
        calls.append((name, options))
        return Words(name)

    monkeypatch.setattr(registry.datasets, "_registered", {"words": load, "broken": lambda *_: [1, 2]})
    return calls


def test_a_plugin_is_told_the_rest_of_the_name_and_the_options(seen: list[tuple[str, DatasetOptions]]) -> None:
    found = dataset("words:a:b", split="test", columns=Columns(label="l"), streaming=True)
    assert seen == [("a:b", DatasetOptions("test", Columns(label="l"), True))]
    assert found[0].content() == "a:b"
    assert dataset("words").name == ""


def test_a_limit_keeps_the_first_rows(seen: list[tuple[str, DatasetOptions]]) -> None:
    assert [sample.name for sample in dataset("words:x", limit=2)] == ["0", "1"]
    assert dataset("words:x", limit=2).name == "x[:2]"


def test_a_loader_that_gives_no_dataset_is_refused(seen: list[tuple[str, DatasetOptions]]) -> None:
    with pytest.raises(InputError, match=r"The plugin 'broken' must give a dataset .* found list"):
        dataset("broken:")


def test_an_unknown_scheme_answers_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match=r"no dataset 'foldr'. Known and close: folder"):
        dataset("foldr:/tmp")


def test_an_unknown_bare_name_answers_with_the_nearest_packaged_set() -> None:
    with pytest.raises(NotFoundError, match=r"no packaged dataset 'digit'. Known and close: digits"):
        dataset("digit")


def test_a_bare_name_is_a_packaged_set() -> None:
    assert dataset("digits").name == dataset("packaged:digits").name == "packaged:digits"


def test_a_bare_path_is_told_how_to_be_written(tmp_path: Path) -> None:
    for path in (str(tmp_path), tmp_path):
        with pytest.raises(InputError, match=f"folder:{tmp_path}"):
            dataset(path)


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="An empty name"):
        dataset(name)


def test_a_dataset_is_used_as_it_is() -> None:
    words = Words("mine")
    assert dataset(words) is words
    with pytest.raises(InputError, match="no splits to choose from"):
        dataset(words, split="train")


@pytest.mark.parametrize("rows", [3, None, {"a": 1}, b"bytes", iter([1])])
def test_what_is_no_sequence_of_rows_is_refused(rows: Any) -> None:
    with pytest.raises(InputError, match="Make a list of it"):
        dataset(rows)


def test_a_sequence_is_wrapped() -> None:
    found = dataset([(np.zeros((2, 2), dtype=np.uint8), 1)] * 3, limit=2)
    assert [sample.label for sample in found] == [1, 1]
