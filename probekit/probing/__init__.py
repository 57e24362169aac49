"""Probing: how well heads on frozen embeddings predict, on rows that they were not fitted on."""

from probekit.probing.probe import probe
from probekit.probing.result import ProbeResult

__all__ = ["ProbeResult", "probe"]
