"""Conformance checks for authors of plugins; probekit's own tests use them too."""

from probekit.testing.backbones import BackboneMeasurements, ConformanceError, check_backbone
from probekit.testing.methods import check_method, example_removal

__all__ = [
    "BackboneMeasurements",
    "ConformanceError",
    "check_backbone",
    "check_method",
    "example_removal",
]
