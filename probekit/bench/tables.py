"""Tables of an outcome: Markdown, CSV and LaTeX, mean and standard error, beside published figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probekit.bench.results import BenchResult, TableRow, grouped
from probekit.pages.formats import escaped


@dataclass(frozen=True)
class MeasureColumn:
    """A measure: its title, how many to multiply it by, its digits, and whether less of it is better."""

    key: str
    title: str
    scale: float = 1.0
    digits: int = 1


COLUMNS = (
    MeasureColumn("accuracy", "accuracy %", 100),
    MeasureColumn("backdoor", "backdoor, others %", 100),
    MeasureColumn("backdoor_all", "backdoor, all %", 100),
    MeasureColumn("backdoor_paper", "backdoor, as the paper %", 100),
    MeasureColumn("forgotten_accuracy", "forgotten rows %", 100),
    MeasureColumn("distance", "distance to minimum", 1, 4),
    MeasureColumn("distance_fedavg", "distance to FedAvg", 1, 4),
    MeasureColumn("disagreement", "other class than retraining %", 100),
    MeasureColumn("js", "JS divergence", 1, 4),
    MeasureColumn("tow", "ToW", 1, 3),
    MeasureColumn("worst_client_drop", "worst client's drop", 100),
    MeasureColumn("certified", "certified %", 100),
    MeasureColumn("certified_plain", "certified by a gradient %", 100),
    MeasureColumn("certified_rounds", "certified from the rounds %", 100),
    MeasureColumn("rmia_auc", "RMIA AUC", 1, 3),
    MeasureColumn("ulira_auc", "U-LiRA AUC", 1, 3),
    MeasureColumn("ulira_tpr", "U-LiRA TPR at 1 %", 100),
    MeasureColumn("klom", "KLoM", 1, 3),
    MeasureColumn("klom_floor", "KLoM floor", 1, 3),
    MeasureColumn("shadows", "shadows", 1, 0),
    MeasureColumn("relearn_rounds", "relearn rounds", 1, 1),
    MeasureColumn("vhv", "v'Hv", 1, 2),
    MeasureColumn("vhv_server", "v'Hv of the server", 1, 2),
    MeasureColumn("curvature_error", "curvature's error", 1, 3),
    MeasureColumn("step_error", "step's error", 1, 3),
    MeasureColumn("rounds", "rounds", 1, 0),
    MeasureColumn("up", "up MB", 1e-6, 2),
    MeasureColumn("down", "down MB", 1e-6, 2),
    MeasureColumn("seconds", "seconds", 1, 2),
    MeasureColumn("operations", "GFLOP", 1e-9, 2),
)
PUBLISHED = ("published accuracy %", "published backdoor %")
LARGE = 1e6
"""From here on numbers are written with an exponent: of steps that diverge nobody counts the digits."""


def shown_columns(rows: Sequence[TableRow]) -> list[MeasureColumn]:
    """The measures that some line has."""
    known = {name for row in rows for name in row.means}
    return [column for column in COLUMNS if column.key in known]


def number(row: TableRow, column: MeasureColumn, sign: str = "±") -> str:
    """A mean with its standard error, of one seed with its interval; nothing where it was not measured."""
    found = row.means.get(column.key)
    if found is None:
        return ""
    text = _digits(found.value * column.scale, column.digits)
    text = f"≥ {text}" if found.bound else text
    if found.error is not None:
        return f"{text} {sign} {_digits(found.error * column.scale, column.digits)}"
    ends = [row.mean(f"{column.key}_{end}") for end in ("low", "high")]
    told = [_digits(end * column.scale, column.digits) for end in ends if end is not None]
    return f"{text} ({' to '.join(told)})" if told else text


def _digits(value: float, digits: int) -> str:
    small = value != 0 and abs(value) < 0.5 * 10**-digits and digits > 2
    return f"{value:.1e}" if small or abs(value) >= LARGE else f"{value:.{digits}f}"


def cells_of(row: TableRow, columns: Sequence[MeasureColumn], *, beside: bool, sign: str = "±") -> list[str]:
    """The texts of one line."""
    online = [name for name in ("retained", "target") if row.facts.get(f"{name}_online")]
    found = [row.method, *(number(row, column, sign) for column in columns)]
    if row.errors and not row.means:
        found = [row.method, "failed", *[""] * (len(columns) - 1)]
    found += [_size(row.facts.get("storage")), " and ".join(online) or "nobody" if row.means else ""]
    found.append(row.spec if row.spec != row.method else "")
    return [*found, *published_of(row, sign)] if beside else found


def titles(columns: Sequence[MeasureColumn], *, beside: bool) -> list[str]:
    """The heads of a table's columns."""
    more = PUBLISHED if beside else ()
    return ["method", *(column.title for column in columns), "kept", "online", "with", *more]


