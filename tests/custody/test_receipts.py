"""Receipts and anchors: what a client holds against the operator."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from probekit.custody.chain import BEGINNING, Anchor, Chain, link
from probekit.custody.receipts import KIND, MOST_BYTES, Receipt
from probekit.custody.signatures import new_private_key, public_key_of, sign
from probekit.custody.slots import EMPTY, ClientLeaf, SlotRoot, SlotTree
from probekit.custody.transitions import change
from probekit.errors import InputError, VerificationError

RUN = bytes(range(32))
ANCHOR = Anchor(3, b"a" * 32)


@pytest.fixture
def leaves() -> list[ClientLeaf]:
    """What a run commits to."""
    return [ClientLeaf.of(RUN, slot, f"client {slot}", rows=slot) for slot in range(6)]


@pytest.fixture
def tree(leaves: list[ClientLeaf]) -> SlotTree:
    """Its tree."""
    return SlotTree([one.digest for one in leaves])


def receipt_of(leaves: list[ClientLeaf], tree: SlotTree, slot: int) -> Receipt:
    """A client's receipt."""
    return Receipt(leaves[slot], SlotRoot(RUN, 6, 1, tree.top), tree.siblings(slot), ANCHOR)


def test_a_receipt_comes_back_and_is_its_client_s(leaves: list[ClientLeaf], tree: SlotTree) -> None:
    found = Receipt.read(receipt_of(leaves, tree, 4).text.encode())
    assert found == receipt_of(leaves, tree, 4)
    assert found.check(name="client 4") is found
    with pytest.raises(VerificationError, match="not of client client 3"):
        found.check(name="client 3")


def test_its_client_learns_when_it_was_emptied(leaves: list[ClientLeaf], tree: SlotTree) -> None:
    mine, root = receipt_of(leaves, tree, 4), SlotRoot(RUN, 6, 1, tree.top)
    tree, first = change(tree, root, {0: EMPTY})
    _, second = change(tree, first.after, {4: EMPTY})
    assert mine.history([first]).emptied is None
    assert mine.history([first, second]).emptied == 3
    with pytest.raises(VerificationError, match="another leaf"):  # a neighbour's was emptied, and shown as this one
        replace(mine, leaf=replace(mine.leaf, salt=bytes(32))).history([first, second])


def _spoilt(receipt: Receipt, part: str, name: str, value: Any) -> Receipt:
    return replace(receipt, **{part: replace(getattr(receipt, part), **{name: value})})


@pytest.mark.parametrize(
    "forge",
    [
        lambda one, other: _spoilt(one, "leaf", "salt", other.leaf.salt),
        lambda one, other: _spoilt(one, "leaf", "name", other.leaf.name),
        lambda one, other: _spoilt(one, "leaf", "slot", 3),
        lambda one, other: _spoilt(one, "leaf", "slot", 6),
        lambda one, other: _spoilt(one, "leaf", "rows", 99),
        lambda one, other: _spoilt(one, "leaf", "run", bytes(32)),
        lambda one, other: _spoilt(one, "root", "run", bytes(32)),
        lambda one, other: _spoilt(one, "root", "slots", 3),
        lambda one, other: _spoilt(one, "root", "top", bytes(32)),
        lambda one, other: replace(one, leaf=other.leaf),
        lambda one, other: replace(one, siblings=other.siblings),
        lambda one, other: replace(one, siblings=one.siblings[:-1]),
        lambda one, other: replace(one, siblings=one.siblings[32:]),
        lambda one, other: replace(one, siblings=one.siblings + bytes(32)),
        lambda one, other: replace(one, siblings=one.siblings[32:64] + one.siblings[:32] + one.siblings[64:]),
    ],
)
def test_forged_receipts_are_refused(
    leaves: list[ClientLeaf], tree: SlotTree, forge: Callable[[Receipt, Receipt], Receipt]
) -> None:
    forged = forge(receipt_of(leaves, tree, 4), receipt_of(leaves, tree, 3))
    with pytest.raises(VerificationError) as caught:
        Receipt.read(forged.text.encode())
    assert caught.value.exit_code == 6


