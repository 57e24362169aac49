"""EmbeddingSet: what it takes, what it refuses, what it gives back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probekit.embeddings import (
    EmbeddingSet,
    Encoding,
    is_real,
    non_finite_rows,
    number_labels,
)
from probekit.errors import InputError

X = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
y = np.arange(10) % 3


def example(count: int = 10, **changes: Any) -> EmbeddingSet:
    rows = np.random.default_rng(1).normal(size=(count, 4))
    columns = {"client": [f"c{i % 2}" for i in range(count)]}
    return EmbeddingSet.from_numpy(rows, np.arange(count) % 3, columns=columns, **changes)


indices = st.lists(st.integers(0, 9), max_size=15)


@given(indices)
def test_take_takes_everything_of_a_row(chosen: list[int]) -> None:
    whole = example()
    part = whole.take(np.array(chosen, np.int64))
    assert (part.to_numpy() == whole.to_numpy()[chosen]).all()
    assert part.labels is not None
    assert part.labels.tolist() == [i % 3 for i in chosen]
    assert part.columns["client"].tolist() == [f"c{i % 2}" for i in chosen]
    assert (part.ids == whole.ids[chosen]).all()
    assert part.class_names == whole.class_names


@given(indices, indices)
def test_take_of_take(first: list[int], second: list[int]) -> None:
    chosen = [i for i in second if i < len(first)]
    twice = example().take(np.array(first, np.int64)).take(np.array(chosen, np.int64))
    once = example().take(np.array([first[i] for i in chosen], np.int64))
    assert twice.digest == once.digest


@given(st.lists(st.sampled_from("abcd"), max_size=4, unique=True))
def test_rows_keep_the_names_of_their_classes(names: list[str]) -> None:
    rows = EmbeddingSet.from_numpy(X, np.array(["a", "b", ""])[y])
    renumbered = rows.with_classes(names)
    assert renumbered.labels is not None
    assert renumbered.class_names == tuple(names)
    kept = [names[number] if number >= 0 else "" for number in renumbered.labels.tolist()]
    assert kept == [name if name in names else "" for name in np.array(["a", "b", ""])[y]]
    targets = EmbeddingSet.from_numpy(X, targets=X).with_classes(names)
    assert targets.labels is None


@given(st.integers(1, 12))
def test_blocks_are_the_rows_in_order(size: int) -> None:
    whole = EmbeddingSet.from_numpy(X, targets=X[:, :2])
    blocks = list(whole.blocks(size))
    assert max(len(block) for block in blocks) <= size
    assert (np.concatenate([np.asarray(block.rows) for block in blocks]) == X).all()
    assert (np.concatenate([block.target_matrix for block in blocks]) == X[:, :2]).all()


@given(st.sets(st.integers(0, 9)))
def test_without_leaves_all_others(removed: set[int]) -> None:
    whole = example()
    ids = [whole.ids[i].tobytes().hex() for i in removed]
    left = [i for i in range(10) if i not in removed]
    assert whole.without(ids).digest == whole.take(np.array(left, np.int64)).digest


def test_without_removes_all_copies_and_refuses_unknown_ids() -> None:
    twice = EmbeddingSet.from_numpy(np.ones((4, 2)), [0, 1, 0, 1])
    assert len(twice.without([twice.ids[0].tobytes().hex()])) == 0
    with pytest.raises(InputError) as caught:
        example().without(["ab" * 32])
    assert "ab" * 32 in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
def test_ids_are_of_the_values(dtype: str) -> None:
    values = np.arange(12).reshape(4, 3)
    first = EmbeddingSet.from_numpy(values.astype(dtype))
    second = EmbeddingSet.from_numpy(values.astype(np.float64))
    assert (first.ids == second.ids).all()
    assert first.encoding.same_space(second.encoding)
    assert not first.encoding.same_space(EmbeddingSet.from_numpy(values[:, :2]).encoding)


def test_small_types_are_stored_as_they_are() -> None:
    assert EmbeddingSet.from_numpy(X.astype(np.float16)).rows.dtype == np.float16
    assert EmbeddingSet.from_numpy(X).encoding.dtype == "float32"


def test_the_digest_sees_everything_but_the_source() -> None:
    first = example()
    assert first.digest == example(source="elsewhere").digest
    changed = [
        EmbeddingSet.from_numpy(first.rows, first.labels, columns={"client": ["c"] * 10}),
        EmbeddingSet.from_numpy(first.rows, [0] * 10, columns=first.columns),
        EmbeddingSet.from_numpy(np.asarray(first.rows) + 1, first.labels, columns=first.columns),
        EmbeddingSet.from_numpy(
            first.rows, first.labels, columns=first.columns, class_names=["x", "y", "z"]
        ),
        first.take(np.arange(10)[::-1].copy()),
    ]
    assert len({first.digest, *(other.digest for other in changed)}) == 1 + len(changed)


def test_frames_tensors_and_lists_are_taken() -> None:
    expected = EmbeddingSet.from_numpy(X, y).digest
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert EmbeddingSet.from_numpy(frame, pd.Series(y)).digest == expected
    tensor = torch.from_numpy(X).requires_grad_()
    assert EmbeddingSet.from_numpy(tensor, torch.from_numpy(y)).digest == expected
    listed = EmbeddingSet.from_numpy(X.tolist(), y.tolist())
    assert (listed.ids == EmbeddingSet.from_numpy(X).ids).all()


def test_bfloat16_tensors_are_taken() -> None:
    tensor = torch.from_numpy(X).to(torch.bfloat16)
    rows = EmbeddingSet.from_numpy(tensor)  # type: ignore[arg-type]
    assert (rows.to_numpy() == tensor.float().numpy()).all()


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "a", "b"]),
        np.array(["b", "a", "b"], object),
        ["b", "a", "b"],
        pd.Series(["b", "a", "b"]),
        pd.Categorical(["b", "a", "b"], categories=["b", "a"]),
        np.array(["b", "a", "b"], np.dtypes.StringDType()),
    ],
    ids=["str", "object", "list", "series", "categorical", "StringDType"],
)
def test_text_labels_are_numbered_in_sorted_order(labels: Any) -> None:
    rows = EmbeddingSet.from_numpy(X[:3], labels)
    assert rows.class_names == ("a", "b")
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0, 1]
    assert rows.to_pandas()["label"].tolist() == ["b", "a", "b"]


@given(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=9))
def test_numbered_labels_name_what_they_were(labels: list[str]) -> None:
    numbers, names = number_labels(np.array(labels, object))
    assert [names[number] for number in numbers] == labels
    assert list(names) == sorted(set(labels))


def test_missing_labels() -> None:
    numbers, names = number_labels(np.array(["a", None, "", float("nan"), "b"], object))
    assert numbers.tolist() == [0, -1, -1, -1, 1]
    assert names == ("a", "b")
    rows = EmbeddingSet.from_numpy(X[:3], [0, -1, 1])
    assert len(rows.labeled()) == 2
    assert EmbeddingSet.from_numpy(X).labeled().labels is None


def test_class_names_that_are_given() -> None:
    numbers, names = number_labels(np.array(["b", "b"]), ("c", "b", "a"))
    assert (numbers.tolist(), names) == ([1, 1], ("c", "b", "a"))
    with pytest.raises(InputError) as caught:
        number_labels(np.array(["d"]), ("a", "b"))
    assert "'d'" in str(caught.value)


@pytest.mark.parametrize(
    "labels",
    [["a", 1], ["a", "b", "c", "d"], [[0], [1], [2]], [5.5, None, "x"]],
    ids=["mixed", "too many", "matrix of one column", "objects"],
)
def test_labels_that_cannot_be_used(labels: Any) -> None:
    values = np.array(labels, object)
    if values.shape == (3, 1):
        assert is_real(values)
        return
    rows = X[: 3 if len(labels) == 4 else len(labels)]
    with pytest.raises(InputError):
        EmbeddingSet.from_numpy(rows, values)


def test_whole_floats_are_classes_and_fractions_are_targets() -> None:
    assert EmbeddingSet.from_numpy(X[:3], [0.0, 2.0, 1.0]).class_names == ("0", "1", "2")
    rows = EmbeddingSet.from_numpy(X[:3], [0.5, 2.0, 1.0])
    assert rows.labels is None
    assert rows.target_matrix.tolist() == [[0.5], [2.0], [1.0]]
    assert rows.outputs == 1
    assert EmbeddingSet.from_numpy(X[:3], np.eye(3)[:, :2]).outputs == 2
    with pytest.raises(InputError):
        EmbeddingSet.from_numpy(X[:3], [0.5, float("nan"), 1.0])


def test_one_hot_targets_of_labels() -> None:
    assert (example().target_matrix == np.eye(3)[np.arange(10) % 3]).all()
    with pytest.raises(InputError) as caught:
        _ = EmbeddingSet.from_numpy(X).target_matrix
    assert "--labels" in str(caught.value)


@pytest.mark.parametrize(
    "rows",
    [X[0], X[None], [[1, 2], [3]], [["a", "b"]], np.array([[1 + 2j]]), []],
    ids=["vector", "cube", "ragged", "texts", "complex", "nothing"],
)
def test_rows_that_are_no_matrix(rows: Any) -> None:
    with pytest.raises(InputError):
        EmbeddingSet.from_numpy(rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": y[:5]},
        {"labels": y, "targets": X},
        {"columns": {"client": ["a"]}},
        {"labels": y, "class_names": ["a", "b"]},
        {"labels": y - 2, "class_names": ["a", "b", "c"]},
        {"targets": X[:5]},
    ],
    ids=["few labels", "both", "short column", "few names", "below -1", "few targets"],
)
def test_parts_that_do_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        EmbeddingSet.from_numpy(X, **changes)


def test_rows_that_are_not_finite_are_counted_and_named() -> None:
    bad = X.copy()
    bad[[2, 5, 7, 8], [0, 1, 2, 0]] = [np.nan, np.inf, -np.inf, np.nan]
    assert non_finite_rows(bad).tolist() == [2, 5, 7, 8]
    with pytest.raises(InputError) as caught:
        EmbeddingSet.from_numpy(bad)
    assert "4 of 10" in str(caught.value)
    assert "[2, 5, 7]" in str(caught.value)
    assert len(non_finite_rows(np.full((3, 2), 3e38, np.float32))) == 0


def test_weights_and_sizes() -> None:
    rows = example()
    assert (rows.weight, rows.width, rows.outputs, len(rows)) == (10.0, 4, 3, 10)
    assert rows.row_weights.tolist() == [1.0] * 10
    assert not rows.to_numpy().flags.writeable
    assert rows.to_torch().shape == (10, 4)
    assert "10 x 4" in repr(rows)


def test_encodings() -> None:
    first = Encoding("hf:a", {"weights": "x"}, "float32", (3,))
    assert Encoding.from_dict(first.to_dict()) == first
    assert Encoding("hf:b", {"weights": "x"}).digest == first.digest  # a name may move
    half = Encoding("hf:a", {"weights": "x"}, "float16")
    assert half.digest != first.digest
    assert half.same_space(first)
    with pytest.raises(InputError) as caught:
        Encoding("hf:a", {}, "int8")
    assert "int8" in str(caught.value)