def published_of(row: TableRow, sign: str = "±") -> list[str]:
    """What others published of this method: accuracy and backdoor."""
    known = [f"{value:g}" if error is None else f"{value:g} {sign} {error:g}" for value, error in row.published]
    return [*known, *[""] * (len(PUBLISHED) - len(known))]


def _size(value: Any) -> str:
    return f"{value / 1e6:.2f} MB" if value else ""


def setup(result: BenchResult) -> list[str]:
    """What one has to know to read the tables: a sentence each."""
    about = result.plain["experiment"]
    seeds, tune = about["seeds"], about["tune"]
    aims = {
        "oracle": "validation rows, with and without the trigger, that get another class than from retraining",
        "blind": "errors on validation rows and how far forgotten rows are from being treated like unseen ones",
    }
    few = f"{tune['budget']} setting{'s' * (tune['budget'] > 1)} of each method, defaults first"
    where = f", tried in {tune['source']}" if tune.get("source") else ", on the first seed"
    lines = [
        f"probekit {result.plain['probekit']}, experiment {about['name']}, scale {about['scale']}, "
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))}); mean ± standard error.",
        f"Tuning: {few}"
        + (f"{where}; aim {tune['aim']}: {aims[tune['aim']]}." if tune["budget"] > 1 else ": no tuning."),
    ]
    beside: dict[str, list[str]] = {}
    for one in result.plain["published"]:
        beside.setdefault(one["source"], []).append(one["name"])
    told = [f"Published figures beside {', '.join(names)}: {source}." for source, names in beside.items()]
    return [*lines, *told]


def about_setting(result: BenchResult, setting: str) -> str:
    """How the rows of a table came about, and which methods it leaves out."""
    one = next(found for found in result.plain["experiment"]["settings"] if found["name"] == setting)
    data, who, model, asked = one["data"], one["clients"], one["model"], one["request"]
    rows = data["cached"] or f"{data['set']} by {data['backbone']}"
    part = "" if data["rows"] is None else f", {data['rows']:g} rows" if data["rows"] > 1 else f", {data['rows']:.0%}"
    poison = (
        f", one poisoned by {one['poison']['trigger']} as {one['poison']['label']}" if one["poison"]["trigger"] else ""
    )
    what = asked["what"] if asked["what"] == "client" else f"{asked['what']}, {asked['choice']}"
    stream = f", {asked['stream']} requests" if asked["stream"] > 1 else ""
    floor = [row.mean("seeds_apart") for row in result.of(setting) if row.mean("seeds_apart") is not None]
    seeds = f" FedAvg retraining is {floor[0]:.3g} from itself with another seed." if floor else ""
    ridge = f"{model['ridge']:g}" + (
        "" if model["removal_ridge"] is None else f", in removals {model['removal_ridge']:g}"
    )
    left = result.plain.get("left_out", {}).get(setting)
    absent = f" Left out, not tried: {', '.join(left)}." if left else ""
    return (
        f"{rows}{part}; {who['number']} clients, {who['partition']}{poison}; {model['kind']} by {model['trainer']}, "
        f"ridge {ridge}; forgotten: {what}{stream}.{seeds}{absent}"
    )


