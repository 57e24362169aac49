"""Probing: how well heads on frozen embeddings predict, on rows that they were not fitted on."""

from probekit.probing.cells import Cell, probe_splits
from probekit.probing.evaluate import WrongRow
from probekit.probing.probe import probe
from probekit.probing.result import ProbeResult

__all__ = ["Cell", "ProbeResult", "WrongRow", "probe", "probe_splits"]
