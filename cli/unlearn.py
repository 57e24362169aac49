"""`probekit unlearn`: a run without some clients or samples, and the file that proves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, facts, size

if TYPE_CHECKING:
    from probekit.runs.unlearning import UnlearnResult

NOISE = "A guarantee for the released head: (epsilon, delta)"


def unlearn(
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
    purge: Annotated[bool, typer.Option("--purge", help="Then remove from the run what knew the forgotten.")] = False,
    config: o.Config = None,
    cache: o.Cache = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Forget clients or samples: exactly where the statistics were kept, else by FedRemoval; always with a certificate.

    Of a whole network (train --backend jvp) by rounds of FedRemoval, or by retraining from the same pretrained weights.

    Doing the same again changes nothing. Interrupted, the run is as it was before.
    """
    from probekit.cache import DiskStore
    from probekit.files import write_text
    from probekit.runs.folder import RunFolder
    from probekit.runs.unlearning import Noise, UnlearnOptions, read_request, unlearn_run

    out = Output(json, quiet)
    request = read_request(client or (), samples=sample or (), relabelled=relabel or (), added=add or ())
    store, opened = DiskStore(cache), RunFolder.open(run)
    if release is not None and sigma is None:
        raise typer.BadParameter("--release writes a head with noise: give --sigma too.")
    wanted = UnlearnOptions(
        method,
        not server_only,
        store.open(test) if test is not None else None,
        _key(key) if key is not None else None,
        Noise(sigma, epsilon, delta),
    )
    with out.watch() as watch:
        done = unlearn_run(opened, store, request, wanted, watch=watch)
    if release is not None and sigma is not None:
        from probekit.certificates.privacy import release as noisy
        from probekit.models.serving import save_head

        save_head(noisy(opened.head(done.state), sigma), release)
    if certificate is not None:
        write_text(certificate, done.path.read_text())
    value = described(run, done)
    if purge:
        from probekit.runs.purging import purge_run

        value["purged"] = purge_run(opened)
    out.result(value, lambda console: _show(console, value))


def _key(path: Path) -> bytes:
    from probekit.errors import NotFoundError

    if not path.is_file():
        raise NotFoundError(f"There is no key file {path}. `openssl genpkey -algorithm ed25519 -out {path}` makes one.")
    return path.read_bytes()


def described(run: Path, done: UnlearnResult) -> dict[str, Any]:
    """A request that was carried out, in plain values."""
    said = done.certificate
    value: dict[str, Any] = {
        "run": str(run),
        "state": done.state,
        "already done": done.earlier,
        "forgotten": said.request,
        "method": said.method,
        "why": done.why,
        "retained": dict(said.retained),
        "bounds": said.plain["bounds"],
        "residual": said.plain["residual"],
        "agreement": said.plain["agreement"],
        "privacy": said.plain["privacy"],
        "checkable by": said.checkable_by,
        "warnings": list(said.warnings),
        "certificate": str(done.path),
        "certificate digest": said.digest,
        "head": said.after["head"],
    }
    if done.unlearned is not None:
        value["cost"] = vars(done.unlearned.cost)
        value["note"] = done.unlearned.note
    return value


def _show(console: Any, value: dict[str, Any]) -> None:
    asked = value["forgotten"]
    parts = [f"client {name}" for name in asked["clients"]]
    parts += [f"{len(asked[kind])} samples {kind}" for kind in ("relabelled",) if asked[kind]]
    parts += [f"{len(asked['samples'])} samples forgotten"] if asked["samples"] else []
    parts += [f"client {name} taken back in" for name in asked["added"]]
    bounds, residual, cost = value["bounds"], value["residual"], value.get("cost")
    seen: dict[str, object] = {
        "run": f"{value['run']}, now in state {value['state']}"
        + (" (this was done before)" if value["already done"] else ""),
        "request": ", ".join(parts),
        "method": f"{value['method']}. {value['why']}",
        "retained": f"{len(value['retained'])} clients, {sum(value['retained'].values())} rows",
    }
    for warning in value["warnings"]:
        seen["warning"] = warning
    if value.get("note"):
        seen["note"] = value["note"]
    if residual is not None:
        seen["residual"] = f"|gradient| {residual['norm']:.3g}, rounding at most {residual['rounding']:.2g}"
    seen["distance"] = (
        f"to retraining at most {bounds['weights']:.3g} in weights, {bounds['excess_loss']:.3g} in retained loss, "
        f"{bounds['outputs']:.3g} in a score of a row of norm 1"
        if bounds["weights"] is not None
        else f"not certified: {bounds['why']}"
    )
    if bounds["loss_change"] is not None:
        seen["loss"] = f"the retained loss changed by {bounds['loss_change']:.4g}, exactly"
    if value["agreement"] is not None:
        agreed = value["agreement"]
        seen["agreement"] = f"{agreed['certified']} of {agreed['rows']} rows provably get the retrained head's class"
    if value["privacy"] is not None:
        found = value["privacy"]
        covers = "a distance" if found["mechanism"] == "output perturbation" else "a residual (of sums)"
        seen["privacy"] = (
            f"(epsilon {found['epsilon']:g}, delta {found['delta']:g}) by {found['mechanism']} of sigma "
            f"{found['sigma']:g}, which covers {covers} of up to {found['largest_bound']:.3g}; found "
            f"{found['bound']:.3g}. Its caveats stand in the certificate"
        )
    if cost is not None:
        seen["cost"] = (
            f"{cost['rounds']} rounds, {size(cost['up'])} up, {size(cost['down'])} down, "
            f"{cost['flops'] / 1e9:.3g} GFLOP, {cost['seconds']:.3f} s"
        )
    seen["certificate"] = f"{value['certificate']}; checkable by: {value['checkable by']}"
    seen["check it"] = f"probekit verify {value['certificate']} --run {value['run']}"
    if "purged" in value:
        seen["purged"] = f"{len(value['purged']['removed'])} files removed"
    facts(console, seen)
