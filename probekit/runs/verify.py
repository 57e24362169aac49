"""The verb: what a run says, computed again from the rows in the cache and from nothing else.

Whoever noted the run's fingerprint F from a verification of their own without closed leaves knows
which rows and options a later head is about; with the request, whose rows must be gone.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from probekit.arrays import hex_id, id_keys
from probekit.cache import Cache
from probekit.certificates.certificate import STALE_RIDGE, Certificate, rounded_down, rounded_up
from probekit.certificates.held_out import is_best_C
from probekit.certificates.linearized import RowGradients, certified_rows
from probekit.certificates.verify import (
    Enclosure,
    Minimum,
    RowSums,
    Totals,
    is_best_ridge,
    is_gradient,
    is_sum,
)
from probekit.embeddings import EmbeddingSet, Rows
from probekit.errors import InputError, NotFoundError, ProbekitError
from probekit.federated.federation import Federation, InProcess
from probekit.federated.held_out import HeldOut
from probekit.federated.state import KeptGradients, KeptStatistics, State, Trainer, choose_from
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.transports.files import sums_digest
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv, InverseC
from probekit.linear.stats import sum_stats
from probekit.objective import Model
from probekit.progress import Progress, Step, silent
from probekit.rows import PickedRows
from probekit.runs import layout
from probekit.runs.layout import Description, Erased, Joined, Trained, Unlearned
from probekit.runs.rows import SAMPLE, SERVER, ClientSets, Mask, RunFiles, RunRows, leaves_of
from probekit.runs.run import (
    RunData,
    StoredState,
    cached_rows,
    certify_state,
    matrix_of,
    single_thread,
)

FALSE = 6
NOT_SHOWN = 7
WORDS = {True: "true", False: "false", None: "not shown"}
NOT_ATTESTED = (
    "Never attested: dates and the order of events, the names and costs of methods; copies of rows "
    "or heads elsewhere; which head is deployed (compare its digest)."
)
SUMS_ROUNDING = 1e-6
"""What rounding may change in a certificate that is computed again from the same sums."""
KEPT_GRADIENTS = "The kept gradients are those of the retained rows."
KEPT_ELSE = "What else is kept follows from the retained rows."
FILES = frozenset({layout.DESCRIPTION, layout.COMMITMENT, layout.ROWS, layout.STATES, layout.LOCK})
STATE_FILES = frozenset({layout.HEAD, layout.KEPT, layout.CERTIFICATE, layout.HISTORY})


@dataclass(frozen=True)
class Finding:
    """A claim, and whether it holds: None where that is not shown."""

    claim: str
    holds: bool | None


@dataclass(frozen=True)
class Forgot:
    """What was asked to be forgotten, as the reader knows it; samples by digits of their ids."""

    clients: frozenset[str] = frozenset()
    samples: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, texts: Collection[str]) -> Forgot:
        """Of client=X and sample=ID."""
        pairs = [text.partition("=") for text in texts]
        for text, (kind, _, value) in zip(texts, pairs, strict=True):
            is_sample = kind == "sample" and SAMPLE.fullmatch(value)
            if not value or not (kind == "client" or is_sample):
                raise InputError(
                    "What was forgotten is client=NAME or sample=ID, with 8 digits or more of the "
                    f"id; found {text!r}. Write --forgot client=3."
                )
        return cls(
            frozenset(value for kind, _, value in pairs if kind == "client"),
            frozenset(value for kind, _, value in pairs if kind == "sample"),
        )

    def __str__(self) -> str:
        names = [f"client {name!r}" for name in sorted(self.clients)]
        return ", ".join([*names, *(f"sample {name}" for name in sorted(self.samples))])

    def rows(self, rows: RunRows) -> tuple[Mask, Forgot]:
        """Which of these rows were asked for, and what of the request has none."""
        ids = [hex_id(row) for row in rows.ids] if self.samples else []
        mask = rows.held_by(self.clients)
        absent = set(self.samples)
        for sample in self.samples:
            matches = np.array([name.startswith(sample) for name in ids], bool)
            mask |= matches
            if matches.any():
                absent.discard(sample)
        return mask, Forgot(self.clients - set(rows.clients), frozenset(absent))


@dataclass(frozen=True)
class VerifyResult:
    """What was found; `exit_code` 0 where all is true, 6 where anything is false, else 7.

    distance: at least the head's distance from the minimum, by this verification.
    """

    run: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    conclusion: str = ""
    fingerprint: str = ""
    state_fingerprint: str = ""
    head: str = ""
    distance: float = math.inf

    @property
    def exit_code(self) -> int:
        verdicts = {finding.holds for finding in self.findings}
        if False in verdicts:
            return FALSE
        return NOT_SHOWN if None in verdicts or not verdicts else 0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "ok": self.ok,
            "conclusion": self.conclusion,
            "findings": [
                {"claim": finding.claim, "verdict": WORDS[finding.holds]}
                for finding in self.findings
            ],
            "notes": list(self.notes),
            "not_attested": NOT_ATTESTED,
            "fingerprint": self.fingerprint,
            "state_fingerprint": self.state_fingerprint,
            "head": self.head,
            "distance": self.distance if math.isfinite(self.distance) else None,
        }


def verify_run(
    folder: Path | str,
    *,
    cache: Cache | Path | str | None = None,
    fingerprint: str | None = None,
    forgot: str | Collection[str] = (),
    within: float | None = None,
    progress: Progress = silent,
) -> VerifyResult:
    """Check a run against its rows; whatever is wrong with its files is a finding, not an error.

    fingerprint: the run's or the state's, as the reader noted it.
    forgot: the request as the reader knows it, "client=X" or "sample=ID".
    within: accept a head so far from the minimum, whatever the run's tolerance.
    """
    path = Path(folder).expanduser()
    if not any(os.path.lexists(path / name) for name in (layout.DESCRIPTION, layout.STATES)):
        raise NotFoundError(f"{folder} is no run. Pass a folder that train wrote.")
    if fingerprint is not None and not re.fullmatch(r"[0-9a-f]{64}", fingerprint, re.ASCII):
        raise InputError(
            f"A fingerprint has 64 hexadecimal digits; found {fingerprint!r}. Copy it whole."
        )
    if within is not None and not within >= 0:
        raise InputError(f"--within must be 0 or more; found {within:g}.")
    request = Forgot.parse([forgot] if isinstance(forgot, str) else forgot)
    store = cache if isinstance(cache, Cache) else Cache(cache, during_erasure=True)
    inspection = _Inspection(path, store, fingerprint, request, within, progress)
    with single_thread():
        return inspection.result()


@dataclass
class _Inspection:
    """Findings about a run, one after the other; reading stops at the first unreadable file.

    noted: the fingerprint that the reader noted.
    """

    folder: Path
    cache: Cache
    noted: str | None
    request: Forgot
    within: float | None
    progress: Progress
    notes: list[str] = field(default_factory=list)
    stored: StoredState | None = None
    state_fingerprint: str = ""
    head: str = ""
    distance: float = math.inf

    def result(self) -> VerifyResult:
        findings: list[Finding] = []
        try:
            findings.extend(self._findings())
        except ProbekitError as error:
            findings.append(Finding(str(error), False))
        result = VerifyResult(
            run=str(self.folder),
            findings=tuple(findings),
            notes=tuple(self.notes),
            fingerprint=self.stored.fingerprint if self.stored else "",
            state_fingerprint=self.state_fingerprint,
            head=self.head,
            distance=self.distance,
        )
        return replace(result, conclusion=self._conclusion(result.exit_code))

    def _findings(self) -> Iterator[Finding]:
        if self.cache.is_erasing():
            yield Finding("No erasure is under way. Run the same `probekit erase` again.", None)
            return
        stored = StoredState.newest(layout.find_run(self.folder))
        self.stored = stored
        self.state_fingerprint = stored.state_fingerprint
        self.head = stored.head.digest
        yield from self._history(stored)
        description = stored.description
        is_cached = cached_rows(stored.all_rows, description, self.cache)
        opened = stored.all_rows.take(is_cached)
        matrix = matrix_of(opened, description, self.cache)
        yield from self._leaves(stored, opened, matrix)
        yield from self._fingerprint(stored)
        yield from self._request(stored)
        self._note_files(stored)
        missing = {
            "retained": int((~is_cached & ~stored.forgotten).sum()),
            "forgotten": int((~is_cached & stored.forgotten).sum()),
        }
        for kind, count in missing.items():
            if count:
                yield Finding(f"All {kind} rows are in the cache ({count:,} are not).", None)
        if missing["retained"]:
            return
        # of what was opened, not found anew: a cache may hold other bytes for the same sample
        retained = PickedRows(matrix, np.flatnonzero(~stored.forgotten[is_cached]))
        rows = stored.rows
        data = RunData(rows, rows.classes, description, description.read_encoding(), retained)
        yield from self._head(stored, data)

    def _history(self, stored: StoredState) -> Iterator[Finding]:
        """Each event is about rows, as many as it says."""
        rows = stored.all_rows
        events = stored.events
        is_numbered = stored.number == len(events)
        yield Finding("The state's number is that of its events.", is_numbered)
        noted = [event for event in events if isinstance(event, Trained | Joined)][-1].fingerprint
        yield Finding("Options and leaves give the fingerprint.", noted == stored.fingerprint)
        erasures = [number for number, event in enumerate(events) if isinstance(event, Erased)]
        erased = sum(event.rows for event in events if isinstance(event, Erased))
        closed = len(stored.commitment) - len(rows)
        yield Finding(
            f"{closed:,} leaves stay closed, as many as {erased:,} erased rows.", closed == erased
        )
        if erased:
            self.notes.append(f"{erased:,} rows were erased: whose can no longer be shown.")
        names = {*rows.clients, *(hex_id(row) for row in rows.ids)} - {""}
        before = 0
        for number, event in enumerate(events):
            is_right = True
            if isinstance(event, Unlearned):
                after = rows.take(layout.forgotten(rows, events[: number + 1])).size
                is_right = event.rows == after - before
                is_right &= names.issuperset((*event.clients, *event.samples))
                before = after
            later_erasure = bool(erasures) and erasures[-1] > number
            is_void = isinstance(event, Unlearned) and not event.rows and not later_erasure
            is_void |= isinstance(event, Erased | Joined) and event.rows < 1
            if not is_right or is_void:
                yield Finding(f"Event {number + 1} is about the rows that it names.", False)

    def _leaves(self, stored: StoredState, opened: RunRows, matrix: Rows) -> Iterator[Finding]:
        """Every row that is here, forgotten ones included, opens its leaf."""
        keys = id_keys(stored.commitment)
        is_sorted = bool((keys[:-1] < keys[1:]).all())
        yield Finding("The leaves are in order, none twice.", is_sorted)
        wrong = 0
        if len(opened):
            self.progress(Step("opening leaves", 0, len(opened)))
            leaves = leaves_of(opened, matrix)
            wrong = int((leaves != stored.commitment[opened.leaves]).any(axis=1).sum())
        yield Finding(f"Every row opens a leaf of its own ({wrong:,} do not).", not wrong)

    def _fingerprint(self, stored: StoredState) -> Iterator[Finding]:
        if self.noted is None:
            self.notes.append("No fingerprint was given: the run is consistent with itself.")
        elif self.noted == stored.state_fingerprint:
            yield Finding("Options and exactly these retained rows are those noted.", True)
        else:
            is_same = self.noted == stored.fingerprint
            yield Finding("Options and committed rows are those noted.", is_same)

    def _request(self, stored: StoredState) -> Iterator[Finding]:
        """Nothing that was asked for is retained, and nothing else is forgotten."""
        rows = stored.all_rows
        forgotten = stored.forgotten
        if not self.request.clients and not self.request.samples:
            if forgotten.any():
                lost = rows.take(forgotten)
                self.notes.append(
                    f"{lost.size:,} rows are forgotten, of clients {', '.join(lost.clients)}. "
                    "Say what you asked for (--forgot)."
                )
            return
        requested, absent = self.request.rows(rows)
        kept = int((requested & ~forgotten).sum())
        surplus = int((forgotten & ~requested).sum())
        yield Finding(f"Nothing of {self.request} is retained ({kept:,} rows are).", not kept)
        yield Finding(f"Nothing else was forgotten ({surplus:,} rows were).", not surplus)
        if absent.clients or absent.samples:
            if len(rows) == len(stored.commitment):
                yield Finding(f"The run has rows of {absent}.", False)
            else:
                self.notes.append(f"No row of {absent} is here: erased, or never in this run.")

    def _note_files(self, stored: StoredState) -> None:
        folders = {stored.run: FILES, stored.folder: STATE_FILES}
        strange = sorted(
            str(path.relative_to(stored.run))
            for folder, names in folders.items()
            for path in folder.iterdir()
            if path.name not in names
        )
        if strange:
            self.notes.append(f"No part of a run, not looked at: {', '.join(strange)}.")
        if len(layout.state_numbers(stored.run)) > 1 and stored.forgotten.any():
            self.notes.append("Older states hold what was forgotten; probekit erase removes them.")

    def _head(self, stored: StoredState, data: RunData) -> Iterator[Finding]:
        """The head is that of the options for these rows, and as near to the minimum as it says."""
        options = stored.description.options
        state = stored.state
        classes = data.classes
        counts = data.rows.counts()
        has_classes = stored.head.names == classes
        has_classes &= len(classes) > 1 or data.rows.targets is not None
        yield Finding("The head has the classes of the retained rows.", has_classes)
        model = state.model
        is_model = _is_model(model, stored.description, len(classes))
        is_model &= state.params.shape == model.shape and bool(np.isfinite(state.params).all())
        is_trainer = _same_trainer(state.trainer, options.trainer())
        yield Finding("Model and training are those of the options.", is_model and is_trainer)
        are_counts = dict(state.clients) == counts
        yield Finding("The head is of the retained clients and rows.", are_counts)
        if not has_classes or not is_model or not are_counts:
            return
        again = data.head(state)
        is_same = again.digest == stored.head.digest and again.fit == stored.head.fit
        is_same &= (again.dataset, again.metrics) == (stored.head.dataset, stored.head.metrics)
        yield Finding("The head is the state's.", is_same)
        sets = data.client_sets()
        if not isinstance(model, LinearModel):
            yield from self._network(stored, data, sets)
            return
        if isinstance(data.rows, RunFiles):
            yield from self._files(stored, data.rows, model)
            return
        totals = Totals(model)
        yield from self._kept(state, model, sets, totals)
        sums = totals.sums
        yield from _ridge(stored, state, sets, sums)
        enclosure = Minimum(sets, model, state.ridge).enclose(state.params, sums)
        certified = 0 if data.test is None else enclosure.certified_rows(data.test)
        yield from self._near(stored, enclosure, data.test, certified)

    def _near(
        self, stored: StoredState, enclosure: Enclosure, test: EmbeddingSet | None, certified: int
    ) -> Iterator[Finding]:
        """The certificate's numbers are true, and the head is near enough."""
        self.distance = enclosure.distance.most
        yield from _certificate(stored.certificate, stored.state, enclosure, test, certified)
        yield self._nearness(stored, "minimum")

    def _nearness(self, stored: StoredState, minimum: str) -> Finding:
        """Whether the head is as near as the reader or the run tolerates."""
        tolerance = stored.description.options.tolerance
        state = stored.state
        limit = tolerance * float(np.linalg.norm(state.params - state.model.center))
        if self.within is not None:
            limit = self.within
        claim = f"The head is within {Decimal(limit):.2g} of the {minimum}."
        return Finding(claim, self.distance <= limit or None)

    def _files(self, stored: StoredState, rows: RunFiles, model: LinearModel) -> Iterator[Finding]:
        """The sums are those that were committed, and the head's; whose they are is believed."""
        kept = stored.state.get(KeptStatistics)
        parts = {} if kept is None else kept.parts
        digests = [sums_digest(parts[name]) for name in sorted(parts)]
        are_committed = digests == [entry.tobytes() for entry in rows.ids]
        yield Finding("The kept sums are those that were committed.", are_committed)
        if not are_committed:
            return
        federation = Federation.of(InProcess(parts), model)
        again, _ = certify_state(stored.state, federation, test=None, class_labels=False)
        self.distance = math.inf if again is None else again.distance
        setting = stored.description.options.setting()
        choice = choose_from(setting, model, sum_stats(parts.values()))
        is_chosen: bool | None = choice == stored.state.ridge_choice
        if not is_chosen and not isinstance(setting, int | float):
            is_chosen = None  # rounding may choose among ridges that are as good
        yield Finding("The ridge is chosen from these sums.", is_chosen)
        size = max(1.0, float(np.linalg.norm(stored.state.params)))
        is_same = None if again is None else _agree(stored.certificate, again, size)
        yield Finding("The certificate is that of these sums.", is_same)
        yield self._nearness(stored, "sums' minimum")
        yield Finding("The sums are those of the clients' rows: they must be believed.", None)

    def _network(self, stored: StoredState, data: RunData, sets: ClientSets) -> Iterator[Finding]:
        """Where a network starts, and how far from the minimum a linearized one ends."""
        from probekit.networks.architectures import is_trusted

        state = stored.state
        options = stored.description.options
        if not is_trusted(options.network or ""):
            claim = f"The scores of {options.network} are computed again"
            yield Finding(f"{claim}, which runs its code: pass --network {options.network}.", None)
            return
        yield from self._first_weights(stored)
        yield from _ridge(stored, state, sets, None)
        if not state.model.is_linear:
            claim = "A conventional network has no one minimum, and so no distance from it."
            yield Finding(f"{claim} Compare it with a retrained one (evaluate).", None)
            return
        if not state.ridge > 0:
            yield Finding("A linearized network has one minimum: only with a ridge above 0.", None)
            return
        federation = Federation.of(InProcess(sets), state.model)
        gradients = RowGradients(federation, state.params, state.ridge)
        kept = state.get(KeptGradients)
        are_kept = kept is not None and _are_at(kept, state, sets)
        differences = [0.0]
        for done, (name, rows) in enumerate(sets.items(), start=1):
            gradient = gradients.add(rows)
            if kept is not None and are_kept:
                are_kept = kept.gradients[name].shape == gradient.shape
                if are_kept:
                    differences.append(float(np.linalg.norm(kept.gradients[name] - gradient)))
            self.progress(Step("gradients of rows", done, len(sets)))
        enclosure, error = gradients.enclose()
        if kept is not None:
            is_near = bool(np.max(differences) <= error)  # which NaN is not
            yield Finding(KEPT_GRADIENTS, are_kept and is_near)
        if not all(isinstance(item, KeptGradients) for item in state.kept):
            yield Finding(KEPT_ELSE, None)
        certified = 0
        if data.test is not None:
            self.progress(Step("certifying test rows", 0, len(data.test)))
            distance = enclosure.distance.most
            certified = certified_rows(state.model, state.params, distance, data.test)
        yield from self._near(stored, enclosure, data.test, certified)

    def _first_weights(self, stored: StoredState) -> Iterator[Finding]:
        """A file of weights is believed; others are drawn and trained on server rows again."""
        from probekit.networks.network import Network
        from probekit.runs.networks import first_network

        description = stored.description
        rows = stored.all_rows
        lost = (rows.roles == SERVER) & stored.forgotten
        if description.options.is_pretrained and lost.any():
            yield Finding("The network was pretrained on no row that is forgotten.", False)
        if description.options.weights is not None:
            self.notes.append("Nothing is said about the first weights, which are of a file.")
            return
        data = RunData.of(rows, description, self.cache)
        trained = stored.state.model
        assert isinstance(trained, Network)
        again = first_network(data, progress=self.progress, trained=trained).digest
        claim = "The first weights are those of the seed and the server's rows."
        yield Finding(claim, again == description.network or None)

    def _kept(
        self, state: State, model: LinearModel, sets: ClientSets, totals: Totals
    ) -> Iterator[Finding]:
        """Add up the rows; what the server keeps must be such sums."""
        statistics = state.get(KeptStatistics)
        gradients = state.get(KeptGradients)
        are_sums = statistics is None or statistics.parts.keys() == sets.keys()
        are_gradients = gradients is None or _are_at(gradients, state, sets)
        for done, (name, rows) in enumerate(sets.items(), start=1):
            part = RowSums.of(rows, state.params, model)
            totals.add(part)
            if statistics is not None and are_sums:
                are_sums = is_sum(statistics.parts[name], part)
            if gradients is not None and are_gradients:
                are_gradients = is_gradient(gradients.gradients[name], part, state.params)
            self.progress(Step("adding up rows", done, len(sets)))
        if statistics is not None:
            yield Finding("The kept statistics are sums of the retained rows.", are_sums)
        if gradients is not None:
            yield Finding(KEPT_GRADIENTS, are_gradients)
        if not all(isinstance(item, KeptStatistics | KeptGradients) for item in state.kept):
            yield Finding(KEPT_ELSE, None)

    def _conclusion(self, code: int) -> str:
        """What exit code 0 means, for what the reader knew."""
        if code:
            verb = "is false" if code == FALSE else "is not shown, nothing is false"
            return f"Something {verb}."
        assert self.stored is not None
        head = f"The head is within {rounded_up(self.distance)} of the minimum over"
        if self.noted == self.state_fingerprint:
            return f"{head} exactly the rows noted."
        if self.noted is None:
            count = sum(self.stored.rows.counts().values())
            return f"{head} its {count:,} retained rows, as the run states them."
        without = ""
        if self.request.clients or self.request.samples:
            without = f", none of them of {self.request}"
        return f"{head} rows committed at training{without}, under the options of training."


