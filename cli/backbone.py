"""`probekit backbone`: which backbones there are, and what one of them is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import typer

from probekit.cli.options import ModelFlags, argument, flag
from probekit.cli.output import Output

app = typer.Typer(help="List backbones and check one.", no_args_is_help=True)

FORMS = {
    "open_clip": "open_clip:ARCHITECTURE/TAG, or open_clip:ARCHITECTURE/FILE",
    "hf": "hf:ORG/NAME[@REVISION] of the Hugging Face hub, or hf:FOLDER",
    "st": "st:ORG/NAME[@REVISION], or st:FOLDER, as sentence-transformers saves it",
    "timm": "timm:NAME[.TAG], or timm:FOLDER",
    "packaged": "packaged:NAME, no download",
    "pixels": "pixels[:SIDE][#rgb], no model at all",
    "py": "py:package.module:factory, your own",
}
SHOWN = 50


@app.command()
def ls(
    search: str | None = flag("Only names that contain this, such as dinov2.", "--search", "-s"),
    *,
    output: Output,
) -> None:
    """List what can be named: the schemes, or the names that contain a text."""
    from probekit.registry import BACKBONES, nearest

    if search is None:
        plugins = [name for name in BACKBONES.names() if name not in BACKBONES.built_in]
        forms = {**FORMS, **dict.fromkeys(plugins, "a plugin's own")}
        output.table(["scheme", "form"], list(forms.items()))
        output.print("Names that open_clip and timm know: `probekit backbone ls --search TEXT`.")
        output.result({"schemes": forms})
        return
    names = list(_list_names())
    matches = [name for name in names if search.lower() in name.lower()]
    for name in matches[:SHOWN]:
        output.print(name)
    if len(matches) > SHOWN:
        output.print(f"... and {len(matches) - SHOWN:,} more; --json prints all")
    if not matches:
        output.print(f"No known name contains {search!r}. {nearest(search, names)}".rstrip())
    output.print("Every vision or text model of the Hugging Face hub can be named: hf:ORG/NAME.")
    output.result({"search": search, "backbones": matches})


def _list_names() -> Iterator[str]:
    from probekit.backbones.packaged import NAMES  # lets open_clip and timm import torchvision

    yield "pixels"
    yield from (f"packaged:{name}" for name in NAMES)

    import open_clip
    import timm

    yield from (f"open_clip:{arch}/{tag}" for arch, tag in open_clip.list_pretrained())
    yield from (f"timm:{name}" for name in timm.list_models(pretrained=True))


@app.command()
def check(
    name: str = argument("A backbone, such as hf:facebook/dinov2-base."),
    kind: Literal["image", "text"] = flag(
        "Which tower of a model that has two.", "--kind", default="image"
    ),
    *,
    model: ModelFlags,
    output: Output,
) -> None:
    """Load a backbone, try it on a few pictures or texts, and print what was found."""
    from probekit.backbones import load_backbone
    from probekit.backbones.module import TorchBackbone
    from probekit.testing import check_backbone

    backbone = load_backbone(
        name,
        device=model.device,
        precision=model.precision,
        preprocessing=model.preprocessing,
        kind=kind,
        prompt=model.prompt,
        max_length=model.max_length,
    )
    measured = check_backbone(backbone)
    document = {
        "backbone": backbone.name,
        "kind": backbone.kind,
        "views": dict(backbone.views),
        "identity": dict(backbone.identity),
        "samples_per_second": round(measured.samples_per_second, 1),
        "batch_difference": measured.batch_difference,
    }
    if isinstance(backbone, TorchBackbone):
        document |= backbone.description
        document |= {"commit": backbone.commit, "device": backbone.device}
    output.fields(document)
    output.result(document)
