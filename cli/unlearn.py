"""`probekit unlearn`: a run without some clients or samples, and the file that proves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Console, Output, facts, size
from probekit.runs.options import UnlearnOptions

if TYPE_CHECKING:
    from probekit.runs.purging import PurgeResult
    from probekit.runs.unlearning import UnlearnResult


@o.common
@o.with_flags(UnlearnOptions)
def unlearn(
    output: Output,
    run: o.RunFolder,
    client: Annotated[list[str] | None, typer.Option(help="Forget this client. May be repeated.")] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Forget this sample: ID, or CLIENT/ID. Repeatable.")] = None,
    relabel: Annotated[list[str] | None, typer.Option(help="Put a label right: ID=CLASS-NUMBER. Repeatable.")] = None,
    add: Annotated[list[str] | None, typer.Option(help="Take a client back in. May be repeated.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option(help="Forget a person's rows: COLUMN=VALUE, by extract --column. Repeatable.")
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="Where the clients elsewhere are, if they moved. Or ray[:HOST:PORT].")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Sign the certificate with this Ed25519 private key (PEM).")] = None,
    certificate: Annotated[Path | None, typer.Option(help="Also write the certificate here.")] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Then remove what was derived from the forgotten.")] = False,
    **given: Any,
) -> None:
    """Forget clients or samples, always with a certificate: exactly where the statistics were kept, else by retraining.

    Retraining is on the cached rows, of a whole network (train --backend jvp) from the same pretrained weights. Where
    they are not at hand: by rounds of FedRemoval; by one step only where it helps, or when asked for by name.

    Doing the same again changes nothing. Interrupted, the run is as it was before.
    """
    from probekit.files import write_text

    opened = output.open(run, finishing=purge)
    given |= {"clients": client or (), "samples": sample or (), "relabel": relabel or (), "add": add or ()}
    given["subjects"] = subject or ()
    signed = None if key is None else o.private_key(key, run, output.store_for(finishing=purge).root)
    purged = opened.purge() if purge and opened.unfinished else None
    with output.watch() as watch:
        result = opened.unlearn(key=signed, watch=watch, federation=federation, **given)
    if certificate is not None:
        write_text(certificate, result.path.read_text())
    if purge and (purged is None or not result.already_done):
        purged = opened.purge()
    value = result.plain | ({"purged": purged.plain} if purged is not None else {})
    output.result(value, lambda console, _: _show(console, result, purged))


def _agreed(claims: Any) -> dict[str, object]:
    """The rows whose class is certain: by the distance, and with what the rounds measured."""
    seen: dict[str, object] = {}
    if (agreed := claims.agreement) is not None:
        seen["agreement"] = f"{agreed.certified} of {agreed.rows} rows provably get the retrained head's class"
    if (found := claims.rounds) is not None:
        seen["from the rounds"] = (
            f"{found.plain} -> {found.certified} of {found.rows} rows, by {found.directions} products of the "
            f"curvature, each off by at most {found.error:.2g}"
        )
    return seen


def _show(console: Console, result: UnlearnResult, purged: PurgeResult | None) -> None:
    claims, done = result.certificate, result.unlearned
    bounds, residual, privacy = claims.bounds, claims.residual, claims.privacy
    seen: dict[str, object] = {
        "run": f"{result.run}, now in state {result.state}{' (this was done before)' * result.already_done}",
        "request": result.asked,
        "method": f"{claims.method}. {result.why}",
        "retained": "{} clients, {} rows".format(*claims.retained_numbers),
        **{f"also without {name}": f"{one.reason}: {one.why}" for name, one in result.missing.items()},
    }
    if claims.warnings:
        seen["warning"] = " ".join(claims.warnings)
    if done is not None and done.note:
        seen["note"] = done.note
    if residual is not None:
        seen["residual"] = f"|gradient| {residual.norm:.3g}, rounding at most {residual.rounding:.2g}"
    seen["distance"] = f"not certified: {bounds.why}"
    if bounds.weights is not None:
        scores = "" if bounds.outputs is None else f", {bounds.outputs:.3g} in a score of a row of norm 1"
        most = f"at most {bounds.weights:.3g} in weights, {bounds.excess_loss:.3g} in retained loss"
        seen["distance"] = f"to retraining {most}{scores}"
    if result.distance is not None:
        moved = result.distance
        harm = ": further from it than before" * moved.harmed
        seen["before and after"] = f"{moved.before:.3g} from retraining before, {moved.after:.3g} after{harm}"
    if bounds.loss_change is not None:
        seen["loss"] = f"the retained loss changed by {bounds.loss_change:.4g}, exactly"
    seen |= _agreed(claims)
    if privacy is not None:
        covers = "a residual (of sums)" if privacy["mechanism"] == "objective perturbation" else "a distance"
        seen["privacy"] = (
            f"(epsilon {privacy['epsilon']:g}, delta {privacy['delta']:g}) by {privacy['mechanism']} of sigma "
            f"{privacy['sigma']:g}, which covers {covers} of up to {privacy['largest_bound']:.3g}; found "
            f"{privacy['bound']:.3g}. Not differential privacy of training; earlier heads still know the forgotten. "
            "More caveats stand in the certificate"
        )
    cost, sent = result.cost, f"{size(result.cost.up)} up, {size(result.cost.down)} down"
    seen["cost"] = f"{cost.rounds} rounds, {sent}, {cost.flops / 1e9:.3g} GFLOP, {cost.seconds:.3f} s"
    seen["certificate"] = f"{result.path}; checkable by: {claims.checkable_by}"
    seen["check it"] = f"probekit verify {result.path} --run {result.run}"
    if purged is not None:
        seen["purged"] = f"{len(purged.removed)} files removed"
    facts(console, seen)
