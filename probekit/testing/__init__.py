"""Conformance tests for people who write backbones, federations and unlearning methods, used on our own as well.

In a plugin's tests two lines do:

    failed = [check for check in check_backbone(make()) if not check.passed]
    assert not failed
"""

from probekit.testing.backbones import check_backbone
from probekit.testing.check import KitCheck
from probekit.testing.federations import check_federation
from probekit.testing.methods import check_method

__all__ = ["KitCheck", "check_backbone", "check_federation", "check_method"]
