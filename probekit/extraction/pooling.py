"""Bags of vectors, such as the tiles of a slide, pooled into one vector each, in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from probekit.arrays import Indices, Texts, group_numbers
from probekit.data.splits import as_texts, check_columns
from probekit.embeddings import BLOCK, SHOWN_ROWS
from probekit.errors import InputError
from probekit.rows import Rows

Pool = Literal["mean", "max"]
POOLS = get_args(Pool)


@dataclass(frozen=True, eq=False)
class Bags:
    """A row for each bag, in the order of their first rows.

    columns: those in which the rows of each bag agree; not_finite: rows that were left out.
    """

    vectors: NDArray[Any]
    names: Texts
    columns: dict[str, NDArray[Any]]
    not_finite: Indices


def pool_rows(
    vectors: Rows,
    columns: Mapping[str, Any],
    *,
    pool: Pool,
    by: str,
    required: Mapping[str, str],
    without: Indices,
    source: str,
) -> Bags:
    """Pool the rows that have one value in the column `by`.

    required: columns that bags must have one value of, and the flag that asked for each.
    without: rows that are left out; bags that have no other rows are left out too.
    """
    check_columns(columns, {by: "--by"}, source)
    names = as_texts(columns[by])
    if len(names) != len(vectors):
        raise InputError(f"{source}: expected {len(vectors)} values of {by!r}; found {len(names)}.")
    if (names == "").any():
        raise InputError(
            f"{source}: every row needs a value of {by!r} (--by); {int((names == '').sum())} have "
            "none. Fill them in, or pool by another column."
        )
    bags = group_numbers(names)
    used = np.ones(len(names), bool)
    used[without] = False
    pooled, counts, not_finite = _pool(vectors, bags, used, pool)
    bag_names = names[np.unique(bags, return_index=True)[1]]
    carried = {
        name: _bag_values(np.asarray(column), bags, bag_names, name, required.get(name))
        for name, column in columns.items()
        if len(column) == len(names)
    }
    present = np.flatnonzero(counts > 0)
    dtype = np.float64 if vectors.dtype == np.float64 else np.float32
    return Bags(
        pooled[present].astype(dtype),
        bag_names[present],
        {name: values[present] for name, values in carried.items() if values is not None},
        not_finite,
    )


def _pool(
    vectors: Rows, bags: Indices, used: NDArray[np.bool_], pool: Pool
) -> tuple[NDArray[np.float64], Indices, Indices]:
    """Pooled rows (bags, d), how many rows each is of, and rows with NaN or infinity."""
    count = int(bags.max(initial=-1)) + 1
    combine = np.add if pool == "mean" else np.maximum
    pooled = np.full((count, vectors.shape[1]), 0.0 if pool == "mean" else -np.inf)
    counts = np.zeros(count, np.int64)
    not_finite = []
    for start in range(0, len(vectors), BLOCK):
        block = np.asarray(vectors[start : start + BLOCK], np.float64)
        with np.errstate(all="ignore"):
            is_finite = np.isfinite(block.sum(axis=1))
        not_finite.append(start + np.flatnonzero(~is_finite))
        rows = np.flatnonzero(is_finite & used[start : start + BLOCK])
        if not len(rows):
            continue
        numbers = bags[start + rows]
        order = np.argsort(numbers, kind="stable")
        present, runs = np.unique(numbers[order], return_index=True)
        values = combine.reduceat(block[rows[order]], runs, axis=0)
        pooled[present] = combine(pooled[present], values)
        counts += np.bincount(numbers, minlength=count)
    if pool == "mean":
        pooled /= np.maximum(counts, 1)[:, None]
    return pooled, counts, np.concatenate([np.zeros(0, np.int64), *not_finite])


def _bag_values(
    column: NDArray[Any], bags: Indices, names: Texts, title: str, flag: str | None
) -> NDArray[Any] | None:
    """A column's value for each bag; None where bags disagree in a column that nobody asked for."""
    _, first = np.unique(bags, return_index=True)
    values = as_texts(column) if column.dtype.kind == "O" else column
    of_bag = values[first][bags]
    differs = values != of_bag
    if values.dtype.kind == "f":
        differs &= ~(np.isnan(values) & np.isnan(of_bag))
    if differs.ndim == 2:
        differs = differs.any(axis=1)
    if not differs.any():
        return np.asarray(column[first])
    if flag is None:
        return None
    wrong = np.unique(bags[differs])
    listed = ", ".join(
        f"{names[bag]}: {' and '.join(map(str, np.unique(values[bags == bag])[:SHOWN_ROWS]))}"
        for bag in wrong[:SHOWN_ROWS]
    )
    raise InputError(
        f"All rows of a bag must have one {title!r} ({flag}); {len(wrong)} of {len(first)} bags "
        f"have several ({listed}). Correct them, or pool by another column (--by)."
    )
