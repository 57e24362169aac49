"""What a plain report says in words: three sentences, and a certificate as facts. Pages only set them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from probekit.custody.seals import opened
from probekit.pages.formats import count, number, one_line, upper

WITH_WHAT = {
    "server alone": "nothing but the server's own material: the head, not its distance",
    "server plus one scalar per retained client": "one number from each retained client",
    "server plus one gradient round of the retained clients": "one gradient of each retained client at this head",
    "statistics of the retained clients": "the statistics kept in the run, or made anew from the retained rows",
}
MEASURED = (
    "{plain} -> {certified} of {rows} rows, by {directions} products of the curvature (each off by at most {error})"
)
BOUNDED = {
    "weights": "distance in weights",
    "excess_loss": "retained loss above its minimum",
    "outputs": "score of a row of norm 1",
}
LISTED = 3
FOLLOWS = "What follows: carry requests out together, release heads with noise, keep the old head secret and purge it."

Plain = Mapping[str, Any]


class Fact(NamedTuple):
    """A line of a certificate; `exact`: a digest or a command, to be copied as it is."""

    name: str
    value: str
    exact: bool = False


def sentences(report: Plain) -> list[str]:
    """What was trained, what was forgotten, and what came of it."""
    return [_trained(report), _forgotten(report), *_outcome(report)]


def _trained(report: Plain) -> str:
    first, config = report["stages"][0], report["config"]
    begun = next(one["what"] for one in report["ledger"] if one["action"] == "train")
    held = f", of which {len(first['counts'])} clients hold {count(sum(first['counts'].values()))}"
    ridge = "" if config.get("ridge") is None else f", with ridge {number(config['ridge'])}"
    return f"Trained by {config['method']} on {begun}{held if first['state'] == 1 else ''}{ridge}."


def _forgotten(report: Plain) -> str:
    if not report["unlearned"]:
        return "Nothing was unlearned in this run yet: there is no certificate, and no before and after."
    asked = [one["what"] for one in report["ledger"] if one["action"] == "unlearn"]
    more = f"; and {len(asked) - LISTED} more" if len(asked) > LISTED else ""
    return f"Unlearned since: {'; '.join(asked[:LISTED])}{more}."


def _outcome(report: Plain) -> list[str]:
    last = report["stages"][-1]
    if last["distance"] is None:
        return []
    proven = "" if last["bound"] is None else f", proven to be at most {upper(last['bound'])}"
    earlier = last["distance_before"]
    before = "" if earlier is None else f"; before the last request it lay {number(earlier)} away"
    certain = [one for one in report["judged"] if one["margins"] is not None]
    kept = "".join(
        f"; {count(one['margins']['certified'])} of {count(one['margins']['rows'])} rows of {one['name']} provably get "
        "the retrained head's class"
        for one in certain[:1]
    )
    return [f"The head lies {number(last['distance'])} from the retrained one{proven}{before}{kept}."]


def claims(report: Plain) -> tuple[int, int]:
    """How many claims of all certificates are proven, of how many."""
    verdicts = [one["verdict"] for page in report["certificates"] for one in page["findings"]]
    return verdicts.count("proven"), len(verdicts)


def certificate_facts(page: Plain, run: str) -> list[Fact]:
    """All that a certificate claims, how it is checked and with what."""
    said = page["certificate"]
    bounds, private = said["bounds"], {k: v for k, v in (said["privacy"] or {}).items() if k != "caveats"}
    named = said["retained"]
    counted = said["counted"] or {"clients": len(named), "rows": sum(named.values())}
    digests = [
        Fact(f"{name} {when}", value, exact=True) for when in ("before", "after") for name, value in said[when].items()
    ]
    return [
        Fact("removed", page["removed"]),
        Fact("method", said["method"]),
        Fact("retained", f"{counted['clients']} clients, {counted['rows']} rows"),
        *digests,
        Fact("residual", _known(said["residual"], "{norm} (rounding hides at most {rounding})")),
        Fact("smallest curvature", _known(said["curvature"], "{value}, by the {source}")),
        *(Fact(title, _bound(bounds[name], bounds["why"])) for name, title in BOUNDED.items()),
        Fact("change of the retained loss", number(bounds["loss_change"]) or "not asked for"),
        Fact("certified agreement", _known(said["agreement"], "{certified} of {rows} rows", "no set was given")),
        *([Fact("certified from the rounds", _known(said["rounds"], MEASURED))] if said.get("rounds") else []),
        *([Fact("privacy of the released head", one_line(private))] if private else []),
        Fact("who can check it", said["checkable_by"]),
        Fact("with what", WITH_WHAT.get(said["checkable_by"], "")),
        Fact("how", f"probekit verify {run}/states/{page['state']:04d}/certificate.json --run {run}", exact=True),
        Fact("signed by", page["signed_by"] or "nobody", exact=bool(page["signed_by"])),
        Fact("digest", page["digest"], exact=True),
    ]


def caveats(page: Plain) -> list[str]:
    """What a certificate does not cover."""
    said = page["certificate"]
    return [*said["caveats"], *(said["privacy"] or {}).get("caveats", ())]


def concentration(page: Plain) -> str:
    """What holds by chance alone, where that was computed."""
    found = page["certificate"]["concentration"]
    if found is None or not opened(found):
        return ""
    value = "not computable" if found["weights"] is None else f"at most {upper(found['weights'], 4)} in weights"
    return (
        f"By chance alone, with probability {found['probability']:g} if {found['holds_if']}: {value} ({found['why']})."
    )


def rebuilt(report: Plain) -> list[str]:
    """What an attacker with both heads rebuilds of what each request took out, and what follows."""
    said, found_any = [], False
    for one in report["reconstruction"]:
        for outcome in one["outcomes"]:
            found = outcome["found"]
            found_any |= found["found"] > 0
            said.append(
                f"State {one['state']} ({one['removed']}), with the curvature of the {outcome['curvature']} rows: "
                f"{count(found['found'])} of {count(found['deleted'])} rows found among {count(found['candidates'])}, "
                f"centred cosine {found['centred']:.3f}."
            )
    return said + [FOLLOWS] * found_any


def _known(found: Plain | None, form: str, otherwise: str = "not known") -> str:
    """The values in a form, where there are any."""
    if found is None:
        return otherwise
    return form.format(**{name: number(one) if isinstance(one, float | None) else one for name, one in found.items()})


def _bound(value: float | None, why: str) -> str:
    return f"none. {why}" if value is None else f"at most {upper(value, 4)}"
