"""What a work with clients elsewhere is called, in a file beside its run: the same command goes on with it."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from probekit.errors import CorruptError
from probekit.files import PRIVATE, read_json, storing, write_json
from probekit.runs.layout import job_path
from probekit.values import Json, canonical


def job_of(run: Path, *work: Json) -> str:
    """The name of this work for a run: the one that it had when it was interrupted, else a new one."""
    key = hashlib.sha256(canonical(list(work)).encode()).hexdigest()
    known = _known(run)
    if key not in known:
        known[key] = secrets.token_hex(16)
        _write(run, known)
    return known[key]


def job_done(run: Path, job: str) -> None:
    """This work is over: the same command is another one from now on. Others that are interrupted stay."""
    known = _known(run)
    if job in known.values():
        _write(run, {key: name for key, name in known.items() if name != job})


def _known(run: Path) -> dict[str, str]:
    """The works that are interrupted, by what they are."""
    try:
        found = read_json(job_path(run))
    except (OSError, CorruptError):
        return {}
    return {str(key): str(name) for key, name in found.items()} if isinstance(found, dict) else {}


def _write(run: Path, known: dict[str, str]) -> None:
    path = job_path(run)
    if not known:
        path.unlink(missing_ok=True)
        return
    with storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dict(known), mode=PRIVATE)
