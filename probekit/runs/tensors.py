"""What a server keeps of its clients, as files that are checked when they are read."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from probekit.cache.matrices import map_tensors, write_tensors
from probekit.errors import CorruptError, HostileError, InputError, VerificationError
from probekit.federated.trained import Gradients, History, Round
from probekit.files import PRIVATE, read_json, sha256_file
from probekit.linear.design import ClientStats, Design
from probekit.linear.plausibility import implausible
from probekit.linear.target_client import arrays_of, stats_of
from probekit.linear.targets import TargetDesign, TargetStats
from probekit.values import Json

NAME_LENGTH = 60

Arrays = dict[str, NDArray[Any]]
Blocks = tuple[tuple[int, ...], np.dtype[Any], Iterable[NDArray[Any]]]
DOUBLE = np.dtype("<f8")


def file_of(client: str) -> str:
    """A file name for a client of any name: readable where it can be, and never that of another."""
    readable = quote(client, safe="")[:NAME_LENGTH]
    return f"{readable}-{hashlib.sha256(client.encode()).hexdigest()[:16]}.safetensors"


def put(path: Path, tensors: Mapping[str, NDArray[Any] | Blocks], note: Json = None, *, mode: int = 0o666) -> str:
    """Write a safetensors file; gives its sha256."""
    whole = {name: one if isinstance(one, tuple) else (one.shape, one.dtype, [one]) for name, one in tensors.items()}
    found = write_tensors(path.parent, whole, note, mode=mode)
    (path.parent / f"{found}.safetensors").rename(path)
    return found


def take(path: Path, stated: str) -> tuple[Arrays, Any]:
    """The tensors and the note of a file that must have this sha256."""
    check(path, stated)
    return map_tensors(path)


def check(path: Path, stated: str) -> None:
    """Refuse a file that is missing or whose bytes have another sha256."""
    if not path.is_file():
        raise CorruptError(f"{path} is missing from its run. Restore it from a copy, or train again.")
    found = sha256_file(path)
    if found != stated:
        raise CorruptError(
            f"{path} is not the file that was written: its sha256 is {found[:12]}, the run says {stated[:12]}. "
            "Restore it from a copy, or train again."
        )


def take_note(path: Path, stated: str) -> Any:
    """The value of a JSON file whose bytes must have this sha256; what is no text of ours is refused before that."""
    note = None
    try:
        note = read_json(path)
    except HostileError:
        raise
    except (CorruptError, FileNotFoundError):
        pass  # damaged or missing, which the next line says
    check(path, stated)
    return note


def link(source: Path, target: Path) -> None:
    """The same file in another place, without a copy where the disk allows."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy_linked(source: Path, target: Path) -> None:
    """Copy a folder; files that are one under several names stay one."""
    copied: dict[tuple[int, int], str] = {}

    def copy(old: str, new: str) -> str:
        about = Path(old).stat()
        first = copied.setdefault((about.st_dev, about.st_ino), new)
        if first == new:
            return shutil.copy2(old, new)
        link(Path(first), Path(new))
        return new

    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)


def put_statistics(path: Path, statistics: ClientStats, **more: NDArray[Any]) -> str:
    """Write statistics (and arrays that belong to them); gives the file's sha256."""
    if isinstance(statistics, TargetStats):
        return put(path, {**{f"stats {name}": one for name, one in arrays_of(statistics).items()}, **more})
    sums = {name: np.asarray(getattr(statistics, name), DOUBLE) for name in ("gram", "moment")}
    return put(path, {**sums, "class_counts": np.asarray(statistics.class_counts, "<i8"), **more})


def take_statistics(path: Path, stated: str, design: Design, *, digest: str, count: int) -> tuple[ClientStats, Arrays]:
    """Statistics as they were written, once they prove to be those of `count` rows; and what lies with them."""
    tensors, _ = take(path, stated)
    try:
        if isinstance(design, TargetDesign):
            own = {name: tensors.pop(name) for name in list(tensors) if name.startswith("stats ")}
            found: ClientStats = stats_of(design, {name.removeprefix("stats "): one for name, one in own.items()})
        else:
            found = ClientStats(design, tensors.pop("gram"), tensors.pop("moment"), tensors.pop("class_counts"))
    except (KeyError, InputError) as error:
        why = f"{path} does not hold statistics of this run's design: {error}"
        raise VerificationError(f"{why}. Ask its client for them again.") from error
    why = implausible(found, count)
    if not why and found.digest != digest:
        why = f"their digest is {found.digest[:12]}, not {digest[:12]}"
    if why:
        raise VerificationError(f"The statistics in {path} are not of {count} rows: {why}. Ask their client again.")
    return found, tensors


def put_gradients(path: Path, gradients: Gradients) -> str:
    """Write gradients; gives the file's sha256."""
    kinds = vars(gradients)
    stacked = {name: np.stack(list(kind.values())).astype(DOUBLE) for name, kind in kinds.items() if kind}
    return put(path, stacked, {name: list(kind) for name, kind in kinds.items()})


def take_gradients(path: Path, stated: str) -> Gradients:
    """Gradients as they were written."""
    tensors, names = take(path, stated)
    return Gradients(**{kind: dict(zip(own, tensors.get(kind, ()), strict=True)) for kind, own in names.items()})


def put_objective(path: Path, objective: NDArray[np.float64]) -> str:
    """Write a secret linear term, for its owner's eyes only; gives the file's sha256."""
    return put(path, {"value": np.ascontiguousarray(objective, DOUBLE)}, mode=PRIVATE)


def take_objective(path: Path, stated: str, design: Design) -> NDArray[np.float64]:
    """The secret linear term as it was written: with another the run's equations do not hold."""
    try:
        found = take(path, stated)[0].get("value")
    except CorruptError as error:
        if path.is_file():
            raise VerificationError(str(error)) from error
        raise
    if found is None or found.shape != (design.columns, design.classes) or not np.isfinite(found).all():
        raise VerificationError(f"{path} does not hold a linear term of this run's design. Restore it from a copy.")
    return found


def put_history(path: Path, history: History) -> str:
    """Write every round, one at a time; gives the file's sha256."""
    shape, rounds = history.end.shape, history.rounds
    taking = sum(len(one.participants) for one in rounds)
    blocks: dict[str, NDArray[Any] | Blocks] = {
        "starts": ((len(rounds), *shape), DOUBLE, (one.start for one in rounds)),
        "uploads": ((taking, *shape), DOUBLE, (one.uploads for one in rounds)),
        "end": history.end,
    }
    return put(path, blocks, [{"participants": [*one.participants], "weights": [*one.weights]} for one in rounds])


def take_history(path: Path, stated: str) -> History:
    """The rounds as they were written, mapped."""
    tensors, rounds = take(path, stated)
    ends = np.cumsum([len(one["participants"]) for one in rounds])[:-1]
    parts = zip(rounds, tensors["starts"], np.split(tensors["uploads"], ends), strict=True)
    made = (Round(start, tuple(one["participants"]), tuple(one["weights"]), sent) for one, start, sent in parts)
    return History(tuple(made), tensors["end"])
