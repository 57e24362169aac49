"""`probekit audit`: look at a run's rows for what would mislead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.influence import influence
from probekit.cli.membership import membership
from probekit.cli.output import Output, facts, section

if TYPE_CHECKING:
    from probekit.linear.neighbours import Pair
    from probekit.values import EmbeddingSet

app = typer.Typer(help="Look at a run's rows for what would mislead.", no_args_is_help=True)
app.command("influence")(influence)
app.command("membership")(membership)

SERVER = "(server)"
SHOWN = 15


@app.command("duplicates")
def duplicates(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    test: Annotated[str | None, typer.Option(help="Also compare with this test set in the cache.")] = None,
    threshold: Annotated[float, typer.Option(help="The cosine from which two rows are nearly the same.")] = 0.999,
    client: Annotated[str | None, typer.Option(help="Only what concerns this client.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Give up beyond this many pairs.")] = 100_000,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Find samples of one client that (nearly) stand in another's rows, or in a test set.

    They stay known after that client leaves, and they make a test look too good.
    """
    import os

    from probekit.cache import DiskStore
    from probekit.errors import NotFoundError
    from probekit.linear.neighbours import duplicates_across, duplicates_against
    from probekit.registry import nearest
    from probekit.runs.folder import RunFolder
    from probekit.runs.training import usable

    opened, store = RunFolder.open(run), DiskStore(cache)
    partition, embeddings = opened.partition(), opened.embeddings(store)
    if client is not None and client not in partition.clients:
        raise NotFoundError(f"{run} has no client {client!r}. {nearest(client, list(partition.clients))}")
    options: dict[str, Any] = {"threshold": threshold, "limit": limit, "threads": os.cpu_count() or 1}
    across = [
        pair
        for pair in duplicates_across(embeddings, partition, **options)
        if client is None or client in (pair.client, pair.other_client)
    ]
    value: dict[str, Any] = {
        "run": str(run),
        "threshold": threshold,
        "clients": _remaining(across, {name: len(rows) for name, rows in partition.clients.items()}, client),
        "across": _told(across, embeddings, embeddings),
        "between": _between(across),
    }
    if test is not None:
        tested, _ = usable(store.open(test))
        against = [
            pair
            for pair in duplicates_against(embeddings, partition, test=tested, **options)
            if client is None or pair.client == client
        ]
        value["test"] = {
            "set": test,
            "rows": len(tested),
            "rows with a twin": len({pair.other_row for pair in against}),
            "by client": dict(Counter(_holder(pair.client) for pair in against).most_common()),
            "pairs": _told(against, embeddings, tested),
        }
    Output(json, quiet).result(value, lambda console: _show(console, value))


def _holder(client: str | None) -> str:
    return SERVER if client is None else client


def _remaining(pairs: Iterable[Pair], sizes: dict[str, int], only: str | None) -> list[dict[str, Any]]:
    """For each client: how many of its rows have a twin elsewhere, so that they stay known when it leaves."""
    twins: dict[str, set[int]] = {name: set() for name in sizes if only in (None, name)}
    same: dict[str, set[int]] = {name: set() for name in twins}
    for pair in pairs:
        for holder, row in ((pair.client, pair.row), (pair.other_client, pair.other_row)):
            if holder in twins:
                twins[holder].add(row)
                if pair.same_sample:
                    same[holder].add(row)
    return [
        {"client": name, "rows": sizes[name], "stay known": len(rows), "the very same sample": len(same[name])}
        for name, rows in twins.items()
    ]


def _between(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """How many pairs each two holders share, most first."""
    counts = Counter(tuple(sorted((_holder(pair.client), _holder(pair.other_client)))) for pair in pairs)
    return [{"holders": list(two), "pairs": count} for two, count in counts.most_common()]


def _told(pairs: Iterable[Pair], one: EmbeddingSet, other: EmbeddingSet) -> list[dict[str, Any]]:
    """Pairs with the names and ids of their samples, closest first."""
    return [
        {
            **asdict(pair),
            "name": one.names[pair.row] if one.names is not None else None,
            "other_name": other.names[pair.other_row] if other.names is not None else None,
            "id": one.ids[pair.row],
            "other_id": other.ids[pair.other_row],
        }
        for pair in sorted(pairs, key=lambda pair: -pair.similarity)
    ]


def _show(console: Any, value: dict[str, Any]) -> None:
    across, test = value["across"], value.get("test")
    facts(
        console,
        {
            "run": value["run"],
            "nearly the same": f"a cosine of {value['threshold']} or more",
            "across clients": f"{len(across)} pairs of rows",
        },
    )
    affected = [one for one in value["clients"] if one["stay known"]]
    if affected:
        shown = sorted(affected, key=lambda one: -one["stay known"] / one["rows"])[:SHOWN]
        headers = ("client", "rows", "stay known when it leaves", "of them the very same sample")
        section(console, "per client", headers, [tuple(one.values()) for one in shown])
        rows = [(" and ".join(one["holders"]), one["pairs"]) for one in value["between"][:SHOWN]]
        section(console, "between", ("holders", "pairs"), rows)
        _show_pairs(console, "across clients", across)
    if test is not None:
        twins, rows_of_test = test["rows with a twin"], test["rows"]
        console.print(
            f"\n{twins} of {rows_of_test} rows of {test['set']} ({twins / rows_of_test:.1%}) nearly stand in the run's "
            "rows: a test on them flatters."
        )
        _show_pairs(console, "against the test set", test["pairs"])


def _show_pairs(console: Any, title: str, pairs: list[dict[str, Any]]) -> None:
    if not pairs:
        return
    rows = [
        (
            f"{pair['similarity']:.6f}",
            _holder(pair["client"]),
            pair["name"] or pair["row"],
            pair["other_client"] or "",
            pair["other_name"] or pair["other_row"],
            "same sample" if pair["same_sample"] else "",
        )
        for pair in pairs[:SHOWN]
    ]
    more = f"{title}, the closest {SHOWN} of {len(pairs)}" if len(pairs) > SHOWN else title
    section(console, more, ("cosine", "client", "sample", "other", "its sample", ""), rows)
