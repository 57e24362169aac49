"""Which salts a purge erases: it follows from the ledger alone, so that whoever locks a run finishes a killed purge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probekit.runs.ledger import PURGE, LedgerEntry
from probekit.runs.openings import CERTIFICATES, OPENINGS, erase_openings, openings_path

STAY = ("inputs.set", "inputs.rows", "inputs.partition", "details.request")
"""What a ledger's openings keep while the rows of the forgotten are in the cache."""


def erase_purged(run: Path, entries: Sequence[LedgerEntry]) -> bool:
    """Erase the salts of all that purges made go: earlier states and, with rows, requests and sets; were there any?"""
    purges, erased = [one for one in entries if one.action == PURGE], False
    for entry in entries:
        if later := [one for one in purges if one.number > entry.number]:
            current = "trained" in entry.outputs and entry.state == later[-1].state
            stay = () if _with_rows(later) else STAY
            kept = ("outputs.", *stay) if current else stay
            if any(not place.startswith(kept) for place in entry.openings):
                _erase(openings_path(run, entry.number), kept)
                erased = True
    for path in (run / OPENINGS / CERTIFICATES).glob("*.json"):
        if since := [one for one in purges if one.state >= int(path.stem)]:
            current = since[-1].state == int(path.stem)
            kept = ("retained",) if _with_rows(since) else ("retained", "request")
            _erase(path, kept if current else ())
    return erased


def _with_rows(purges: Sequence[LedgerEntry]) -> bool:
    return any(one.details["cache"] for one in purges)


def _erase(path: Path, stay: tuple[str, ...]) -> None:
    erase_openings(path, lambda place: place.startswith(stay))
