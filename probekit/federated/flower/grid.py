"""A Grid of our own: this process holds a run of the folder's SuperLink and speaks for it; no app is started."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from filelock import FileLock

from probekit.errors import NotFoundError
from probekit.federated.flower import private
from probekit.federated.flower.app import APP
from probekit.federated.flower.carrier import LOST, AwayError, Connection, EndedError, FlowerCarrier, Reply
from probekit.federated.flower.executor import heartbeat, packed
from probekit.federated.flower.folders import RELAY, member_keys
from probekit.federated.membership import FederationFolder
from probekit.files import read_json

MOMENT = 0.2
"""Seconds to wait for a reply that is being fetched."""


@dataclass(frozen=True)
class SuperLink:
    """Where the SuperLink of a federation's folder is now, and what it takes to speak to it."""

    address: str
    authority: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    @staticmethod
    def of(folder: Path) -> SuperLink:
        """As the running server wrote it down."""
        try:
            address = read_json(folder / "flower" / "superlink.json")["address"]
            kept = folder / "private"
            return SuperLink(address, (kept / "ca.crt").read_bytes(), (kept / "secret").read_bytes())
        except FileNotFoundError as error:
            raise NotFoundError(f"No server runs for {folder}. Start it: probekit federate server {folder}") from error

    def control(self) -> Any:
        """A client of the SuperLink's control calls."""
        version = private.flwr("RuntimeVersionHttpInterceptor")(component_name="flwr CLI")
        return private.client("ControlHttpClient", self.address, self.authority, version)

    def holder(self, token: str) -> Any:
        """A client that speaks for one task."""
        return private.holder(self.address, self.authority, token, "flwr-serverapp")


def open_carrier(folder: Path) -> FlowerCarrier:
    """What carries questions to the members of a federation's folder; `close` it when all is asked."""
    address = FederationFolder.open(folder).address
    if address.startswith(RELAY):
        from probekit.federated.flower.relay import RelayGrid

        return FlowerCarrier(RelayGrid(folder / APP, address.removeprefix(RELAY)), member_keys(folder))
    return FlowerCarrier(OwnGrid(folder), member_keys(folder))


def known_nodes(control: Any) -> list[Any]:
    """The nodes that a SuperLink knows."""
    found = control.ListNodes(private.flwr("ListNodesRequest")()).nodes_info
    return [node for node in found if node.status != "unregistered"]


