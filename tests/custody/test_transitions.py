"""Transitions: exactly the slots that are named changed; whatever else is tried is refused with exit code 6."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from probekit.custody.slots import EMPTY, ClientLeaf, SlotRoot, SlotTree, node
from probekit.custody.transitions import SlotChange, Transition, change, follow
from probekit.errors import InputError, VerificationError

RUN = bytes(range(32))


def leaf(slot: int) -> bytes:
    """A client's leaf, with a fresh salt."""
    return ClientLeaf.of(RUN, slot, f"client {slot}", rows=slot + 1).digest


def start(count: int, run: bytes = RUN) -> tuple[SlotTree, SlotRoot]:
    """A run after training."""
    tree = SlotTree([leaf(slot) for slot in range(count)])
    return tree, SlotRoot(run, count, 1, tree.top)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 50])
def test_emptied_changed_and_joined_slots(count: int) -> None:
    tree, root = start(count)
    last = count - 1
    after, found = change(tree, root, {0: EMPTY, last: leaf(last), count: leaf(count), count + 1: leaf(count + 1)})
    assert found.emptied == ((0,) if last else ())
    assert found.after == SlotRoot(RUN, count + 2, 2, after.top)
    assert Transition.from_plain(found.plain) == found
    assert [one.joined for one in found.changes][-2:] == [True, True]
    assert tree.top == root.top  # the tree before is left as it was


def test_nothing_changes_and_the_state_goes_on() -> None:
    tree, root = start(4)
    _, found = change(tree, root, {})
    assert found.changes == ()
    assert (found.after.top, found.after.state) == (root.top, 2)


def test_batches_of_many_are_chains() -> None:
    tree, root = start(100)
    after, found = change(tree, root, dict.fromkeys(range(10, 90), EMPTY))
    assert found.emptied == tuple(range(10, 90))
    with pytest.raises(VerificationError, match="not there before"):
        replace(found, changes=found.changes[::-1]).check()
    assert SlotTree([EMPTY if 10 <= slot < 90 else tree.leaf(slot) for slot in range(100)]).top == after.top


def _other_run(found: Transition) -> Transition:
    return replace(found, after=replace(found.after, run=secrets.token_bytes(32)))


def _both_other(found: Transition) -> Transition:
    other = secrets.token_bytes(32)
    return replace(found, before=replace(found.before, run=other), after=replace(found.after, run=other))


def _with(**parts: Any) -> Callable[[Transition], Transition]:
    def forge(found: Transition) -> Transition:
        return replace(found, changes=(replace(found.changes[0], **parts), *found.changes[1:]))

    return forge


def _swapped(found: Transition) -> Transition:
    way = found.changes[0].siblings
    return _with(siblings=way[32:64] + way[:32] + way[64:])(found)


def _cut(found: Transition) -> Transition:
    return _with(siblings=found.changes[0].siblings[32:])(found)


def _longer(found: Transition) -> Transition:
    return _with(siblings=found.changes[0].siblings + EMPTY)(found)


