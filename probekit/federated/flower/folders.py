"""What Flower needs in the folders of a server and of its nodes: keys, certificates, secrets, addresses."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from probekit.federated.flower import tls
from probekit.federated.flower.app import write_app
from probekit.federated.membership import FederationFolder
from probekit.files import PRIVATE, make_folder, write_bytes

NODE_KEY, SECRET = "flower.key", "secret"
RELAY = "relay:"
"""How the address of a federation begins that runs on somebody's SuperLink: the name of a connection follows."""


def prepare_server(folder: Path, name: str, hosts: Sequence[str]) -> None:
    """Make the CA, the server's certificate for these hosts, the secret and the app of a new federation."""
    kept = folder / "private"
    for place in (kept, folder / "flower"):  # the SuperLink's database holds answers
        make_folder(place, closed=True)
    for key in ("ca.key", "server.key"):
        write_bytes(kept / key, tls.new_key(), mode=PRIVATE)
    write_bytes(kept / SECRET, secrets.token_bytes(32), mode=PRIVATE)
    _issue_authority(folder, name)
    renew(folder, hosts)
    write_app(folder)


def renew(folder: Path, hosts: Sequence[str] = (), *, days: int = tls.SERVER_DAYS) -> None:
    """A new certificate for the server's key, for its hosts so far and these; nobody needs a new key or file."""
    kept = folder / "private"
    old = kept / "server.crt"
    before = tls.hosts_of(old.read_bytes()) if old.exists() else []
    key, signer, authority = ((kept / name).read_bytes() for name in ("server.key", "ca.key", "ca.crt"))
    write_bytes(old, tls.new_certificate(key, signer, authority, [*before, *hosts], days=days))


def _issue_authority(folder: Path, name: str) -> None:
    made = tls.new_authority((folder / "private" / "ca.key").read_bytes(), f"probekit federation {name}")
    for where in (folder / "private", folder / "invitation"):
        make_folder(where)
        write_bytes(where / "ca.crt", made)


def prepare_node(folder: Path) -> str:
    """Make a node's key for Flower, and its secret, if it has none; the public half is what may leave the node."""
    kept = folder / "private"
    make_folder(kept, closed=True)
    if not (kept / SECRET).is_file():
        write_bytes(kept / SECRET, secrets.token_bytes(32), mode=PRIVATE)
    return new_node_key(kept)


def new_node_key(place: Path) -> str:
    """Make a node's key for Flower in this folder, if it holds none; gives the public half."""
    if not (place / NODE_KEY).is_file():
        write_bytes(place / NODE_KEY, tls.new_node_key(), mode=PRIVATE)
    return tls.public_node_key((place / NODE_KEY).read_bytes())


def member_keys(folder: Path) -> dict[str, str]:
    """The members of a federation's folder and the public keys of their SuperNodes."""
    return {name: card.flower for name, card in FederationFolder.open(folder).members.items() if card.flower}