def markdown(result: BenchResult) -> str:
    """All tables in Markdown."""
    lines = [f"# {result.plain['experiment']['title']}", ""]
    if about := result.plain["experiment"]["about"]:
        lines += [" ".join(about.split()), ""]
    lines += [*(f"{line}\n" for line in setup(result))]
    for setting in result.settings:
        rows = result.of(setting)
        columns, beside = shown_columns(rows), any(row.published for row in rows)
        shown, absent = [row for row in rows if row.possible], [row for row in rows if not row.possible]
        lines += [f"## {setting}", "", escaped(about_setting(result, setting)), ""]
        body = (cells_of(row, columns, beside=beside) for row in shown)
        lines += [*_pipes([titles(columns, beside=beside), *body]), ""]
        told = [("failed", shown), ("not possible here", absent)]
        lines += [f"- {names}: {what}. {escaped(error)}" for what, some in told for names, error in grouped(some)]
        lines += [f"- {row.method}: {escaped(said)}" for row in shown if (said := row.facts.get("statement"))]
        lines.append("")
    for one in _beside(result):
        lines += [f"## Published: {one['key']}", "", f"{one['source']}.", ""]
        lines += [*_pipes([one["columns"], *([f"{value}" for value in row] for row in one["rows"])]), ""]
    cited = {name: one["source"] for name, one in result.plain["methods"].items() if one["source"]}
    if cited:
        lines += ["Methods: " + "; ".join(f"{name} ({text})" for name, text in cited.items()) + ".", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def _beside(result: BenchResult) -> list[dict[str, Any]]:
    """Tables of others that stand below ours."""
    return list(result.plain.get("beside", ()))


def _pipes(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *rest = rows
    yield "| " + " | ".join(map(escaped, head)) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rest:
        yield "| " + " | ".join(map(escaped, row)) + " |"


def comma_separated(result: BenchResult) -> str:
    """One line for every setting, method and measure, with mean, standard error and seeds; and failures."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["experiment", "setting", "method", "spec", "measure", "mean", "standard_error", "seeds", "error", "bound"]
    )
    for row in result.rows:
        start = [result.name, row.setting, row.method, row.spec]
        for name, one in row.means.items():
            writer.writerow(
                [
                    *(*start, name, repr(one.value), "" if one.error is None else repr(one.error)),
                    *(one.seeds, "", "lower" if one.bound else ""),
                ]
            )
        for place, (value, error) in enumerate(row.published):
            measure = ("published_accuracy", "published_backdoor")[place]
            writer.writerow([*start, measure, value / 100, "" if error is None else error / 100, "", "", ""])
        for sentence in row.errors:
            writer.writerow([*start, "", "", "", "", sentence, ""])
    for other in _beside(result):
        for row in other["rows"]:
            for name, value in zip(other["columns"][1:], row[1:], strict=True):
                start = [result.name, f"published: {other['key']}", f"{other['columns'][0]} {row[0]}", ""]
                writer.writerow([*start, name, value, "", "", "", ""])
    return text.getvalue()


def latex(result: BenchResult) -> str:
    """A booktabs table for every setting, with its citation and version."""
    parts = []
    for setting in result.settings:
        rows = result.of(setting)
        columns, beside = shown_columns(rows), any(row.published for row in rows)
        body = [cells_of(row, columns, beside=beside, sign="PLUSMINUS") for row in rows if row.possible]
        cited = "; ".join(f"{name}: {one['source']}" for name, one in result.plain["methods"].items() if one["source"])
        caption = f"{setting}. {' '.join([about_setting(result, setting), *setup(result)])} {cited}"
        parts.append(f"% probekit {result.plain['probekit']}, experiment {result.name}")
        parts += _tabular(caption, titles(columns, beside=beside), body)
    for one in _beside(result):
        parts += _tabular(f"{one['key']}. {one['source']}.", one["columns"], [map(str, row) for row in one["rows"]])
    return "\n".join(parts)


def _tabular(caption: str, head: Sequence[str], body: Iterable[Iterable[str]]) -> list[str]:
    return [
        r"\begin{table}",
        rf"\caption{{{_tex(caption)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(map(_tex, head)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, row)) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
        "",
    ]


def _tex(text: str) -> str:
    for sign, safe in (
        ("\\", r"\textbackslash "),
        ("&", r"\&"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("#", r"\#"),
        ("$", r"\$"),
    ):
        text = text.replace(sign, safe)
    return (
        text.replace("PLUSMINUS", r"$\pm$")
        .replace("±", r"$\pm$")
        .replace("≥", r"$\geq$")
        .replace("~", r"\textasciitilde ")
        .replace("^", r"\^{}")
    )
