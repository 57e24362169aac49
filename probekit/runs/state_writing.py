"""Writing a state of a run: its arrays first, the rest when its certificate is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import InputError
from probekit.federated.server import WEIGHTS, client_weights
from probekit.federated.trained import Kept, ServerSet, Trained
from probekit.files import PRIVATE, make_folder, sha256_file, sync_folder, write_bytes, write_json
from probekit.linear.design import Solution
from probekit.models.serving import save_head
from probekit.runs import tensors
from probekit.runs.commitments import SLOTS, Commitments
from probekit.runs.packs import write_packs
from probekit.runs.states import COMMON, HEAD, KEPT, NOTE, PLAIN, STATISTICS
from probekit.runs.stored import write_sums
from probekit.values import Json


class Arrays(NamedTuple):
    """What was written of a state: its files with their sha256, and what it says of its statistics."""

    files: dict[str, str]
    leaves: dict[str, Json] | None


def write_arrays(folder: Path, trained: Trained) -> Arrays:
    """Begin a state in a new folder: its head and what is kept with it.

    Statistics that were read from a state are linked, not written again.
    """
    make_folder(folder, closed=True)
    make_folder(folder / KEPT)
    save_head(trained.head, folder / HEAD)
    files = {f"{HEAD}/{path.name}": sha256_file(path) for path in sorted((folder / HEAD).iterdir())}
    leaves = _write_statistics(folder, trained, files)
    for what, put in PUT.items():
        if (value := getattr(trained, what)) is not None:
            files[f"{KEPT}/{what}.safetensors"] = put(folder / KEPT / f"{what}.safetensors", value)
    for name, one in trained.kept.items():
        files |= _write_kept(folder, name, one)
    return Arrays(files, leaves)


@contextmanager
def writing(folder: Path, trained: Trained) -> Iterator[Future[Arrays]]:
    """Begin a state in a thread, while its certificate is made: one waits for the disk, the other computes.

    What was begun is gone again if the body fails.
    """
    try:
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(write_arrays, folder, trained)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_state(
    folder: Path,
    trained: Trained,
    commitments: Commitments,
    *,
    texts: Mapping[str, str] | None = None,
    begun: Arrays | None = None,
) -> dict[str, Json]:
    """Write a state into a new folder, or finish one that was begun there; gives what the ledger should say of it.

    texts: further small files that belong to it, by name.
    """
    files, leaves = write_arrays(folder, trained) if begun is None else begun
    write_bytes(folder / SLOTS, commitments.data, mode=PRIVATE)
    for name, text in (texts or {}).items():
        write_bytes(folder / name, text.encode())
    files |= {name: sha256_file(folder / name) for name in (SLOTS, *(texts or ()))}
    solution = {name: one for name, one in vars(trained.solution).items() if name != "value"}
    server: Json = None
    if trained.server is not None:
        digest = None if trained.server.statistics is None else trained.server.statistics.dense.digest
        server = {"digest": digest, "count": len(trained.server.rows)}
    kept: dict[str, Json] = {
        name: {"parts": list(one.parts), "plain": one.plain, "about": sorted(one.about)}
        for name, one in trained.kept.items()
    }
    note: dict[str, Json] = {
        "head": trained.head.digest,
        "problem": dict(trained.problem.plain),
        "weights": _how_weighted(trained) if leaves else dict(trained.weights),
        "solution": solution,
        "losses": list(trained.losses),
        "leaves": leaves,
        "server": server,
        "kept": kept,
        "traffic": [[purpose, sent.up, sent.down, sent.rounds] for purpose, sent in trained.traffic.items()],
        "files": files,
        **{name: getattr(trained, name) for name in PLAIN},
    }
    if leaves is None:
        note |= {"clients": list(trained.counts), "counts": dict(trained.counts), "statistics": None}
    write_json(folder / NOTE, note)
    for path in (folder / KEPT, folder):
        sync_folder(path)
    return {"head": trained.head.digest, "trained": sha256_file(folder / NOTE)}


def _write_statistics(folder: Path, trained: Trained, files: dict[str, str]) -> dict[str, Json] | None:
    """Write or link packs and partial sums, add their hashes to `files`; gives what the state says of them."""
    statistics, place = trained.statistics, folder / STATISTICS
    if statistics is None:
        return None
    if {name: one.count for name, one in statistics.items()} != trained.counts:
        raise InputError("Statistics are kept of exactly the clients that count, with their rows. Nothing was written.")
    make_folder(place)
    packs, sums = write_packs(place, statistics, trained.counts), write_sums(place, statistics)
    files |= {f"{STATISTICS}/{sha256}.safetensors": sha256 for sha256 in (*packs, *sums.values())}
    sync_folder(place)
    return {"packs": {sha256: pack.header for sha256, pack in packs.items()}, "sums": dict(sums)}


def _how_weighted(trained: Trained) -> Json:
    """The name of the weights where they have one: a state does not list all clients."""
    counts = np.array([*trained.counts.values()])
    for how in WEIGHTS:
        if dict(zip(trained.counts, client_weights(counts, how).tolist(), strict=True)) == trained.weights:
            return how
    return dict(trained.weights)


def _put_solution(path: Path, solution: Solution) -> str:
    return tensors.put(path, {"value": np.ascontiguousarray(solution.value, tensors.DOUBLE)})


def _put_server(path: Path, server: ServerSet) -> str:
    rows, statistics = np.asarray(server.rows, "<i8"), server.statistics
    if statistics is None:
        return tensors.put(path, {"rows": rows})
    return tensors.put_statistics(path, statistics.dense, rows=rows)


PUT: dict[str, Callable[[Path, Any], str]] = {
    "solution": _put_solution,
    "server": _put_server,
    "gradients": tensors.put_gradients,
    "objective": tensors.put_objective,
    "history": tensors.put_history,
}
"""How each thing that may be kept is written; gives the file's sha256."""


def _write_kept(folder: Path, name: str, kept: Kept) -> dict[str, str]:
    """Write what a trainer or method keeps besides; gives the files' hashes."""
    make_folder(folder / KEPT / name)
    written = {COMMON: kept.arrays} if kept.arrays else {}
    written |= {tensors.file_of(client): arrays for client, arrays in kept.parts.items()}
    place = folder / KEPT / name
    hashes = {f"{KEPT}/{name}/{file}": tensors.put(place / file, dict(own)) for file, own in written.items()}
    sync_folder(place)
    return hashes
