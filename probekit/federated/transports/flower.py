"""An ordinary Flower app: the server is a transport over a Grid, a node answers bytes with bytes.

Whoever may start runs on a SuperLink may run code at its nodes: limits at a node are advice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from probekit.arrays import canonical_json
from probekit.embeddings import EmbeddingSet, Encoding
from probekit.errors import Failure, InputError, MismatchError, MissingClients, WireError
from probekit.federated.client import Holding, Limits, LocalData
from probekit.federated.federation import Ask, Outcome, single_thread
from probekit.federated.transports.files import StatisticsFile
from probekit.federated.transports.messages import Question, read_reply, respond
from probekit.files import parse_json
from probekit.linear.stats import SufficientStats, normalized
from probekit.objective import Model
from probekit.records import dump, parse, record

POLL_SECONDS = 0.25
MAX_DESCRIPTION = 1 << 20
KEY = "probekit"


@record("flower/node")
@dataclass(frozen=True, eq=False)
class Description:
    """What a node says of its data. encoding: as canonical JSON."""

    name: str
    rows: int
    has_rows: bool
    width: int
    outputs: tuple[str, ...]
    encoding: str
    normalize: str

    @property
    def design(self) -> tuple[object, ...]:
        """What all nodes share."""
        return self.width, self.outputs, self.read_encoding().digest, self.normalize

    def read_encoding(self) -> Encoding:
        return Encoding.from_dict(parse_json(self.encoding.encode()))


@dataclass(frozen=True, eq=False)
class Node:
    """A client at its node: rows or sums, and what they are of."""

    name: str
    data: LocalData
    outputs: tuple[str, ...]
    encoding: Encoding
    normalize: str = "none"
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of_rows(cls, name: str, rows: EmbeddingSet, *, normalize: str = "none") -> Self:
        rows = rows.labeled()
        outputs = rows.target_names if rows.labels is None else rows.class_names
        return cls(name, normalized(rows, normalize), outputs, rows.encoding, normalize)

    @classmethod
    def of_file(cls, path: Path | str) -> Self:
        """A statistics file: no row is where Flower's code runs."""
        file = StatisticsFile.read(Path(path))
        return cls(file.client, file.stats, file.outputs, file.read_encoding(), file.normalize)

    def describe(self) -> Description:
        holding = Holding.of(self.data)
        rows = self.data
        return Description(
            self.name,
            holding.count,
            holding.has_rows,
            rows.columns - 1 if isinstance(rows, SufficientStats) else rows.width,
            self.outputs,
            canonical_json(self.encoding.to_dict()),
            self.normalize,
        )


def client_app(load: Callable[[Context], Node]) -> ClientApp:
    """A ClientApp over a function from the node's configuration to its client."""
    app = ClientApp()

    @app.query("describe")
    def describe(message: Message, context: Context) -> Message:
        return Message(_content(dump(load(context).describe())), reply_to=message)

    @app.query("answer")
    def answer(message: Message, context: Context) -> Message:
        node = load(context)
        with single_thread():
            reply = respond(_payload(message), node.name, node.data, node.limits)
        return Message(_content(reply), reply_to=message)

    return app


