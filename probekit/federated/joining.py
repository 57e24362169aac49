"""How a machine becomes a node: its keys are made on it, and only their public halves leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from probekit.custody.signatures import new_private_key
from probekit.errors import InputError
from probekit.federated.cards import Card
from probekit.federated.membership import read_note
from probekit.federated.node import KEY, NODE, POLICY, SCHEMA, read_node, usable_rows
from probekit.federated.policy import Policy
from probekit.files import PRIVATE, make_folder, write_bytes, write_json, write_text
from probekit.values import EmbeddingSet


def join(
    invitation: Path,
    folder: Path,
    name: str,
    set_name: str,
    rows: EmbeddingSet,
    *,
    policy: Policy,
    cache: str = "",
    flower_key: Callable[[Path], str] | None = None,
) -> Card:
    """Make a node's folder from an invitation: keys, policy, and the card that goes to the operator.

    rows: the set that it answers from, called `set_name` in the cache `cache`. flower_key: makes the key that a
    node shows to Flower in its folder, and gives the public half. Joining again keeps keys and policy.
    """
    note = read_note(invitation)
    if (folder / NODE).is_file() and read_node(folder)["federation"] != note["id"]:
        raise InputError(f"{folder} is a node of another federation. Choose another folder.")
    count = len(usable_rows(rows))
    make_folder(folder, closed=True)
    make_folder(folder / "private", closed=True)
    if not (folder / KEY).is_file():
        write_bytes(folder / KEY, new_private_key(), mode=PRIVATE)
    for given in sorted(invitation.glob("*.crt")):
        write_bytes(folder / given.name, given.read_bytes())
    if not (folder / POLICY).is_file():
        policy.write(folder / POLICY)
    own = {"schema": SCHEMA, "name": name, "federation": note["id"], "server": note["server"], "set": set_name}
    more = {"cache": cache, "transport": note["transport"], "address": note["address"]}
    write_json(folder / NODE, {**own, **more})
    shown = "" if flower_key is None else flower_key(folder)
    card = Card.of(note["id"], name, rows, count, (folder / KEY).read_bytes(), shown)
    write_card(folder, card)
    return card


def rotate(folder: Path, *, flower_key: Callable[[Path], str] | None = None) -> Card:
    """Give a node new keys; its card, endorsed by the old one, goes to the operator again.

    flower_key: makes a new key for Flower in a folder, and gives its public half. The card is written first: killed in
    between, the node still has the keys that the operator knows.
    """
    read_node(folder)
    old, place = (folder / KEY).read_bytes(), folder / "private" / "next"
    make_folder(place, closed=True)
    if not (place / Path(KEY).name).is_file():
        write_bytes(place / Path(KEY).name, new_private_key(), mode=PRIVATE)
    new = (place / Path(KEY).name).read_bytes()
    card = Card.read(card_path(folder))
    if flower_key is not None:
        card = replace(card, flower=flower_key(place))
    card = card.replacing(old, new)
    write_card(folder, card)
    for made in sorted(place.iterdir()):  # that which endorses comes last
        made.rename(folder / "private" / made.name)
    place.rmdir()
    return card


def card_path(folder: Path) -> Path:
    """Where a node keeps the card that goes to the operator."""
    return folder / "card.json"


def write_card(folder: Path, card: Card) -> None:
    """Write a node's card."""
    write_text(card_path(folder), card.text)
