"""What a run commits to of its clients: one leaf each with its salt in every state, and proofs of what changed between.

slots.bin              of a state, closed to others: a line of JSON (run, slots, names), then the leaves
transitions/0002.json  of the run, for anybody: which slots changed on the way to state 2, and that no other did

A leaf that changes gets a new salt: with the old one, what was taken out of it could be guessed and confirmed.
"""

from __future__ import annotations

import random
import secrets
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from probekit.custody.slots import EMPTY, NONE, WIDTH, ClientLeaf, SlotRoot, SlotTree, name_digest, row_ids_digest
from probekit.custody.transitions import Transition, change
from probekit.errors import CorruptError, InputError, VerificationError
from probekit.federated.trained import Trained
from probekit.files import parsed, read_limited, write_text
from probekit.values import EmbeddingSet, Partition, canonical

SLOTS, TRANSITIONS = "slots.bin", "transitions"
MOST_BYTES = 2**26
_RECORD = struct.Struct(">Q32s32sQ32s32s")


class LeafContent(NamedTuple):
    """What a leaf says of a client's rows; without statistics, how many there are and which."""

    rows: int
    row_ids: bytes = NONE
    statistics: bytes = NONE


@dataclass(frozen=True)
class Commitments:
    """The leaves of a run's clients in one state, by name; slots that nobody is in were emptied."""

    run: bytes
    slots: int
    leaves: Mapping[str, ClientLeaf]

    @classmethod
    def first(cls, contents: Mapping[str, LeafContent], keys: Mapping[str, bytes] | None = None) -> Self:
        """Slots in random order, so that their numbers tell nothing. keys: the public keys of clients that have one."""
        run, order = secrets.token_bytes(WIDTH), list(range(len(contents)))
        random.SystemRandom().shuffle(order)
        known, pairs = keys or {}, zip(order, contents.items(), strict=True)
        leaves = {name: _leaf(run, slot, name, one, key=known.get(name, NONE)) for slot, (name, one) in pairs}
        return cls(run, len(order), leaves)

    @cached_property
    def tree(self) -> SlotTree:
        """All slots."""
        found = [EMPTY] * self.slots
        for one in self.leaves.values():
            found[one.slot] = one.digest
        return SlotTree(found)

    def root(self, state: int) -> SlotRoot:
        """What is committed to in a state."""
        return SlotRoot(self.run, self.slots, state, self.tree.top)

    def following(
        self, contents: Mapping[str, LeafContent], state: int, keys: Mapping[str, bytes] | None = None
    ) -> CommittedStep:
        """What is committed to in the next state, and the proof of what changed since this one. keys: who joins."""
        leaves, slots, known = {}, self.slots, keys or {}
        for name, one in contents.items():
            old = self.leaves.get(name)
            if old is None:
                made = _leaf(self.run, slots, name, one, key=known.get(name, NONE))
                leaves[name], slots = made, slots + 1
            elif (old.rows, old.row_ids, old.statistics) == one:
                leaves[name] = old
            else:
                leaves[name] = _leaf(self.run, old.slot, name, one, key=old.key)
        changed = {one.slot: one.digest for name, one in leaves.items() if self.leaves.get(name) is not one}
        changed |= {one.slot: EMPTY for name, one in self.leaves.items() if name not in leaves}
        _, proof = change(self.tree, self.root(state), changed)
        return CommittedStep(Commitments(self.run, slots, leaves), proof.after, proof)

    @property
    def data(self) -> bytes:
        """As they are kept."""
        head = canonical({"run": self.run.hex(), "slots": self.slots, "names": list(self.leaves)}).encode()
        every = self.leaves.values()
        records = (_RECORD.pack(one.slot, one.salt, one.key, one.rows, one.row_ids, one.statistics) for one in every)
        return b"".join((head, b"\n", *records))

    @classmethod
    def of_data(cls, data: bytes, where: Path) -> Self:
        """Those that were kept."""
        head, _, records = data.partition(b"\n")
        try:
            said: dict[str, Any] = parsed(head)
            run, leaves = bytes.fromhex(said["run"]), {}
            for name, parts in zip(said["names"], _RECORD.iter_unpack(records), strict=True):
                slot, salt, key, rows, row_ids, statistics = parts
                leaves[name] = ClientLeaf(run, slot, salt, name_digest(name), key, rows, row_ids, statistics)
            if len({one.slot for one in leaves.values()} & {*range(said["slots"])}) != len(leaves):
                raise ValueError("two clients in a slot, or a slot that was never given out")
            return cls(run, said["slots"], leaves)
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise CorruptError(f"{where} is damaged ({error}). Restore the run from a copy.") from error


@dataclass(frozen=True)
class CommittedStep:
    """What a new state commits to; its root; and the proof of what changed, where there was a state before."""

    commitments: Commitments
    root: SlotRoot
    transition: Transition | None = None

    @classmethod
    def begin(cls, contents: Mapping[str, LeafContent], state: int, keys: Mapping[str, bytes] | None = None) -> Self:
        """Of a run that committed to nothing before."""
        made = Commitments.first(contents, keys)
        return cls(made, made.root(state))


def contents_of(
    trained: Trained, row_ids: Mapping[str, bytes], before: Commitments | None = None
) -> dict[str, LeafContent]:
    """What a state says of every client; the ids of rows are those given, else as before."""
    known = {} if before is None else {name: one.row_ids for name, one in before.leaves.items()}
    known |= row_ids
    digests: Mapping[str, str] = {}
    if trained.statistics is not None:
        there = getattr(trained.statistics, "digests", None)
        digests = there or {name: one.digest for name, one in trained.statistics.items()}
    return {
        name: LeafContent(rows, known.get(name, NONE), bytes.fromhex(digests[name]) if name in digests else NONE)
        for name, rows in trained.counts.items()
    }


def row_ids_of(embeddings: EmbeddingSet, partition: Partition, clients: Iterable[str]) -> dict[str, bytes]:
    """A digest of the ids of these clients' rows, for each that holds some."""
    ids = embeddings.ids
    held = {name: partition.clients[name].tolist() for name in clients if name in partition.clients}
    return {name: row_ids_digest([ids[row] for row in rows]) for name, rows in held.items()}


def write_transition(run: Path, transition: Transition) -> None:
    """Keep the proof of what changed on the way to a state."""
    text = canonical(transition.plain) + "\n"
    if len(text) > MOST_BYTES:
        count = len(transition.changes)
        raise InputError(f"A proof for {count} clients is larger than any that is read. Ask for fewer at once.")
    write_text(transition_path(run, transition.after.state), text)


def read_transition(run: Path, state: int) -> Transition | None:
    """The proof of what changed on the way to a state, checked; None where there is none."""
    path = transition_path(run, state)
    if not path.is_file():
        return None
    try:
        found = Transition.from_plain(parsed(read_limited(path, MOST_BYTES)))
    except ValueError as error:
        raise VerificationError(f"{path} is not a transition ({error}). Restore it from a copy.") from error
    if found.after.state != state:
        raise VerificationError(f"{path} leads to state {found.after.state}. Restore it from a copy.")
    return found


def transition_path(run: Path, state: int) -> Path:
    """Where the transition to a state stands."""
    return run / TRANSITIONS / f"{state:04d}.json"


def _leaf(run: bytes, slot: int, name: str, content: LeafContent, *, key: bytes = NONE) -> ClientLeaf:
    return ClientLeaf.of(run, slot, name, key=key, **content._asdict())