def _is_model(model: Model, description: Description, classes: int) -> bool:
    """Whether it is the head or the network of run.json, for so many classes."""
    if description.options.network is None:
        return model == description.options.linear_model(description.width, classes)
    from probekit.runs.networks import is_network_of

    return is_network_of(description, model, classes)


def _are_at(kept: KeptGradients, state: State, sets: ClientSets) -> bool:
    """Whether gradients are said to be of these rows, at the state's parameters."""
    counts = {name: len(rows) for name, rows in sets.items()}
    return (
        kept.gradients.keys() == sets.keys()
        and dict(kept.weights) == counts
        and np.array_equal(kept.params, state.params)
    )


def _same_trainer(trainer: Trainer, expected: Trainer) -> bool:
    """A rate that was left open is filled in by training."""
    if isinstance(trainer, FedAvg) and isinstance(expected, FedAvg) and expected.plan.rate is None:
        trainer = replace(trainer, plan=replace(trainer.plan, rate=None))
    return trainer == expected


def _ridge(
    stored: StoredState, state: State, sets: ClientSets, sums: RowSums | None
) -> Iterator[Finding]:
    """The ridge is the one of the options, or chosen from the retained rows.

    sums: those of all rows; None of a network, whose ridge cross-validation does not choose.
    """
    model = state.model
    choice = state.ridge_choice
    setting = stored.description.options.setting()
    claim = "The ridge is the one of the options."
    if isinstance(setting, float | int):
        yield Finding(claim, choice.setting == setting and not choice.stale)
        return
    claim = "The ridge is chosen from the retained rows by the rule of the options."
    if choice.rule != setting:
        yield Finding(claim, False)
    elif choice.stale:
        yield Finding(f"{claim} {STALE_RIDGE}", None)
    elif isinstance(setting, InverseC):
        rows = sum(map(len, sets.values()))
        yield Finding(claim, choice.value == setting.of(rows, model.classes))
    elif isinstance(setting, HeldOut) and isinstance(model, LinearModel):
        yield Finding(claim, is_best_C(choice.value, setting, sets, model))
    elif isinstance(setting, Gcv) and isinstance(model, LinearModel) and sums is not None:
        yield Finding(claim, is_best_ridge(choice.value, setting, sets, model, sums))
    else:
        yield Finding(claim, None)


