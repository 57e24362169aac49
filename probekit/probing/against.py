"""Differences of cells from a baseline, a head or a backbone, on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from probekit.errors import InputError
from probekit.evaluation.comparison import PairedDifference, adjusted, compare, compare_rows
from probekit.probing.cells import Cell
from probekit.registry import nearest


@dataclass(frozen=True)
class Difference:
    """A cell's primary metric less its baseline's, or why there is no difference.

    baseline: what differs from the cell: the head, or the backbone.
    difference: its p-value is adjusted for all differences of the table.
    """

    data: str
    backbone: str
    view: str
    head: str
    baseline: str
    difference: PairedDifference | None = None
    error: str = ""

    @property
    def text(self) -> str:
        return self.error if self.difference is None else str(self.difference)

    def to_dict(self) -> dict[str, Any]:
        document = asdict(self)
        if self.difference is not None:
            document["difference"] = self.difference.to_dict()
        return document


def check_baseline(name: str, heads: Sequence[str], backbones: Sequence[str]) -> None:
    """Refuse a name that no cell will have."""
    names = [*heads, *backbones, *(backbone.partition("#")[0] for backbone in backbones)]
    if name not in names:
        raise InputError(
            f"against (--against) must name a head or backbone of this probe; found {name!r}. "
            f"{nearest(name, [other for other in dict.fromkeys(names) if other])}"
        )
    if set(heads) == {name}:
        raise InputError(
            f"against (--against) must leave heads to compare with it; found {name} alone. Add "
            "another (--head)."
        )


def differences(cells: Sequence[Cell], baseline: str) -> tuple[Difference, ...]:
    """Every evaluated cell less the one that differs from it by the baseline only."""
    evaluated = [cell for cell in cells if cell.evaluation is not None and not cell.control]
    items = [
        _difference(cell, evaluated, baseline) for cell in evaluated if not _is(cell, baseline)
    ]
    family = [item.difference for item in items if item.difference is not None]
    corrected = iter(adjusted(family))
    return tuple(
        item if item.difference is None else replace(item, difference=next(corrected))
        for item in items
    )


def _is(cell: Cell, baseline: str) -> bool:
    return baseline in (cell.head, cell.backbone, f"{cell.backbone}#{cell.view}")


def _difference(cell: Cell, cells: Sequence[Cell], baseline: str) -> Difference:
    item = Difference(cell.data, cell.backbone, cell.view, cell.head, baseline)
    is_head = any(other.head == baseline for other in cells)
    partners = [
        other
        for other in cells
        if other.data == cell.data
        and _is(other, baseline)
        and (
            (other.backbone, other.view) == (cell.backbone, cell.view)
            if is_head
            else other.head == cell.head
        )
    ]
    if not partners:
        return replace(item, error=f"no cell of {baseline} to compare with")
    if len(partners) > 1:
        views = ", ".join(f"{baseline}#{other.view}" for other in partners)
        return replace(item, error=f"several views of {baseline}: name one of {views}")
    try:
        return replace(item, difference=compare_cells(cell, partners[0]))
    except InputError as error:
        return replace(item, error=str(error))


def compare_cells(first: Cell, second: Cell) -> PairedDifference:
    """The first cell's primary metric less the second's, on their common rows."""
    assert first.evaluation is not None
    if first.basis is None or second.basis is None or first.basis.rows != second.basis.rows:
        raise InputError(
            f"{first.backbone} and {second.backbone} were evaluated on different rows of "
            f"{first.data}. Evaluate both on one test set (--on-error raise)."
        )
    metric = first.evaluation.metric
    sampling = first.basis.sampling
    if metric == "accuracy" and first.hits is not None and second.hits is not None:
        return compare_rows(first.hits, second.hits, sampling=sampling)
    if first.predictions is None or second.predictions is None:
        raise InputError(f"The predictions of {first.data} were not kept. Probe it again.")
    return compare(first.predictions, second.predictions, metric, sampling=sampling)
