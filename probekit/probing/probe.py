"""The verb: datasets and backbones in, a ProbeResult out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import InputError, ProbekitError
from probekit.probing.against import check_baseline, differences
from probekit.probing.cells import DEFAULT_HEADS, Cell, PlannedCell, compute_cells, plan_cells
from probekit.probing.controls import CONTROLS
from probekit.probing.options import ProbeOptions
from probekit.probing.record import Record
from probekit.probing.result import ProbeResult, cell_records
from probekit.progress import Progress, silent
from probekit.registry import nearest

if TYPE_CHECKING:
    from probekit.cache import Cache
    from probekit.extraction.sources import RowSplits

Log = Callable[[Mapping[str, Any]], None]
PROBE_FIELDS = tuple(field.name for field in fields(ProbeOptions))


def ignore(row: Mapping[str, Any]) -> None:
    """Logs nothing."""


def probe(
    data: object,
    *,
    backbone: object = None,
    test: object = None,
    groups: object = None,
    cache: Cache | Path | str | None = None,
    against: str | None = None,
    record: Path | str | None = None,
    reuse: bool = True,
    progress: Progress = silent,
    log: Log = ignore,
    **options: Any,
) -> ProbeResult:
    """Encode what is not encoded yet, fit heads and evaluate them on held-out rows.

    data: a cached set, a path, a name with a scheme, (X, y), an EmbeddingSet, a dataset object; or
        a list of these.
    backbone: a name, a module, a Backbone; or a list of these. None for vectors and cached sets.
    test: evaluate on this; by default on the data's own test split, else on training rows in five
        folds. A validation split chooses C and joins the training rows then.
    groups: a value for each row in memory; what belongs together is left out together. For a
        column of the data pass group_column.
    against: a head or backbone; the result's `differences` are the other cells less it, on the
        same rows.
    record: a file of JSON lines to which every finished cell is added; one that it has already is
        not computed again (reuse=False: it is; its head is not in the file).
    log: called with each row of the result's table, a dict, as soon as it is computed.
    options: the fields of ProbeOptions (heads, protocol, shots, metric, C, ...), DataOptions,
        ExtractOptions and VectorOptions.
    """
    fitting = [name for name in PROBE_FIELDS if name in options]
    settings = ProbeOptions.of(**{name: options.pop(name) for name in fitting})
    reading = reading_options(options)
    sources = _several(data)
    backbones = _several(backbone)
    if (test is not None or groups is not None) and len(sources) > 1:
        raise InputError(
            f"test (--test) and groups belong to one dataset; found {len(sources)}. "
            "Probe them one at a time."
        )
    for name in backbones:
        _check_view(name, settings)
    if against is not None:
        if settings.rules is not None and not settings.rules.full:
            raise InputError(
                "against (--against) compares heads of all training rows; protocol "
                f"{settings.protocol} fits few-shot heads alone. Leave one of the two out."
            )
        heads = settings.heads or DEFAULT_HEADS["classes"]
        check_baseline(against, heads, [_title(name) for name in backbones])
    from probekit.cache import Cache

    reading |= {"cache": cache if isinstance(cache, Cache) else Cache(cache), "progress": progress}
    reading |= {"test": test, "groups": groups}
    finished = None if record is None else Record(Path(record))
    cells: list[Cell] = []
    unlogged: list[dict[str, Any]] = []
    errors: list[ProbekitError] = []
    for source in sources:
        controls = len(CONTROLS) * len(sources) if settings.controls else 0
        for name in backbones:
            planned = _plan(source, name, settings, reading, controls=controls)
            computed = compute_cells(
                planned,
                settings,
                finished,
                reuse=reuse,
                compared=against is not None,
                progress=progress,
            )
            for cell, error in computed:
                cells.append(cell)
                errors += [] if error is None else [error]
                controls = 0 if cell.control else controls
                unlogged += cell_records(cell)
                _log_results(unlogged, cells, log)
    if errors and all(cell.error for cell in cells):
        raise errors[0]
    ordered = sorted(cells, key=lambda cell: bool(cell.control))
    compared = () if against is None else differences(ordered, against)
    return ProbeResult(tuple(ordered), settings.protocol, compared)


def _log_results(
    unlogged: list[dict[str, Any]], cells: list[Cell], log: Callable[[dict[str, Any]], object]
) -> None:
    """Log the rows once a cell has a result; where none has, the first error is raised alone."""
    if all(cell.error for cell in cells):
        return
    for row in unlogged:
        log(row)
    unlogged.clear()


def _plan(
    source: object,
    backbone: object,
    settings: ProbeOptions,
    reading: Mapping[str, Any],
    *,
    controls: int,
) -> Iterator[PlannedCell]:
    """The cells of a dataset and backbone, controls with the first rows; or the one that fails."""
    from probekit.extraction.sources import read_rows

    try:
        parts = read_rows(source, backbone=backbone, **reading)
        for part in parts:
            yield from plan_cells(part, settings, data=_title(source, part), controls=controls)
            controls = 0
    except ProbekitError as error:
        heads = ", ".join(settings.heads)
        yield PlannedCell(Cell(_title(source), _title(backbone), heads), error)


def _check_view(backbone: object, options: ProbeOptions) -> None:
    """A protocol says which vector it takes; without one in the name it is the default."""
    view = backbone.partition("#")[2] if isinstance(backbone, str) else ""
    if options.rules is not None and options.rules.view and view not in ("", options.rules.view):
        raise InputError(
            f"protocol {options.protocol} takes the view #{options.rules.view}; found #{view} in "
            f"{backbone}. Drop one of the two."
        )


def reading_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords sorted into DataOptions, ExtractOptions and VectorOptions; some are in several."""
    from probekit.data import DataOptions
    from probekit.extraction import ExtractOptions
    from probekit.extraction.vectors import VectorOptions

    kinds = {"data": DataOptions, "options": ExtractOptions, "vectors": VectorOptions}
    names = {kind: {field.name for field in fields(value)} for kind, value in kinds.items()}
    choices = set().union(*names.values())
    unknown = [name for name in options if name not in choices]
    if unknown:
        hint = nearest(unknown[0], [*signature(probe).parameters, *PROBE_FIELDS, *choices])
        raise InputError(f"probe() has no argument {unknown[0]!r}. {hint}")
    return {
        kind: value(**{name: options[name] for name in names[kind] if name in options})
        for kind, value in kinds.items()
    }


def _several(value: object) -> list[object]:
    """A list of names or objects as it is; anything else, vectors too, as the only one."""
    if isinstance(value, list) and value and not isinstance(value[0], list | float | int):
        return list(value)
    return [value]


def _title(value: object, rows: RowSplits | None = None) -> str:
    """What a person calls it: as it was typed, else as it calls itself."""
    if value is None or isinstance(value, str | Path):
        return str(value or "")
    if rows is not None:
        return rows.train.source
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else type(value).__name__
