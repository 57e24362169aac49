"""One state of a run: a trained head and what was kept with it, in a folder.

head/               config.json, model.safetensors, README.md
kept/statistics/    one file per client
kept/               server, gradients, history, objective (secret), solution: what there is of them
kept/NAME/          whatever else a trainer or a method keeps: common.safetensors, and one file per client
trained.json        everything else, and the sha256 of every file above; its own stands in the ledger
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import CorruptError
from probekit.federated.federation import Traffic
from probekit.federated.trained import Kept, ServerSet, Trained
from probekit.files import read_json, sha256_file, sync_folder, write_json, write_text
from probekit.linear.design import Design, Solution
from probekit.models.heads import Head
from probekit.models.problem import problem_of
from probekit.models.serving import load_head, save_head
from probekit.runs import tensors
from probekit.values import Json

NOTE = "trained.json"
HEAD, KEPT = "head", "kept"
STATISTICS = f"{KEPT}/statistics"
COMMON = "common.safetensors"
PLAIN = ("method", "ridge", "scaling", "rounds", "learning_rate")


@dataclass(frozen=True, eq=False)
class StateFolder:
    """A state on disk. `note` is the content of trained.json."""

    folder: Path
    note: dict[str, Any]

    @classmethod
    def open(cls, folder: Path, stated: str) -> StateFolder:
        """The state in a folder, whose trained.json must have this sha256."""
        tensors.check(folder / NOTE, stated)
        return cls(folder, read_json(folder / NOTE))

    @property
    def files(self) -> dict[str, str]:
        """Every file's path within the state, and its sha256."""
        return dict(self.note["files"])

    def check(self) -> None:
        """Hash every file again and compare."""
        for name, stated in self.files.items():
            tensors.check(self.folder / name, stated)

    def head(self) -> Head:
        """The head."""
        for name, stated in self.files.items():
            if name.startswith(f"{HEAD}/"):
                tensors.check(self.folder / name, stated)
        head = load_head(self.folder / HEAD)
        if head.digest != self.note["head"]:
            raise CorruptError(
                f"The head in {self.folder} has digest {head.digest[:12]}, its state says {self.note['head'][:12]}. "
                "Restore the run from a copy, or train again."
            )
        return head

    def statistics(self) -> tensors.StatisticsFolder | None:
        """The clients' statistics, read when asked for."""
        if self.note["statistics"] is None:
            return None
        digests = self._ordered("statistics")
        files = {client: self.files[f"{STATISTICS}/{tensors.file_of(client)}"] for client in digests}
        return tensors.StatisticsFolder(self.folder / STATISTICS, self._design(), self.note["counts"], digests, files)

    @property
    def problem(self) -> Mapping[str, Any]:
        """What was kept of the problem beside the head; earlier states kept the design alone."""
        found: Mapping[str, Any] = self.note.get("problem") or {"design": self.note["design"]}
        return found

    def _design(self) -> Design:
        return Design(**self.problem["design"])

    def objective(self) -> NDArray[np.float64] | None:
        """The secret linear term of what was minimised, if there is one."""
        place = self._path("objective")
        return None if place is None else tensors.take_objective(*place, self._design())

    def trained(self) -> Trained:
        """All that training left; statistics are read when asked for, histories mapped."""
        note, head = self.note, self.head()
        gradients, history = self._path("gradients"), self._path("history")
        return Trained(
            head=head,
            problem=problem_of(head, self.problem),
            counts=self._ordered("counts"),
            weights=self._ordered("weights"),
            solution=self._solution(),
            losses=tuple(note["losses"]),
            statistics=self.statistics(),
            server=self._server(),
            gradients=tensors.take_gradients(*gradients) if gradients else None,
            history=tensors.take_history(*history) if history else None,
            objective=self.objective(),
            kept={name: self._kept(name, about) for name, about in note.get("kept", {}).items()},
            traffic={purpose: Traffic(*sent) for purpose, *sent in note["traffic"]},
            **{name: note[name] for name in PLAIN},
        )

    def _ordered(self, what: str) -> dict[str, Any]:
        """Something said of clients, in the order in which they were added up: sums depend on it in their last bits."""
        return {name: self.note[what][name] for name in self.note["clients"] if name in self.note[what]}

    def _path(self, what: str) -> tuple[Path, str] | None:
        name = f"{KEPT}/{what}.safetensors"
        return (self.folder / name, self.files[name]) if name in self.files else None

    def _kept(self, name: str, about: Mapping[str, Any]) -> Kept:
        common = f"{KEPT}/{name}/{COMMON}"
        arrays = tensors.take(self.folder / common, self.files[common])[0] if common in self.files else {}
        parts = {}
        for client in about["parts"]:
            path = f"{KEPT}/{name}/{tensors.file_of(client)}"
            parts[client] = tensors.take(self.folder / path, self.files[path])[0]
        return Kept(arrays, parts, about["plain"], frozenset(about["about"]))

    def _solution(self) -> Solution:
        path, stated = self._path("solution") or (self.folder / KEPT / "solution.safetensors", "")
        value = tensors.take(path, stated)[0]["value"]
        return Solution(value, **self.note["solution"])

    def _server(self) -> ServerSet | None:
        place = self._path("server")
        if place is None:
            return None
        server = self.note["server"]
        if server["digest"] is None:
            return ServerSet(None, tensors.take(*place)[0]["rows"])
        statistics, more = tensors.take_statistics(
            *place, self._design(), digest=server["digest"], count=server["count"]
        )
        return ServerSet(statistics, more["rows"])


