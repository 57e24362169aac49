"""`probekit cache`: look at the cache, check it, clean it, carry it."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, size, table

app = typer.Typer(help="Look at the cache of embeddings, check it, clean it, carry it elsewhere.", no_args_is_help=True)
SetName = Annotated[str, typer.Argument(help="A set's name or the beginning of its digest.")]


@app.command("ls")
def ls(cache: o.Cache = None, json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = False) -> None:
    """Every set, and what each backbone's rows take."""
    from probekit.cache import DiskStore
    from probekit.cache.audit import usage

    store = DiskStore(cache)
    names = store.sets.names()
    notes = {digest: store.sets.read_note(digest) for digest in store.sets.digests()}
    sets = [
        {
            "names": [name for name, meant in names.items() if meant == digest],
            "digest": digest,
            **{key: note[key] for key in ("rows", "dimension", "backbone", "source", "spec")},
        }
        for digest, note in notes.items()
    ]
    entries = usage(store)
    value = {
        "cache": str(store.root),
        "size": sum(entry.size for entry in entries),
        "sets": sets,
        "entries": [{**asdict(entry), "digest": entry.spec.digest} for entry in entries],
    }

    def show(console: Any) -> None:
        console.print(f"[bold]cache[/]  {store.root}, {size(value['size'])}", soft_wrap=True)  # type: ignore[arg-type]
        if not sets:
            console.print("It holds no set yet: `probekit extract packaged:digits` makes one.")
            return
        rows = [
            (", ".join(s["names"]), s["digest"][:12], s["rows"], s["dimension"], s["source"], s["backbone"])
            for s in sets
        ]
        console.print(table("", ("set", "digest", "rows", "d", "dataset", "backbone"), rows))
        kept = [(e.spec.digest[:12], e.spec.backbone, e.spec.view, e.rows, e.unsealed, size(e.size)) for e in entries]
        console.print(table("", ("spec", "backbone", "view", "rows", "unfinished", "size"), kept))

    Output(json, quiet).result(value, show)


