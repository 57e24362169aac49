"""Slots, their tree and its proofs, attacked by somebody who owns every file."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.custody.slots import (
    EMPTY,
    NONE,
    WIDTH,
    ClientLeaf,
    SlotRoot,
    SlotTree,
    climb,
    empty,
    height_of,
    lift,
    name_digest,
    node,
    row_ids_digest,
)
from probekit.errors import InputError, VerificationError

RUN = bytes(range(32))


def leaf(slot: int, run: bytes = RUN) -> ClientLeaf:
    """A client's leaf."""
    return ClientLeaf.of(run, slot, f"client {slot}", rows=slot + 1, row_ids=row_ids_digest([f"row {slot}"]))


def top_of(leaves: list[bytes]) -> bytes:
    """The definition, slowly: fill up with empty leaves to a power of two, then pair."""
    level, height = [*leaves, *[EMPTY] * (2 ** height_of(len(leaves)) - len(leaves))], 0
    while len(level) > 1:
        height += 1
        level = [
            hashlib.sha256(b"\x01" + bytes([height]) + level[i] + level[i + 1]).digest()
            for i in range(0, len(level), 2)
        ]
    return level[0]


def test_digests_are_those_of_the_format() -> None:
    """Every width is fixed: what was written today is read in ten years."""
    one = ClientLeaf(RUN, 7, b"s" * 32, name_digest("a"), b"k" * 32, 3, b"i" * 32, b"t" * 32)
    number = (7).to_bytes(8, "big")
    parts = (b"\x00probekit.slot.v1", RUN, number, b"s" * 32, hashlib.sha256(b"probekit.name.v1a").digest(), b"k" * 32)
    assert one.digest == hashlib.sha256(b"".join((*parts, (3).to_bytes(8, "big"), b"i" * 32, b"t" * 32))).digest()
    assert hashlib.sha256(b"\x02probekit.slot.v1").digest() == EMPTY
    said = b"\x03" + RUN + (5).to_bytes(8, "big") + (2).to_bytes(8, "big") + EMPTY
    assert SlotRoot(RUN, 5, 2, EMPTY).digest == hashlib.sha256(said).hexdigest()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100])
def test_every_slot_is_proven_and_only_with_its_own_leaf(count: int) -> None:
    leaves = [leaf(slot).digest for slot in range(count)]
    tree = SlotTree(leaves)
    assert tree.top == top_of(leaves)
    for slot in range(count):
        siblings = tree.siblings(slot)
        assert len(siblings) == WIDTH * height_of(count)
        assert climb(leaves[slot], slot, siblings, slots=count) == tree.top
        assert climb(leaf(slot).digest, slot, siblings, slots=count) != tree.top  # another salt


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.data())
def test_changed_slots_give_the_tree_of_the_changed_leaves(full: list[bool], data: st.DataObject) -> None:
    leaves = [leaf(slot).digest if one else EMPTY for slot, one in enumerate(full)]
    tree = SlotTree(leaves)
    slot = data.draw(st.integers(0, len(full) - 1))
    copy = tree.grown(len(full))
    copy.put(slot, new := leaf(slot).digest)
    assert tree.top == top_of(leaves)
    leaves[slot] = new
    assert copy.top == top_of(leaves)
    more = data.draw(st.integers(len(full), 80))
    grown = copy.grown(more)
    assert grown.top == top_of([*leaves, *[EMPTY] * (more - len(full))])
    assert grown.top == lift(copy.top, height_of(len(full)), height_of(more))


def test_ten_thousand_slots_have_proofs_of_448_bytes() -> None:
    tree = SlotTree([secrets.token_bytes(WIDTH) for _ in range(10_000)])
    assert len(tree.siblings(9_999)) == 448
    assert climb(tree.leaf(9_999), 9_999, tree.siblings(9_999), slots=10_000) == tree.top


def test_a_node_does_not_pass_for_a_leaf() -> None:
    """Shown as the leaf of a smaller tree, an inner node would prove what nobody committed to."""
    tree = SlotTree([leaf(slot).digest for slot in range(8)])
    inner = node(1, tree.leaf(0), tree.leaf(1))
    with pytest.raises(VerificationError, match="96 bytes; found 64"):
        climb(inner, 0, tree.siblings(0)[WIDTH:], slots=8)
    # with the number of slots changed too, heights and the root give it away
    shorter = climb(inner, 0, tree.siblings(0)[WIDTH:], slots=4)
    assert SlotRoot(RUN, 4, 1, shorter).digest != SlotRoot(RUN, 8, 1, tree.top).digest
    assert shorter != tree.top


def test_a_leaf_does_not_pass_for_a_node() -> None:
    """The text of a leaf has another length and another first byte than that of a node, a root or an empty slot."""
    lengths = {1 + 16 + 32 + 8 + 32 * 3 + 8 + 32 * 2, 2 + 64, 1 + 16, 1 + 32 + 8 + 8 + 32}
    assert len(lengths) == 4
    assert len({leaf(0).digest, node(0, NONE, NONE), EMPTY, empty(1)}) == 4


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 64, 95])
def test_truncated_proofs_are_refused(cut: int) -> None:
    tree = SlotTree([leaf(slot).digest for slot in range(8)])
    with pytest.raises(VerificationError, match="cut short, lengthened"):
        climb(tree.leaf(3), 3, tree.siblings(3)[:cut], slots=8)