def write_state(
    folder: Path, trained: Trained, *, before: StateFolder | None = None, texts: Mapping[str, str] | None = None
) -> dict[str, Json]:
    """Write a state into a new folder; gives what the ledger should say of it.

    Statistics that already stand in the state before are linked, not written again. `texts` are further small
    files that belong to it, by name.
    """
    (folder / KEPT).mkdir(parents=True)
    save_head(trained.head, folder / HEAD)
    files = {f"{HEAD}/{path.name}": sha256_file(path) for path in sorted((folder / HEAD).iterdir())}
    digests = _write_statistics(folder, trained, files, before=before)
    files |= _write_rest(folder / KEPT, trained)
    for name, one in trained.kept.items():
        files |= _write_kept(folder, name, one)
    for name, text in (texts or {}).items():
        write_text(folder / name, text)
        files[name] = sha256_file(folder / name)
    solution = {name: value for name, value in vars(trained.solution).items() if name != "value"}
    note: dict[str, Json] = {
        "head": trained.head.digest,
        "problem": dict(trained.problem.plain),
        "clients": list(trained.counts),
        "counts": dict(trained.counts),
        "weights": dict(trained.weights),
        "solution": solution,
        "losses": list(trained.losses),
        "statistics": digests,
        "server": _server_note(trained.server),
        "kept": {
            name: {"parts": list(one.parts), "plain": one.plain, "about": sorted(one.about)}
            for name, one in trained.kept.items()
        },
        "traffic": [[purpose, sent.up, sent.down, sent.rounds] for purpose, sent in trained.traffic.items()],
        "files": files,
        **{name: getattr(trained, name) for name in PLAIN},
    }
    write_json(folder / NOTE, note)
    for path in (folder / KEPT, folder):
        sync_folder(path)
    outputs: dict[str, Json] = {"head": trained.head.digest, "trained": sha256_file(folder / NOTE)}
    if digests is not None:
        known = (before.note["statistics"] or {}) if before is not None else {}
        outputs["statistics"] = {name: digest for name, digest in digests.items() if known.get(name) != digest}
        outputs["statistics left out"] = [name for name in known if name not in digests]
    return outputs


def _write_statistics(
    folder: Path, trained: Trained, files: dict[str, str], *, before: StateFolder | None
) -> dict[str, str] | None:
    """Write or link the clients' statistics, add their hashes to `files`; gives their digests."""
    if trained.statistics is None:
        return None
    (folder / STATISTICS).mkdir(parents=True)
    known = trained.statistics.digests if isinstance(trained.statistics, tensors.StatisticsFolder) else {}
    there = before.note["statistics"] or {} if before is not None else {}
    digests: dict[str, str] = {}
    for client in trained.statistics:
        name = f"{STATISTICS}/{tensors.file_of(client)}"
        digests[client] = known.get(client) or trained.statistics[client].digest
        if before is not None and there.get(client) == digests[client]:
            tensors.link(before.folder / name, folder / name)
            files[name] = before.files[name]
        else:
            files[name] = tensors.put_statistics(folder / name, trained.statistics[client])
    sync_folder(folder / STATISTICS)
    return digests


def _write_rest(folder: Path, trained: Trained) -> dict[str, str]:
    """Write what there is besides the clients' statistics; gives the files' hashes."""
    value = np.ascontiguousarray(trained.solution.value, tensors.DOUBLE)
    hashes = {"solution": tensors.put(folder / "solution.safetensors", {"value": value})}
    if trained.server is not None:
        rows, path = np.asarray(trained.server.rows, "<i8"), folder / "server.safetensors"
        statistics = trained.server.statistics
        hashes["server"] = (
            tensors.put(path, {"rows": rows})
            if statistics is None
            else tensors.put_statistics(path, statistics, rows=rows)
        )
    if trained.gradients is not None:
        hashes["gradients"] = tensors.put_gradients(folder / "gradients.safetensors", trained.gradients)
    if trained.objective is not None:
        hashes["objective"] = tensors.put_objective(folder / "objective.safetensors", trained.objective)
    if trained.history is not None:
        hashes["history"] = tensors.put_history(folder / "history.safetensors", trained.history)
    return {f"{KEPT}/{what}.safetensors": found for what, found in hashes.items()}


def _write_kept(folder: Path, name: str, kept: Kept) -> dict[str, str]:
    """Write what a trainer or method keeps besides; gives the files' hashes."""
    (folder / KEPT / name).mkdir()
    written = {COMMON: kept.arrays} if kept.arrays else {}
    written |= {tensors.file_of(client): arrays for client, arrays in kept.parts.items()}
    hashes = {
        f"{KEPT}/{name}/{file}": tensors.put(folder / KEPT / name / file, dict(arrays))
        for file, arrays in written.items()
    }
    sync_folder(folder / KEPT / name)
    return hashes


def _server_note(server: ServerSet | None) -> Json:
    if server is None:
        return None
    if server.statistics is None:
        return {"digest": None, "count": len(server.rows)}
    return {"digest": server.statistics.digest, "count": server.statistics.count}