def test_a_receipt_s_state_is_bound_by_its_root(leaves: list[ClientLeaf], tree: SlotTree) -> None:
    """Its own files cannot show it; the ledger, or the first transition, has another root."""
    mine = receipt_of(leaves, tree, 4)
    _, first = change(tree, mine.root, {4: EMPTY})
    later = _spoilt(mine, "root", "state", 2).check()
    assert later.root.digest != mine.root.digest
    with pytest.raises(VerificationError, match="begins at another root"):
        later.history([first])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 50_000, b'"\\ud800"', b" " * (MOST_BYTES + 1)),
        *(json.dumps({"kind": KIND}).encode(), b'{"kind": NaN}'),
    ],
)
def test_what_is_no_receipt_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        Receipt.read(data)


def test_every_byte_of_a_receipt_counts(leaves: list[ClientLeaf], tree: SlotTree) -> None:
    text = receipt_of(leaves, tree, 4).text
    plain = json.loads(text)
    doubled = text.replace('"kind"', '"kind": "other", "kind"', 1)
    for changed in (text + " ", text.replace("\n", "", 1), json.dumps(plain), doubled, text.upper()):
        with pytest.raises(VerificationError):
            Receipt.read(changed.encode())
    for name in plain:
        with pytest.raises(VerificationError):
            Receipt.read(json.dumps({**plain, name: 7}, sort_keys=True, indent=1).encode() + b"\n")


def test_signed_receipts(leaves: list[ClientLeaf], tree: SlotTree) -> None:
    key, other = new_private_key(), new_private_key()
    plain = receipt_of(leaves, tree, 4)
    signed = plain.signed(key)
    found = Receipt.read(signed.text.encode())
    found.check(public_key=public_key_of(key))
    with pytest.raises(VerificationError, match="somebody else"):
        found.check(public_key=public_key_of(other))
    with pytest.raises(VerificationError, match="signed receipt was wanted"):
        plain.check(public_key=public_key_of(key))
    moved = replace(signed, anchor=Anchor(4, bytes(32)))
    with pytest.raises(VerificationError, match="signature is not of key"):
        Receipt.read(moved.text.encode())
    bare = replace(plain, signature=sign(plain.signed_bytes.partition(b"\n")[2], key))
    with pytest.raises(VerificationError, match="signature is not of key"):  # signed as something else
        bare.check()
    for wrong in ({}, {"algorithm": "ed25519"}, {"algorithm": "ed25519", "key": "zz", "value": "00"}):
        with pytest.raises(VerificationError):
            replace(plain, signature=wrong).check()


def test_anchors_lie_on_one_chain() -> None:
    bodies = tuple(secrets.token_bytes(32) for _ in range(5))
    chain = Chain(BEGINNING, bodies)
    assert chain.tip == Anchor(5, chain.digests[-1])
    assert Chain.from_plain(chain.plain) == chain
    every = [Anchor(number, digest) for number, digest in enumerate(chain.digests)]
    chain.demand(every)
    later = Chain(every[2], bodies[2:])
    assert later.tip == chain.tip
    later.demand(every[2:])
    for anchor, why in (
        (every[1], "older than this chain"),
        (Anchor(6, chain.tip.digest), "beyond the end"),
        (Anchor(4, every[3].digest), "not the one that was noted"),
        (Anchor(4, b"x" * 32), "not the one that was noted"),
    ):
        with pytest.raises(VerificationError, match=why):
            later.demand([chain.tip, anchor])
    with pytest.raises(VerificationError, match="beyond the end"):  # rolled back
        Chain(BEGINNING, bodies[:3]).demand([chain.tip])
    swapped = Chain(BEGINNING, (bodies[1], bodies[0], *bodies[2:]))
    with pytest.raises(VerificationError, match="not the one that was noted"):
        swapped.demand([chain.tip])


def test_anchors_as_text() -> None:
    assert Anchor.parse(str(ANCHOR)) == ANCHOR
    assert Anchor.from_plain(ANCHOR.plain) == ANCHOR
    for text in ("", "3", "3:", ":aa", "x:" + "0" * 64, "3:" + "0" * 63, "3:" + "A" * 64, "²:" + "0" * 64, "9" * 5000):
        with pytest.raises(InputError):
            Anchor.parse(text)
    wrong: Any
    for wrong in ({}, {"start": BEGINNING.plain, "bodies": ["00"]}, {"start": 1, "bodies": []}, []):
        with pytest.raises(VerificationError):
            Chain.from_plain(wrong)
    with pytest.raises(InputError, match="two digests"):
        link(b"", bytes(32))
