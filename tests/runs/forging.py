"""An owner of every file of a run, who knows the code and computes every digest again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from probekit import Cache, Run
from probekit.arrays import Array, Ids, Indices
from probekit.certificates.certificate import Certificate, certify
from probekit.federated.federation import Federation, collect_stats
from probekit.federated.state import KeptStatistics, State
from probekit.records import dump
from probekit.runs import layout
from probekit.runs.layout import AnyEvent, Commitment, Description
from probekit.runs.rows import Mask, RunRows, commit, fingerprint_of
from probekit.runs.run import RunData, write_state


@dataclass(frozen=True, eq=False)
class Forgery:
    """The newest state of a run and what stands beside it, as values that can be replaced."""

    folder: Path
    cache: Cache
    number: int
    description: Description
    leaves: Ids
    rows: RunRows
    events: tuple[AnyEvent, ...]
    state: State
    certificate: Certificate | None

    @classmethod
    def read(cls, folder: Path, cache: Path) -> Forgery:
        stored = Run(folder, cache=cache).newest
        return cls(
            folder,
            Cache(cache),
            stored.number,
            stored.description,
            stored.commitment,
            stored.all_rows,
            stored.events,
            stored.state,
            stored.certificate,
        )

    @property
    def retained(self) -> RunRows:
        return layout.retained(self.rows, self.events)

    def with_rows(self, **columns: Any) -> Forgery:
        return replace(self, rows=replace(self.rows, **columns))

    def in_order(self, order: Indices, **columns: Any) -> Forgery:
        """The rows in this order; columns: other holders, or their places in the commitment."""
        rows = self.rows
        assert rows.labels is not None
        return self.with_rows(
            holders=columns.get("holders", rows.holders)[order],
            roles=rows.roles[order],
            ids=rows.ids[order],
            labels=rows.labels[order],
            salts=rows.salts[order],
            leaves=columns.get("places", rows.leaves[order]),
        )

    def with_event(self, number: int, **fields: Any) -> Forgery:
        events = list(self.events)
        events[number] = msgspec.structs.replace(events[number], **fields)
        return replace(self, events=tuple(events))

    def with_params(self, params: Array, **fields: Any) -> Forgery:
        return replace(self, state=replace(self.state, params=params, **fields))

    def claiming(self, **claims: Any) -> Forgery:
        assert self.certificate is not None
        return replace(self, certificate=replace(self.certificate, **claims))

    def data(self, rows: RunRows | None = None) -> RunData:
        return RunData.of(self.retained if rows is None else rows, self.description, self.cache)

    def federation(self, rows: RunRows | None = None) -> Federation:
        data = self.data(rows)
        options = self.description.options
        if options.network is not None:
            return data.federation(self.state.model)
        return data.federation(options.linear_model(self.description.width, len(data.classes)))

    def trained(self, rows: RunRows | None = None, ridge: float | None = None) -> Forgery:
        """With the state and the certificate that honest training on these rows gives."""
        options = self.description.options
        setting = options.setting() if ridge is None else ridge
        federation = self.federation(rows)
        state = options.trainer().train(federation, ridge=setting)
        certificate = certify(state, federation, test=self.data(rows).test)
        return replace(self, state=state, certificate=certificate)

    def certified(self) -> Forgery:
        """With the certificate that is true of the state, whatever the state is."""
        state = replace(self.state, kept=())
        certificate = certify(state, self.federation(), test=self.data().test)
        return replace(self, certificate=certificate)

    def with_sums_of(self, rows: RunRows) -> Forgery:
        """The server keeps the sums of these rows, and says that they are the retained ones."""
        parts = collect_stats(self.federation(rows))
        return replace(self, state=replace(self.state, kept=(KeptStatistics(parts),)))

    def without_rows(self, mask: Mask) -> Forgery:
        return replace(self, rows=self.rows.take(~mask))

    def anew(self) -> Forgery:
        """Committed again, with another fingerprint."""
        entry = self.cache.entry(self.description.read_encoding())
        matrix = entry.rows(self.rows.ids, self.description.width)
        rows, leaves = commit(self.rows, matrix)
        fingerprint = fingerprint_of(self.description.dump(), leaves)
        return replace(self, rows=rows, leaves=leaves).with_event(0, fingerprint=fingerprint)

    def write(self) -> None:
        (self.folder / layout.DESCRIPTION).write_bytes(self.description.dump())
        (self.folder / layout.COMMITMENT).write_bytes(dump(Commitment(self.leaves)))
        (self.folder / layout.ROWS).write_bytes(dump(self.rows))
        folder = layout.state_folder(self.folder, self.number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        retained = self.retained
        write_state(folder, retained, self.state, self.certificate, self.events, self.description)


def options_changed(forgery: Forgery, **options: Any) -> Forgery:
    description = forgery.description
    changed = replace(description, options=replace(description.options, **options))
    return replace(forgery, description=changed)


def edit_json(path: Path, edit: Callable[[Any], Any]) -> None:
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(edit(document)))


def swap(array: np.ndarray, first: int, second: int) -> np.ndarray:
    """The rows of an array, two of them exchanged."""
    order = np.arange(len(array))
    order[[first, second]] = order[[second, first]]
    return array[order]
