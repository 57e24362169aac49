"""`probekit verify`: is a certificate true?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, remarks, section

if TYPE_CHECKING:
    from probekit.runs.bundle_check import AnswerResult, BundleCheck
    from probekit.runs.proving import ReceiptResult as ReceiptResult
    from probekit.runs.verification import VerifyResult

EXIT_CODES = {"proven": 0, "not proven": 7, "false": 6}
COLOURS = {"proven": "green", "not proven": "yellow", "false": "red"}


@o.common
def verify(
    output: Output,
    certificate: Annotated[
        Path | None,
        typer.Argument(help="A certificate.json, a bundle, or a run: its last certificate.", show_default=False),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The run it is about.")] = None,
    head: Annotated[Path | None, typer.Option(help="The head it is about, where there is no run.")] = None,
    rows: o.Rows = False,
    test: Annotated[str | None, typer.Option(help="The set of the certified agreement.")] = None,
    public_key: Annotated[Path | None, typer.Option(help="The signer's public key (PEM), from the signer.")] = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option(help="A ledger digest noted earlier, by somebody else; may be given more than once."),
    ] = None,
    receipt: Annotated[
        Path | None,
        typer.Option(
            help="A client's receipt, or an answer: with --run, or with a bundle. Was its leaf emptied since?"
        ),
    ] = None,
    client: Annotated[str | None, typer.Option(help="The client that the receipt must be of.")] = None,
    require: Annotated[
        str | None, typer.Option(help="The claims that must be proven, with commas; left out: all of them.")
    ] = None,
) -> int:
    """Hold every claim of a certificate against what can be computed again; a bundle needs nothing else.

    Exits 0 when all (or all required) are proven, 7 when nothing is false but something is not proven, 6 when
    something is false.
    """
    from probekit.custody.archive import is_archive
    from probekit.errors import InputError, NotFoundError
    from probekit.runs.verification import verify_head

    if public_key is not None and not public_key.is_file():
        raise NotFoundError(f"There is no key file {public_key}.")
    key = public_key.read_bytes() if public_key is not None else None
    wanted = [one.strip() for one in (require or "").split(",") if one.strip()]
    if certificate is not None and is_archive(certificate):
        if run is not None or head is not None or rows or test is not None:
            raise InputError("A bundle is checked by itself: leave --run, --head, --rows and --test out.")
        return _check_bundle(output, certificate, receipt, client, key, anchor or [], wanted)
    certificate, run = _asked(certificate, run, head, receipt)
    if run is not None and receipt is not None:
        from probekit.runs.proving import check_receipt

        return _receipt(output, check_receipt(output.open(run), receipt, client=client, public_key=key))
    with output.busy("computing again what it says ..."):
        if run is not None:
            result = output.open(run).verify(
                certificate, rows=rows, test=test, public_key=key, anchors=anchor or [], require=wanted
            )
        elif head is not None and certificate is not None:
            result = verify_head(certificate, head, store=output.store, test=test, public_key=key, require=wanted)
    output.result(result, _show)
    return EXIT_CODES[result.verdict]


def _asked(
    certificate: Path | None, run: Path | None, head: Path | None, receipt: Path | None
) -> tuple[Path | None, Path | None]:
    """The certificate and the run that are meant; without a certificate, the run's last one."""
    from probekit.errors import InputError, NotFoundError

    if (certificate and receipt) is not None or (certificate or receipt or run) is None:
        raise InputError("Say what to check: a certificate, a bundle, a run, or --receipt FILE with --run FOLDER.")
    if certificate is not None and not certificate.exists():
        raise NotFoundError(f"There is no certificate, bundle or run {certificate}.")
    if certificate is not None and certificate.is_dir():
        if (run or head) is not None:
            raise InputError(f"{certificate} is a folder. Give a certificate with --run or --head, or the run alone.")
        run, certificate = certificate, None
    if receipt is not None and run is None:
        raise InputError("A receipt is checked against a run (--run FOLDER) or against a bundle.")
    if (run is None) == (head is None):
        raise InputError("Say what the certificate is about: --run FOLDER, or --head FOLDER for the head alone.")
    return certificate, run


def _check_bundle(
    output: Output,
    path: Path,
    receipt: Path | None,
    client: str | None,
    key: bytes | None,
    anchors: list[str],
    require: list[str],
) -> int:
    from probekit.runs.bundle_check import Bundle

    bundle = Bundle(path)
    if receipt is not None:
        return _receipt(output, bundle.receipt(receipt, client=client, public_key=key))
    result = bundle.check(public_key=key, anchors=anchors, require=require)
    output.result(result, _show_bundle)
    return EXIT_CODES[result.verdict]


def _receipt(output: Output, found: ReceiptResult | AnswerResult) -> int:
    from probekit.cli.prove import show_answer, show_receipt
    from probekit.runs.proving import ReceiptResult

    if isinstance(found, ReceiptResult):
        output.result(found, show_receipt)
        return EXIT_CODES["proven" if found.proven else "not proven"]
    output.result(found, show_answer)
    return 0


def _findings(console: Console, title: str, result: VerifyResult | BundleCheck) -> None:
    listed = [(one.verdict, one.name, one.claimed, one.found, one.wanted) for one in result.findings]
    section(console, title, ("", "claim", "claimed", "found", "what would prove it"), listed)
    text = {"not proven": "Nothing is false, but not all is proven."}.get(result.verdict, f"It is {result.verdict}.")
    console.print(f"[bold {COLOURS[result.verdict]}]{text}[/]")


def _show_bundle(console: Console, result: BundleCheck) -> None:
    console.print(result.statement, markup=False, soft_wrap=True)
    _findings(console, f"bundle {result.bundle} ({result.size} bytes)", result)


def _show(console: Console, result: VerifyResult) -> None:
    _findings(console, f"certificate {result.digest[:16]}", result)
    if result.anchor is not None:
        console.print(
            f"The ledger ends with {result.anchor}: noted elsewhere, it is an anchor for later.", soft_wrap=True
        )
    remarks(console, (*result.assumptions, *result.caveats))
