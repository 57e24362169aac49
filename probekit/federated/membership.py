"""A federation's folder: its name and keys, and who belongs to it.

federation.json   public: schema, id, name, the server's public key, how questions travel
invitation/       public: what every node gets
members/          the card of each node, NAME.json; revoked/ those that were taken out
private/          closed to others: server.pem, which signs questions; a certificate authority's key, ...
exchange/         questions and answers that travel as files
jobs/             where work that was begun has come to
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock

from probekit.custody.signatures import new_private_key, raw_public_key
from probekit.errors import InputError, MismatchError, NotFoundError, VerificationError
from probekit.federated.cards import Card
from probekit.files import PRIVATE, make_folder, read_json, write_bytes, write_json, write_text
from probekit.registry import nearest
from probekit.syncing import together

SCHEMA = 1
NOTE, SERVER_KEY = "federation.json", "private/server.pem"
FILES, FLOWER = "files", "flower"
LONGEST = 60


def safe_name(name: str) -> str:
    """A name as a file can have it; the hash tells apart names that a file system does not."""
    return f"{quote(name, safe='')[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, eq=False)
class FederationFolder:
    """A federation's folder that is there."""

    path: Path
    id: str
    name: str
    transport: str
    address: str
    server: bytes
    """The raw public key that questions are signed by."""

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        name: str = "",
        transport: str = FILES,
        address: str = "",
        prepare: Callable[[Mapping[str, Any]], None] = lambda note: None,
    ) -> FederationFolder:
        """A new federation: its id and the key that signs its questions.

        prepare: called with what its note will say, makes what else it needs before it appears.
        """
        if transport not in (FILES, FLOWER):
            raise InputError(f"Questions travel by {FILES} or {FLOWER}; found {transport!r}.")
        if (path / NOTE).exists():
            raise InputError(f"{path} holds a federation already. Use it, or choose another folder.")
        make_folder(path)
        make_folder(path / "private", closed=True)
        key = new_private_key()
        write_bytes(path / SERVER_KEY, key, mode=PRIVATE)
        public = raw_public_key(key, private=True).hex()
        note: Any = {"schema": SCHEMA, "id": secrets.token_hex(16), "name": name or path.absolute().name}
        note |= {"server": public, "transport": transport, "address": address}
        make_folder(path / "members")
        prepare(note)
        write_json(path / "invitation" / NOTE, note)
        write_json(path / NOTE, note)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> FederationFolder:
        """The federation in a folder."""
        note = read_note(path)
        public = bytes.fromhex(note["server"])
        return cls(path, note["id"], note["name"], note["transport"], note["address"], public)

    @property
    def key(self) -> bytes:
        """The private key that signs questions, in PEM."""
        place = self.path / SERVER_KEY
        if not place.is_file():
            raise NotFoundError(f"{self.path} has no {SERVER_KEY}: only the operator's own folder can ask.")
        return place.read_bytes()

    @property
    def members(self) -> Mapping[str, Card]:
        """Every member's card, by name."""
        found = [Card.read(path) for path in sorted((self.path / "members").glob("*.json"))]
        return {card.name: card for card in found}

    @property
    def revoked(self) -> Mapping[str, str]:
        """Keys that were taken out, in hex, with the name each had."""
        place = self.path / "revoked.json"
        found: dict[str, str] = read_json(place, remedy="Restore it from a copy.") if place.is_file() else {}
        return found

    def add(self, card: Card) -> str:
        """Take a member in, or its new key; gives what changed ("added", "updated", "rotated" or "nothing")."""
        return self.add_all([card])[0]

    def add_all(self, cards: Sequence[Card]) -> list[str]:
        """Take several in: all of them, or none where one is refused."""
        with FileLock(self.path / ".lock"), together():
            members, revoked, changes = dict(self.members), dict(self.revoked), list[str]()
            owners = {card.key: name for name, card in members.items()}
            for card in cards:
                self._refuse(card.check(), members, owners, revoked)
                before = members.get(card.name)
                changes.append(_change(before, card))
                if before is not None and before.key != card.key:
                    revoked[before.key] = card.name
                members[card.name], owners[card.key] = card, card.name
            if revoked != self.revoked:
                write_json(self.path / "revoked.json", revoked)
            for card, change in zip(cards, changes, strict=True):
                if change != "nothing":
                    write_text(self._place(card.name), card.text)
        return changes

    def revoke(self, name: str) -> Card:
        """Take a member out: its key opens nothing any more."""
        with FileLock(self.path / ".lock"):
            members = self.members
            if name not in members:
                known = nearest(name, list(members)) if members else "It has no members."
                raise NotFoundError(f"This federation has no member {name!r}. {known}")
            card = members[name]
            write_json(self.path / "revoked.json", {**self.revoked, card.key: name})
            self._place(name).unlink()
        return card

    def _place(self, name: str) -> Path:
        return self.path / "members" / f"{safe_name(name)}.json"

    def _refuse(
        self, card: Card, members: Mapping[str, Card], owners: Mapping[str, str], revoked: Mapping[str, str]
    ) -> None:
        if card.federation != self.id:
            raise VerificationError(
                f"The card of {card.name} is for another federation than {self.name}. Join this one."
            )
        if card.key in revoked:
            raise VerificationError(f"The key of {card.name}'s card was revoked. Let the node make a new one and join.")
        if not card.rows:
            raise InputError(f"{card.name} has no row with a label and an embedding. Let it join with a set that has.")
        same = owners.get(card.key, card.name)
        if same != card.name:
            raise VerificationError(f"The key of {card.name}'s card is {same}'s already. Every node makes its own.")
        before = members.get(card.name)
        if before is not None and before.key not in (card.key, card.replaces):
            raise VerificationError(
                f"{card.name} is a member with another key, which did not endorse this one. Rotate the key on the node "
                "(`federate node rotate`), or revoke the member first."
            )
        first = next((one for name, one in members.items() if name != card.name), None)
        if first is not None and first.encoding.digest != card.encoding.digest:
            raise MismatchError(
                f"{card.name} has embeddings of {card.encoding.backbone} (spec {card.encoding.digest[:12]}), the "
                f"others of {first.encoding.backbone} ({first.encoding.digest[:12]}). Extract them with the same "
                "backbone."
            )
        if first is not None and (first.classes, first.targets) != (card.classes, card.targets):
            raise MismatchError(
                f"{card.name} has the classes {', '.join(card.classes[:4])}..., the others "
                f"{', '.join(first.classes[:4])}... Name them alike, in the same order."
            )


def _change(before: Card | None, card: Card) -> str:
    """What a card changes."""
    if before is None:
        return "added"
    return "nothing" if before == card else "updated" if before.key == card.key else "rotated"


def read_note(path: Path) -> dict[str, Any]:
    """What a federation's folder, or an invitation, says of itself."""
    if not (path / NOTE).is_file():
        raise NotFoundError(
            f"{path} is not a federation's folder: it has no {NOTE}. `probekit federate init` makes one."
        )
    note: dict[str, Any] = read_json(path / NOTE, remedy="Take it from the operator again.")
    if note.get("schema") != SCHEMA:
        raise InputError(
            f"{path} was made by another version of probekit (schema {note.get('schema')}, here {SCHEMA}). Use that "
            "version, or make the federation anew."
        )
    texts = ("id", "name", "server", "transport", "address")
    if any(type(note.get(name)) is not str for name in texts) or len(note["server"]) != 64:
        raise InputError(f"{path}/{NOTE} is not a federation's. Take it from the operator again.")
    return note
