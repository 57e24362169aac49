"""One state of a run: a trained head and what was kept with it, in a folder.

head/               config.json, model.safetensors, README.md
kept/statistics/    packs of clients' statistics, and sums of many clients (earlier versions: one file per client)
kept/               server, gradients, history, objective (secret), solution: what there is of them
kept/NAME/          whatever else a trainer or a method keeps: common.safetensors, and one file per client
slots.bin           what the run commits to of every client, closed to others
trained.json        everything else, and the sha256 of every file above; its own stands in the ledger
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.errors import CorruptError
from probekit.federated.federation import Traffic
from probekit.federated.server import client_weights
from probekit.federated.summation import StatisticsTree
from probekit.federated.trained import Kept, ServerSet, Trained
from probekit.linear.design import ClientStats, Design, Solution
from probekit.linear.target_client import design_of
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.models.serving import load_head
from probekit.runs import tensors
from probekit.runs.commitments import SLOTS, Commitments
from probekit.runs.packs import read_packs
from probekit.runs.stored import StoredStats

NOTE = "trained.json"
HEAD, KEPT = "head", "kept"
STATISTICS = f"{KEPT}/statistics"
COMMON = "common.safetensors"
Value = TypeVar("Value")
PLAIN = ("method", "ridge", "scaling", "rounds", "learning_rate")


@dataclass(frozen=True, eq=False)
class StateFolder:
    """A state on disk. `note` is the content of trained.json."""

    folder: Path
    note: dict[str, Any]

    @classmethod
    def open(cls, folder: Path, stated: str) -> StateFolder:
        """The state in a folder, whose trained.json must have this sha256."""
        return cls(folder, tensors.take_note(folder / NOTE, stated))

    @property
    def files(self) -> dict[str, str]:
        """Every file's path within the state, and its sha256."""
        return dict(self.note["files"])

    def check(self, part: str = "") -> None:
        """Hash every file again (of a part: whose path begins so) and compare."""
        for name, stated in self.files.items():
            if name.startswith(part):
                tensors.check(self.folder / name, stated)

    def head(self) -> Head:
        """The head."""
        self.check(f"{HEAD}/")
        head = load_head(self.folder / HEAD)
        if head.digest != self.note["head"]:
            raise CorruptError(
                f"The head in {self.folder} has digest {head.digest[:12]}, its state says {self.note['head'][:12]}. "
                "Restore the run from a copy, or train again."
            )
        return head

    @cached_property
    def _kept_clients(self) -> tuple[StatisticsTree | None, dict[str, int]]:
        """The clients' statistics, read when asked for, and how many rows each has, in the order of clients."""
        note = self.note
        if (leaves := note.get("leaves")) is not None:
            return read_packs(self.folder / STATISTICS, leaves["packs"], leaves["sums"], self._design())
        counts = self._ordered("counts")
        if note["statistics"] is None:
            return None, counts
        found = {name: self._old_statistics(name, place) for place, name in enumerate(self._ordered("statistics"))}
        return StatisticsTree.of(found), counts

    def _old_statistics(self, client: str, place: int) -> StoredStats:
        """A client's statistics in a file of their own."""
        name, digest, count = tensors.file_of(client), self.note["statistics"][client], self.note["counts"][client]
        path, stated, design = self.folder / STATISTICS / name, self.files[f"{STATISTICS}/{name}"], self._design()

        def load() -> ClientStats:
            return tensors.take_statistics(path, stated, design, digest=digest, count=count)[0]

        return StoredStats(design, count, digest, load, place=place, file=path)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each client has, in the order of clients."""
        return dict(self._kept_clients[1])

    def statistics(self) -> StatisticsTree | None:
        """The clients' statistics, each read when asked for."""
        return self._kept_clients[0]

    def _weights(self) -> dict[str, float]:
        """The clients' shares in an average."""
        how, counts = self.note["weights"], self.counts
        if not isinstance(how, str):
            return self._ordered("weights")
        return dict(zip(counts, client_weights(np.array([*counts.values()]), how).tolist(), strict=True))

    @property
    def problem(self) -> Mapping[str, Any]:
        """What was kept of the problem beside the head; earlier states kept the design alone."""
        found: Mapping[str, Any] = self.note.get("problem") or {"design": self.note["design"]}
        return found

    def _design(self) -> Design:
        return design_of(self.problem["design"])

    def objective(self) -> NDArray[np.float64] | None:
        """The secret linear term of what was minimised, if there is one."""
        path, stated = self._path("objective")
        return tensors.take_objective(path, stated, self._design()) if stated else None

    def commitments(self) -> Commitments | None:
        """What the run commits to of its clients; None in runs of earlier versions."""
        if (stated := self.files.get(SLOTS)) is None:
            return None
        tensors.check(self.folder / SLOTS, stated)
        return Commitments.of_data((self.folder / SLOTS).read_bytes(), self.folder / SLOTS)

    def trained(self) -> Trained:
        """All that training left; statistics are read when asked for, histories mapped."""
        note, head = self.note, self.head()
        return Trained(
            head=head,
            problem=problem_of(head, self.problem),
            counts=self.counts,
            weights=self._weights(),
            solution=Solution(tensors.take(*self._path("solution"))[0]["value"], **note["solution"]),
            losses=tuple(note["losses"]),
            statistics=self.statistics(),
            server=self._read("server", self._take_server),
            gradients=self._read("gradients", tensors.take_gradients),
            history=self._read("history", tensors.take_history),
            objective=self.objective(),
            kept={name: self._kept(name, about) for name, about in note.get("kept", {}).items()},
            traffic={purpose: Traffic(*sent) for purpose, *sent in note["traffic"]},
            **{name: note[name] for name in PLAIN},
        )

    def _ordered(self, what: str) -> dict[str, Any]:
        """Something said of clients, in the order in which they were added up: sums depend on it in their last bits."""
        return {
            name: self.note[what][name] for name in self.note.get("clients", self.note[what]) if name in self.note[what]
        }

    def _path(self, what: str) -> tuple[Path, str]:
        """A file of what was kept, and its sha256; empty where there is none."""
        name = f"{KEPT}/{what}.safetensors"
        return self.folder / name, self.note["files"].get(name, "")

    def _read(self, what: str, take: Callable[[Path, str], Value]) -> Value | None:
        """What a file says, if it was kept."""
        path, stated = self._path(what)
        return take(path, stated) if stated else None

    def _kept(self, name: str, about: Mapping[str, Any]) -> Kept:
        arrays = self._read(f"{name}/common", tensors.take)
        files = {client: tensors.file_of(client).removesuffix(".safetensors") for client in about["parts"]}
        parts = {client: tensors.take(*self._path(f"{name}/{file}"))[0] for client, file in files.items()}
        return Kept(arrays[0] if arrays else {}, parts, about["plain"], frozenset(about["about"]))

    def _take_server(self, path: Path, stated: str) -> ServerSet:
        if self.note["server"]["digest"] is None:
            return ServerSet(None, tensors.take(path, stated)[0]["rows"])
        statistics, more = tensors.take_statistics(path, stated, self._design(), **self.note["server"])
        return ServerSet(statistics, more["rows"])
