"""`probekit extract`: encode a dataset once with a frozen backbone."""

from __future__ import annotations

import time
from typing import Any

import typer

from probekit.cli.options import DataFlags, EncodingFlags, argument, flag, keywords
from probekit.cli.output import CacheOutput


def parse_shard(text: str) -> tuple[int, int]:
    number, _, shards = text.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and int(number) < int(shards)):
        raise typer.BadParameter(f"Expected I/N with I from 0 to N - 1; found {text!r}.")
    return int(number), int(shards)


def extract(
    data: str = argument("A path, hf:NAME, packaged:digits, py:module:factory."),
    backbone: str = flag("Such as hf:facebook/dinov2-base#cls.", "--backbone", "-b", default=...),
    name: str | None = flag("Name of the set (default: dataset, split and backbone)."),
    shard: Any = flag(
        "Encode share I of N (from 0); then extract once without --shard.",
        metavar="I/N",
        parser=parse_shard,
    ),
    *,
    reading: DataFlags,
    encoding: EncodingFlags,
    output: CacheOutput,
) -> None:
    """Encode a dataset with a frozen backbone; what is cached is not encoded again.

    Interrupt it whenever you like: the same command continues.
    """
    from probekit.data import DataOptions, read_dataset
    from probekit.extraction import ExtractOptions
    from probekit.extraction.extract import extract_dataset, open_backbone, set_name

    options = ExtractOptions(**keywords(encoding), shard=shard)
    data_options = DataOptions(**keywords(reading))
    store = output.open_cache()
    splits = read_dataset(data, data_options)
    split, dataset = splits.choose(reading.split)
    output.warn(*splits.notes)
    if reading.split is None and len(splits.by_name) > 1:
        output.warn(f"Encoding the split {split!r} alone; choose another one with --split.")
    encoder = open_backbone(backbone, dataset.kind, options)
    started = time.perf_counter()
    extracted = extract_dataset(
        dataset,
        encoder,
        name=name or set_name(data, split, encoder.name, limit=reading.limit),
        source=data,
        cache=store,
        window=data_options.window,
        options=options,
        progress=output.progress,
    )
    seconds = round(time.perf_counter() - started, 3)
    output.warn(*extracted.notes)
    sets = []
    for view, rows in extracted.sets.items():
        title = extracted.names.get(view)
        document = output.describe_set(title or "this share", rows)
        sets.append({**document, "name": title, "view": view})
    counts = {"encoded": extracted.encoded, "reused": extracted.reused, "seconds": seconds}
    output.print(
        f"{extracted.encoded:,} encoded in {seconds:.1f} s, {extracted.reused:,} reused; "
        f"cache {store.root}"
    )
    if shard is None:
        output.print(f"next: probekit probe {sets[0]['name']}")
    skipped = next(iter(extracted.sets.values())).skipped
    output.result({"sets": sets, **counts, "skipped": skipped}, skipped=skipped)
