"""`probekit cache rm, prune, purge, export, import`: what changes the cache or carries it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, size

app = typer.Typer()


@app.command("rm")
@o.common
def rm(
    output: Output,
    name: Annotated[str, typer.Argument(help="A set's name or digest, or the digest of a spec.")],
    keep_rows: Annotated[bool, typer.Option("--keep-rows", help="Forget the set but keep its rows.")] = False,
    yes: o.Yes = False,
) -> None:
    """Remove a set (and its rows that no other set uses), or a whole spec."""
    from probekit.cache.removal import remove_set, remove_spec
    from probekit.errors import NotFoundError

    store = output.store
    output.confirm(f"Remove {name} from {store.root}?", yes)
    try:
        store.sets.resolve(name)
    except NotFoundError:
        if not re.fullmatch("[0-9a-f]{6,64}", name):  # so it is no digest of a spec either
            raise
        removed = remove_spec(store, name)
    else:
        removed = remove_set(store, name, keep_rows=keep_rows)
    output.result({"rows": removed.rows, "sets": list(removed.sets)}, facts)


@app.command("prune")
@o.common
def prune(
    output: Output,
    older_than: Annotated[float | None, typer.Option(min=0, help="Also sets older than this many days.")] = None,
    dry_run: o.DryRun = False,
) -> None:
    """Remove rows that no set uses, unfinished work and leftovers."""
    from probekit.cache.removal import prune as run

    removed = run(output.store, older_than_days=older_than, dry_run=dry_run)
    output.result({"dry_run": dry_run, "rows": removed.rows, "sets": list(removed.sets)}, facts)


@app.command("purge")
@o.common
def purge(
    output: Output,
    samples: Annotated[list[str] | None, typer.Option(help="A sample's id, its beginning or name. Repeatable.")] = None,
    client: Annotated[str | None, typer.Option(help="All samples of this client.")] = None,
    set_name: Annotated[str | None, typer.Option("--set", help="The set that the client is in.")] = None,
    yes: o.Yes = False,
) -> int:
    """Erase samples from every set and every backbone's rows, then search all files for their bytes.

    Exits 6 if a byte string of an erased row is still found anywhere in the cache.
    """
    from probekit.cache.removal import purge as run

    store = output.store
    output.confirm(f"Erase them from {store.root} for good?", yes)
    removed = run(store, samples=samples or (), client=client, set_name=set_name)
    value = {
        "rows": removed.rows,
        "sets_rewritten": list(removed.sets),
        "kept_as_others_hold_them_too": removed.shared,
        "searched": f"{removed.files} files, {size(removed.searched)}",
        "still_found_in": list(removed.remains),
        "not_reached": "exports, backups, run folders, the data set, and blocks the disk has not yet overwritten",
    }
    output.result(value, facts)
    return 6 if removed.remains else 0


@app.command("export")
@o.common
def export(
    output: Output,
    name: o.SetName,
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    form: Annotated[str, o.among("folder", "dataset", name="--format", help="Ours, or Hugging Face's.")] = "folder",
) -> None:
    """Write a set to a folder of its own, with all hashes."""
    from probekit.cache.transfer import export as run

    if form == "dataset" and (output.quiet or not sys.stderr.isatty()):
        import datasets

        datasets.disable_progress_bars()
    digest = run(output.store, name, target, form=form)
    output.result({"set": name, "digest": digest, "folder": str(target)}, facts)


@app.command("import")
@o.common
def bring(
    output: Output,
    source: Annotated[Path, typer.Argument(help="A folder made by `probekit cache export`.")],
    name: Annotated[str | None, typer.Option(help="What to call the set here.")] = None,
) -> None:
    """Add an exported set to the cache after checking every hash."""
    from probekit.cache.transfer import bring as run

    store = output.store
    label = run(store, source, name=name)
    output.result({"set": label, "digest": store.sets.resolve(label)}, facts)
