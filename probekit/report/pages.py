"""A plain report as Markdown: one page that stands alone, with its pictures beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probekit.custody.seals import opened
from probekit.report.markdown import code, interval, number, percent, section, table, text
from probekit.unlearning.request import asked

WITH_WHAT = {
    "server alone": "nothing but the server's own material: the head, not its distance",
    "server plus one scalar per retained client": "one number from each retained client",
    "server plus one gradient round of the retained clients": "one gradient of each retained client at this head",
    "statistics of the retained clients": "the statistics kept in the run, or made anew from the retained rows",
}
MEASURE = (
    "Retrained is the closed-form minimum over exactly the rows that remain, computed for this report. What counts is "
    "the distance of *after* to *retrained*: being lower than retraining is a deviation, too."
)
DISTANCES = (
    "Distances are of all parameters together (Frobenius), to the head retrained on exactly the rows that the state "
    "stands for. A distance never exceeds the two bounds together."
)
BOUNDED = {
    "weights": "distance in weights",
    "excess_loss": "retained loss above its minimum",
    "outputs": "score of a row of norm 1",
}
BOUNDS = {"bound": "proven bound", "own_bound": "retrained head's own bound"}
MARGINS = (
    "A row keeps its class for certain if its best score leads every other by more than both scores can be off. "
    "Rows above the line are certain; of those below nothing is proven, most agree all the same."
)
SHOWN = 50

Plain = Mapping[str, Any]


def markdown(report: Plain) -> str:
    """The report as Markdown."""
    parts = [make(report) for make in (_top, _comparison, _distances, _margins, _influence, _classes)]
    parts += [_certificate(one, report["run"]) for one in report["certificates"]]
    parts += [make(report) for make in (_ledger, _setting, _inputs, _left_out)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _top(report: Plain) -> str:
    last = report["stages"][-1]
    said = [
        f"# Report of run {text(report['run'])}",
        f"State {last['state']}, made by {text(last['method'])}: {len(last['counts'])} clients, "
        f"{sum(last['counts'].values())} rows, ridge {number(report['config'].get('ridge'))}, "
        f"head `{last['now']['head'][:16]}`.",
    ]
    if not report["unlearned"]:
        said.append("Nothing was unlearned in this run yet: there is no certificate, and no before and after.")
    if last["distance"] is not None:
        proven = "" if last["bound"] is None else f", proven to be at most {number(last['bound'])}"
        earlier = last["distance_before"]
        before = "" if earlier is None else f"; before the last request the head lay {number(earlier)} from it"
        said.append(f"**The head lies {number(last['distance'])} from the retrained one{proven}{before}.**")
    measures = [f"- {text(one['measure'])}: {_shares(one)}" for one in report["comparison"]]
    return "\n\n".join([*said, "\n".join(measures)]).rstrip()


def _shares(one: Plain) -> str:
    told = ", ".join(f"{label} {percent(share)}" for label, share in one["heads"].items())
    apart = one["difference_to_retraining"]
    return told if apart is None else f"{told}; {100 * apart:.2f} points from retraining"


def _comparison(report: Plain) -> str:
    if not report["comparison"]:
        return ""
    heads = list(report["comparison"][0]["heads"])
    rows = []
    for one in report["comparison"]:
        apart = one["difference_to_retraining"]
        points = "" if apart is None else f"{100 * apart:.2f} points"
        rows.append((one["measure"], *(interval(one["heads"][label]) for label in heads), points))
    judged = [
        f"- {text(one['name'])}: {one['rows']} rows, {text(one['meaning'])}."
        + (f" {one['left_out']} rows without a label or an embedding are left out." if one["left_out"] else "")
        for one in report["judged"]
    ]
    backdoor = report["stages"][-1]["now"]["backdoor"]
    if backdoor is not None:
        judged.append(
            f"- backdoor success: the share of triggered pictures given class {backdoor['target']}. "
            f"{backdoor['base_rate']:.2%} of them are of that class: what a perfect head scores on all."
        )
    shown = table(("measure", *heads, "difference to retraining"), rows)
    return section("Before, after, retrained", MEASURE, _picture(report, "comparison"), shown, "\n".join(judged))


def _distances(report: Plain) -> str:
    stages = report["stages"]
    headers = ("state", "method", "clients", "rows", "before", "distance", "relative", *BOUNDS.values())
    rows = [
        [one["state"], one["method"], len(one["counts"]), sum(one["counts"].values()), *_numbers(one)] for one in stages
    ]
    sources = sorted({one["source"] for one in stages if one["source"]})
    said = DISTANCES + (f" Retrained from {' and '.join(sources)}." if sources else "")
    missing = "\n".join(f"- state {one['state']}: {text(one['why'])}" for one in stages if one["why"])
    return section("Distance to retraining", said, _picture(report, "distance"), table(headers, rows), missing)


def _numbers(stage: Plain) -> list[str]:
    return [number(stage[name]) for name in ("distance_before", "distance", "relative", *BOUNDS)]


def _margins(report: Plain) -> str:
    parts = []
    for place, one in enumerate(report["judged"], start=1):
        found = one["margins"]
        if found is None:
            parts.append(f"{text(one['name'])}: {text(one['why'])}")
            continue
        parts.append(
            f"{text(one['name'])}: **{found['certified']} of {found['rows']} rows provably get the retrained head's "
            f"class.** Median lead {number(found['median_lead'])}, median lead needed {number(found['median_needed'])}."
        )
        parts.append(_picture(report, f"margins_{place}"))
    return section("Margins against the certified output bound", MARGINS, *parts) if parts else ""


def _influence(report: Plain) -> str:
    found = report["influence"]
    if not found["clients"]:
        return ""
    rows = []
    for one in found["clients"][:SHOWN]:
        name = one["client"] + (" (forgotten since)" if one["forgotten_since"] else "")
        rows.append((name, one["rows"], number(one["distance"]), number(one["bound"])))
    said = (
        f"How far the head of state {found['state']} would move without a client: exactly, by leaving each one out, "
        "and at most, by its gradient alone (the bound needs no statistics)."
    )
    shown = table(("client", "rows", "leave-one-out distance", "bound"), rows)
    more = f"{len(found['clients']) - SHOWN} further clients stand in report.json." if len(rows) == SHOWN else ""
    return section("Influence of each client", said, _picture(report, "influence"), shown, more)


def _classes(report: Plain) -> str:
    parts = []
    for place, one in enumerate(report["judged"], start=1):
        heads = list(one["by_class"])
        rows = [
            (shares[0]["name"], shares[0]["count"], *(interval(share) for share in shares))
            for shares in zip(*one["by_class"].values(), strict=True)
        ]
        pictures = [_picture(report, f"{kind}_{place}") for kind in ("classes", "confusion")]
        parts += [f"### On {text(one['name'])}", *pictures, table(("class", "rows", *heads), rows[:SHOWN])]
    return section("Classes", *parts) if parts else ""


def _certificate(page: Plain, run: str) -> str:
    said = page["certificate"]
    bounds, residual, agreed = said["bounds"], said["residual"], said["agreement"]
    private = dict(said["privacy"] or {})
    named = said["retained"]
    counted = said["counted"] or {"clients": len(named), "rows": sum(named.values())}
    caveats = private.pop("caveats", ())
    facts = [
        ("removed", text(asked(said["request"]))),
        ("method", said["method"]),
        ("retained", f"{counted['clients']} clients, {counted['rows']} rows"),
        *((f"{name} {when}", code(value)) for when in ("before", "after") for name, value in said[when].items()),
        ("residual", _known(residual, "{norm} (rounding hides at most {rounding})")),
        ("smallest curvature", _known(said["curvature"], "{value}, by the {source}")),
        *((title, _bound(bounds[name], bounds["why"])) for name, title in BOUNDED.items()),
        ("change of the retained loss", number(bounds["loss_change"]) or "not asked for"),
        ("certified agreement", _known(agreed, "{certified} of {rows} rows", "no set was given")),
        *([("privacy of the released head", text(_flat(private)))] if private else []),
        ("who can check it", said["checkable_by"]),
        ("with what", WITH_WHAT.get(said["checkable_by"], "")),
        ("how", code(f"probekit verify {run}/states/{page['state']:04d}/certificate.json --run {run}")),
        ("signed by", code(page["signed_by"]) if page["signed_by"] else "nobody"),
        ("digest", code(page["digest"])),
    ]
    paper = [(one["name"], number(one["value"]) or "none", one["why"]) for one in said["paper"]]
    findings = [
        tuple(one[name] for name in ("verdict", "name", "claimed", "found", "wanted")) for one in page["findings"]
    ]
    parts = [
        table(("", ""), facts, raw=True),
        "\n".join(f"> {text(one)}" for one in said["warnings"]),
        "The published three-term bound beside it, which is no certificate:",
        table(("term", "value", "remark"), paper),
        _concentration(said["concentration"] if opened(said["concentration"]) else None),
        "Assumptions:\n\n" + _list(said["assumptions"]),
        "Caveats:\n\n" + _list([*said["caveats"], *caveats]),
        "Checked while this report was written:",
        table(("", "claim", "claimed", "found", "what would prove it"), findings),
    ]
    return section(f"Certificate of state {page['state']}", *parts)


def _known(found: Plain | None, form: str, otherwise: str = "not known") -> str:
    """The values in a form, where there are any."""
    if found is None:
        return otherwise
    return form.format(**{name: number(one) if isinstance(one, float | None) else one for name, one in found.items()})


def _bound(value: float | None, why: str) -> str:
    return f"none. {text(why)}" if value is None else f"at most {number(value)}"


def _concentration(found: Plain | None) -> str:
    if found is None:
        return ""
    value = "not computable" if found["weights"] is None else f"at most {number(found['weights'])} in weights"
    said = f"By chance alone, with probability {found['probability']:g} if {text(found['holds_if'])}"
    return f"{said}: {value} ({text(found['why'])})."


def _ledger(report: Plain) -> str:
    names, digests = ("time", "action", "state", "what"), ("digest", "previous")
    rows = [
        [text(one[name]) for name in ("number", *names)] + [code(one[name][:16]) for name in digests]
        for one in report["ledger"]
    ]
    said = f"Each entry holds the digest of the one before; all {len(rows)} links were checked."
    return section("Ledger", said, table(("entry", *names, *digests), rows, raw=True))


def _setting(report: Plain) -> str:
    config = table(("option", "value"), [one for one in report["config"].items() if one[1] is not None])
    machine = [(name, _flat(value)) for name, value in report["environment"].items()]
    return section("Configuration and environment", config, table(("environment", "value"), machine))


def _inputs(report: Plain) -> str:
    rows = [(text(name.replace("_", " ")), code(_flat(value))) for name, value in report["inputs"].items()]
    return section("What this report was made from", table(("input", "digest"), rows, raw=True))


def _left_out(report: Plain) -> str:
    told = [f"{name.replace('_', ' ')}: {why}" for name, why in report["left_out"].items()]
    return section("Left out", _list(told)) if told else ""


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {text(line)}" for line in lines)


def _picture(report: Plain, key: str) -> str:
    """The picture of this key, if it was drawn."""
    found = report["pictures"].get(key)
    return "" if found is None else f"![{text(found['alt'])}]({found['file']})"
