"""`probekit unlearn`: a run without some clients or samples, and the file that proves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, size

if TYPE_CHECKING:
    from rich.console import Console

    from probekit.runs.purging import PurgeResult
    from probekit.runs.unlearning import UnlearnResult

NOISE = "A guarantee for the released head: (epsilon, delta)"


@o.common
def unlearn(
    output: Output,
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    client: Annotated[list[str] | None, typer.Option("--client", help="Forget this client. May be repeated.")] = None,
    sample: Annotated[
        list[str] | None, typer.Option("--sample", help="Forget this sample: ID, or CLIENT/ID. May be repeated.")
    ] = None,
    relabel: Annotated[
        list[str] | None, typer.Option("--relabel", help="Put a label right: ID=CLASS-NUMBER. May be repeated.")
    ] = None,
    add: Annotated[list[str] | None, typer.Option("--add", help="Take a client back in. May be repeated.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto, exact, fedremoval[:cholesky|cg|adam|f2l2], fedremoval-line, fedremoval-pcg:ROUNDS, retrain, "
            "retrain-fedavg. A whole network has no exact, and fedremoval[:dual|pcg|cg|adam|f2l2]. f2l2 repeats the "
            "published code, its mistakes included: the ridge is replaced by a weight decay of 0.01 and missing from "
            "the gradient, the start is random, 400 steps end wherever they are."
        ),
    ] = "auto",
    server_only: Annotated[
        bool, typer.Option("--server-only", help="Ask no client, not even for a gradient to certify the result.")
    ] = False,
    test: Annotated[str | None, typer.Option(help="A set on which to count the certified agreement.")] = None,
    key: Annotated[Path | None, typer.Option(help="Sign the certificate with this Ed25519 private key (PEM).")] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Noise, fixed in advance, on every released parameter.", rich_help_panel=NOISE)
    ] = None,
    epsilon: Annotated[
        float, typer.Option(help="The guarantee that the noise is to give.", rich_help_panel=NOISE)
    ] = 1.0,
    delta: Annotated[float, typer.Option(rich_help_panel=NOISE)] = 1e-5,
    release: Annotated[
        Path | None, typer.Option(help="Write the head with noise to this folder.", rich_help_panel=NOISE)
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="Also write the certificate here.")] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Then remove from the run what was derived from the forgotten.")
    ] = False,
) -> None:
    """Forget clients or samples: exactly where the statistics were kept, else by FedRemoval; always with a certificate.

    Of a whole network (train --backend jvp) by rounds of FedRemoval, or by retraining from the same pretrained weights.

    Doing the same again changes nothing. Interrupted, the run is as it was before.
    """
    from probekit.files import write_text

    opened = output.open(run)
    if release is not None and sigma is None:
        raise typer.BadParameter("--release writes a head with noise: give --sigma too.")
    with output.watch() as watch:
        result = opened.unlearn(
            clients=client or (),
            samples=sample or (),
            relabel=relabel or (),
            add=add or (),
            method=method,
            server_only=server_only,
            test=test,
            key=_key(key) if key is not None else None,
            sigma=sigma,
            epsilon=epsilon,
            delta=delta,
            watch=watch,
        )
    if release is not None and sigma is not None:
        opened.release(release, sigma=sigma, state=result.state)
    if certificate is not None:
        write_text(certificate, result.path.read_text())
    purged = opened.purge() if purge else None
    value = result.plain | ({"purged": purged.plain} if purged is not None else {})
    output.result(value, lambda console, _: _show(console, result, purged))


def _key(path: Path) -> bytes:
    from probekit.errors import NotFoundError

    if not path.is_file():
        raise NotFoundError(f"There is no key file {path}. `openssl genpkey -algorithm ed25519 -out {path}` makes one.")
    return path.read_bytes()


def _show(console: Console, result: UnlearnResult, purged: PurgeResult | None) -> None:
    said, done = result.certificate, result.unlearned
    bounds, residual, privacy = said.bounds, said.residual, said.privacy
    seen: dict[str, object] = {
        "run": f"{result.run}, now in state {result.state}"
        + (" (this was done before)" if result.already_done else ""),
        "request": result.asked,
        "method": f"{said.method}. {result.why}",
        "retained": f"{len(said.retained)} clients, {sum(said.retained.values())} rows",
    }
    for warning in said.warnings:
        seen["warning"] = warning
    if done is not None and done.note:
        seen["note"] = done.note
    if residual is not None:
        seen["residual"] = f"|gradient| {residual.norm:.3g}, rounding at most {residual.rounding:.2g}"
    seen["distance"] = (
        f"to retraining at most {bounds.weights:.3g} in weights, {bounds.excess_loss:.3g} in retained loss, "
        f"{bounds.outputs:.3g} in a score of a row of norm 1"
        if bounds.weights is not None
        else f"not certified: {bounds.why}"
    )
    if bounds.loss_change is not None:
        seen["loss"] = f"the retained loss changed by {bounds.loss_change:.4g}, exactly"
    if said.agreement is not None:
        agreed = said.agreement
        seen["agreement"] = f"{agreed.certified} of {agreed.rows} rows provably get the retrained head's class"
    if privacy is not None:
        covers = "a distance" if privacy["mechanism"] == "output perturbation" else "a residual (of sums)"
        seen["privacy"] = (
            f"(epsilon {privacy['epsilon']:g}, delta {privacy['delta']:g}) by {privacy['mechanism']} of sigma "
            f"{privacy['sigma']:g}, which covers {covers} of up to {privacy['largest_bound']:.3g}; found "
            f"{privacy['bound']:.3g}. Its caveats stand in the certificate"
        )
    if done is not None:
        cost = done.cost
        seen["cost"] = (
            f"{cost.rounds} rounds, {size(cost.up)} up, {size(cost.down)} down, "
            f"{cost.flops / 1e9:.3g} GFLOP, {cost.seconds:.3f} s"
        )
    seen["certificate"] = f"{result.path}; checkable by: {said.checkable_by}"
    seen["check it"] = f"probekit verify {result.path} --run {result.run}"
    if purged is not None:
        seen["purged"] = f"{len(purged.removed)} files removed"
    facts(console, seen)
