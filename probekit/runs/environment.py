"""What a run was made with: versions, machine, threads."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

from probekit import __version__
from probekit.values import Json

PACKAGES = ("numpy", "scipy", "scikit-learn", "safetensors", "faiss-cpu", "torch")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def environment() -> dict[str, Json]:
    """Versions, machine and thread settings, as plain values."""
    versions: dict[str, Json] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "probekit": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
        "packages": versions,
    }
