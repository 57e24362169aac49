"""Who of clients elsewhere is in a work to its end: who does not answer is left out by name, where that is allowed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from probekit.errors import InputError, MissingClientsError
from probekit.federated.federation import Answers, Federation, Missing, Traffic
from probekit.federated.message import OWN, Answer, Arrays, Selection
from probekit.federated.party import Party
from probekit.linear.plausibility import implausible
from probekit.values import Json


class ClientsLeft(MissingClientsError):  # noqa: N818
    """Clients were left out in the middle of a work, enough others are there: it begins again with these."""

    def __init__(self, missing: Mapping[str, Missing]) -> None:
        super().__init__(" ".join(in_words(name, one) for name, one in missing.items()))
        self.missing = dict(missing)


@dataclass(eq=False)
class Attendance:
    """Clients that are asked until the work is done; `sizes` are the rows of those that are in it.

    at_least: so many must stay (None: all), and whoever is gone, late, refuses or sends garbage once is out, in
    `missing`. timeout: seconds to answer a question in.
    begins_again: whether a client that leaves always ends the work; else statistics that are asked for first may lack
    it, because nothing was computed with it yet.
    """

    problem: Any
    inner: Federation
    sizes: dict[str, int]
    at_least: int | None = None
    timeout: float | None = None
    begins_again: bool = False
    missing: dict[str, Missing] = field(default_factory=dict)
    asked: int = 0

    @classmethod
    def of(
        cls,
        party: Party,
        problem: Any,
        counts: Mapping[str, int],
        *,
        job: str,
        at_least: int | None = None,
        timeout: float | None = None,
        begins_again: bool = False,
    ) -> Attendance:
        """The clients of a party that have these numbers of rows."""
        if at_least is not None and at_least > len(counts):
            raise InputError(f"At least {at_least} clients are asked for (`at_least`); {len(counts)} are there to ask.")
        inner = party.clients(problem, job=job, names=tuple(counts), at_least=at_least, timeout=timeout)
        found = cls(problem, inner, dict(counts), at_least, timeout, begins_again)
        other = {name: now for name, now in inner.counts.items() if name in counts and now != counts[name]}
        said = {name: Missing("garbage", f"it has {now} rows, and said {counts[name]}.") for name, now in other.items()}
        found.leave({**getattr(inner, "missing", {}), **said}, quietly=not begins_again)
        return found

    @property
    def counts(self) -> Mapping[str, int]:
        """The rows of each that is in it."""
        return self.sizes

    @property
    def clients(self) -> tuple[str, ...]:
        """Who is in it."""
        return tuple(self.sizes)

    @property
    def traffic(self) -> Traffic:
        """What passed so far."""
        return self.inner.traffic

    def close(self) -> None:
        """Let go of what was opened to reach them."""
        getattr(self.inner, "close", lambda: None)()

    def offers(self, kind: str, how: str = "each") -> bool:
        """Whether they can answer."""
        return self.inner.offers(kind, how)

    def ask(
        self,
        kind: str,
        arrays: Arrays | None = None,
        plan: Mapping[str, Json] | None = None,
        *,
        clients: Collection[str] | None = None,
        rows: Selection = OWN,
        precision: str = "float64",
        at_least: int | None = None,
        timeout: float | None = None,
    ) -> Answers:
        """The answers of those of these clients (None: all) that are in it."""
        names, patience = self.clients if clients is None else tuple(clients), timeout
        if patience is None:
            patience = self.timeout
        given: Any = {"clients": names, "rows": rows, "precision": precision, "timeout": patience}
        self.asked += 1
        if self.at_least is None:
            return self.inner.ask(kind, arrays, plan, **given, at_least=at_least)
        first = kind == "statistics" and self.asked == 1 and not self.begins_again
        found = self.inner.ask(kind, arrays, plan, **given, at_least=0)
        judged = kind == "statistics" and "folds" not in (plan or {})
        missing: dict[str, Missing] = {}
        stream = self._present(found, missing, own=rows == OWN, judged=judged, quietly=first)
        return Answers(stream, found.columns, missing, None, 0, found.stats)

    def _present(
        self, answers: Answers, missing: dict[str, Missing], *, own: bool, judged: bool, quietly: bool
    ) -> Iterator[Answer]:
        """The answers that can be used; whoever gave none is then out."""
        for one in answers.each():
            why, wanted = "", self.sizes[one.client]
            if own and one.count != wanted:
                why = f"it speaks of {one.count} rows and has {wanted}."
            elif judged and (fault := implausible(self.problem.stats(one.arrays), one.count)):
                why = f"no rows have its statistics: {fault}."
            if why:
                missing[one.client] = Missing("garbage", why)
            else:
                yield one
        missing |= answers.missing
        self.leave(missing, quietly=quietly)

    def leave(self, missing: Mapping[str, Missing], *, quietly: bool = False) -> None:
        """Leave clients out; raises where too few stay and, unless `quietly`, to have the work begin again."""
        gone = {name: one for name, one in missing.items() if name in self.sizes}
        if not gone:
            return
        self.missing |= gone
        wanted = len(self.sizes) if self.at_least is None else self.at_least
        for name in gone:
            del self.sizes[name]
        if len(self.sizes) < wanted or not self.sizes:
            said = "".join(f" {in_words(name, one)}" for name, one in self.missing.items())
            raise MissingClientsError(
                f"{wanted} clients had to answer, {len(self.sizes)} did.{said} Ask again when they can, or ask for "
                "fewer (`at_least`)."
            )
        if not quietly:
            raise ClientsLeft(gone)


def in_words(name: str, missing: Missing) -> str:
    """Who is missing and why, as a sentence."""
    return f"Client {name}: {missing.reason}, {missing.why.rstrip('.')}."
