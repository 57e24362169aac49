"""The retained clients of a run whose rows lie with them: who is asked, for which rows, and are they the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.federated.attendance import Attendance
from probekit.federated.federation import Missing
from probekit.federated.narrowed import Narrowed
from probekit.federated.party import Party
from probekit.federated.trained import Trained
from probekit.linear.design import ClientStats
from probekit.runs.federation import close, federation_of, on_engine, open_party
from probekit.runs.folder import RunFolder
from probekit.runs.jobs import job_done, job_of
from probekit.runs.options import UnlearnOptions
from probekit.runs.rows import requests
from probekit.unlearning.method import Material, choices_of
from probekit.unlearning.method import method as find_method
from probekit.unlearning.request import UnlearnRequest

FULL_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(eq=False)
class RetainedClients:
    """How the clients of a run elsewhere are asked in a request; those `missing` did not answer, and go too."""

    run: RunFolder
    store: DiskStore
    federation: Party | str | None = None
    missing: dict[str, Missing] = field(default_factory=dict)
    job: str = ""
    opened: Any = None
    leaving: Attendance | None = None
    """The forgotten clients, where a method asks them, too."""

    @property
    def elsewhere(self) -> bool:
        """Whether the rows lie with the clients."""
        return "federation" in self.run.inputs

    @cached_property
    def party(self) -> Party:
        """The clients, wherever they are now."""
        named = self.federation or str(self.run.inputs["federation"])
        return open_party(named) if isinstance(named, str) else named

    def checked(self, request: UnlearnRequest) -> UnlearnRequest:
        """The request, if it can be carried out where only the clients know their rows."""
        if not self.elsewhere or not request.by_row:
            return request
        if request.relabelled:
            raise InputError(
                "A label is put right where its row is: the rows of this run lie with the clients. Have the client "
                "correct it, then forget that client and take it back in (`add`)."
            )
        for one in request.samples:
            if one.client is None or not FULL_ID.fullmatch(one.sample):
                raise InputError(
                    "The rows of this run lie with the clients: a sample is written CLIENT/ID, with the 64 digits of "
                    f"its id; found {one.text!r}. The client's own cache shows them (`probekit cache info SET --rows`)."
                )
        return request

    def material(self, before: Trained, request: UnlearnRequest, how: UnlearnOptions, given: Material) -> Material:
        """The same with the clients that stay, unless nobody needs to be asked."""
        if not self.elsewhere or how.server_only:
            return self._on_engine(before, request, how, given)
        given = replace(given, server=self._server(before))
        if _by_statistics(before, request, how):
            return given
        left, without = request.remaining(before), _left_out([*requests(self.run), request])
        self._refuse_changed(before, left, {*without, *request.added})
        asked_for = replace(request, clients=tuple(name for name in request.clients if name not in self.missing))
        self.job = job_of(self.run.path, "unlearn", self.run.state, before.head.digest, asked_for.digest, how.method)
        counts = {name: self.party.description.counts[name] for name in left}
        asked: Any = {"at_least": how.at_least, "timeout": how.timeout, "begins_again": True}
        self.opened = online = Attendance.of(self.party, before.problem, counts, job=self.job, **asked)
        given = replace(given, target=self._target(before, request, how))
        stay = {name: ids for name, ids in without.items() if name in left}
        if not stay:
            return replace(given, clients=online)
        kind = "statistics" if before.statistics is not None else "gradient"
        arrays = {} if kind == "statistics" else {"params": before.params}
        narrowed = Narrowed(online, stay, kind, arrays)
        _refuse_others(narrowed, before, request)
        return replace(given, clients=narrowed)

    def _target(self, before: Trained, request: UnlearnRequest, how: UnlearnOptions) -> Attendance | None:
        """The clients that leave, if the method asks them and they are still there; None: they cannot be asked."""
        if how.method == "auto":
            return None
        parties = {one[0] for need in find_method(how.method).needs for one in choices_of(need)}
        counts = {name: self.party.description.counts.get(name) for name in request.clients}
        same = all(before.counts[name] == now for name, now in counts.items())
        if "target" not in parties or not counts or request.by_row or not same:
            return None
        rows: Any = counts
        self.leaving = Attendance.of(self.party, before.problem, rows, job=f"{self.job}-leaving", timeout=how.timeout)
        return self.leaving

    def _on_engine(self, before: Trained, request: UnlearnRequest, how: UnlearnOptions, given: Material) -> Material:
        """The same with the retained clients on the engine that the run was trained on, where rows are asked for."""
        named = self.federation or self.run.config.get("federation")
        known = isinstance(named, str) and on_engine(named) and not how.server_only and not request.by_row
        if not known or given.embeddings is None or given.partition is None or _by_statistics(before, request, how):
            return given
        rows, left = (before.problem, given.embeddings, given.partition), request.remaining(before)
        self.opened = federation_of(*rows, left, engine=str(named), store=self.store)
        return replace(given, clients=self.opened)

    def statistics(self, trained: Trained, state: int) -> dict[str, ClientStats]:
        """The clients' statistics of the rows that a state stands for, asked for anew."""
        problem, without = trained.problem, _left_out(requests(self.run, state))
        if "statistics" not in problem.traits:
            raise NotFoundError(
                f"{self.run.path}: its rows lie with the clients, and a network has no statistics to ask for."
            )
        self._refuse_changed(trained, trained.counts, without)
        self.job = job_of(self.run.path, "verify", state, trained.head.digest)
        known = self.party.description.counts
        self.opened = Attendance.of(self.party, problem, {name: known[name] for name in trained.counts}, job=self.job)
        stay = {name: ids for name, ids in without.items() if name in trained.counts}
        asked = Narrowed(self.opened, stay, "statistics", {}) if stay else self.opened
        found = {one.client: problem.stats(one.arrays) for one in asked.ask("statistics").each()}
        self.finish()
        return found

    def finish(self) -> None:
        """The state is written: what it took of the clients is not needed any more."""
        if self.job:
            job_done(self.run.path, self.job)
            self.party.finish(self.job)
        if self.leaving is not None:
            self.party.finish(f"{self.job}-leaving")

    def close(self) -> None:
        """Let go of what was opened to reach the clients."""
        close(self.opened)
        close(self.leaving)
        close(vars(self).get("party"))

    def without(self, request: UnlearnRequest, left: Mapping[str, Missing]) -> UnlearnRequest:
        """The request with clients that did not answer: what stays was computed without them."""
        self.missing |= left
        return replace(request, clients=(*request.clients, *left))

    def keys(self, request: UnlearnRequest) -> dict[str, bytes]:
        """The public keys of clients that join."""
        if not self.elsewhere or not request.added:
            return {}
        known = self.party.description.keys
        return {name: known[name] for name in request.added if name in known}

    def _server(self, before: Trained) -> Any:
        """The server's own rows, where its statistics do not stand for them."""
        alone = before.server is not None and before.server.statistics is None
        return self.run.server_set(self.store) if alone else None

    def _refuse_changed(self, before: Trained, left: Collection[str], free: Collection[str]) -> None:
        """Refuse clients that are not there any more, or have other rows than when they were trained on."""
        counts = self.party.description.counts
        for name in left:
            if name not in counts:
                raise MismatchError(
                    f"Client {name} of {self.run.path} is not in the federation {self.party.name} any more. "
                    "Forget it too, or name the federation that it is in (`federation`)."
                )
            if name not in free and counts[name] != before.counts[name]:
                raise MismatchError(
                    f"Client {name} has {counts[name]} rows now, and had {before.counts[name]} when it was trained on. "
                    "Forget it too and take it back in (`add`), or have it bring the rows back."
                )


