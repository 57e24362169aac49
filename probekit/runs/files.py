"""Statistics files in the place of rows: the plan of a run whose rows are elsewhere.

To everything else such a run is one whose clients are offline and whose sums were kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.arrays import stack_ids
from probekit.cache import Cache
from probekit.errors import InputError
from probekit.federated.transports.files import StatisticsFile, read_files, sums_digest
from probekit.runs.layout import Description
from probekit.runs.options import TrainOptions
from probekit.runs.rows import SALT_BYTES, FileFacts, RunFiles
from probekit.runs.train import TrainingPlan, run_id_of

OF_ROWS = ("clients", "partition", "server_share", "at_least", "normalize")
"""Options about rows: files have their clients and their normalization."""


def plan_files(
    paths: Iterable[Path | str],
    *,
    run: Path | str,
    cache: Cache | Path | str | None = None,
    **options: Any,
) -> TrainingPlan:
    """Read the files, a client each; options: the fields of TrainOptions that are not about rows.

    Their sums are kept, as nobody can be asked for them again.
    """
    settings = TrainOptions(**options)
    _check_options(settings)
    files = read_files(Path(path).expanduser() for path in paths)
    first = next(iter(files.values()))
    sums = {name: file.stats for name, file in files.items()}
    store = cache if isinstance(cache, Cache) else Cache(cache)
    folder = Path(run).expanduser().resolve()
    description = Description.of(
        run_id_of(folder, store),
        replace(settings, normalize=first.normalize),
        first.read_encoding(),
        width=first.stats.columns - 1,
        source=f"statistics files {first.federation}".strip(),
    )
    return TrainingPlan(folder, store, description, _entries(files), None, (), sums)


def _check_options(settings: TrainOptions) -> None:
    plain = TrainOptions()
    for name in OF_ROWS:
        if getattr(settings, name) != getattr(plain, name):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{flag} is about rows; found statistics files, a client each. Drop {flag}."
            )
    if settings.head != "ridge" or "statistics" not in settings.keep.split(","):
        raise InputError(
            "Statistics files train ridge heads, and are kept; found head "
            f"{settings.head!r}, keep {settings.keep!r}. Drop --head and --keep."
        )


def _entries(files: Mapping[str, StatisticsFile]) -> RunFiles:
    """An entry for each client, not yet committed."""
    first = next(iter(files.values()))
    count = len(files)
    salts = np.frombuffer(secrets.token_bytes(SALT_BYTES * count), np.uint8)
    return RunFiles(
        clients=tuple(files),
        holders=np.arange(count),
        roles=np.zeros(count, np.uint8),
        ids=stack_ids(sums_digest(file.stats) for file in files.values()),
        outputs=first.outputs,
        labels=None,
        targets=np.zeros((count, len(first.outputs))),
        salts=salts.reshape(-1, SALT_BYTES),
        leaves=np.arange(count),
        kind=first.task,
        files={name: FileFacts(file.stats.count, file.date) for name, file in files.items()},
    )
