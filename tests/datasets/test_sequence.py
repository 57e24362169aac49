"""Datasets made of Python objects."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probekit.datasets import dataset
from probekit.datasets.table import Table
from probekit.errors import InputError, SampleError


class Torchlike:
    """A map-style dataset that tells when it is asked for a row."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> tuple[Image.Image, Any]:
        self.asked.append(row)
        return Image.new("L", (2, 2), row), row % 2


class WithTargets(Torchlike):
    """The same with what torchvision's datasets tell beforehand."""

    classes = ("even", "odd")

    @property
    def targets(self) -> list[int]:
        return [row % 2 for row in range(self.size)]


def test_bytes_and_paths_are_decoded_when_asked(tmp_path: Path, png: Any, decoded: list[Any]) -> None:
    (tmp_path / "b.png").write_bytes(png(9))
    found = dataset([(png(7), "dog"), (tmp_path / "b.png", "cat")])
    samples = list(found)
    assert found.class_names == ("cat", "dog")
    assert ([sample.label for sample in samples], decoded) == ([1, 0], [])
    assert [sample.content().getpixel((0, 0)) for sample in samples] == [7, 9]


def test_a_broken_picture_harms_its_own_row_only(png: Any) -> None:
    found = dataset([b"no picture", png(1)])
    with pytest.raises(SampleError):
        found[0].content()
    assert found[1].content().size == (4, 3)


def test_contents_without_labels_are_unlabelled() -> None:
    assert [sample.label for sample in dataset(["a text", "another"])] == [-1, -1]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (["a"], "text"),
        ([np.zeros((2, 2), dtype=np.uint8)], "image"),
        (np.zeros((3, 2, 2, 3), dtype=np.uint8), "image"),
        (np.zeros((3, 5)), "array"),
        ([Image.new("RGB", (2, 2))], "image"),
    ],
)
def test_the_kind_is_that_of_the_content(rows: Any, kind: str) -> None:
    assert dataset(rows).kind == kind
    assert dataset(rows)[0].content() is not None


def test_arrays_keep_their_numbers() -> None:
    rows = np.arange(6.0).reshape(2, 3)
    assert dataset(rows)[1].content().tolist() == [3.0, 4.0, 5.0]


def test_targets_tell_the_labels_without_a_row_being_made() -> None:
    rows = WithTargets(5)
    found = dataset(rows)
    assert rows.asked == [0]
    assert [sample.label for sample in found] == [0, 1, 0, 1, 0]
    assert (found.class_names, rows.asked) == (("even", "odd"), [0])
    assert found[3].content().getpixel((0, 0)) == 3


def test_targets_are_not_believed_where_a_transform_changes_them() -> None:
    rows = WithTargets(4)
    rows.target_transform = lambda target: 1 - target  # type: ignore[attr-defined]
    assert len(dataset(rows)) == 4
    assert rows.asked == [0, 0, 1, 2, 3]


def test_without_targets_each_row_is_asked_for_its_label() -> None:
    assert [sample.label for sample in dataset(Torchlike(4))] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row; found an empty list"),
        ([object()], "found a object"),
        ([(np.zeros((9, 2, 2), dtype=np.uint8), np.arange(9))], r"shape \(9, 2, 2\)"),
        ([np.zeros((2, 2))], "array of float64"),
        ([("a", 0), ("b",)], r"python:list, row 1: wanted a \(content, label\) pair"),
    ],
)
def test_what_cannot_be_a_dataset_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataset(rows)


def test_a_row_of_another_kind_is_refused_when_read() -> None:
    with pytest.raises(SampleError, match="Row 1: wanted content of kind text"):
        dataset(["a", 3])[1].content()


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="A list has no splits"):
        dataset(["a"], split="train")


def test_it_can_be_sent_to_another_process(png: Any) -> None:
    found: Table = pickle.loads(pickle.dumps(dataset([(png(5), 2)])))
    sample = pickle.loads(pickle.dumps(found[0]))
    assert (sample.label, sample.content().getpixel((1, 1))) == (2, 5)
