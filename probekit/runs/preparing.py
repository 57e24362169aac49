"""From a run and a request to all that a method may use to carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probekit.federated.trained import Trained
from probekit.protocols import Watch
from probekit.runs.commitments import row_ids_of
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.options import UnlearnOptions
from probekit.runs.retained import RetainedClients
from probekit.runs.rows import RunRows
from probekit.unlearning.choice import choose
from probekit.unlearning.method import Material
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import SampleRef, UnlearnRequest


def by_statistics(before: Trained, request: UnlearnRequest, method: str) -> bool:
    """Whether a request takes nothing but the statistics that were kept: no row is then looked for."""
    leaving = not request.by_row and not request.added and before.server is None and before.gradients is None
    return leaving and before.statistics is not None and method in ("auto", "exact")


def prepare(
    online: RetainedClients,
    before: Trained,
    request: UnlearnRequest,
    how: UnlearnOptions,
    rows: RunRows | None,
    watch: Watch,
) -> tuple[str, str, Removal]:
    """The method, why it is taken, and all that it may use: what was kept, the cached rows, clients elsewhere."""
    run = online.run
    request.remaining(before)
    trainer = None if by_statistics(before, request, how.method) else _trainer(run)
    # without rows, it only says whose the server's were
    embeddings, partition = rows if rows is not None else (None, run.partition() if before.server else None)
    material = Material(embeddings, partition, options=trainer, server_only=how.server_only, watch=watch)
    removal = Removal(before, request, online.material(before, request, how, material))
    name, why = choose(removal) if how.method == "auto" else (how.method, "Asked for.")
    return name, why, removal


def _trainer(run: RunFolder) -> Any:
    from probekit.runs.fitting import trainer_again  # which trains, and most requests do not

    return trainer_again(run.config)


def row_ids(removal: Removal) -> dict[str, bytes]:
    """A digest of the row ids of every client whose rows change, or that joins with rows."""
    material, request = removal.material, removal.request
    if removal.held is not None and request.by_row:
        return row_ids_of(removal.rest.embeddings, removal.rest.partition, removal.changed)
    if material.embeddings is None or material.partition is None:
        return {}
    return row_ids_of(material.embeddings, material.partition, request.added)


def people(run: OpenRun, subjects: Sequence[str]) -> set[SampleRef]:
    """The samples of all these people."""
    if not subjects:
        return set()
    from probekit.runs.subjects import subject_rows

    return {one for text in subjects for one in subject_rows(run.folder, run.store, text)}
