"""A client's own machine, as its owner meets it: joining, answering, looking at what was answered."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.federated import joining
from probekit.federated.client import QUESTIONS
from probekit.federated.files import ANSWERS, questions_to, there
from probekit.federated.membership import FLOWER, read_note
from probekit.federated.node import Node, Outgoing, read_node
from probekit.federated.node_log import NodeLog
from probekit.federated.policy import Policy
from probekit.files import write_bytes
from probekit.registry import nearest
from probekit.runs.result import Result

UNIT = """\
[Unit]
Description=probekit node {name}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
KillSignal=SIGTERM
TimeoutStopSec=30
Restart=on-failure
RestartSec=65
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Joined(Result):
    """A node that joined: where it is, and what goes to the operator."""

    folder: Path
    name: str
    card: Path
    fingerprint: str
    rows: int
    allow: tuple[str, ...]


@dataclass(frozen=True)
class Preview(Result):
    """What a node would send: what was asked, how many bytes would leave, and their digest."""

    kind: str
    outcome: str
    why: str
    rows: int
    bytes: int
    digest: str

    @classmethod
    def of(cls, found: Outgoing) -> Preview:
        """What stands ready."""
        kind = "?" if found.ask is None else found.ask.kind
        return cls(kind, found.outcome, found.why, found.rows, len(found.content), found.digest)


def join(
    invitation: Path, folder: Path, name: str, set_name: str, *, store: DiskStore, allow: Sequence[str], **limits: Any
) -> Joined:
    """Make this machine a node of a federation. limits: further fields of the policy."""
    unknown = [one for one in allow if one not in QUESTIONS]
    if unknown:
        raise InputError(f"There is no question {unknown[0]!r} to allow. {nearest(unknown[0], list(QUESTIONS))}")
    policy = Policy(tuple(allow), **limits)
    given: Any = {"policy": policy, "cache": str(store.root.absolute())}
    if read_note(invitation)["transport"] == FLOWER:
        from probekit.federated.flower.folders import prepare_node

        given["flower_key"] = prepare_node
    card = joining.join(invitation, folder, name, set_name, store.open(set_name), **given)
    allowed = Policy.read(folder / "policy.toml").allow
    return Joined(folder, name, joining.card_path(folder), card.key[:16], card.rows, allowed)


def rotate(folder: Path) -> Joined:
    """Give a node new keys."""
    given: Any = {}
    if read_node(folder)["transport"] == FLOWER:
        from probekit.federated.flower.folders import new_node_key

        given["flower_key"] = new_node_key
    card, allowed = joining.rotate(folder, **given), Policy.read(folder / "policy.toml").allow
    return Joined(folder, card.name, joining.card_path(folder), card.key[:16], card.rows, allowed)


def open_node(folder: Path, store: DiskStore | None = None, dry: Callable[[Preview], None] | None = None) -> Node:
    """The node in a folder; its set comes from the cache that it joined with, unless another is given."""
    note = read_node(folder)
    rows = store or DiskStore(Path(note["cache"]))
    shown = None if dry is None else lambda found: dry(Preview.of(found))
    return Node.open(folder, rows.open, dry=shown)


def answer_questions(
    folder: Path, *, store: DiskStore | None, exchange: Path | None, questions: Sequence[Path], dry_run: bool = False
) -> list[Preview]:
    """Answer questions that came as files: those named, and all open ones of a common folder.

    dry_run: only look at what would be sent.
    """
    node = open_node(folder, store)
    found = [*map(there, questions), *([] if exchange is None else questions_to(node.name, exchange))]
    ready = []
    for path in found:
        content = path.read_bytes()
        ready.append(node.prepare(content))
        if not dry_run:
            write_bytes(path.with_suffix(ANSWERS), node.send(ready[-1], content))
    return [Preview.of(one) for one in ready]


def log_of(folder: Path) -> list[dict[str, Any]]:
    """What a node was asked and answered, the chain checked."""
    read_node(folder)
    return NodeLog(folder / "log.jsonl").lines()


def run_node(folder: Path, *, note: Callable[[str], None], dry: Callable[[str], None] | None = None) -> None:
    """Run a node on Flower until it is told to end. dry: called with what would be sent, while nothing is."""
    if read_node(folder)["transport"] != FLOWER:
        raise InputError(f"{folder} answers questions that come as files: `probekit federate files {folder}`.")
    from probekit.federated.flower import children, supervisor

    if dry is None:
        supervisor.run(folder, watch=note)
        return
    with TemporaryDirectory() as aside:
        place = Path(aside) / "dry-run"
        place.touch()
        stop = threading.Event()
        reading = threading.Thread(target=_follow, args=(place, dry, stop), daemon=True)
        reading.start()
        try:
            supervisor.run(
                folder,
                watch=note,
                executor=lambda node, port: children.python("executor", str(node), str(port), str(place)),
            )
        finally:
            stop.set()
            reading.join()


def _follow(place: Path, say: Callable[[str], None], stop: threading.Event) -> None:
    """Say every line of a file that grows."""
    with place.open() as lines:
        while not stop.wait(0.2) or lines.tell() < place.stat().st_size:
            for line in lines:
                say(line.strip())


def service_unit(folder: Path) -> str:
    """A systemd unit that runs a node from its folder."""
    read_node(folder)
    command = f"{Path(sys.executable).with_name('probekit')} federate node run {folder.absolute()}"
    return UNIT.format(name=folder.name, command=command)
