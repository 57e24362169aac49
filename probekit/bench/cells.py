"""A cell: one method on one training, measured beside retraining and kept by what determines it."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from probekit import __version__
from probekit.arrays import Json, canonical_json
from probekit.bench.cost import product_costs
from probekit.bench.curvature import server_curvature
from probekit.bench.experiment import COST, CURVATURE, NOTHING, SHADOWS, Setting
from probekit.bench.shadows import draw_shadows, membership
from probekit.bench.training import Training
from probekit.cache import Cache
from probekit.embeddings import EmbeddingSet
from probekit.errors import CorruptError, ProbekitError
from probekit.evaluation.unlearning import (
    AFTER,
    BEFORE,
    MINIMUM,
    RETRAINED,
    UnlearningRows,
    agreement_of,
    evaluate_unlearning,
)
from probekit.files import (
    MAX_JSON_BYTES,
    make_folder,
    parse_json,
    read_json,
    read_limited,
    write_json,
)
from probekit.heads import BaseHead
from probekit.progress import Progress, silent
from probekit.registry import configured
from probekit.runs.run import certify_state, single_thread
from probekit.unlearning.removal import Removal, Unlearner, unlearn

FORMAT = 1


@dataclass(frozen=True)
class Folders:
    """Where a benchmark keeps trainings and cells, by their keys; and the cache of embeddings.

    root: trainings/KEY, cells/KEY.json, and records (NAME.jsonl) of cells computed elsewhere.
    """

    root: Path
    cache: Path

    @cached_property
    def recorded(self) -> dict[str, dict[str, Json]]:
        """The cells of the records, by their keys."""
        cells: dict[str, dict[str, Json]] = {}
        for path in sorted(self.root.glob("*.jsonl")):
            for line in read_limited(path, MAX_JSON_BYTES).splitlines():
                try:
                    cell = parse_json(line)
                    cells[_key(cell["params"])] = cell
                except (ValueError, KeyError, TypeError) as error:
                    raise CorruptError(f"{path} is no record of cells: {error}.") from error
        return cells

    def training_folder(self, setting: Setting, seed: int) -> Path:
        return self.root / "trainings" / _key(setting.training(seed))

    def training(self, setting: Setting, seed: int) -> Training:
        folder = self.training_folder(setting, seed)
        return Training(setting, seed, folder, Cache(self.cache))


@dataclass(frozen=True)
class Cell:
    """A method, with its options, on a setting under a seed."""

    setting: Setting
    seed: int
    method: str

    @property
    def params(self) -> dict[str, Json]:
        """All that determines its numbers."""
        training = self.setting.training(self.seed)
        params: dict[str, Json] = {"training": training, "method": self.method, "format": FORMAT}
        if self.method.startswith(SHADOWS):
            params["attacked"] = list(self.setting.methods)
        return params

    def path(self, folders: Folders) -> Path:
        return folders.root / "cells" / f"{_key(self.params)}.json"

    def read(self, folders: Folders) -> dict[str, Json] | None:
        path = self.path(folders)
        return read_json(path) if path.is_file() else folders.recorded.get(_key(self.params))

    def compute(self, folders: Folders, progress: Progress = silent) -> dict[str, Json]:
        """Measure it, unless it was; a method that fails is a result too."""
        document = self.read(folders)
        if document is not None:
            return document
        training = folders.training(self.setting, self.seed)
        try:
            measures = self._measure(training, progress)
        except ProbekitError as error:
            measures = {"error": str(error)}
        document = {
            "setting": self.setting.name,
            "params": self.params,
            "version": __version__,
            **measures,
        }
        path = self.path(folders)
        make_folder(path.parent)
        write_json(path, document)
        return document

    def _measure(self, training: Training, progress: Progress) -> dict[str, Json]:
        kind, _, count = self.method.partition(":")
        if kind == CURVATURE:
            return server_curvature(training, progress)
        if kind == COST:
            return product_costs(training, progress)
        if kind == SHADOWS:
            methods = (NOTHING, *self.setting.methods)
            shadows = draw_shadows(training, methods, count=int(count), progress=progress)
            return {"membership": {**membership(shadows)}}
        return measure(training, self.method, progress)


def measure(training: Training, method: str, progress: Progress = silent) -> dict[str, Json]:
    """A method's head in numbers, and what it asked for."""
    with single_thread():
        removal = training.removal(progress)
        references = training.references
        rows = training.rows(progress)
        if method == NOTHING:
            after = references[BEFORE]
            cost: dict[str, Json] = {}
        else:
            unlearner = training.completed(configured(method), progress)
            after, cost = _unlearned(training, removal, unlearner)
        heads = {**references, AFTER: after}
        evaluation = evaluate_unlearning(heads, rows, loss=training.run.options.loss)
        values: dict[str, Json] = {
            name: {"value": estimate.value, "rows": estimate.count}
            for name, estimate in evaluation.heads[AFTER].items()
        }
        values |= {
            f"{name}, retrained": {"value": estimate.value, "rows": estimate.count}
            for name, estimate in evaluation.heads[RETRAINED].items()
        }
        values |= _disagreement(after, references[RETRAINED], rows)
        distances = {
            f"distance, {name}": evaluation.distances[name][AFTER]
            for name in (RETRAINED, MINIMUM)
            if name in evaluation.distances
        }
    return {"measures": values, **distances, **cost}


def _unlearned(
    training: Training, removal: Removal, method: Unlearner
) -> tuple[BaseHead, dict[str, Json]]:
    started = time.process_time()
    state = unlearn(method, removal)
    seconds = time.process_time() - started
    traffic = removal.retained.traffic
    cost: dict[str, Json] = {
        "rounds": traffic.rounds,
        "bytes": traffic.sent + traffic.received,
        "seconds": round(seconds, 3),
    }
    certificate, _ = certify_state(state, removal.retained, test=None, class_labels=True)
    if certificate is not None:
        cost["certified distance"] = certificate.distance
    return training.head(state), cost


def _disagreement(head: BaseHead, retrained: BaseHead, rows: UnlearningRows) -> dict[str, Json]:
    """How often a head gives another class than the retrained one, with and without the trigger."""
    parts: dict[str, EmbeddingSet | None] = {"test": rows.test, "triggered": rows.triggered}
    values: dict[str, Json] = {}
    for name, part in parts.items():
        if part is not None:
            agreement = agreement_of(head, retrained, part)
            values[f"other class, {name}"] = {
                "value": 1 - agreement.value,
                "rows": agreement.count,
            }
    return values


def _key(params: dict[str, Json]) -> str:
    return hashlib.sha256(canonical_json(params).encode()).hexdigest()[:24]