def _left_out(asked: Iterable[UnlearnRequest]) -> dict[str, frozenset[str]]:
    """The samples that each client leaves out: those that these requests name."""
    found: dict[str, set[str]] = {}
    for sample in (sample for one in asked for sample in one.samples):
        found.setdefault(str(sample.client), set()).add(sample.sample)
    return {name: frozenset(ids) for name, ids in found.items()}


def _by_statistics(before: Trained, request: UnlearnRequest, how: UnlearnOptions) -> bool:
    """Whether what was kept of the clients is all that is needed."""
    summed = before.statistics is not None and how.method in ("auto", "exact")
    return summed and not request.by_row and not request.added


def _refuse_others(clients: Narrowed, before: Trained, request: UnlearnRequest) -> None:
    """Refuse where what clients have left is not what they had without the samples of this request."""
    for name, count in clients.counts.items():
        if name not in clients.without or name in request.added:
            continue
        now = {one.sample for one in request.samples if one.client == name}
        had = before.counts[name]
        if not now and count != had:
            raise MismatchError(
                f"Client {name} has {count} rows now, and had {had} when it was trained on. Forget it too and take it "
                "back in (`add`), or have it bring the rows back."
            )
        if count > had - len(now):
            raise InputError(
                f"Cannot forget {len(now)} samples of client {name}: without them it has {count} rows, of {had}. It "
                "does not hold all of them. Look at the ids in its own cache."
            )
