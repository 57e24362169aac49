"""A node: a cached set, or a statistics file alone, as its --node-config says."""

from __future__ import annotations

from flwr.app import Context

import probekit.unlearning.methods  # noqa: F401  # whose questions this client knows then
from probekit.cache import Cache
from probekit.federated.transports.flower import Node, client_app


def load(context: Context) -> Node:
    config = context.node_config
    if "statistics" in config:
        return Node.of_file(str(config["statistics"]))
    rows = Cache(str(config["cache"])).open(str(config["set"]))
    return Node.of_rows(str(config["name"]), rows)


app = client_app(load)
