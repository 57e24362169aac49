"""Where the cache is, unless somebody says otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def default_root(environ: Mapping[str, str] = os.environ) -> Path:
    """`PROBEKIT_CACHE`, else `$XDG_CACHE_HOME/probekit`, else the platform's own (`~/.cache/probekit`)."""
    if chosen := environ.get("PROBEKIT_CACHE"):
        return Path(chosen).expanduser().absolute()
    # The XDG specification wants relative paths ignored.
    if (shared := environ.get("XDG_CACHE_HOME")) and Path(shared).is_absolute():
        return Path(shared) / "probekit"
    return Path(platformdirs.user_cache_path("probekit", appauthor=False))
