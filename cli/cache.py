"""`probekit cache`: list, check and clean cached embeddings."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich import filesize

from probekit.cli.options import DRY_RUN, argument, flag
from probekit.cli.output import CacheOutput

if TYPE_CHECKING:
    from probekit.cache.removal import Removed

SHOWN_DIGITS = 12
SET_COLUMNS = ("name", "rows", "width", "labels", "backbone", "source")
DAMAGED = 4

app = typer.Typer(no_args_is_help=True, help="List, check and clean cached embeddings.")


@app.command()
def ls(*, output: CacheOutput) -> None:
    """List the sets, and the encodings that their rows belong to."""
    from probekit.cache.usage import list_encodings, list_sets

    store = output.open_cache()
    sets = list_sets(store, output.warn)
    encodings = list_encodings(store, output.warn)
    size = sum(encoding["bytes"] for encoding in encodings)
    output.print(f"{store.root}: {len(sets)} sets, {filesize.decimal(size)}")
    if sets:
        output.table(SET_COLUMNS, [[row[column] for column in SET_COLUMNS] for row in sets])
    if encodings:
        rows = []
        for usage in encodings:
            counts = (usage["rows"], usage["unfinished"], filesize.decimal(usage["bytes"]))
            rows.append((usage["digest"][:SHOWN_DIGITS], *counts, usage["backbone"]))
        output.table(["encoding", "rows", "unfinished", "size", "backbone"], rows)
    output.result({"root": store.root, "bytes": size, "sets": sets, "encodings": encodings})


@app.command()
def info(name: str = argument("Name of a set."), *, output: CacheOutput) -> None:
    """Show what a set is and what made it."""
    store = output.open_cache()
    description = {"name": name, **asdict(store.describe(name))}
    description["columns"] = sorted(store.open(name).columns)
    output.fields(description)
    output.result(description)


@app.command()
def rm(
    names: list[str] = argument("Set, or first digits of an encoding.", metavar="NAME|ENCODING"),
    dry_run: bool = DRY_RUN,
    yes: bool = flag("Do not ask.", "--yes", "-y", default=False),
    *,
    output: CacheOutput,
) -> None:
    """Remove sets with the rows that no other set uses, or encodings with all their sets."""
    from probekit.cache.removal import remove

    store = output.open_cache()
    planned = [remove(store, name, dry_run=True) for name in names]
    if not dry_run:
        rows = sum(plan.rows for plan in planned)
        if not yes:
            question = f"Remove {', '.join(names)} with {rows:,} rows?"
            output.confirm(question)
        planned = [remove(store, name) for name in names]
    for plan in planned:
        _print_removed(output, plan, dry_run=dry_run)
    output.result({"dry_run": dry_run, "removed": planned})


@app.command()
def gc(dry_run: bool = DRY_RUN, *, output: CacheOutput) -> None:
    """Remove rows that no set uses, unfinished pieces and leftovers."""
    from probekit.cache.removal import collect_garbage

    removed = collect_garbage(output.open_cache(), dry_run=dry_run)
    _print_removed(output, removed, dry_run=dry_run)
    output.result({"dry_run": dry_run, **asdict(removed)})


def _print_removed(output: CacheOutput, removed: Removed, *, dry_run: bool) -> None:
    verb = "Would remove" if dry_run else "Removed"
    counts = [f"{removed.rows:,} rows ({filesize.decimal(removed.bytes)})"]
    if removed.sets:
        counts.append(f"sets {', '.join(removed.sets)}")
    if removed.encodings:
        digests = [digest[:SHOWN_DIGITS] for digest in removed.encodings]
        counts.append(f"encodings {', '.join(digests)}")
    output.print(f"{verb} {'; '.join(counts)}.")
    for digest in removed.busy:
        output.warn(
            f"An extraction is working on encoding {digest[:SHOWN_DIGITS]}; its rows stay. "
            "Run `probekit cache gc` when it is done."
        )


@app.command()
def verify(
    repair: bool = flag("Set damaged files aside, to be made again.", "--repair", default=False),
    *,
    output: CacheOutput,
) -> None:
    """Hash every file again; exit code 4 when damage stays."""
    from probekit.cache.verify import verify as verify_cache

    store = output.open_cache()
    verification = verify_cache(store, repair=repair, progress=output.progress)
    for damage in verification.damages:
        state = "set aside" if damage.repaired else "damaged"
        output.warn(f"{damage.path} ({state}): {damage.problem}. {damage.remedy}")
    output.print(f"{verification.files:,} files checked, {len(verification.damages)} damaged.")
    document = {"ok": verification.ok, **asdict(verification)}
    output.result(document, exit_code=0 if verification.ok else DAMAGED)