def _node_for_leaf(found: Transition) -> Transition:
    """The parent of slots 2 and 3 shown as a leaf of a tree of half the size."""
    one = found.changes[0]
    old, new = (node(1, leaf, one.siblings[:32]) for leaf in (one.old, one.new))
    half = SlotChange(one.slot >> 1, old, new, one.siblings[32:])
    before, after = (replace(root, slots=root.slots // 2) for root in (found.before, found.after))
    return Transition(before, after, (half,))


def _height(found: Transition) -> Transition:
    return replace(found, before=replace(found.before, slots=4), after=replace(found.after, slots=4))


def _higher(found: Transition) -> Transition:
    return replace(found, after=replace(found.after, slots=9))


def _another_too(found: Transition) -> Transition:
    """Slot 5 is exchanged on the way, and only slot 2 is told of."""
    tree, root = start(8)
    _, whole = change(tree, root, {2: EMPTY, 5: leaf(5)})
    return replace(whole, changes=whole.changes[:1])


def _twice(found: Transition) -> Transition:
    return replace(found, changes=found.changes * 2)


def _kept(found: Transition) -> Transition:
    same = replace(found.changes[0], new=found.changes[0].old)
    return replace(found, after=replace(found.before, state=2), changes=(same,))


def _skips(found: Transition) -> Transition:
    return replace(found, after=replace(found.after, state=3))


@pytest.mark.parametrize(
    "forge",
    [
        *(_other_run, _swapped, _cut, _longer, _node_for_leaf, _height, _higher, _another_too, _twice, _kept, _skips),
        *(_with(slot=3), _with(slot=10), _with(old=leaf(2)), _with(new=leaf(2)), _with(old=EMPTY)),
        lambda found: replace(found, changes=()),
        lambda found: replace(found, before=found.after, after=found.before),
    ],
)
def test_forged_transitions_are_refused(forge: Callable[[Transition], Transition]) -> None:
    tree, root = start(8)
    _, found = change(tree, root, {2: EMPTY})
    with pytest.raises(VerificationError) as caught:
        forge(found).check()
    assert caught.value.exit_code == 6


def test_a_transition_of_another_run_has_another_root() -> None:
    """Whoever gives both roots another run gets roots that no ledger has."""
    tree, root = start(8)
    _, found = change(tree, root, {2: EMPTY})
    other = _both_other(found).check()
    assert {other.before.digest, other.after.digest}.isdisjoint({found.before.digest, found.after.digest})


def test_an_emptied_slot_is_never_given_out_again() -> None:
    tree, root = start(8)
    tree, found = change(tree, root, {2: EMPTY})
    with pytest.raises(VerificationError, match="filled again"):
        change(tree, found.after, {2: leaf(2)})
    with pytest.raises(VerificationError, match="never given out twice"):
        change(tree, found.after, {2: EMPTY})


def test_slots_are_given_out_one_after_the_other() -> None:
    tree, root = start(3)
    with pytest.raises(VerificationError, match="something else changed"):
        change(tree, root, {4: leaf(4)})
    with pytest.raises(InputError, match="not the one that the root commits to"):
        change(tree, replace(root, top=EMPTY), {1: EMPTY})


def test_a_leaf_is_followed_to_the_state_that_emptied_it() -> None:
    tree, root = start(8)
    mine, steps = tree.leaf(3), []
    at = root
    for leaves in ({1: EMPTY}, {3: (changed := leaf(3))}, {8: leaf(8)}, {3: EMPTY}, {0: EMPTY}):
        tree, found = change(tree, at, leaves)
        steps.append(found)
        at = found.after
    assert (follow(3, mine, root, steps).emptied, follow(3, mine, root, steps).state) == (5, 6)
    assert follow(3, mine, root, steps[:2]).leaf == changed
    assert follow(3, mine, root, steps[:3]).emptied is None
    with pytest.raises(VerificationError, match="one is missing"):
        follow(3, mine, root, [steps[0], *steps[2:]])
    with pytest.raises(VerificationError, match="another leaf"):
        follow(3, leaf(3), root, steps)
    with pytest.raises(VerificationError, match="one is missing"):
        follow(3, mine, replace(root, run=secrets.token_bytes(32)), steps)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: {**plain, "more": 1},
        lambda plain: {**plain, "changes": {}},
        lambda plain: {**plain, "changes": [7]},
        lambda plain: {**plain, "before": None},
        lambda plain: {**plain, "changes": [{**plain["changes"][0], "old": "00"}]},
        lambda plain: {**plain, "changes": [{**plain["changes"][0], "slot": True}]},
        lambda plain: {**plain, "changes": [{**plain["changes"][0], "siblings": "0"}]},
        lambda plain: {name: value for name, value in plain.items() if name != "after"},
        lambda plain: [],
    ],
)
def test_what_is_no_transition_is_refused(spoil: Callable[[Any], Any]) -> None:
    tree, root = start(8)
    _, found = change(tree, root, {2: EMPTY})
    with pytest.raises(VerificationError):
        Transition.from_plain(spoil(found.plain))
