"""`probekit import`: vectors that somebody encoded elsewhere, as a set of the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts


@o.common
def import_(
    output: Output,
    vectors: Annotated[
        Path, typer.Argument(help=".npy, .npz, .parquet, or a folder of .npy as clip-retrieval writes.")
    ],
    labels: Annotated[
        Path | None, typer.Option(help="Labels: .npy, .csv, .tsv, .parquet, or one in each line.")
    ] = None,
    join: Annotated[
        str | None, typer.Option(help="A column that vectors and labels both have (default: same order).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the set (default: the file's name).")] = None,
    source: Annotated[str, typer.Option(help="What made the vectors; sets of one source are encoded alike.")] = "",
    vector_column: Annotated[str | None, typer.Option(help="Which column or array holds the vectors.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Which column is the label.")] = None,
    targets: Annotated[
        str,
        typer.Option(help="Several labels (0, 1) or real targets instead of a label: columns a,b,c; empty: unknown."),
    ] = "",
    id_column: Annotated[str | None, typer.Option(help="Which column names the rows.")] = None,
    client_column: Annotated[str | None, typer.Option(help="Which column is the client.")] = None,
    group: Annotated[str | None, typer.Option(help="Which column says what belongs together: patients, users.")] = None,
) -> None:
    """Bring vectors that exist already into the cache. Every other command then takes them by their name.

    They keep the numbers they have (float16 stays float16) and are identified by their content.
    """
    with output.busy("reading ..."):
        from probekit.encoding.vectors import ImportOptions, read_vectors

        columns: dict[str, Any] = {"vectors": vector_column, "label": label_column, "ids": id_column}
        columns["targets"] = tuple(one.strip() for one in targets.split(",") if one.strip())
        how = ImportOptions(labels, join, client=client_column, group=group, source=source, **columns)
        key = {} if group is None else {"group_key": output.store.group_key()}
        found = read_vectors(vectors, how, **key)
        title = name or vectors.stem
        sealed = output.store.adopt(found, title)
    classes = len(sealed.class_names) or int(sealed.labels.max(initial=-1)) + 1
    value = {
        "set": title,
        "digest": sealed.digest,
        "rows": len(sealed),
        "dimension": sealed.dimension,
        "dtype": sealed.spec.dtype,
        "source": sealed.source,
        "labelled": int((sealed.labels >= 0).sum()),
        "classes": classes,
        "targets": None if sealed.targets is None else list(sealed.class_names),
        "cache": str(output.store.root),
    }
    output.result(value, _show)


def _show(console: Console, value: dict[str, Any]) -> None:
    shape = f"{value['rows']} x {value['dimension']} {value['dtype']}"
    what = f"one of {value['classes']} classes" if value["targets"] is None else f"of {value['classes']} targets any"
    told = f"{shape}, {value['labelled']} with {what}"
    facts(console, {"set": f"{value['set']}  ({value['digest'][:12]})", "rows": told, "source": value["source"]})
    facts(console, {"cache": value["cache"], "next": f"probekit probe {value['set']}"})
