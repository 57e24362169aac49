"""`probekit extract`: encode a dataset once, keep it for ever."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.allocator import keep_freed_memory
from probekit.cli.output import Console, Output, facts, table

if TYPE_CHECKING:
    from probekit.encoding.extract import ExtractProgress
    from probekit.values import EmbeddingSet

DEFAULT_BACKBONE = "packaged:efficientnet-lite0"
_data = partial(typer.Option, rich_help_panel="Data set")


@o.common
def extract(
    output: Output,
    dataset: Annotated[str, typer.Argument(help="hf:NAME, folder:PATH, idx:PATH, npz:PATH, packaged:digits, ...")],
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone", "-b", help="open_clip:ARCH/TAG, hf:NAME[@REV][#VIEW], timm:NAME, py:module:factory."
        ),
    ] = DEFAULT_BACKBONE,
    name: Annotated[str | None, typer.Option(help="What to call the set (default: dataset and backbone).")] = None,
    split: Annotated[str | None, _data(help="train, test, ...")] = None,
    limit: Annotated[int | None, _data(min=1, help="Only the first rows.")] = None,
    image_column: Annotated[str | None, _data(help="Which column is the picture.")] = None,
    text_column: Annotated[str | None, _data(help="Which column is the text.")] = None,
    label_column: Annotated[str | None, _data(help="Which column is the label.")] = None,
    client_column: Annotated[str | None, _data(help="Which column is the client.")] = None,
    column: Annotated[
        list[str] | None,
        _data(help="Keep this column, as salted digests: erase --subject finds a person's rows by it. Repeatable."),
    ] = None,
    group: o.Group = None,
    streaming: Annotated[bool, _data(help="Read without downloading first.")] = False,
    window: o.Window = None,
    preprocessing: o.Preset = "native",
    trigger: Annotated[
        str | None, typer.Option(help="Change pictures first: square:size=5, py:module:function.")
    ] = None,
    device: o.Device = "auto",
    batch_size: Annotated[str, typer.Option(help="A number, or auto.")] = "auto",
    num_workers: Annotated[int | None, typer.Option(min=0, help="Processes that decode (default: by cores).")] = None,
    dtype: Annotated[str, o.among("float32", "float16", "float64", help="How rows are stored.")] = "float32",
    amp: Annotated[bool, typer.Option("--amp", help="Mixed precision; part of the identity.")] = False,
    on_error: Annotated[str, o.among("raise", "skip", "mask", help="For samples that cannot be used.")] = "raise",
    restore_erased: Annotated[
        bool, typer.Option("--restore-erased", help="Bring back samples that were erased from the cache on request.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(help="I/N: encode only share I of N, from 0 on; see `cache merge`.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="ray[:HOST:PORT]: encode on a Ray cluster.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what differs from the nearest entry.")] = False,
) -> int:
    """Encode a dataset with a frozen backbone. Rows already in the cache are not encoded again.

    Interrupt it whenever you like: the same command continues.
    """
    own: dict[str, Any] = {"num_workers": num_workers, "dtype": dtype, "on_error": on_error, "group": group}
    own |= {"restore_erased": restore_erased, "window": o.window(window), "batch_size": _batch_size(batch_size)}
    share = None if shard is None else _shard(shard, engine)
    keep_freed_memory()
    began = time.perf_counter()
    with output.busy("loading ..."):
        from probekit.datasets import Columns
        from probekit.encoding.engine import ExtractRequest, extract_on
        from probekit.encoding.extract import extract as run
        from probekit.encoding.extract import set_name

        store = output.store
        named = {"image": image_column, "label": label_column, "client": client_column, "text": text_column}
        columns = Columns(**named, kept=tuple(column or ()))
        columns = columns if group is None else columns.keeping(group)
        precision = ("amp-bfloat16" if device in ("auto", "cpu") else "amp-float16") if amp else "float32"
        how: Any = {"preset": preprocessing, "device": device, "precision": precision, "trigger": trigger}
        rows: Any = {"split": split, "columns": columns, "streaming": streaming, "limit": limit}
        request = ExtractRequest(backbone, dataset, **rows, **how, settings=own)
        data = request.data()
        encoder = None if engine is not None and not explain else request.encoder(data)
    loaded = time.perf_counter()
    if explain and encoder is not None:
        from probekit.cache.audit import explain as differences

        for line in differences(request.spec(encoder), store.specs()):
            output.note(line)
    name = name or set_name(dataset, split, backbone, trigger=trigger, limit=limit)
    with output.bar("encoding") as bar:
        last: list[ExtractProgress] = []

        def progress(now: ExtractProgress) -> None:
            last[:] = [now]
            bar(now.rows, now.total, f"{now.reused} reused")

        told: Any = {"store": store, "progress": progress, "note": o.noted(output, "split", "window")}
        if engine is not None:
            embeddings = extract_on(engine, request, name, **told)
        else:
            embeddings = run(encoder, data, shard=share, **told, **request.options)
    if share is not None:
        from probekit.cache.shards import shard_name

        name = shard_name(name, *share)
    if last[0].erased:
        output.note(
            f"{last[0].erased} rows were left out: their samples were erased from this cache on request. "
            "--restore-erased brings them back. A picture that was saved anew has another id, and is not recognised."
        )
    store.sets.give_name(name, embeddings.digest)
    timings = {"load": round(loaded - began, 3), "encode": round(time.perf_counter() - loaded, 3)}
    value = _plain(name, embeddings, (encoder or embeddings.spec).preprocessing, last[0]) | {
        "seconds": timings,
        "cache": str(store.root),
    }
    judged = f"probe TRAINING-SET --test {name}" if split and split.startswith(("test", "val")) else f"probe {name}"
    following = judged if share is None else f"cache merge {name.rpartition('.')[0]}"
    output.result(value, partial(_show, weights=embeddings.spec.weights, following=following, group=group))
    return 5 if embeddings.skipped else 0


def _batch_size(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"--batch-size wants a number of at least 1 or auto; found {text!r}.")
    return int(text)


def _shard(text: str, engine: str | None) -> tuple[int, int]:
    number, slash, shards = text.partition("/")
    if engine is not None:
        raise typer.BadParameter("--engine shares the rows out by itself. Leave --shard out.")
    if not (slash and number.isdecimal() and shards.isdecimal() and int(number) < int(shards)):
        raise typer.BadParameter(f"--shard wants I/N with I from 0 to N - 1, as 0/4; found {text!r}.")
    return int(number), int(shards)


def _plain(
    name: str, embeddings: EmbeddingSet, preprocessing: Mapping[str, Any], done: ExtractProgress
) -> dict[str, Any]:
    return {
        "set": name,
        "digest": embeddings.digest,
        "spec": embeddings.spec.digest,
        "backbone": embeddings.spec.backbone,
        "view": embeddings.spec.view,
        "preprocessing": dict(preprocessing),
        "rows": len(embeddings),
        "dimension": embeddings.dimension,
        "dtype": embeddings.spec.dtype,
        "columns": list(embeddings.columns),
        "groups": None if embeddings.groups is None else len(set(embeddings.groups.tolist())),
        "classes": len(embeddings.class_names) or int(embeddings.labels.max(initial=-1)) + 1,
        "encoded": done.encoded,
        "reused": done.reused,
        "skipped": [asdict(skipped) for skipped in embeddings.skipped],
        "erased": done.erased,
    }


def _show(console: Console, value: dict[str, Any], *, weights: str, following: str, group: str | None) -> None:
    encoded, seconds, skipped = value["encoded"], value["seconds"], value["skipped"]
    rate = f", {encoded / seconds['encode']:.1f} per second" if encoded else ""
    seen = {
        "set": f"{value['set']}  ({value['digest'][:12]})",
        "rows": f"{value['rows']} x {value['dimension']} {value['dtype']}, {value['classes']} classes",
        **({} if value["groups"] is None else {"groups": f"{value['groups']} by {group}"}),
        "backbone": f"{value['backbone']}, view {value['view']}, weights {weights[:12]}",
        "preprocessing": ", ".join(f"{key} {text}" for key, text in value["preprocessing"].items()),
        "encoded": f"{encoded} now{rate}; {value['reused']} were in the cache",
        "time": f"{seconds['load']:.1f} s to load, {seconds['encode']:.1f} s to encode",
        "cache": value["cache"],
        "next": f"probekit {following}",
    }
    facts(console, seen)
    if skipped:
        title = f"{len(skipped)} samples left out"
        console.print(table(title, ("row", "sample", "why"), [tuple(one.values()) for one in skipped]))
