"""The Flower app of a federation: every run of the SuperLink starts with it, and stock nodes run it."""

from __future__ import annotations

import json
from pathlib import Path

from probekit.files import make_folder, write_text

APP = "flower/app"

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "probekit-federation"
version = "1.0.0"
description = "A linear head in one closed-form round"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.42"]

[tool.hatch.build.targets.wheel]
packages = ["probekit_federation"]

[tool.flwr.app]
publisher = "probekit"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "probekit_federation.server:app"
clientapp = "probekit_federation.client:app"

[tool.flwr.app.config]
folder = {folder}
head = ""
ridge = 1.0
timeout = 600.0
relay = ""
"""

_CLIENT = '''"""A stock SuperNode's side: signed questions in, signed answers out."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from probekit.federated.flower import stock

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """The answer of the node whose folder the SuperNode was started with."""
    return stock.answer(message, context)
'''

_SERVER = '''"""The server's side: the closed form in one round, or a relay for whoever asks."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from probekit.federated.flower import stock

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a head and save it; with `relay`, forward somebody's questions."""
    stock.serve(grid, context)
'''


def write_app(federation: Path) -> None:
    """Write the app of a federation's folder: `flwr run` trains a head on it by closed form."""
    folder = federation / APP
    package = folder / "probekit_federation"
    make_folder(package)
    write_text(folder / "pyproject.toml", _PROJECT.replace("{folder}", json.dumps(str(federation.absolute()))))
    write_text(folder / "LICENSE", "SPDX-License-Identifier: Apache-2.0\n")
    write_text(package / "__init__.py", '"""A linear head across organisations, in one closed-form round."""\n')
    write_text(package / "client.py", _CLIENT)
    write_text(package / "server.py", _SERVER)
