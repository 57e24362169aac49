"""`probekit doctor`: check the installation, the cache, the devices and the hub."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

from rich import filesize

from probekit.cli.output import CacheOutput

DISTRIBUTION = "probekit-heads"
OTHER_DISTRIBUTION = "probekit"
"""Somebody else's library on the package index; it has our import name."""
HUB_SECONDS = 3.0


@dataclass(frozen=True)
class Check:
    """A warning is something that works nevertheless; a problem makes the exit code 1."""

    name: str
    state: Literal["ok", "warning", "problem"]
    detail: str


def doctor(*, output: CacheOutput) -> None:
    """Check the installation. The exit code is 1 if something that is needed is missing."""
    from probekit.cache.store import default_root

    root = output.cache or default_root()
    checks = list(_checks(root))
    output.table(("check", "state", "detail"), [astuple(check) for check in checks])
    healthy = all(check.state != "problem" for check in checks)
    document = {"healthy": healthy, "cache": root, "checks": checks}
    output.result(document, exit_code=0 if healthy else 1)


def _checks(root: Path) -> Iterator[Check]:
    cores = f"{os.cpu_count()} cores, {platform.platform()}"
    yield Check("python", "ok", f"{platform.python_version()}, {cores}")
    torch = _package("torch", "torch")
    yield torch
    if torch.state == "ok":
        yield Check("devices", "ok", ", ".join(_devices()))
        import_module("probekit.backbones.module")  # lets torchvision be imported
        yield _package("torchvision", "torchvision")
    yield _package("faiss", "faiss-cpu")
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version(OTHER_DISTRIBUTION)
        detail = (
            f"the distribution {OTHER_DISTRIBUTION} {version} is somebody else's and has our "
            f"import name. Uninstall it, then run `pip install --force-reinstall {DISTRIBUTION}`."
        )
        yield Check("other package", "problem", detail)
    yield _cache(root)
    yield _hub()


def _package(module: str, distribution: str) -> Check:
    try:
        return Check(module, "ok", str(import_module(module).__version__))
    except Exception as error:  # whatever a broken installation raises
        remedy = f"Run `pip install {DISTRIBUTION}`; if that does not help, reinstall"
        detail = f"cannot be imported ({error}). {remedy} {distribution}."
        return Check(module, "problem", detail)


def _devices() -> Iterator[str]:
    import torch

    yield "cpu"
    for number in range(torch.cuda.device_count()):
        yield f"cuda:{number} ({torch.cuda.get_device_name(number)})"
    if torch.backends.mps.is_available():
        yield "mps"


def _cache(root: Path) -> Check:
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        detail = f"{root} cannot be written. Choose another folder: PROBEKIT_CACHE or --cache."
        return Check("cache", "problem", detail)
    free = filesize.decimal(shutil.disk_usage(existing).free)
    return Check("cache", "ok", f"{root}, {free} free")


def _hub() -> Check:
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return Check("hub", "ok", "offline (HF_HUB_OFFLINE): only what is already downloaded")
    try:
        urlopen(constants.ENDPOINT, timeout=HUB_SECONDS).close()
    except HTTPError as error:  # it answered
        return Check("hub", "ok", f"{constants.ENDPOINT} answers {error.code}")
    except OSError as error:
        detail = f"{constants.ENDPOINT} cannot be reached ({error}); only what is downloaded works"
        return Check("hub", "warning", detail)
    return Check("hub", "ok", f"{constants.ENDPOINT} can be reached")
