"""Federations of machines, as their operator meets them: begun, joined, left, looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probekit.errors import InputError, VerificationError
from probekit.federated.cards import Card
from probekit.federated.files import open_questions, take_in
from probekit.federated.membership import FILES, FLOWER, FederationFolder
from probekit.files import write_text
from probekit.runs.result import Result

FINGERPRINT = 16
INVITATION = """\
# An invitation to the federation {name}

This folder is all that a node needs, and holds no secret. On the machine of each client:

1. Copy this folder there, and install probekit{extra}.
2. Join, with a set of its cache:

       probekit federate node join FOLDER --name NAME --set SET --allow statistics,evaluate

   The node's keys are made there and stay there. `NODE/card.json` goes to the operator, and only that. The policy,
   `NODE/policy.toml`, is the node owner's: what it does not name is not answered.
3. {run}

The operator compares the card's fingerprint with the node's owner (by telephone, say) and adds the card:

    probekit federate add FEDERATION card.json

Questions are signed by the server's key {server}; a node answers no others.
"""
RUN = {
    FILES: "Answer the questions that come as files, in a shared folder or one by one:\n\n"
    "       probekit federate files NODE --exchange FOLDER\n       probekit federate files NODE FILE.question ...",
    FLOWER: "Run the node, which connects to {address} and opens no port to others:\n\n"
    "       probekit federate node run NODE",
}
EXTRA = {FILES: ' with the extra "sign"', FLOWER: ' with the extra "flower"'}


@dataclass(frozen=True)
class Member(Result):
    """A node as the operator sees it."""

    name: str
    fingerprint: str
    rows: int
    backbone: str
    change: str = ""

    @classmethod
    def of(cls, card: Card, change: str = "") -> Member:
        """What a card says."""
        return cls(card.name, card.key[:FINGERPRINT], card.rows, card.encoding.backbone, change)


@dataclass(frozen=True)
class FederationResult(Result):
    """A federation: where it is, how questions travel, who belongs to it, who is awaited."""

    folder: Path
    name: str
    transport: str
    address: str
    members: tuple[Member, ...] = ()
    revoked: int = 0
    seen: Mapping[str, str] = field(default_factory=dict)
    """Of each member: awaited (a question waits for its answer), connected, away, never connected."""
    running: bool | None = None
    """Whether the server runs, where there has to be one."""
    certificates: Mapping[str, str] = field(default_factory=dict)
    """Until when they are valid."""


def init(folder: Path, *, name: str = "", transport: str = FLOWER, address: str = "") -> FederationResult:
    """Begin a federation: its keys, and the invitation for its nodes; for Flower also certificates and the app."""
    host, _, port = address.rpartition(":")
    if transport == FLOWER and host != "relay" and not port.isdecimal():
        raise InputError(
            f"Nodes reach the server at an `address` HOST:PORT; a SuperLink that you run already is `relay:NAME`, its "
            f"name in Flower's configuration; found {address!r}."
        )

    def prepare(note: Mapping[str, Any]) -> None:
        if transport == FLOWER:
            from probekit.federated.flower.folders import prepare_server

            prepare_server(folder, note["name"], [host])
        about = {"name": note["name"], "server": note["server"][:FINGERPRINT], "extra": EXTRA[transport]}
        page = INVITATION.format(**about, run=RUN[transport].format(address=address))
        write_text(folder / "invitation" / "README.md", page)

    FederationFolder.create(folder, name=name, transport=transport, address=address, prepare=prepare)
    return status(folder)


def add(folder: Path, cards: Sequence[Path]) -> list[Member]:
    """Take members in by their cards, or their new keys."""
    federation = FederationFolder.open(folder)
    read = [Card.read(card) for card in cards]
    return [Member.of(card, change) for card, change in zip(read, federation.add_all(read), strict=True)]


def revoke(folder: Path, names: Sequence[str]) -> list[Member]:
    """Take members out: their keys open nothing any more."""
    federation = FederationFolder.open(folder)
    return [Member.of(federation.revoke(name), "revoked") for name in names]


def status(folder: Path) -> FederationResult:
    """Who belongs to a federation, who is there or awaited, and until when its certificate holds."""
    made = FederationFolder.open(folder)
    members = tuple(Member.of(card) for card in made.members.values())
    about = (folder, made.name, made.transport, made.address, members, len(made.revoked))
    if made.transport == FILES:
        return FederationResult(*about, seen=dict.fromkeys(open_questions(folder / "exchange"), "awaited"))
    from probekit.federated.flower.status import status as flower_status

    found = flower_status(folder)
    until = {name: one.date().isoformat() for name, one in found.certificates.items()}
    return FederationResult(*about, found.members, found.running, until)


def renew(folder: Path, hosts: Sequence[str] = ()) -> FederationResult:
    """A new certificate for the server's key, for its hosts so far and these; nodes need nothing new."""
    if FederationFolder.open(folder).transport == FILES:
        raise InputError("A federation by files has no certificate to renew.")
    from probekit.federated.flower.folders import renew as certify

    certify(folder, hosts)
    return status(folder)


def take_answers(folder: Path, answers: Sequence[Path]) -> list[str]:
    """Put answers that came from elsewhere into their places; gives whose they are. The bad are named together."""
    made = FederationFolder.open(folder)
    keys = {name: bytes.fromhex(card.key) for name, card in made.members.items()}
    taken, bad = [], []
    for answer in answers:
        try:
            taken.append(take_in(folder / "exchange", answer, federation=made.id, members=keys))
        except (VerificationError, InputError) as error:
            bad.append(str(error))
    if bad:
        raise VerificationError(f"{' '.join(bad)} {len(taken)} others were taken in.")
    return taken


def serve(folder: Path, *, bind: str | None = None, note: Callable[[str], None]) -> None:
    """Run a federation's server on Flower until the process is told to end."""
    if FederationFolder.open(folder).transport == FILES:
        raise InputError(f"{folder} is a federation by files: it needs no server.")
    from probekit.federated.flower.server import serve as run

    run(folder, bind=bind, watch=note)