@pytest.mark.parametrize("more", [b"\x00", bytes(32), EMPTY])
def test_lengthened_proofs_are_refused(more: bytes) -> None:
    tree = SlotTree([leaf(slot).digest for slot in range(8)])
    for siblings in (tree.siblings(3) + more, more + tree.siblings(3)):
        with pytest.raises(VerificationError, match="cut short, lengthened"):
            climb(tree.leaf(3), 3, siblings, slots=8)


def test_swapped_siblings_and_neighbouring_slots_lead_elsewhere() -> None:
    tree = SlotTree([leaf(slot).digest for slot in range(8)])
    way = tree.siblings(3)
    low, middle, high = (way[start : start + 32] for start in (0, 32, 64))
    for wrong in (middle + low + high, low + high + middle, high + middle + low):
        assert climb(tree.leaf(3), 3, wrong, slots=8) != tree.top
    for slot in (0, 1, 2, 4, 7):
        assert climb(tree.leaf(3), slot, way, slots=8) != tree.top


@pytest.mark.parametrize("slot", [-1, 5, 7, 8, 2**40])
def test_slots_that_were_never_given_out_prove_nothing(slot: int) -> None:
    """The empty leaves that fill the tree are nobody's."""
    tree = SlotTree([leaf(number).digest for number in range(5)])
    with pytest.raises(VerificationError, match="gave out 5"):
        climb(EMPTY, slot, tree.siblings(4), slots=5)
    with pytest.raises(InputError, match="no slot"):
        tree.siblings(slot)
    with pytest.raises(InputError, match="no slot"):
        tree.put(slot, EMPTY)


def test_a_leaf_belongs_to_its_run_slot_and_client() -> None:
    one = leaf(4)
    other = secrets.token_bytes(32)
    for changed in (
        replace(one, run=other),
        replace(one, slot=5),
        replace(one, salt=leaf(5).salt),
        replace(one, name=name_digest("somebody else")),
        replace(one, key=other),
        replace(one, rows=one.rows + 1),
        replace(one, row_ids=row_ids_digest(["another row"])),
        replace(one, statistics=other),
    ):
        assert changed.digest != one.digest
    assert ClientLeaf.of(RUN, 0, "a", rows=1).salt != ClientLeaf.of(RUN, 0, "a", rows=1).salt


def test_a_root_belongs_to_its_run_state_and_size() -> None:
    one = SlotRoot(RUN, 5, 2, EMPTY)
    changed = (replace(one, run=NONE), replace(one, slots=6), replace(one, state=3), replace(one, top=NONE))
    assert len({one.digest, *(other.digest for other in changed)}) == 5


def test_row_ids_are_not_glued_together() -> None:
    assert row_ids_digest(["ab", "c"]) == row_ids_digest(["c", "ab"])
    assert len({row_ids_digest(ids) for ids in (["ab", "c"], ["a", "bc"], ["abc"], [], [""], ["", ""])}) == 6


@pytest.mark.parametrize("part", ["run", "salt", "name", "key", "row_ids", "statistics"])
@pytest.mark.parametrize("width", [0, 31, 33, 64])
def test_parts_of_another_width_are_refused(part: str, width: int) -> None:
    with pytest.raises(InputError, match="32 bytes"):
        ClientLeaf(**{**vars(leaf(1)), part: bytes(width)})
    with pytest.raises(VerificationError, match="as written"):
        ClientLeaf.from_plain({**leaf(1).plain, part: "00" * width})


@pytest.mark.parametrize("value", [None, True, 1.0, "1", -1, 2**32, [], {}])
def test_numbers_that_are_none_are_refused(value: object) -> None:
    for name in ("slot", "rows"):
        with pytest.raises(VerificationError, match="as written"):
            ClientLeaf.from_plain({**leaf(1).plain, name: value})
    with pytest.raises(VerificationError, match="as written"):
        SlotRoot.from_plain({**SlotRoot(RUN, 5, 2, EMPTY).plain, "slots": value})


@pytest.mark.parametrize("text", [None, 7, "", "AB" * 32, " " * 64, "0x" + "0" * 62, "é" * 64, "0" * 63, b"0" * 64])
def test_texts_that_are_no_digests_are_refused(text: object) -> None:
    with pytest.raises(VerificationError, match="as written"):
        ClientLeaf.from_plain({**leaf(1).plain, "salt": text})


def test_plain_leaves_and_roots_come_back() -> None:
    one, root = leaf(3), SlotRoot(RUN, 5, 2, EMPTY)
    assert ClientLeaf.from_plain(one.plain) == one
    assert SlotRoot.from_plain(root.plain) == root
    wrong: Any
    for wrong in ({}, [], None, {**one.plain, "more": 1}, {"slot": 1}):
        with pytest.raises(VerificationError, match="was wanted"):
            ClientLeaf.from_plain(wrong)


def test_a_run_without_clients_has_no_tree() -> None:
    with pytest.raises(InputError, match="without clients"):
        SlotTree([])
    with pytest.raises(InputError, match="from 1 on"):
        SlotRoot(RUN, 0, 1, EMPTY)
    with pytest.raises(InputError, match="32 bytes each"):
        SlotRoot(RUN, 1, 1, b"")
