"""What is to be forgotten, put right or taken in again, checked against a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from probekit.custody.petitions import Petition
from probekit.errors import InputError
from probekit.federated.trained import Trained
from probekit.values import Json, digest


@dataclass(frozen=True, order=True)
class SampleRef:
    """A sample by its id: the rows of one client, or of everybody who holds it (the server too)."""

    sample: str
    client: str | None = None

    @property
    def text(self) -> str:
        """As it is written in a request."""
        return self.sample if self.client is None else f"{self.client}/{self.sample}"


@dataclass(frozen=True, order=True)
class Relabelled:
    """A sample whose label was wrong, and the class number it gets instead."""

    sample: str
    label: int
    client: str | None = None


@dataclass(frozen=True)
class UnlearnRequest:
    """Clients to forget, samples to forget, labels to put right, clients that join (again); and who asked for it.

    Order and repetition do not matter: equal requests have equal digests, by which a ledger knows them again, whoever
    asked.
    """

    clients: tuple[str, ...] = ()
    samples: tuple[SampleRef, ...] = ()
    relabelled: tuple[Relabelled, ...] = ()
    added: tuple[str, ...] = ()
    asked: tuple[Petition, ...] = (Petition(),)

    def __post_init__(self) -> None:
        for name in ("clients", "samples", "relabelled", "added"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)), key=_order)))
        if not (self.clients or self.samples or self.relabelled or self.added):
            raise InputError("A request must name something to forget. Name a client or a sample.")
        both = sorted({*self.clients} & {*self.added})
        if both:
            raise InputError(f"Client {both[0]} cannot be forgotten and added in one request. Choose one.")
        self._check_samples()

    def _check_samples(self) -> None:
        labels: dict[tuple[str, str | None], int] = {}
        gone = {one.sample for one in self.samples}
        for one in self.relabelled:
            if one.sample in gone:
                raise InputError(f"Sample {one.sample} cannot be forgotten and relabelled at once. Choose one.")
            if labels.setdefault((one.sample, one.client), one.label) != one.label:
                two = f"{labels[one.sample, one.client]} and {one.label}"
                raise InputError(f"Sample {one.sample} is given two labels, {two}. Give one.")

    @classmethod
    def of(cls, clients: Iterable[str] = (), *, samples: Iterable[str] = ()) -> Self:
        """A request to forget clients, and samples wherever they are held."""
        return cls(tuple(clients), tuple(SampleRef(sample) for sample in samples))

    @property
    def by_row(self) -> bool:
        """Whether single rows change, so that the cached rows are needed."""
        return bool(self.samples or self.relabelled)

    def may_empty(self, client: str, rows: int) -> bool:
        """Whether the samples to forget can be all that a client has, so that it goes too."""
        return 0 < rows <= sum(one.client in (None, client) for one in self.samples)

    @property
    def plain(self) -> dict[str, Json]:
        """The request in plain values."""
        return {
            "clients": list(self.clients),
            "samples": [[one.sample, one.client] for one in self.samples],
            "relabelled": [[one.sample, one.label, one.client] for one in self.relabelled],
            "added": list(self.added),
            "asked": [one.plain for one in self.asked],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The request that these plain values say."""
        return cls(
            tuple(plain["clients"]),
            tuple(SampleRef(*one) for one in plain["samples"]),
            tuple(Relabelled(*one) for one in plain["relabelled"]),
            tuple(plain["added"]),
            tuple(map(Petition.from_plain, plain.get("asked", ()))),
        )

    @property
    def digest(self) -> str:
        """The sha256 that names this request."""
        return digest({name: value for name, value in self.plain.items() if name != "asked"})

    def remaining(self, trained: Trained) -> tuple[str, ...]:
        """The clients that stay, in the run's order, then those that join; unknown ones are refused."""
        for name in self.clients:
            if name not in trained.counts:
                raise InputError(f"Cannot forget client {name}: {known_clients(tuple(trained.counts))}.")
        for name in self.added:
            if name in trained.counts:
                raise InputError(f"Cannot add client {name}: this run has it already.")
        left = tuple(name for name in trained.counts if name not in self.clients) + self.added
        if not left:
            raise InputError(
                f"Cannot forget all {len(trained.counts)} clients: nothing would remain to be trained on. "
                "Delete the run instead."
            )
        return left


def known_clients(names: Sequence[str]) -> str:
    """A clause that says which clients a run has."""
    if all(name.isdecimal() for name in names):
        numbers = sorted(int(name) for name in names)
        if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"this run has clients {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"this run has client{'s' if len(names) > 1 else ''} {shown}"


def asked(request: Any) -> str:
    """A request in words; clients whose names are sealed in a certificate are not named."""

    def client(name: Any) -> str:
        return f"client {name}" if isinstance(name, str) else "a client (sealed)"

    parts = [client(name) for name in request["clients"]]
    for kind, word in (("samples", "forgotten"), ("relabelled", "relabelled")):
        parts += [f"{len(request[kind])} samples {word}"] if request[kind] else []
    return ", ".join(parts + [f"{client(name)} taken back in" for name in request["added"]])


def _order(value: Any) -> tuple[str, ...]:
    """A key that puts None before names."""
    fields = value.__dict__.values() if isinstance(value, SampleRef | Relabelled) else (value,)
    return tuple("" if field is None else str(field) for field in fields)
