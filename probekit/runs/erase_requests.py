"""Requests for erasure from files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from probekit.custody.petitions import Petition
from probekit.errors import InputError, NotFoundError
from probekit.runs.erase_plan import EraseRequest
from probekit.runs.register import CaseInfo

OWN = ("client", "subject", "petition")
INFO = ("reference", "received", "due", "identity", "basis")


def read_samples(path: Path) -> tuple[str, ...]:
    """The ids or names of samples in a file, one on every line."""
    if not path.is_file():
        raise NotFoundError(f"There is no file of samples {path}.")
    try:
        found = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}. Save it as such.") from error
    if not found:
        raise InputError(f"{path} names no sample.")
    return found


def read_requests(path: Path) -> tuple[EraseRequest, ...]:
    """The requests in a CSV file: a client, a subject (COLUMN=VALUE) or a petition's file on every line."""
    if not path.is_file():
        raise NotFoundError(f"There is no file of requests {path}.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header, lines = list(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as comma-separated UTF-8 text: {error}. Save it as such.") from error
    if set(header) - {*OWN, *INFO} or not set(header) & set(OWN):
        wanted = ", ".join((*OWN, *INFO))
        raise InputError(f"{path} must have columns among {wanted}; found {', '.join(header) or 'none'}.")
    if not lines:
        raise InputError(f"{path} has no request in it.")
    return tuple(_request(path, number, line) for number, line in enumerate(lines, start=2))


def _request(path: Path, number: int, line: dict[str, str]) -> EraseRequest:
    given = {name: (line.get(name) or "").strip() for name in (*OWN, *INFO)}
    if None in line or sum(bool(given[name]) for name in OWN) != 1:
        raise InputError(f"{path}, line {number}: wanted is one of {', '.join(OWN)}, and no more fields than columns.")
    clients, subjects = ((given[name],) if given[name] else () for name in ("client", "subject"))
    petition = Petition.read(path.parent / given["petition"]) if given["petition"] else None
    info: dict[str, Any] = {name: given[name] for name in INFO}
    return EraseRequest(clients=clients, subjects=subjects, petition=petition, info=CaseInfo(**info))
