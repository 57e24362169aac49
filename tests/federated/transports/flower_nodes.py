"""Nodes of the tests, by their number; a file says how node 1, which is client b, misbehaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from probekit.federated.transports.flower import KEY, Node, client_app
from probekit.linear.stats import SufficientStats
from tests.federated.transports.scenarios import CLIENTS

MODE = "PROBEKIT_TEST_MODE"
"""Names the file."""


def mode() -> str:
    return Path(os.environ[MODE]).read_text()


def load(context: Context) -> Node:
    name = list(CLIENTS)[int(str(context.node_config["partition-id"]))]
    rows = CLIENTS[name]
    node = Node.of_rows(name, rows)
    if mode() == "sums":
        return Node(name, SufficientStats.from_rows(rows), node.outputs, node.encoding)
    if name != "b":
        return node
    match mode():
        case "broken":
            raise OSError("no such set")
        case "same name":
            return Node.of_rows("a", rows)
        case "other classes":
            return Node(name, rows, ("x", "y", "z"), node.encoding)
    return node


well_behaved = client_app(load)
app = ClientApp()


@app.query("describe")
def describe(message: Message, context: Context) -> Message:
    return well_behaved(message, context)


@app.query("answer")
def answer(message: Message, context: Context) -> Message:
    reply = well_behaved(message, context)
    if load(context).name != "b":
        return reply
    while mode() == "late":
        time.sleep(0.1)
    if mode() == "garbled":
        garbage = RecordDict({KEY: ConfigRecord({"data": os.urandom(64)})})
        return Message(garbage, reply_to=message)
    return reply
