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
    path, key = job_path(run), hashlib.sha256(canonical(list(work)).encode()).hexdigest()
    try:
        known = read_json(path)
    except (OSError, CorruptError):
        known = None
    if isinstance(known, dict) and known.get("key") == key:
        return str(known["job"])
    job = secrets.token_hex(16)
    with storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"job": job, "key": key}, mode=PRIVATE)
    return job


def job_done(run: Path) -> None:
    """The work is over: the same command is another one from now on."""
    job_path(run).unlink(missing_ok=True)
