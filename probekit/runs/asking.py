"""Whether those who asked may ask: a client's petition must be of this run, and signed by the key of its own leaf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from probekit.custody.petitions import OPERATOR, Petition
from probekit.custody.signatures import raw_public_key
from probekit.custody.slots import NONE
from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.files import write_text
from probekit.runs.folder import RunFolder
from probekit.unlearning.request import UnlearnRequest, known_clients


def petition(receipt: Path | str, path: Path | str, *, key: bytes) -> Petition:
    """Write a client's petition to leave the run that its receipt is of. key: the client's private key (PEM)."""
    from probekit.runs.proving import read_receipt

    found = Petition.of_client(read_receipt(Path(receipt)), key)
    write_text(Path(path), found.text)
    return found


def client_of(run: RunFolder, asked: Petition) -> str:
    """The client that a petition is of; refused where it is of another run, or the key is not its leaf's."""
    from probekit.runs.proving import committed_in

    asked.check()
    held = committed_in(run)
    if asked.said.get("run") != held.run.hex():
        raise VerificationError(f"The petition is of another run than {run.path}. Take it to the run that it names.")
    for name, leaf in held.leaves.items():
        if leaf.slot == asked.said.get("slot"):
            if leaf.key == NONE or leaf.key.hex() != asked.by:
                raise VerificationError(
                    f"The petition for slot {leaf.slot} is signed by key {asked.by[:16]}, and that slot's client gave "
                    f"{'no key' if leaf.key == NONE else 'another one'}. Check the identity otherwise, and ask as the "
                    "operator."
                )
            return name
    raise InputError(f"Slot {asked.said.get('slot')} of {run.path} has no client any more: it was emptied before.")


def refuse_strangers(run: RunFolder, request: UnlearnRequest) -> None:
    """Refuse a request that clients are said to have asked for, and that names none of them."""
    for one in request.asked:
        if one.by == OPERATOR:
            one.check()
        elif (name := client_of(run, one)) not in {*request.clients, *(each.client for each in request.samples)}:
            raise VerificationError(f"Client {name} asked, and the request is not about it. Take its own petition.")


def client_keys(folder: Path) -> dict[str, bytes]:
    """The public keys of clients, from a folder of files CLIENT.pem."""
    if not folder.is_dir():
        raise NotFoundError(f"There is no folder of keys {folder}. Put CLIENT.pem files into one.")
    return {path.stem: raw_public_key(path.read_bytes()) for path in sorted(folder.glob("*.pem"))}


def refuse_keys(keys: Mapping[str, bytes], clients: Mapping[str, object]) -> None:
    """Refuse keys of clients that a run does not have."""
    unknown = sorted(set(keys) - set(clients))
    if unknown:
        raise InputError(f"There is a key of client {unknown[0]}, and {known_clients(tuple(clients))}.")
