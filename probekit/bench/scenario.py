"""A scenario: one setting and seed, trained, with what is to be forgotten and both retrainings; made once, kept."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from probekit import __version__
from probekit.bench.experiment import BenchSetting
from probekit.bench.forgetting import Forgotten, unlearned
from probekit.bench.requests import forget_requests
from probekit.bench.rows import DividedRows, SettingRows, divide
from probekit.errors import InputError
from probekit.federated.in_process import InProcess
from probekit.federated.trained import Gradients, Trained
from probekit.federated.training import train, trainer_named
from probekit.files import make_folder, new_folder, read_json, sha256_file, write_json
from probekit.models.problem import backend_named
from probekit.runs import tensors
from probekit.runs.commitments import Commitments, LeafContent
from probekit.runs.options import TrainOptions
from probekit.runs.state_writing import write_state
from probekit.runs.states import NOTE, StateFolder
from probekit.unlearning.choice import carried_out
from probekit.unlearning.method import Material
from probekit.unlearning.methods.ferrari import PAIRS
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import UnlearnRequest
from probekit.values import Array, digest

SCHEMA = 2
"""Raised whenever what a cell or a scenario computes changes."""
OTHER_SEED = 1000
STATE, REFERENCES, ABOUT = "state", "references.safetensors", "scenario.json"
MINIMUM, FEDAVG, ANOTHER = "minimum", "fedavg", "another seed"
RETRAININGS = {MINIMUM: "retrain", FEDAVG: "retrain-fedavg"}


@dataclass(frozen=True)
class ScenarioKey:
    """What determines a scenario."""

    setting: BenchSetting
    seed: int
    data: str

    @property
    def digest(self) -> str:
        """The sha256 of all of it."""
        parts: Any = {"setting": self.setting.identity, "seed": self.seed, "data": self.data}
        return digest({"schema": SCHEMA, "probekit": __version__, **parts})

    @property
    def trainer(self) -> Any:
        """The trainer with this seed, and with the history of rounds where it can keep one."""
        made = trainer_named(self.setting.model.trainer)
        own = {one.name for one in fields(made)}
        made = replace(made, seed=self.seed) if "seed" in own else made
        try:
            return replace(made, keep_history=True) if "keep_history" in own else made
        except InputError:  # what it keeps is something else
            return made


@dataclass(frozen=True, eq=False)
class Scenario:
    """A trained state, its rows, the requests, and the parameters that retraining comes to, by its kind."""

    key: ScenarioKey
    rows: DividedRows
    trained: Trained
    requests: tuple[UnlearnRequest, ...]
    references: Mapping[str, Array]
    seconds: float
    retrained: Mapping[str, Forgotten] = field(default_factory=dict)
    """By method: retrainings that were carried out as any method is, with what they took."""

    @property
    def everything(self) -> UnlearnRequest:
        """All requests as one."""
        return united(self.requests)

    @property
    def reference(self) -> str:
        """The retraining that methods are held against: the run's own FedAvg where there is one, else the minimum."""
        return FEDAVG if FEDAVG in self.references else MINIMUM

    def head(self, params: Array) -> Any:
        """A head at these parameters."""
        return self.trained.problem.head(params, ridge=self.trained.ridge, recipe={})

    @cached_property
    def forgotten(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of the rows that are forgotten."""
        removal = Removal(self.trained, self.everything, self.material())
        parts = (
            removal.rest.gone
            if self.everything.by_row
            else {name: self.rows.partition.clients[name] for name in self.everything.clients}
        )
        return np.sort(np.concatenate([*parts.values()]))

    def material(self, trainer: Any = None, **more: Any) -> Material:
        """What a method may use: everybody's cached rows, as if all were online."""
        given = {"embeddings": self.rows.embeddings, "partition": self.rows.partition, **more}
        return Material(**given, options=trainer or self.key.trainer)


def united(requests: tuple[UnlearnRequest, ...]) -> UnlearnRequest:
    """Several requests as one."""
    return UnlearnRequest(
        tuple(name for one in requests for name in one.clients),
        tuple(sample for one in requests for sample in one.samples),
    )


def folder_of(root: Path, key: ScenarioKey) -> Path:
    """Where a scenario lies below the benchmark's folder of a cache."""
    return root / "scenarios" / key.digest


def make(key: ScenarioKey, rows: SettingRows, root: Path) -> Path:
    """Train, choose what is forgotten, retrain; written aside and swapped. What is there already stays."""
    folder = folder_of(root, key)
    if (folder / ABOUT).is_file():
        return folder
    divided, trainer = divide(key.setting, rows, key.seed), key.trainer
    began, used = time.perf_counter(), time.process_time()
    trained = _trained(key, divided, trainer)
    training, cpu = time.perf_counter() - began, time.process_time() - used
    requests = forget_requests(key.setting, trained, divided, key.seed)
    scenario = Scenario(key, divided, trained, requests, {}, 0.0)
    references, took, costs = dict[str, Array](), {}, {}
    for name, method in RETRAININGS.items():
        start = time.perf_counter()
        found = _retrained(scenario, method, trainer) if len(requests) > 1 else None
        once = _carried_out(scenario, method) if len(requests) == 1 else None
        if once is not None:
            found, costs[method] = once.params, once.plain
        if found is not None:
            references[name], took[name] = found, time.perf_counter() - start
    if FEDAVG in references and hasattr(trainer, "seed"):
        other = _retrained(scenario, RETRAININGS[FEDAVG], replace(trainer, seed=key.seed + OTHER_SEED))
        assert other is not None
        references[ANOTHER] = other
    if not references:
        raise InputError(
            f"Nothing retrains this setting: its trainer {trainer.name} finds no minimum and has no rounds."
        )
    make_folder(folder.parent)
    with new_folder(folder) as aside:
        leaves = {name: LeafContent(count) for name, count in trained.counts.items()}
        write_state(aside / STATE, trained, Commitments.first(leaves))
        arrays = {name: np.ascontiguousarray(one, np.float64) for name, one in references.items()}
        about: Any = {
            "state": sha256_file(aside / STATE / NOTE),
            "references": tensors.put(aside / REFERENCES, arrays),
            "requests": [one.plain for one in requests],
            "retrained": costs,
            "seconds": {"training": training, **took},
            "cpu_seconds": {"training": cpu, "all": time.process_time() - used},
        }
        write_json(aside / ABOUT, about)
    return folder


def load(key: ScenarioKey, rows: SettingRows, root: Path) -> Scenario:
    """A scenario as it was made."""
    folder = folder_of(root, key)
    about = read_json(folder / ABOUT)
    trained = StateFolder.open(folder / STATE, about["state"]).trained()
    requests = tuple(UnlearnRequest.from_plain(one) for one in about["requests"])
    references = tensors.take(folder / REFERENCES, about["references"])[0]
    divided = divide(key.setting, rows, key.seed)
    known = about.get("retrained", {})
    retrained = {
        method: Forgotten.known(references[name], known[method])
        for name, method in RETRAININGS.items()
        if method in known
    }
    return Scenario(key, divided, trained, requests, references, float(about["seconds"]["training"]), retrained)


def _trained(key: ScenarioKey, divided: DividedRows, trainer: Any) -> Trained:
    model = key.setting.model
    known = {one.name for one in fields(TrainOptions)}
    for name in model.options:
        if name not in known:
            raise InputError(f"model.options has no key {name!r}: `probekit train` knows no such option.")
    options = TrainOptions(backend=model.backend, seed=key.seed, **model.options)
    problem: Any = backend_named(model.backend).prepare(divided.embeddings, divided.partition, options)
    keep = "statistics" if "statistics" in problem.traits and "statistics" in trainer.keeps else None
    keep = keep if "quadratic" in problem.traits else "nothing"  # gradients are for who has a curvature
    ridge = model.ridge if getattr(trainer, "ridge", None) is None else None  # a trainer's own goes with it
    how: Any = {"problem": problem, "ridge": ridge, "method": trainer, "keep": keep}
    found = train(divided.embeddings, divided.partition, **how)
    if divided.pairs is not None:
        found = replace(found, kept={**found.kept, PAIRS: divided.pairs})
    if found.gradients is not None or "plain" not in found.problem.traits:
        return found
    # beside the statistics, so that both kinds of method find what they declare
    clients = InProcess.of(found.problem, divided.embeddings, divided.partition.clients)
    extra = found.problem.penalty(found.mean_ridge(found.rows)) * found.params
    sent = {one.client: one for one in clients.ask("gradient", {"params": found.params}).each()}
    each = {name: sent[name].arrays["gradient"] / sent[name].count + extra for name in found.counts}
    return replace(found, gradients=Gradients(each))


def _carried_out(scenario: Scenario, method: str) -> Forgotten | None:
    """A retraining as a cell would have it; None where this problem or trainer has none of the kind."""
    try:
        return unlearned(scenario, method)
    except InputError:
        return None


def _retrained(scenario: Scenario, method: str, trainer: Any) -> Array | None:
    """The parameters of a retraining; None where this problem or trainer has none of the kind."""
    bare = replace(scenario.trained, statistics=None)
    try:
        done = carried_out(Removal(bare, scenario.everything, scenario.material(trainer)), method)
    except InputError:
        return None
    return np.asarray(done.trained_after.params)
