"""From what was trained to a new run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from probekit import __version__
from probekit.federated.trained import Trained
from probekit.files import sync_folder, write_json
from probekit.runs import layout, ledger
from probekit.runs.commitments import CommittedStep, contents_of
from probekit.runs.folder import RunFolder
from probekit.runs.layout import LEDGER, NOTE, PARTITION, state_folder
from probekit.runs.ledger import Event, LedgerEntry
from probekit.runs.state_writing import write_state
from probekit.values import Json, Partition


@dataclass(frozen=True)
class RunContents:
    """What a new run is made of.

    `rows` are the rows of the cached set that took part (None: all of them), `row_ids` a digest of each client's,
    `keys` the public keys of those who have one.
    """

    config: Mapping[str, Json]
    inputs: Mapping[str, Json]
    partition: Partition
    trained: Trained
    rows: NDArray[np.int64] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Json] = field(default_factory=dict)
    row_ids: Mapping[str, bytes] = field(default_factory=dict)
    keys: Mapping[str, bytes] = field(default_factory=dict)


def create(path: Path, material: RunContents, *, force: bool = False, begun: LedgerEntry | None = None) -> RunFolder:
    """Write a new run: it appears whole under its name, or not at all. `begun` is what its ledger begins with."""
    inputs = {**material.inputs, "partition": material.partition.digest}
    event = Event("train", inputs, {**material.details, "config": dict(material.config)})
    with layout.appearing(path, force=force) as aside:
        state = state_folder(aside, 1)
        step = CommittedStep.begin(contents_of(material.trained, material.row_ids), 1, material.keys)
        outputs = write_state(state, material.trained, step.commitments)
        if begun is not None:
            ledger.append(aside / LEDGER, begun)
        entry = ledger.follow(begun, event, {"state": 1, "root": step.root.plain, **outputs})
        sync_folder(state.parent)
        ledger.append(aside / LEDGER, entry)
        write_json(aside / "environment.json", layout.environment())
        write_json(aside / "timings.json", dict(material.timings))
        note: dict[str, Json] = {
            "schema": layout.SCHEMA,
            "probekit": __version__,
            "config": dict(material.config),
            "inputs": inputs,
            "partition": layout.write_partition(aside / PARTITION, material.partition, material.rows),
            "state": 1,
            "ledger": entry.digest,
        }
        write_json(aside / NOTE, note)
    return RunFolder.open(path)
