"""What came of a verification, for tests."""

from __future__ import annotations

from typing import Any

from probekit.runs.verification import VerifyResult

STORY = {"request", "partition", "method"}
"""What nothing inside a run proves: without an anchor it may all have been written anew."""


def unproven(result: VerifyResult) -> set[str]:
    """The claims that are not proven; none may be false."""
    assert result.intact, [one for one in result.findings if one.verdict == "false"]
    return {one.name for one in result.findings if one.verdict != "proven"}


def false(result: VerifyResult | dict[str, Any]) -> set[str]:
    """The claims that are false."""
    if isinstance(result, dict):
        return {one["name"] for one in result["findings"] if one["verdict"] == "false"}
    return {one.name for one in result.findings if one.verdict == "false"}
