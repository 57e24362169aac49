"""The Flower app of a federation: what every run of the SuperLink starts with."""

from __future__ import annotations

from pathlib import Path

from probekit.files import make_folder, write_text

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
relay = ""
"""


def write_app(folder: Path) -> None:
    """Write the app's folder."""
    package = folder / "probekit_federation"
    make_folder(package)
    write_text(folder / "pyproject.toml", _PROJECT)
    write_text(folder / "LICENSE", "Apache-2.0\n")
    write_text(package / "__init__.py", "")
    write_text(package / "server.py", "from flwr.serverapp import ServerApp\n\napp = ServerApp()\n")
    write_text(package / "client.py", "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n")
