"""Real checkpoints, for whoever has a network: what is found in each, and a probe of CIFAR-10.

    python benchmarks/real_encoders.py [ID ...] [--rows 2000]

Offline it exits with 3. Compare the printed accuracies with those that the authors publish.
"""

from __future__ import annotations

import argparse
import json
import sys

import probekit
from probekit.errors import OfflineError, ProbekitError

IDS = (
    "open_clip:ViT-B-32/laion2b_s34b_b79k",
    "hf:openai/clip-vit-base-patch32",
    "hf:google/siglip2-base-patch16-224",
    "hf:facebook/dinov2-small",
    "hf:facebook/dinov2-with-registers-small",
    "hf:facebook/dinov3-vits16-pretrain-lvd1689m",
    "hf:facebook/vit-mae-base",
    "hf:Salesforce/blip2-opt-2.7b",
    "timm:vit_small_patch14_dinov2.lvd142m",
)


def check(name: str, rows: int) -> dict[str, object]:
    backbone = probekit.load_backbone(name)
    result = probekit.probe(
        "hf:uoft-cs/cifar10", backbone=backbone, heads=("ridge", "knn"), controls=False, limit=rows
    )
    cells = {cell.head: cell.to_dict() for cell in result.cells}
    return {"backbone": name, "views": dict(backbone.views), "cells": cells}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", default=list(IDS))
    parser.add_argument("--rows", type=int, default=2000)
    arguments = parser.parse_args()
    code = 0
    for name in arguments.ids:
        try:
            print(json.dumps(check(name, arguments.rows)), flush=True)
        except OfflineError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        except ProbekitError as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = error.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
