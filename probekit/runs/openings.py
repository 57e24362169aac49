"""What stands sealed in a ledger or a certificate: salts and values in files that are closed to others, to be erased.

Digests of heads, sets and partitions that contained somebody forgotten, and the ids in a request, would let whoever has
a candidate try it: sealed, H(salt, value) tells nothing once the salt is gone. The chain still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probekit.custody.seals import Opening, Openings, openings_of, openings_text
from probekit.errors import CacheError, VerificationError
from probekit.files import PRIVATE, read_json, sync_folder, write_bytes
from probekit.values import Json

OPENINGS, CERTIFICATES = "openings", "certificates"
SEALED: Mapping[str, tuple[str, ...]] = {
    "inputs": ("set", "rows", "partition", "head"),
    "outputs": ("head", "trained"),
    "details": ("request", "request digest", "cost", "missing"),
}
"""What an entry says in sealed form only, where it says it."""

Places = Mapping[str, Mapping[str, Json]]


def new_openings(entry: Places) -> dict[str, Opening]:
    """Fresh salts for all that an entry should seal."""
    return {
        f"{part}.{name}": Opening.of(entry[part][name])
        for part, names in SEALED.items()
        for name in names
        if name in entry[part]
    }


def sealed(entry: Mapping[str, Any], openings: Openings) -> dict[str, Any]:
    """An entry with seals in place of what is opened."""
    return _put(entry, {place: one.seal for place, one in openings.items()})


def unsealed(entry: Mapping[str, Any], openings: Openings, where: Path) -> dict[str, Any]:
    """An entry with what is opened in place of its seals; an opening of something else is refused."""
    for place, one in openings.items():
        part, _, name = place.partition(".")
        if part not in SEALED or entry[part].get(name) != one.seal:
            raise VerificationError(f"{where} opens {place}, and not as it was sealed. Restore it from a copy.")
    return _put(entry, {place: one.value for place, one in openings.items()})


def _put(entry: Mapping[str, Any], values: Mapping[str, Json]) -> dict[str, Any]:
    found: dict[str, Any] = {**entry, **{part: dict(entry[part]) for part in SEALED}}
    for place, value in values.items():
        part, _, name = place.partition(".")
        found[part][name] = value
    return found


def write_openings(path: Path, openings: Openings) -> None:
    """Keep openings; none: remove what is kept."""
    if openings:
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        write_bytes(path, openings_text(openings).encode(), mode=PRIVATE)
    elif path.exists():
        path.unlink()
        sync_folder(path.parent)


def read_openings(path: Path) -> dict[str, Opening]:
    """The openings that are left."""
    if not path.exists():
        return {}
    try:
        return openings_of(read_json(path))
    except (CacheError, VerificationError) as error:
        raise VerificationError(f"{path} is damaged ({error}). Restore it from a copy.") from error


def erase_openings(path: Path, keep: Callable[[str], bool]) -> None:
    """Erase salts and values but those to keep. Doing it again changes nothing."""
    there = read_openings(path)
    left = {place: one for place, one in there.items() if keep(place)}
    if left != there:
        write_openings(path, left)


def drop_numbers(folder: Path, last: int) -> None:
    """Remove the numbered files that a killed process left after the last one."""
    for path in folder.glob("*.json"):
        if int(path.stem) > last:
            path.unlink()


def openings_path(run: Path, entry: int) -> Path:
    """Where the openings of an entry of the ledger stand."""
    return run / OPENINGS / f"{entry:06d}.json"


def certificate_openings(run: Path, state: int) -> Path:
    """Where the openings of a state's certificate stand."""
    return run / OPENINGS / CERTIFICATES / f"{state:04d}.json"