class OwnGrid:
    """The Grid of a run that this process started and speaks for; a lost run is followed by a new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = ExitStack()
        self._grid: Any = None
        self._task = 0
        self._fetching = set[str]()
        self._arrived = queue.SimpleQueue[Reply]()
        self._place = SuperLink.of(folder)  # at once: whoever asks learns early that no server runs

    def nodes(self) -> Mapping[bytes, int]:
        """The number of each node that was ever connected, by its public key."""
        with self._calling(), SuperLink.of(self._folder).control() as control:
            return {one.public_key: one.node_id for one in known_nodes(control) if one.last_activated_at}

    def connections(self) -> Mapping[bytes, Connection]:
        """When each node came and left, by its public key."""
        with self._calling(), SuperLink.of(self._folder).control() as control:
            found = known_nodes(control)
        left = {one.public_key: one.last_deactivated_at for one in found}
        ended = {key: datetime.fromisoformat(text).timestamp() if text else 0.0 for key, text in left.items()}
        return {
            one.public_key: Connection(one.last_activated_at, ended[one.public_key], one.online_until) for one in found
        }

    def push(self, node: int, content: bytes, *, seconds: float) -> str | None:
        """Send a message; its id, or None where the node cannot be sent any."""
        from flwr.app import Message

        with self._calling():
            grid = self._session()
            identity = private.flwr("TaskIdentity")
            identity.run_id, identity.node_id, identity.task_id = grid.run.run_id, grid.node.node_id, self._task
            [sent] = grid.push_messages([Message(packed(content), node, "query", ttl=seconds)])
            return sent or None

    def pull(self, sent: Iterable[str]) -> list[Reply]:
        """The replies to these messages that are there, each once.

        Each is fetched on its own: one whose sender died while sending it keeps nobody else's waiting.
        """
        wanted = set(sent)
        with self._calling():
            grid = self._session()
            asked = private.flwr("PullAppMessagesRequest")(message_ids=wanted - self._fetching)
            found = grid._runtime_client.PullMessages(asked)
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            self._fetching.add(message.metadata.reply_to_message_id)
            one = type(found)(messages_list=[message], message_object_trees=[tree])
            threading.Thread(target=self._fetch, args=(grid, one), daemon=True).start()
        replies = self._take() if self._fetching else []
        return [reply for reply in replies if reply.to in wanted]

    def _fetch(self, grid: Any, announced: Any) -> None:
        """Get the content of a reply that the SuperLink announced."""
        own, calls = copy(grid), grid._runtime_client
        more = {name: getattr(calls, name) for name in ("PullObject", "ConfirmMessageReceived")}
        own._client = SimpleNamespace(PullMessages=lambda _: announced, **more)
        try:
            [message] = own.pull_messages([])
            self._arrived.put(Reply.of(message))
        except Exception as error:  # lost between there and here: it is asked for again
            to = announced.messages_list[0].metadata.reply_to_message_id
            self._arrived.put(Reply(to, code=LOST, why=str(error)))

    def _take(self) -> list[Reply]:
        """What has arrived; waits a moment for the first."""
        found = []
        with suppress(queue.Empty):
            found.append(self._arrived.get(timeout=MOMENT))
            while True:
                found.append(self._arrived.get_nowait())
        self._fetching -= {one.to for one in found}
        return found

    def close(self) -> None:
        """End the run."""
        if self._grid is not None:
            with suppress(Exception):
                private.flwr("push_task_output")(self._grid._runtime_client, None, "completed", "")
        self._leave()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Turn what goes wrong between here and the SuperLink into what a carrier understands."""
        import httpx

        try:
            yield
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            code = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
            with suppress(NotFoundError):
                moved = self._place != SuperLink.of(self._folder)
                if code in (401, 403) or (moved and code >= 500):
                    self._leave()
                    raise EndedError from error
            if code < 500:
                raise
            raise AwayError from error

    def _session(self) -> Any:
        """The grid of our run; a new one where there is none."""
        if self._grid is not None:
            return self._grid
        place = self._place = SuperLink.of(self._folder)
        # two processes that start a run at once must not take each other's
        with place.control() as control, FileLock(self._folder / "flower" / "run.lock"):
            fab = private.fab(self._folder / APP)
            run = control.StartRun(private.flwr("StartRunRequest")(fab=fab)).run_id
            token, self._task = _claim(place, run)
        holder = self._held.enter_context(place.holder(token))
        self._held.enter_context(heartbeat(holder))
        given = holder.PullTaskInput(private.flwr("PullTaskInputRequest")())
        grid = private.flwr("HttpGrid")(place.address, token=token)
        grid._client = holder  # its own would retry for ever, and end this process when the run was given up
        grid.set_run(private.flwr("run_from_proto")(given.run))
        self._grid = grid
        return grid

    def _leave(self) -> None:
        held, self._held, self._grid = self._held, ExitStack(), None
        held.close()


def _claim(place: SuperLink, run: int) -> tuple[str, int]:
    """The token and number of our own run's task; what waits before it was left behind by somebody, and is ended."""
    with private.tasks(place.address, place.authority, place.secret, "flwr-serverapp") as oldest:
        while (found := oldest()) is not None:
            task, token = found
            if task.run_id == run:
                return token, task.task_id
            with place.holder(token) as stranger:
                private.flwr("push_task_output")(stranger, None, "stopped", "left behind")
    raise NotFoundError(f"Run {run} of the SuperLink was taken by somebody else. Stop what else runs there.")
