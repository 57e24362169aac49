"""`probekit demo`: the main job on an embedded default."""

from __future__ import annotations

from probekit.cli import options as o


def demo(cache: o.Cache = None, json: o.Json = False, quiet: o.Quiet = False, verbose: o.Verbose = False) -> int:
    """Encode scikit-learn's digits with EfficientNet-Lite0: no download, half a minute; the second time, none."""
    from probekit.cli.extract import extract

    return extract("packaged:digits", name="demo-digits", cache=cache, json=json, quiet=quiet)