@app.command("info")
def info(
    name: SetName,
    rows: Annotated[bool, typer.Option("--rows", help="List every row: id, label, client, name.")] = False,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """All that is known of a set: its spec, its classes, its clients, what was skipped."""
    import numpy as np

    from probekit.cache import DiskStore

    embeddings = DiskStore(cache).open(name)
    counts = np.bincount(embeddings.labels[embeddings.labels >= 0], minlength=len(embeddings.class_names)).tolist()
    labels = embeddings.class_names or tuple(str(number) for number in range(len(counts)))
    value: dict[str, Any] = {
        "set": name,
        "digest": embeddings.digest,
        "source": embeddings.source,
        "rows": len(embeddings),
        "dimension": embeddings.dimension,
        "different samples": len(set(embeddings.ids)),
        "classes": dict(zip(labels, counts, strict=False)),
        "unlabelled": int((embeddings.labels < 0).sum()),
        "masked": int(embeddings.masked.sum()) if embeddings.masked is not None else 0,
        "clients": sorted(set(embeddings.clients)) if embeddings.clients is not None else [],
        "skipped": [asdict(skipped) for skipped in embeddings.skipped],
        "spec": {
            "backbone": embeddings.spec.backbone,
            "digest": embeddings.spec.digest,
            **embeddings.spec.identity,
        },
    }
    listed = [
        {
            "row": row,
            "id": sample,
            "label": int(embeddings.labels[row]),
            "client": embeddings.clients[row] if embeddings.clients is not None else None,
            "name": embeddings.names[row] if embeddings.names is not None else None,
        }
        for row, sample in enumerate(embeddings.ids if rows else ())
    ]
    if rows:
        value["samples"] = listed

    def show(console: Any) -> None:
        spec = value["spec"]
        facts(console, {key: text for key, text in value.items() if key not in ("spec", "samples")})
        facts(console, {f"spec {key}": text for key, text in spec.items()})
        if rows:
            console.print(table("", ("row", "id", "label", "client", "name"), [tuple(row.values()) for row in listed]))

    Output(json, quiet).result(value, show)


@app.command("verify")
def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Set damaged files aside.")] = False,
    encode: Annotated[int, typer.Option(min=0, help="Encode this many random rows of --set again and compare.")] = 0,
    set_name: Annotated[str | None, typer.Option("--set", help="Which set to encode again.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Where its samples are now (default: where they were).")] = None,
    seed: Annotated[int, typer.Option(help="Which rows are drawn.")] = 0,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    """Hash every file again and compare with what was written. Exits 4 if anything is wrong."""
    from probekit.cache import DiskStore
    from probekit.cache.audit import verify as check

    store = DiskStore(cache)
    problems, files = check(store, repair=repair)
    value: dict[str, Any] = {"files": files, "sound": not problems, "problems": [asdict(p) for p in problems]}
    code = 4 if problems else 0
    if encode:
        from probekit.encoding.reencode import reencode

        if set_name is None:
            raise typer.BadParameter("--encode needs --set, the set whose rows are encoded again.")
        outcome = reencode(store.open(set_name), count=encode, dataset=dataset, seed=seed)
        value["encoded"] = asdict(outcome)
        code = code or (0 if outcome.passed else 4)

    def show(console: Any) -> None:
        console.print(f"{files} files read, {len(problems)} problems")
        if problems:
            console.print(table("", ("where", "what", "what to do"), [(p.where, p.what, p.remedy) for p in problems]))
        if "encoded" in value:
            facts(console, value["encoded"])

    Output(json, quiet).result(value, show)
    return code


@app.command("rm")
def rm(
    name: Annotated[str, typer.Argument(help="A set's name or digest, or the digest of a spec.")],
    keep_rows: Annotated[bool, typer.Option("--keep-rows", help="Forget the set but keep its rows.")] = False,
    yes: o.Yes = False,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Remove a set (and its rows that no other set uses), or a whole spec."""
    from probekit.cache import DiskStore
    from probekit.cache.removal import remove_set, remove_spec
    from probekit.errors import NotFoundError

    store = DiskStore(cache)
    if not yes and not json:
        typer.confirm(f"Remove {name} from {store.root}?", abort=True, err=True)
    try:
        store.sets.resolve(name)
    except NotFoundError:
        if not re.fullmatch("[0-9a-f]{6,64}", name):  # so it is no digest of a spec either
            raise
        removed = remove_spec(store, name)
    else:
        removed = remove_set(store, name, keep_rows=keep_rows)
    _say(Output(json, quiet), {"rows": removed.rows, "sets": list(removed.sets)})


@app.command("prune")
def prune(
    older_than: Annotated[
        float | None, typer.Option(min=0, help="Also sets made more than this many days ago.")
    ] = None,
    dry_run: o.DryRun = False,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Remove rows that no set uses, unfinished work and leftovers."""
    from probekit.cache import DiskStore
    from probekit.cache.removal import prune as run

    removed = run(DiskStore(cache), older_than_days=older_than, dry_run=dry_run)
    _say(Output(json, quiet), {"dry run": dry_run, "rows": removed.rows, "sets": list(removed.sets)})


@app.command("purge")
def purge(
    samples: Annotated[
        list[str] | None,
        typer.Option("--samples", help="A sample's id, its beginning or its name. May be repeated."),
    ] = None,
    client: Annotated[str | None, typer.Option(help="All samples of this client.")] = None,
    set_name: Annotated[str | None, typer.Option("--set", help="The set that the client is in.")] = None,
    yes: o.Yes = False,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    """Erase samples from every set and every backbone's rows, then search all files for their bytes.

    Exits 6 if a byte string of an erased row is still found anywhere in the cache.
    """
    from probekit.cache import DiskStore
    from probekit.cache.removal import purge as run

    store = DiskStore(cache)
    if not yes and not json:
        typer.confirm(f"Erase them from {store.root} for good?", abort=True, err=True)
    removed = run(store, samples=samples or (), client=client, set_name=set_name)
    value = {
        "rows": removed.rows,
        "sets rewritten": list(removed.sets),
        "kept, as others hold them too": removed.shared,
        "searched": f"{removed.files} files, {size(removed.searched)}",
        "still found in": list(removed.remains),
        "not reached": "exports, backups, run folders, the data set, and blocks the disk has not yet overwritten",
    }
    _say(Output(json, quiet), value)
    return 6 if removed.remains else 0


@app.command("export")
def export(
    name: SetName,
    target: Annotated[Path, typer.Argument(help="A new folder.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            click_type=o.choice("folder", "dataset"),
            help="Our own form or a Hugging Face dataset.",
        ),
    ] = "folder",
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write a set to a folder of its own, with all hashes."""
    from probekit.cache import DiskStore
    from probekit.cache.transfer import export as run

    if form == "dataset" and (quiet or not sys.stderr.isatty()):
        import datasets

        datasets.disable_progress_bars()
    digest = run(DiskStore(cache), name, target, form=form)
    _say(Output(json, quiet), {"set": name, "digest": digest, "folder": str(target)})


@app.command("import")
def bring(
    source: Annotated[Path, typer.Argument(help="A folder made by `probekit cache export`.")],
    name: Annotated[str | None, typer.Option(help="What to call the set here.")] = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Add an exported set to the cache after checking every hash."""
    from probekit.cache import DiskStore
    from probekit.cache.transfer import bring as run

    store = DiskStore(cache)
    label = run(store, source, name=name)
    _say(Output(json, quiet), {"set": label, "digest": store.sets.resolve(label)})


def _say(out: Output, value: dict[str, Any]) -> None:
    out.result(value, lambda console: facts(console, value))
