"""`probekit cache`: look at the cache, check it, clean it, carry it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.cache_changes import app as changes
from probekit.cli.output import Console, Output, facts, size, table

app = typer.Typer(help="Look at the cache of embeddings, check it, clean it, carry it elsewhere.", no_args_is_help=True)
app.add_typer(changes)
COLUMNS = ("row", "id", "label", "client", "name")


@app.command("ls")
@o.common
def ls(output: Output) -> None:
    """Every set, and what each backbone's rows take."""
    from probekit.cache.audit import usage

    store, sets = output.store, []
    for digest in store.sets.digests():
        note, named = store.sets.read_note(digest), {"names": store.sets.names_of(digest), "digest": digest}
        sets.append(named | {key: note[key] for key in ("rows", "dimension", "backbone", "source", "spec")})
    entries = [{**asdict(entry), "digest": entry.spec.digest} for entry in usage(store)]
    taken = sum(entry["size"] for entry in entries)
    output.result({"cache": str(store.root), "size": taken, "sets": sets, "entries": entries}, _show_sets)


def _show_sets(console: Console, value: dict[str, Any]) -> None:
    console.print(f"[bold]cache[/]  {value['cache']}, {size(value['size'])}", soft_wrap=True)
    if not value["sets"]:
        console.print("It holds no set yet: `probekit extract packaged:digits` makes one.")
        return
    keys = ("rows", "dimension", "source", "backbone")
    rows = [(", ".join(s["names"]), s["digest"][:12], *(s[key] for key in keys)) for s in value["sets"]]
    console.print(table("", ("set", "digest", "rows", "d", "dataset", "backbone"), rows))
    kept = [
        (e["digest"][:12], e["spec"]["backbone"], e["spec"]["view"], e["rows"], e["unsealed"], size(e["size"]))
        for e in value["entries"]
    ]
    console.print(table("", ("spec", "backbone", "view", "rows", "unfinished", "size"), kept))


@app.command("info")
@o.common
def info(
    output: Output,
    name: o.SetName,
    rows: Annotated[bool, typer.Option("--rows", help="List every row: id, label, client, name.")] = False,
) -> None:
    """All that is known of a set: its spec, its classes, its clients, what was skipped."""
    embeddings = output.store.open(name)
    counts = Counter(embeddings.labels.tolist())
    labels = embeddings.class_names or tuple(str(number) for number in range(max(counts, default=-1) + 1))
    value: dict[str, Any] = {
        "set": name,
        "digest": embeddings.digest,
        "source": embeddings.source,
        "rows": len(embeddings),
        "dimension": embeddings.dimension,
        "different_samples": len(set(embeddings.ids)),
        "classes": {name: counts[number] for number, name in enumerate(labels)},
        "unlabelled": int((embeddings.labels < 0).sum()),
        "masked": len(embeddings) - len(embeddings.usable),
        "clients": sorted(set(embeddings.clients or ())),
        "skipped": [asdict(skipped) for skipped in embeddings.skipped],
        "spec": {"backbone": embeddings.spec.backbone, "digest": embeddings.spec.digest, **embeddings.spec.identity},
    }
    if embeddings.targets is not None:
        value["classes"] = {}
        known = (embeddings.targets == embeddings.targets).sum(axis=0).tolist()  # NaN, not known, is no number's equal
        value["targets"] = dict(zip(embeddings.class_names, known, strict=True))
    if rows:
        nobody = [None] * len(embeddings)
        columns = (embeddings.ids, embeddings.labels.tolist(), embeddings.clients or nobody, embeddings.names or nobody)
        listed = zip(range(len(embeddings)), *columns, strict=True)
        value["samples"] = [dict(zip(COLUMNS, row, strict=True)) for row in listed]
    output.result(value, _show_info)


def _show_info(console: Console, value: dict[str, Any]) -> None:
    facts(console, {key: text for key, text in value.items() if key not in ("spec", "samples")})
    facts(console, {f"spec {key}": text for key, text in value["spec"].items()})
    if "samples" in value:
        console.print(table("", COLUMNS, [tuple(row.values()) for row in value["samples"]]))


@app.command("verify")
@o.common
def verify(
    output: Output,
    repair: Annotated[bool, typer.Option("--repair", help="Set damaged files aside.")] = False,
    encode: Annotated[int, typer.Option(min=0, help="Encode this many random rows of --set again and compare.")] = 0,
    set_name: Annotated[str | None, typer.Option("--set", help="Which set to encode again.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Where its samples are now (default: where they were).")] = None,
    seed: Annotated[int, typer.Option(help="Which rows are drawn.")] = 0,
) -> int:
    """Hash every file again and compare with what was written. Exits 4 if anything is wrong."""
    from probekit.cache.audit import unused_rows
    from probekit.cache.audit import verify as check

    store = output.store
    problems, files = check(store, repair=repair)
    unused = sum(unused_rows(store).values())
    value: dict[str, Any] = {"files": files, "sound": not problems, "problems": [asdict(p) for p in problems]}
    value["unused_rows"] = unused
    sound = not problems
    if encode:
        from probekit.encoding.reencode import reencode

        if set_name is None:
            raise typer.BadParameter("--encode needs --set, the set whose rows are encoded again.")
        outcome = reencode(store.open(set_name), count=encode, dataset=dataset, seed=seed)
        value["encoded"] = asdict(outcome)
        sound = sound and outcome.passed
    output.result(value, _show_problems)
    return 0 if sound else 4


def _show_problems(console: Console, value: dict[str, Any]) -> None:
    problems = [tuple(one.values()) for one in value["problems"]]
    console.print(f"{value['files']} files read, {len(problems)} problems")
    if problems:
        console.print(table("", ("where", "what", "what to do"), problems))
    if value["unused_rows"]:
        console.print(f"{value['unused_rows']} rows are used by no set: `probekit cache prune` removes them")
    facts(console, value.get("encoded", {}))
