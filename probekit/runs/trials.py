"""A federation on one machine, for trying out: a set is divided, and every part becomes a node."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.federated.client import QUESTIONS
from probekit.federated.membership import NOTE, FederationFolder, safe_name
from probekit.federated.partition import partition
from probekit.runs.federations import add, init
from probekit.runs.nodes import join
from probekit.runs.rows import usable


def trial(
    folder: Path, set_name: str, *, store: DiskStore, nodes: int = 4, scheme: str = "iid", seed: int = 0, **how: Any
) -> dict[str, Path]:
    """The folders of nodes that hold a set divided as `train` divides it, all of them members of a new federation.

    how: as `init` takes it. What is there already is kept: the same command goes on.
    """
    if not (folder / NOTE).is_file():
        init(folder, **{"address": _free_address(), **how})
    rows, _ = usable(store.open(set_name))
    parts = partition(rows.labels, scheme, clients=nodes, seed=seed, client_ids=rows.clients).clients
    known, found = FederationFolder.open(folder).members, dict[str, Path]()
    if set(known) - set(parts):
        raise InputError(f"{folder} holds another federation than this trial's. Choose another folder.")
    for name, own in parts.items():
        place = folder / "nodes" / safe_name(name)
        part = f"{set_name}-part-{name}"[:120]
        if name not in known:
            store.adopt(rows.select(own), part)
            open_to: Any = {"allow": sorted(QUESTIONS), "rows": ("own", "only", "all-but")}
            made = join(
                folder / "invitation", place, name, part, store=store, **open_to, backends=("embeddings", "jvp")
            )
            add(folder, [made.card])
        found[name] = place
    return found


@contextmanager
def running(folder: Path, nodes: Mapping[str, Path]) -> Iterator[Callable[[], int]]:
    """Run the server of a federation and these nodes while the block does; gives what waits until told to end."""
    from probekit.federated.flower.up import up

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def wait() -> int:
        try:
            while True:
                signal.pause()
        except KeyboardInterrupt:
            return 0

    before = signal.signal(signal.SIGTERM, end)
    try:
        with up(folder, nodes):
            yield wait
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_address() -> str:
    from probekit.federated.flower.children import free_port

    return f"127.0.0.1:{free_port()}"
