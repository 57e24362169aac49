"""The plugin in examples/ keeps the promises of a backbone, and its entry point leads to it."""

import importlib
import tomllib
from pathlib import Path

import pytest

from probekit import registry
from probekit.backbones import backbone
from probekit.testing import check_backbone

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_own_backbone"


def test_the_example_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    stated = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    ((name, target),) = stated["project"]["entry-points"]["probekit.backbones"].items()
    module, _, attribute = target.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    monkeypatch.setitem(registry.backbones._registered, name, factory)
    failed = [check for check in check_backbone(backbone(name)) if not check.passed]
    assert not failed
