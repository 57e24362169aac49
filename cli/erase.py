"""`probekit erase`: from a request to its record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.consent import agreed
from probekit.cli.output import Console, Output, facts, remarks, section

if TYPE_CHECKING:
    from probekit.runs.erasing import EraseResult
    from probekit.runs.register import Record

_record: Any = {"rich_help_panel": "For the record"}


@o.common
def erase(
    output: Output,
    runs: Annotated[list[Path], typer.Argument(help="One run folder or several.")],
    client: Annotated[list[str] | None, typer.Option(help="Erase this client. May be repeated.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="Erase a person's rows: COLUMN=VALUE, by extract --column. Repeatable.")
    ] = None,
    samples_file: Annotated[Path | None, typer.Option(help="Erase these samples: an id or name on every line.")] = None,
    petition: Annotated[Path | None, typer.Option(help="Erase the client that signed this petition.")] = None,
    requests: Annotated[
        Path | None,
        typer.Option(help="Many at once: CSV with reference, client, subject, petition, received, identity, basis."),
    ] = None,
    shared: Annotated[
        str | None, o.among("keep", "erase", help="Samples that somebody else holds too: leave them there, or not.")
    ] = None,
    register: Annotated[
        Path | None, typer.Option(help="The folder of records (default: erasures beside the first run).", **_record)
    ] = None,
    reference: Annotated[str, typer.Option(help="Your reference of the request; no name.", **_record)] = "",
    received: Annotated[str, typer.Option(help="When it came: YYYY-MM-DD (default: today).", **_record)] = "",
    due: Annotated[str, typer.Option(help="Until when it must be answered (default: 30 days).", **_record)] = "",
    identity: Annotated[str, typer.Option(help="Who checked the identity of who asked.", **_record)] = "",
    basis: Annotated[str, typer.Option(help="Why it is granted.", **_record)] = "",
    keep: Annotated[int, typer.Option(min=0, help="Days that the record itself is kept.", **_record)] = 1095,
    backups: Annotated[
        Path | None, typer.Option(help="TOML: [[backup]] tables with what, where, expires.", **_record)
    ] = None,
    refuse: Annotated[
        str | None, typer.Option(metavar="REASON", help="Erase nothing: record the refusal.", **_record)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Sign all papers with this Ed25519 private key (PEM).")] = None,
    yes: o.Yes = False,
) -> int:
    """Erase clients, or a person's rows, from runs and the cache for good: unlearn, verify, purge, bundle, record.

    Interrupted anywhere, the same command finishes it. Exits 6 if anything that was to go is still found: remove it,
    then the same again.
    """
    from probekit.custody.petitions import Petition
    from probekit.errors import InputError
    from probekit.runs.erase_requests import read_requests, read_samples
    from probekit.runs.erasing import REGISTER
    from probekit.runs.erasing import erase as carry_out
    from probekit.runs.erasing import refuse as record_refusal
    from probekit.runs.register import read_backups

    info: dict[str, Any] = {"reference": reference, "received": received, "due": due}
    info |= {"identity": identity, "basis": basis, "keep": keep}
    if refuse is not None:
        record = record_refusal(register or runs[0].absolute().parent / REGISTER, refuse, **info)
        output.result(record, lambda console, _: show_records(console, [record]))
        return 0
    if not (client or subject or samples_file or petition or requests):
        raise InputError("Say what to erase: --client, --subject, --samples-file, --petition or --requests.")
    store = output.store_for(finishing=True)
    signed = None if key is None else o.private_key(key, *runs, store.root)
    opened = [output.open(run, finishing=True) for run in runs]
    how: dict[str, Any] = {
        "clients": client or (),
        "subjects": subject or (),
        "samples": () if samples_file is None else read_samples(samples_file),
        "petition": None if petition is None else Petition.read(petition),
        "requests": () if requests is None else read_requests(requests),
        "backups": () if backups is None else read_backups(backups),
        "register": register,
        "shared": shared,
        "key": signed,
        **info,
    }
    output.confirm(f"Erase this from {len(runs)} runs and the cache, for good?", yes)
    result = agreed(output, lambda sure: carry_out(opened, **how, yes=sure), yes)
    output.result(result, _show)
    return 0 if result.complete else 6


def _show(console: Console, result: EraseResult) -> None:
    if not result.complete:
        still = ", ".join(result.remains)
        facts(console, {"not finished": f"still there: {still}. Remove them, then give the same command again"})
        return
    if result.already_done:
        console.print("This was done before; nothing was changed.")
    show_records(console, result.records)
    facts(console, {"records": result.register})


def show_records(console: Console, records: Sequence[Record]) -> None:
    """Requests and their answers."""
    rows = [(one.reference, one.received, one.due, one.done[:10], one.asked_by, one.wanted) for one in records]
    section(console, "requests", ("reference", "received", "due", "done", "asked by", "what"), rows)
    remarks(console, (f"{one.reference}: {_answer(one)}" for one in records))
    if len(records) == 1:
        remarks(console, (f"may remain: {what}" for what in records[0].remains))


def _answer(record: Record) -> str:
    if record.refused:
        return f"refused: {record.refused}"
    runs = "; ".join(f"{Path(one.run).name} state {one.states[-1]}, {one.bundle or 'no bundle'}" for one in record.runs)
    return f"{record.rows_erased} samples erased; {runs}"
