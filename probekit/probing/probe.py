"""The verb: datasets and backbones in, a ProbeResult out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.errors import InputError, ProbekitError
from probekit.probing.cells import Cell, probe_splits
from probekit.probing.controls import CONTROLS
from probekit.probing.options import ProbeOptions
from probekit.probing.result import ProbeResult
from probekit.progress import Progress, silent
from probekit.registry import nearest

if TYPE_CHECKING:
    from probekit.cache import Cache
    from probekit.extraction.sources import RowSplits

PROBE_FIELDS = tuple(field.name for field in fields(ProbeOptions))


def probe(
    data: object,
    *,
    backbone: object = None,
    test: object = None,
    groups: object = None,
    cache: Cache | Path | str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> ProbeResult:
    """Encode what is not encoded yet, fit heads and evaluate them on held-out rows.

    data: a cached set, a path, a name with a scheme, (X, y), an EmbeddingSet, a dataset object; or
        a list of these.
    backbone: a name, a module, a Backbone; or a list of these. None for vectors and cached sets.
    test: evaluate on this; by default on the data's own test split, else on training rows in five
        folds. A validation split joins the training rows.
    groups: a value for each row in memory; what belongs together is left out together. For a
        column of the data pass group_column.
    options: the fields of ProbeOptions (heads, shots, metric, ridge, ...), DataOptions,
        ExtractOptions and VectorOptions.
    """
    fitting = [name for name in PROBE_FIELDS if name in options]
    settings = ProbeOptions(**{name: options.pop(name) for name in fitting})
    reading = reading_options(options)
    sources = _several(data)
    backbones = _several(backbone)
    if (test is not None or groups is not None) and len(sources) > 1:
        raise InputError(
            f"test (--test) and groups belong to one dataset; found {len(sources)}. "
            "Probe them one at a time."
        )
    from probekit.cache import Cache
    from probekit.extraction.sources import read_rows

    store = cache if isinstance(cache, Cache) else Cache(cache)
    cells: list[Cell] = []
    errors: list[ProbekitError] = []
    for source in sources:
        pending_controls = len(CONTROLS) * len(sources) if settings.controls else 0
        for name in backbones:
            try:
                parts = read_rows(
                    source,
                    cache=store,
                    backbone=name,
                    test=test,
                    groups=groups,
                    progress=progress,
                    **reading,
                )
                computed = []
                for part in parts:
                    title = _title(source, part)
                    computed += probe_splits(part, settings, data=title, controls=pending_controls)
                    pending_controls = 0
            except ProbekitError as error:
                errors.append(error)
                failed = ", ".join(settings.heads)
                computed = [Cell(_title(source), _title(name), failed, error=str(error))]
            cells += computed
    if errors and all(cell.error for cell in cells):
        raise errors[0]
    return ProbeResult(tuple(sorted(cells, key=lambda cell: bool(cell.control))))


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
