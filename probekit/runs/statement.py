"""An erasure in plain words, for somebody who reads no code: what is stated, what is shown to whom, and what is not."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from probekit.certificates.certificate import Certificate
from probekit.custody.chain import Anchor
from probekit.custody.transitions import Transition
from probekit.runs.ledger import PURGE, LedgerEntry

NOT_SHOWN: Mapping[str, tuple[str, str, str]] = {
    "sums-of-places": (
        "the sums are those of the places",
        "That the sums, which the model is made from, are the sums of what stands in the places.",
        "the run, with every retained client's statistics: `probekit verify CERTIFICATE --run RUN`",
    ),
    "rows-elsewhere": (
        "the rows are in no other place",
        "That the same rows do not stand in another place, under another name.",
        "every retained client's rows",
    ),
    "copies": (
        "there are no copies",
        "That no copies exist elsewhere: backups, snapshots, exports, heads handed out before, other people's files.",
        "nothing that can be computed",
    ),
    "clock": (
        "the dates",
        "That the dates are right: they are by the operator's own clock.",
        "an anchor of the ledger that somebody else noted, with a date",
    ),
}
"""What no bundle shows: in short, in full, and what would show it."""
WIDTH = 96


def statement(
    about: Mapping[str, Any],
    key: str | None,
    entries: Sequence[LedgerEntry],
    transitions: Mapping[int, Transition],
    certificates: Mapping[int, Certificate],
    tip: Anchor,
) -> str:
    """The page. All of it follows from the rest of a bundle, so that whoever checks a bundle writes it again."""
    signer = f"The holder of the key {key}" if key else "Somebody who did not sign"
    lines = ["STATEMENT OF AN ERASURE", ""]
    if about.get("reference"):
        lines += [f"Reference of the request: {about['reference']}", ""]
    lines += ["1. What is stated", ""]
    for entry in entries:
        if entry.state in certificates and entry.action != PURGE and "certificate" in entry.details:
            lines += _stated(signer, str(about["run"]), entry, transitions[entry.state], certificates[entry.state])
        elif entry.action == PURGE:
            lines += _purged(signer, entry)
    lines += ["2. What the files enclosed show to anybody who checks them", ""]
    lines += _listed(
        "that they are whole, and which key signed them (whose key that is, you must know from elsewhere);",
        "that between the two states just the places named above changed, and no other;",
        f"that all of it stands in one ledger, whose last entry here is number {tip.number}: {tip.digest.hex()}. "
        "Keep this number and these digits: a ledger that was written anew later does not run through them;",
        "that the certificate is the one that the ledger names.",
    )
    lines += ["3. What they show to some", ""]
    lines += _listed(
        "to somebody who also has the head and the sums (handed to a named auditor only): that the head is the "
        "minimum for these sums, within the distance above;",
        "to a former client with a receipt that is older than the request: that its own place was emptied;",
        "to the person who has the answer to the request: that it was a request for exactly these samples.",
    )
    lines += ["4. What is not shown", ""]
    lines += _listed(*(text for _, text, _ in NOT_SHOWN.values()))
    lines += [
        "   To the operator itself these papers prove nothing: the operator wrote them.",
        "",
        "5. How to check",
        "",
        "   pip install 'probekit[sign]'",
        "   probekit verify BUNDLE --public-key KEY.pem --require signature,transition,chain",
        "   probekit verify BUNDLE --receipt RECEIPT.json",
        "",
    ]
    return "\n".join(lines)


def _stated(signer: str, run: str, entry: LedgerEntry, transition: Transition, certificate: Certificate) -> list[str]:
    emptied = transition.emptied
    changed = [one.slot for one in transition.changes if not one.emptied and not one.joined]
    joined = [one.slot for one in transition.changes if one.joined]
    parts = []
    for slots, what in ((emptied, "emptied"), (changed, "changed"), (joined, "newly filled")):
        if slots:
            parts.append(f"{len(slots)} {what} (number {', '.join(map(str, slots))})")
    bound, (clients, rows) = certificate.bounds.weights, certificate.retained_numbers
    distance = (
        f"lies within {bound:.3g} (in weights) of the model that training on the rest alone would give"
        if bound is not None
        else "has no certified distance to the model that training on the rest alone would give"
    )
    text = (
        f"{signer} states that on {entry.time}, by the own clock, with entry {entry.number} of the ledger of run "
        f"{run[:16]}, of {transition.after.slots} places that clients were given, exactly these changed: "
        f"{'; '.join(parts) or 'none'}. {clients} clients with {rows} rows remain. The model with digest "
        f"{certificate.after['head'][:16]}, made by the method {certificate.method}, {distance}."
    )
    return [*_wrapped(text), ""]


def _purged(signer: str, entry: LedgerEntry) -> list[str]:
    cache: Any = entry.details.get("cache")
    rows = f", and {cache['rows']} rows from the cache" if isinstance(cache, dict) else "; rows in the cache stayed"
    text = (
        f"{signer} states that on {entry.time}, with entry {entry.number}, {entry.details['removed']} files of earlier "
        f"states were removed from the run{rows}."
    )
    return [*_wrapped(text), ""]


def _listed(*texts: str) -> list[str]:
    return [line for text in texts for line in _wrapped(text, "   - ")] + [""]


def _wrapped(text: str, first: str = "   ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False)
