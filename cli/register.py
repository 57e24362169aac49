"""`probekit register`: requests for erasure and their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from probekit.cli import options as o
from probekit.cli.erase import show_records
from probekit.cli.output import Output


@o.common
def register(
    output: Output,
    folder: Annotated[Path, typer.Argument(help="The folder of records that `probekit erase` writes.")],
) -> None:
    """List requests for erasure: who asked, when, what was done, and what may remain; also what is not finished."""
    from probekit.errors import NotFoundError
    from probekit.runs.register import Register

    if not folder.is_dir():
        raise NotFoundError(f"There is no register {folder}. `probekit erase` makes one.")
    book = Register(folder)
    records, pending = book.records(), book.pending()
    begun = [] if pending is None else [one["reference"] for one in pending["cases"]]
    if begun:
        output.note(f"Not finished: {', '.join(begun)}. Give the same `probekit erase` again.")
    value = {"records": [one.plain for one in records], "unfinished": begun}
    output.result(value, lambda console, _: show_records(console, records))