def _agree(claimed: Certificate | None, again: Certificate, size: float) -> bool | None:
    """Whether a certificate is the one that the same sums give; None where rounding decides."""
    if claimed is None:
        return False
    if claimed == again:
        return True
    numbers = asdict(again)
    for name, number in asdict(claimed).items():
        if isinstance(number, float):
            difference = abs(number - numbers[name])
            if difference > SUMS_ROUNDING * max(size, abs(numbers[name])):
                return False
        elif number != numbers[name]:
            return False
    return None


def _certificate(
    certificate: Certificate | None,
    state: State,
    enclosure: Enclosure,
    test: EmbeddingSet | None,
    certified: int,
) -> Iterator[Finding]:
    """Every number of the certificate."""
    if certificate is None:
        yield Finding("The head has a certificate.", None)
        return
    facts = {
        "rows": sum(state.clients.values()),
        "clients": len(state.clients),
        "ridge": state.ridge,
        "test_rows": 0 if test is None else len(test),
        "stale_ridge": state.ridge_choice.stale,
        "stale_classes": False,
    }
    is_about = all(getattr(certificate, name) == value for name, value in facts.items())
    is_about &= certificate.allowance <= certificate.residual
    is_about &= (certificate.evidence == "linearized") != isinstance(state.model, LinearModel)
    yield Finding("The certificate is about this head and these rows.", is_about)
    bound = rounded_up(enclosure.distance.most)
    yield Finding(
        f"The minimum is at most {rounded_up(certificate.distance)} away (here: {bound}).",
        enclosure.distance.allows(certificate.distance),
    )
    bound = rounded_up(enclosure.excess_loss.most)
    yield Finding(
        f"The loss is at most {rounded_up(certificate.excess_loss)} above it (here: {bound}).",
        enclosure.excess_loss.allows(certificate.excess_loss),
    )
    yield Finding(
        f"The gradient's norm is at most {rounded_up(certificate.residual)}.",
        enclosure.residual.allows(certificate.residual),
    )
    yield Finding(
        f"The least curvature is {rounded_down(certificate.curvature)} or more.",
        enclosure.curvature.reaches(certificate.curvature),
    )
    is_reached = certified >= certificate.certified_rows or None
    yield Finding(
        f"{certificate.certified_rows:,} test rows keep their class (here: {certified:,}).",
        is_reached,
    )
