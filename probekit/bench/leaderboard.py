"""The leaderboard: methods in the order of their distance to retraining, and what may not be read in it."""

from __future__ import annotations

from collections.abc import Sequence

from probekit.bench.results import BenchResult, TableRow, grouped
from probekit.bench.tables import COLUMNS, PUBLISHED, about_setting, number, published_of, setup
from probekit.pages.formats import escaped

SHOWN = ("distance", "distance_fedavg", "accuracy", "backdoor", "tow", "certified", "relearn_rounds", "rounds", "up")
ANSWERS = "disagreement"
AS_PUBLISHED = ("backdoor_paper",)
"""Shown, too, where published figures stand beside: what they have to be held against."""
SHADOWED = (
    *("klom", "klom_floor", "ulira_auc", "ulira_tpr", "rmia_auc", "shadows", "distance", "distance_fedavg"),
    *("accuracy", "forgotten_accuracy"),
)
"""What a page of membership shows instead, the nearest to retraining by KLoM first."""
DISTANCES = ("distance", "distance_fedavg")
MEASURED = ("accuracy", "backdoor_paper")
"""Which of ours are what was published, in the order of published figures."""
GOALS = ("retrain-fedavg", "retrain")
PUBLISHED_GOAL = "retrain-fedavg"
NEAR = 0.1
"""Within this share of doing nothing's distance, or beyond it, a head is no nearer to retraining than before."""
GONE = 0.05
"""A backdoor this near to retraining's counts as gone."""


def ranked(rows: Sequence[TableRow]) -> list[TableRow]:
    """The methods that could be carried out, the nearest first: by KLoM, else to the minimum, else to FedAvg's.

    By how often they give another class than retraining does, where weights do not tell (`blurred`).
    """
    able = [row for row in rows if row.means]
    known = [key for key in ("klom", *DISTANCES) if any(key in row.means for row in able)]
    key = ANSWERS if blurred(rows) else known[0] if known else DISTANCES[0]
    return sorted(able, key=lambda row: (row.mean(key) is None, row.mean(key), row.method))


def blurred(rows: Sequence[TableRow]) -> tuple[float, float] | None:
    """Of a loss with many minima: how far two retrainings are apart that differ in their seed, and doing nothing, if
    that is nearer: then a distance between weights is no evidence for or against anything."""
    nothing = next((row for row in rows if row.method == "nothing"), None)
    if nothing is None or nothing.mean(DISTANCES[0]) is not None:
        return None
    floor, far = nothing.mean("seeds_apart"), nothing.mean(DISTANCES[1])
    known = floor is not None and far is not None and nothing.mean(ANSWERS) is not None
    return (floor, far) if known and floor >= (1 - NEAR) * far else None  # type: ignore[operator,return-value]


def deceptive(rows: Sequence[TableRow]) -> list[str]:
    """Methods whose backdoor is near retraining's while their head is as far from every retraining as doing nothing."""
    known = {row.method: row for row in rows}
    nothing, goal = known.get("nothing"), next((known[name] for name in GOALS if name in known), None)
    clean = None if goal is None else goal.mean("backdoor")
    if nothing is None or clean is None or blurred(rows):
        return []
    far = {name: one.value for name, one in nothing.means.items() if name in DISTANCES}
    return [
        row.method
        for row in rows
        if row.method != nothing.method
        and all((row.mean(name) or 0.0) >= (1 - NEAR) * value for name, value in far.items())
        and (hits := row.mean("backdoor")) is not None
        and abs(hits - clean) <= GONE
    ]


def gaps(rows: Sequence[TableRow]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Of methods with published figures: by how many points accuracy and backdoor miss retraining's, here and there.

    What two settings have in common is the way from retraining, not the height of their numbers.
    """
    known = {row.method: row for row in rows}
    paper = next((row.published for row in rows if row.method == PUBLISHED_GOAL), ())
    goal = next((known[name] for name in GOALS if name in known and known[name].means), None)
    found = []
    for row in rows:
        if goal is None or len(row.published) < len(MEASURED) or len(paper) < len(MEASURED):
            continue
        if row.means and row.method not in GOALS:
            ours = [100 * ((row.mean(key) or 0.0) - (goal.mean(key) or 0.0)) for key in MEASURED]
            theirs = [row.published[place][0] - paper[place][0] for place in range(len(MEASURED))]
            found.append((row.method, list(zip(ours, theirs, strict=True))))
    return found


def _gap_table(rows: Sequence[TableRow]) -> list[str]:
    lines = [
        "| points from retraining | accuracy, here | accuracy, paper | backdoor, here | backdoor, paper |",
        "|---|" + "---:|" * 4,
    ]
    body = [
        f"| {name} | " + " | ".join(f"{one:+.1f}" for pair in pairs for one in pair) + " |"
        for name, pairs in gaps(rows)
    ]
    return [*lines, *body, ""] if body else []


def page(result: BenchResult, source: str, to: str) -> str:
    """The leaderboard in Markdown, from an outcome in a file of this name, for a file of that name."""
    many = "shadows" in result.plain["experiment"]["metrics"]
    lines = [
        f"# {'' if many else 'Leaderboard: '}{result.plain['experiment']['title']}",
        "",
        f"Generated by `probekit bench leaderboard {source} {to}`; `probekit bench show {source}` "
        "prints the same outcome. [How it is measured](bench.md)"
        + (", and [what it means](metrics.md).\n" if many else ".\n"),
        *(f"{line}\n" for line in setup(result)),
    ]
    for setting in result.settings:
        rows = ranked(result.of(setting))
        beside = any(row.published for row in rows)
        keys = SHADOWED if many else (*SHOWN, *AS_PUBLISHED * beside, *(ANSWERS,) * (blurred(rows) is not None))
        columns = [one for one in COLUMNS if one.key in keys and any(one.key in row.means for row in rows)]
        lines += [f"## {setting}", "", escaped(about_setting(result, setting)), ""]
        lines += ["| | method | " + " | ".join([*(one.title for one in columns), *PUBLISHED * beside]) + " | with |"]
        lines += ["|---:|---|" + "---:|" * (len(columns) + len(PUBLISHED) * beside) + "---|"]
        for place, row in enumerate(rows, 1):
            texts = [*(number(row, one) for one in columns), *published_of(row) * beside]
            with_ = row.spec if row.spec != row.method else ""
            lines.append(f"| {place} | {row.method} | " + " | ".join(texts) + f" | {escaped(with_)} |")
        lines += ["", *_gap_table(result.of(setting))]
        if (apart := blurred(rows)) and not many:
            lines += [
                f"Weights do not tell methods apart here: retraining with another seed is {apart[0]:.2f} away, doing "
                f"nothing {apart[1]:.2f}. The order is that of the share of test rows, with and without the trigger, "
                "that get another class than from retraining.",
                "",
            ]
        if (found := deceptive(rows)) and not many:
            names = ", ".join(f"`{name}`" for name in found)
            lines += [
                f"A backdoor that is gone is no evidence that a client is: {names} brought it to within "
                f"{100 * GONE:.0f} points of retraining's, and {'is' if len(found) == 1 else 'are'} as far from the "
                f"retrained heads as doing nothing (within {NEAR:.0%}), or farther. The trigger is gone; nothing shows "
                "that the rest of what the client taught is.",
                "",
            ]
        failed = [row for row in result.of(setting) if row.errors and row.possible]
        lines += [f"- {names}: {escaped(error)}" for names, error in grouped(failed)]
    return "\n".join(lines).rstrip() + "\n"
