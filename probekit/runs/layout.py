"""The files of a run folder besides its states: run.json, the partition, where and with what it was made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from probekit import __version__
from probekit.cache.journal import refuse
from probekit.errors import CacheError, CorruptError, InputError, VerificationError
from probekit.files import (
    ASIDE,
    new_folder,
    parsed,
    read_limited,
    remove_file,
    remove_folder,
    restore_folder,
    storing,
    sweep,
)
from probekit.runs import tensors
from probekit.values import Json, Partition

SCHEMA = 1
NOTE, LEDGER, PARTITION = "run.json", "ledger.jsonl", "partition.safetensors"
REFERENCES, CERTIFICATE = "references", "certificate.json"
PACKAGES = ("numpy", "scipy", "scikit-learn", "safetensors", "faiss-cpu", "torch")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
FIELDS = {"config": dict, "inputs": dict, "partition": str, "state": int, "ledger": str}
MOST_BYTES = 2**24
"""The size of a run.json that is read at all."""


def environment() -> dict[str, Json]:
    """What a run was made with: versions, machine and thread settings, as plain values."""
    import platform
    from importlib import metadata  # which takes the whole of email along

    versions: dict[str, Json] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "probekit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
        "packages": versions,
    }


def read_note(path: Path) -> dict[str, Any]:
    """What run.json says, if it is of our schema."""
    try:
        note = parsed(read_limited(path / NOTE, MOST_BYTES))
        if not isinstance(note, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        why = f"{path / NOTE} is not one that was written: {error}"
        raise VerificationError(f"{why}. Restore it from a copy, or train again.") from error
    if note.get("schema") != SCHEMA:
        raise CacheError(
            f"{path} was written by probekit {note.get('probekit', 'of another time')} with run schema "
            f"{note.get('schema')}; this one reads {SCHEMA}. Use that version, or train again."
        )
    for name, kind in FIELDS.items():
        if not isinstance(note.get(name), kind):
            raise CorruptError(f"{path / NOTE} does not say its {name}. Restore it from a copy, or train again.")
    return note


def write_partition(path: Path, partition: Partition, rows: NDArray[np.int64] | None) -> str:
    """Write who holds which rows, and which rows of the cached set those are; gives the file's sha256."""
    arrays = {
        "held": np.concatenate(list(partition.clients.values())).astype("<i8"),
        "ends": np.cumsum([len(held) for held in partition.clients.values()]).astype("<i8"),
    }
    if len(partition.server):
        arrays["server"] = partition.server.astype("<i8")
    if rows is not None:
        arrays["rows"] = rows.astype("<i8")
    note: dict[str, Json] = {"clients": list(partition.clients), "rows": partition.rows}
    return tensors.put(path, arrays, {**note, "scheme": partition.scheme, "seed": partition.seed})


def read_partition(path: Path, stated: str) -> tuple[Partition, NDArray[np.int64] | None]:
    """The partition, and the rows of the cached set that it divides (None: all)."""
    arrays, note = tensors.take(path, stated)
    held, ends = arrays["held"], arrays["ends"].tolist()
    clients = {name: held[i:j] for name, i, j in zip(note["clients"], [0, *ends], ends, strict=False)}
    if len(clients) != len(ends):
        raise CorruptError(f"{path} has the rows of {len(ends)} clients and {len(clients)} names. Restore it.")
    server = arrays.get("server", np.empty(0, np.int64))
    return Partition(clients, server, note["rows"], note["scheme"], note["seed"]), arrays.get("rows")


def next_state(run: Path) -> Path:
    """Where the next state is written until it is the state."""
    return run / "states" / f"{ASIDE}state"


def state_folder(path: Path, number: int) -> Path:
    """Where a state stands."""
    return path / "states" / f"{number:04d}"


def states(path: Path) -> list[int]:
    """The numbers of the states that are there: of a purged one there is only its certificate."""
    folders = (folder for folder in (path / "states").iterdir() if folder.name.isdigit())
    return sorted(int(folder.name) for folder in folders if {one.name for one in folder.iterdir()} != {CERTIFICATE})


def drop_leftovers(path: Path, state: int) -> None:
    """Remove what killed processes left: states beyond the current one, and what was not yet in its place."""
    for folder in (path / "states").iterdir():
        if not folder.name.isdigit() or int(folder.name) > state:
            remove_folder(folder)
    sweep(path, "states", "states/*")


def drop_partitions(stays: Path) -> None:
    """Remove all partitions of a run but one."""
    for path in stays.parent.glob("partition*.safetensors"):
        if path.name != stays.name:
            remove_file(path)


def lock_of(path: Path) -> FileLock:
    """Beside the run, so that it also guards its appearing and its replacement."""
    return FileLock(path.absolute().parent / f".{path.name}.lock")


def checkpoint_path(path: Path) -> Path:
    """Where it stands how far an unfinished training for this run is."""
    return path.absolute().parent / f".{path.name}.training"


def job_path(path: Path) -> Path:
    """Where it stands what an unfinished work with clients elsewhere is called."""
    return path.absolute().parent / f".{path.name}.job"


def noise_path(path: Path) -> Path:
    """Where the ledger of a run that is not trained yet fixes its noise."""
    return path.absolute().parent / f".{path.name}.noise"


def refuse_taken(path: Path, *, force: bool) -> None:
    """Refuse a folder that holds a finished run (unless it may be replaced) or anything that is not a run."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    refuse(path)
    if not (path / NOTE).is_file():
        raise InputError(f"{path} exists and is not a run folder. Choose another folder, or remove it.")
    if not force:
        raise InputError(f"{path} holds a finished run. Give `force=True` to replace it, or choose another folder.")


@contextmanager
def appearing(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder to fill, which is then the run of that name; under its lock, so that it replaces no other."""
    with storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_of(path):
            restore_folder(path)
            refuse_taken(path, force=force)
            with new_folder(path, aside=path.absolute().parent / f"{ASIDE}{path.name}", closed=True) as aside:
                yield aside
