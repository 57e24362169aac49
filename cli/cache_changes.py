"""`probekit cache rm, prune, purge, export, import`: what changes the cache or carries it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.consent import agreed
from probekit.cli.output import Output, facts, size

if TYPE_CHECKING:
    from probekit.cache import DiskStore
    from probekit.cache.removal import Removed

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
    from probekit.cache.journal import pending
    from probekit.cache.removal import remove_set, remove_spec
    from probekit.errors import NotFoundError

    store = output.store_for(finishing=True)
    output.confirm(f"Remove {name} from {store.root}?{_used_by(store, name)}", yes)
    request = (pending(store.root) or {}).get("request", {})  # which the same command finishes
    try:
        by_spec = request.get("spec") == name
        if not by_spec and request.get("set") != name:
            store.sets.resolve(name)
    except NotFoundError:
        if not re.fullmatch("[0-9a-f]{6,64}", name):  # so it is no digest of a spec either
            raise
        by_spec = True
    removed = remove_spec(store, name) if by_spec else remove_set(store, name, keep_rows=keep_rows)
    output.result(_plain(removed), facts)


def _used_by(store: DiskStore, name: str) -> str:
    """A sentence on the runs that stand on a set, where there are any."""
    from probekit.cache.users import users

    runs = users(store.root, [digest for digest in store.sets.digests() if name in (store.sets.label(digest), digest)])
    return f" These runs stand on it and lose their rows: {', '.join(map(str, runs))}." if runs else ""


def _plain(removed: Removed) -> dict[str, Any]:
    value: dict[str, Any] = {"rows": removed.rows, "sets": list(removed.sets)}
    if removed.runs:
        value["runs_that_lose_their_rows"] = list(removed.runs)
    if removed.busy:
        value["left_as_an_extraction_is_running"] = list(removed.busy)
    return value


@app.command("prune")
@o.common
def prune(
    output: Output,
    older_than: Annotated[float | None, typer.Option(min=0, help="Also sets older than this many days.")] = None,
    dry_run: o.DryRun = False,
) -> None:
    """Remove rows that no set uses, unfinished work and leftovers."""
    from probekit.cache.removal import prune as run

    removed = run(output.store_for(finishing=True), older_than_days=older_than, dry_run=dry_run)
    output.result({"dry_run": dry_run, **_plain(removed)}, facts)


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

    A later `extract` leaves them out. Interrupted, give the same command again, or `probekit cache purge` alone.
    Exits 6 if a byte string of an erased row is still found anywhere in the cache; then it is not finished.
    """
    from probekit.cache.erasure import purge as run

    store = output.store_for(finishing=True)
    output.confirm(f"Erase them from {store.root} for good?", yes)
    asked: Any = {"samples": samples or (), "client": client, "set_name": set_name}
    removed = agreed(output, lambda sure: run(store, **asked, yes=sure), yes)
    value: dict[str, Any] = {
        "rows": removed.rows,
        "sets_rewritten": list(removed.sets),
        "kept_as_others_hold_them_too": removed.shared,
        "searched": f"{removed.files} files, {size(removed.searched)}",
        "still_found_in": list(removed.remains),
        "runs_that_lose_their_rows": list(removed.runs),
        "not_reached": "exports, backups, run folders, the data set, hard links and open maps elsewhere, swap, "
        "snapshots of the file system, and blocks the disk has not yet overwritten",
    }
    if removed.remains:
        value["what_to_do"] = "The purge is not finished: remove those files, then give the same command again."
    output.result(value, facts)
    return 6 if removed.remains else 0


@app.command("merge")
@o.common
def merge(
    output: Output,
    name: Annotated[str, typer.Argument(help="The set's name: that of its shards, without .I-of-N.")],
    caches: Annotated[list[Path] | None, typer.Argument(help="Other caches in which shards of it are.")] = None,
) -> None:
    """Bring the shards of `extract --shard` together into one set, the same to the bit as one process makes."""
    from probekit.cache.shards import merge as run

    made = run(output.store, name, caches or ())
    output.result({"set": made.name, "digest": made.digest, "rows": made.rows, "shards": made.shards}, facts)


@app.command("export")
@o.common
def export(
    output: Output,
    name: o.SetName,
    target: Annotated[
        str, typer.Argument(help="A new folder, hf:OWNER/NAME, or a URL: s3://, gs://, abfs://, or another of fsspec.")
    ],
    form: Annotated[str, o.among("folder", "dataset", name="--format", help="Ours, or Hugging Face's.")] = "folder",
) -> None:
    """Write a set to a folder of its own, with all hashes; elsewhere, files that are there whole are not sent again."""
    from probekit.cache.remote import export_to, local_path, shown
    from probekit.cache.transfer import export as run

    if form == "dataset" and (output.quiet or not sys.stderr.isatty()):
        import datasets

        datasets.disable_progress_bars()
    if (folder := local_path(target)) is not None:
        output.result({"set": name, "digest": run(output.store, name, folder, form=form), "folder": str(folder)}, facts)
        return
    with output.busy("sending ..."):
        done = export_to(output.store, name, target, form=form)
    value = {"set": name, "digest": done.digest, "url": shown(target), "sent": done.sent, "were_there": done.there}
    output.result(value, facts)


@app.command("import")
@o.common
def bring(
    output: Output,
    source: Annotated[
        str, typer.Argument(help="What `probekit cache export` made: a folder, hf:OWNER/NAME[@REV], or a URL.")
    ],
    name: Annotated[str | None, typer.Option(help="What to call the set here.")] = None,
    restore_erased: Annotated[
        bool, typer.Option("--restore-erased", help="Also if samples of it were erased here on request.")
    ] = False,
) -> None:
    """Add an exported set to the cache after checking every hash. Interrupted, the same command goes on."""
    from probekit.cache.remote import import_from, local_path
    from probekit.cache.transfer import bring as run

    store = output.store
    how: Any = {"name": name, "restore_erased": restore_erased}
    if (folder := local_path(source)) is not None:
        label = run(store, folder, **how)
    elif source.startswith("hf:"):
        from probekit.backbones.snapshots import copied

        with copied(source) as folder:
            label = run(store, folder, **how)
    else:
        with output.busy("fetching ..."):
            label = import_from(store, source, **how)
    output.result({"set": label, "digest": store.sets.resolve(label)}, facts)