@dataclass(frozen=True, eq=False)
class FlowerTransport:
    """Questions over a Grid to the node of each client.

    timeout: seconds until a client is late.
    missing: nodes that did not say who they are.
    """

    grid: Grid
    nodes: Mapping[str, int]
    descriptions: Mapping[str, Description]
    timeout: float = 600.0
    missing: Mapping[str, Failure] = field(default_factory=dict)

    @classmethod
    def connect(
        cls, grid: Grid, *, nodes: int = 1, at_least: int | None = None, timeout: float = 600.0
    ) -> Self:
        """Wait for so many nodes, and ask all who they are.

        at_least: go on where so many of them answer as they should; None: all must.
        """
        registered = _registered(grid, nodes, timeout)
        transport = cls(grid, {}, {}, timeout)
        replies = transport._ask(dict.fromkeys(registered, b""), "describe")
        clients: dict[str, tuple[int, Description]] = {}
        failures: dict[str, Failure] = {}
        for node, registered_name in registered.items():
            description = _read_description(replies.get(node), registered_name)
            if isinstance(description, Failure):
                failures[registered_name or f"node {node}"] = description
            elif description.name in clients:
                raise InputError(
                    f"Each client has one node; {description.name!r} is said by nodes {node} and "
                    f"{clients[description.name][0]}. Rename one, or register the nodes by name."
                )
            else:
                clients[description.name] = (node, description)
        if failures and len(clients) < (at_least or len(registered)):
            raise MissingClients(failures)
        _check_alike([description for _, description in clients.values()])
        return replace(
            transport,
            nodes={name: node for name, (node, _) in clients.items()},
            descriptions={name: description for name, (_, description) in clients.items()},
            missing=failures,
        )

    @property
    def description(self) -> Description:
        """One of the clients' (they share classes, encoding and normalization)."""
        return next(iter(self.descriptions.values()))

    def describe(self) -> Mapping[str, Holding]:
        return {
            name: Holding(description.rows, description.has_rows)
            for name, description in self.descriptions.items()
        }

    def carries(self, model: Model, ask: Ask) -> bool:
        return True

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        """Send to all, then wait; answers in the order asked."""
        pending = list(asks)
        questions = {self.nodes[ask.client]: dump(Question(model, ask.query)) for ask in pending}
        replies = self._ask(questions, "answer")
        for ask in pending:
            reply = _arrived(replies.get(self.nodes[ask.client]))
            yield ask, reply if isinstance(reply, Failure) else read_reply(reply, ask.shapes)

    def _ask(self, questions: Mapping[int, bytes], kind: str) -> dict[int, Message]:
        """The replies of nodes until the timeout."""
        deadline = time.monotonic() + self.timeout
        node_of: dict[str, int] = {}
        for node, data in questions.items():
            message = Message(_content(data), dst_node_id=node, message_type=f"query.{kind}")
            # one at a time: of several, a grid does not say which it could not send
            node_of |= dict.fromkeys(filter(None, self.grid.push_messages([message])), node)
        replies: dict[int, Message] = {}
        while len(replies) < len(node_of) and time.monotonic() < deadline:
            waiting = [name for name, node in node_of.items() if node not in replies]
            for message in self.grid.pull_messages(waiting):
                replies[node_of[message.metadata.reply_to_message_id]] = message
            time.sleep(POLL_SECONDS)
        return replies


def _registered(grid: Grid, nodes: int, timeout: float) -> dict[int, str]:
    """The nodes that are online, with the names that they were registered by, if they were."""
    deadline = time.monotonic() + timeout
    while True:
        online = {info.node_id: info.name for info in grid.get_nodes()}
        if len(online) >= nodes:
            return online
        if time.monotonic() > deadline:
            raise InputError(
                f"{nodes} nodes were expected in {timeout:g} s; found {len(online)}. Start "
                "flower-supernode at each client, or ask for fewer."
            )
        time.sleep(POLL_SECONDS)


def _read_description(reply: Message | None, registered_name: str) -> Description | Failure:
    data = _arrived(reply)
    if isinstance(data, Failure):
        return data
    try:
        description = parse(data, Description, max_bytes=MAX_DESCRIPTION)
        _ = description.design
    except (WireError, ValueError, TypeError, KeyError) as error:
        return Failure("garbage", str(error))
    if registered_name not in ("", description.name):
        return Failure("garbage", f"says that it is {description.name!r}")
    return description


def _check_alike(descriptions: Sequence[Description]) -> None:
    for description in descriptions[1:]:
        first = descriptions[0]
        if description.design != first.design:
            raise MismatchError(
                "Nodes share classes, encoding and normalization; those of "
                f"{description.name} differ from those of {first.name}: "
                f"{description.design} and {first.design}. Encode and label them alike."
            )


def _arrived(reply: Message | None) -> bytes | Failure:
    """What a node sent."""
    if reply is None:
        return Failure("late", "no reply in time, or the question could not be sent")
    if reply.has_error():
        return Failure("gone", reply.error.reason or "")
    try:
        return _payload(reply)
    except WireError as error:
        return Failure("garbage", str(error))


def _content(data: bytes) -> RecordDict:
    return RecordDict({KEY: ConfigRecord({"data": data})})


def _payload(message: Message) -> bytes:
    config = message.content.config_records.get(KEY)
    data = None if config is None else config.get("data")
    if not isinstance(data, bytes):
        raise WireError("a message with bytes", type(data).__name__)
    return data
