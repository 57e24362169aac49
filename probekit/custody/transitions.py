"""From one state's root to the next: which slots changed, and that no other did.

A step shows a leaf under the root before and what stands in its place afterwards; the same siblings lead to the top
both times, so nothing else changed. It does not show that the same rows are in no other slot, nor that a head was made
from these leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from probekit.custody.slots import (
    EMPTY,
    InHex,
    SlotRoot,
    SlotTree,
    climb,
    lift,
)
from probekit.errors import InputError, VerificationError

AS_WRITTEN = "Take the proof as written."


@dataclass(frozen=True)
class SlotChange(InHex):
    """One slot, what stood in it and what stands in it now, and the siblings that lead to the top both times."""

    slot: int
    old: bytes
    new: bytes
    siblings: bytes

    def __post_init__(self) -> None:
        if len(self.old) != len(EMPTY) or len(self.new) != len(EMPTY):
            raise InputError(f"A slot's content has {len(EMPTY)} bytes.")

    @property
    def emptied(self) -> bool:
        """Whether a client left."""
        return self.new == EMPTY

    @property
    def joined(self) -> bool:
        """Whether a client came."""
        return self.old == EMPTY


@dataclass(frozen=True)
class Transition:
    """All that changed between two states, one slot after the other."""

    before: SlotRoot
    after: SlotRoot
    changes: tuple[SlotChange, ...]

    @property
    def emptied(self) -> tuple[int, ...]:
        """The slots of the clients that left."""
        return tuple(one.slot for one in self.changes if one.emptied)

    def check(self) -> Self:
        """Refuse a transition that does not lead, slot by slot, from the one root to the other."""
        before, after = self.before, self.after
        if (before.run, before.state + 1) != (after.run, after.state):
            raise VerificationError(
                f"A transition leads from a state to the next of one run; found state {before.state} of run "
                f"{before.run.hex()[:16]} and state {after.state} of run {after.run.hex()[:16]}. {AS_WRITTEN}"
            )
        seen: set[int] = set()
        top = lift(before.top, before.height, after.height) if before.slots <= after.slots else before.top
        for one in self.changes:
            if one.slot in seen or one.old == one.new or one.joined != (one.slot >= before.slots):
                raise VerificationError(
                    f"Slot {one.slot} was changed twice, not at all, or filled again. A slot changes once in a state, "
                    f"and is never given out twice. {AS_WRITTEN}"
                )
            seen.add(one.slot)
            if climb(one.old, one.slot, one.siblings, slots=after.slots) != top:
                raise VerificationError(
                    f"The leaf in slot {one.slot} was not there before: another leaf, other siblings, or another "
                    f"state. {AS_WRITTEN}"
                )
            top = climb(one.new, one.slot, one.siblings, slots=after.slots)
        new = {slot for slot in seen if slot >= before.slots}
        if len(new) != after.slots - before.slots or top != after.top:
            raise VerificationError(
                f"These {len(self.changes)} changes do not lead to the root of state {after.state}: something else "
                f"changed too. {AS_WRITTEN}"
            )
        return self

    @property
    def plain(self) -> dict[str, Any]:
        """The transition as JSON has it."""
        return {
            "before": self.before.plain,
            "after": self.after.plain,
            "changes": [one.plain for one in self.changes],
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """The transition that plain values say, checked; anything else is refused."""
        if not isinstance(plain, Mapping) or set(plain) != {"before", "after", "changes"}:
            raise VerificationError(f"A transition with before, after and changes was wanted. {AS_WRITTEN}")
        if not isinstance(plain["changes"], list):
            raise VerificationError(f"A transition's changes are a list. {AS_WRITTEN}")
        changes = tuple(SlotChange.from_plain(one) for one in plain["changes"])
        return cls(SlotRoot.from_plain(plain["before"]), SlotRoot.from_plain(plain["after"]), changes).check()


def change(tree: SlotTree, before: SlotRoot, leaves: Mapping[int, bytes]) -> tuple[SlotTree, Transition]:
    """The tree with these leaves in their slots, and the proof that nothing else changed.

    leaves: by slot; `EMPTY` where a client left. New clients take the slots after the last one.
    """
    if (tree.slots, tree.top) != (before.slots, before.top):
        raise InputError("The tree is not the one that the root commits to.")
    slots = max(before.slots, *(slot + 1 for slot in leaves)) if leaves else before.slots
    tree, changes = tree.grown(slots), []
    for slot, leaf in sorted(leaves.items()):
        changes.append(SlotChange(slot, tree.leaf(slot), leaf, tree.siblings(slot)))
        tree.put(slot, leaf)
    after = SlotRoot(before.run, slots, before.state + 1, tree.top)
    return tree, Transition(before, after, tuple(changes)).check()


@dataclass(frozen=True)
class SlotHistory:
    """What became of one slot: what stands in it, in which state, and in which state it was emptied."""

    leaf: bytes
    state: int
    emptied: int | None = None


def follow(slot: int, leaf: bytes, root: SlotRoot, transitions: Iterable[Transition]) -> SlotHistory:
    """Follow a leaf, which stood under a root, through every transition since; a gap between two is refused."""
    found, emptied = leaf, None
    for one in transitions:
        one.check()
        if one.before.digest != root.digest:
            raise VerificationError(
                f"The transition to state {one.after.state} begins at another root than state {root.state} has: one is "
                f"missing, or of another run. Give all of them, in order."
            )
        for step in one.changes:
            if step.slot == slot and step.old != found:
                raise VerificationError(f"Slot {slot} held another leaf than this one. {AS_WRITTEN}")
            if step.slot == slot:
                found, emptied = step.new, one.after.state if step.emptied else emptied
        root = one.after
    return SlotHistory(found, root.state, emptied)
