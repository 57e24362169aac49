"""torchvision can be imported once the shim has run, and the shim does nothing where it is not needed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from probekit.backbones import torchvision_operators

SCRIPT = """
import probekit.backbones.torchvision_operators
import torchvision.transforms
print(len(torchvision.transforms.Compose([]).transforms))
"""


def test_torchvision_imports_after_the_shim() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0", done.stderr


def test_nothing_is_declared_when_torchvision_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", sys)
    monkeypatch.setattr(torchvision_operators, "loadable", lambda folder: pytest.fail("looked at the operators"))
    assert not torchvision_operators.declare()


def test_operators_that_are_no_library_cannot_be_loaded(tmp_path: Path) -> None:
    assert not torchvision_operators.loadable(tmp_path)
    (tmp_path / "_C.so").write_bytes(b"not a library")
    assert not torchvision_operators.loadable(tmp_path)


@pytest.mark.parametrize("healthy", [True, False])
def test_operators_are_declared_exactly_where_they_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, healthy: bool
) -> None:
    declared: list[str] = []
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torchvision_operators, "loadable", lambda folder: healthy)
    monkeypatch.setattr(torch.ops, "torchvision", object(), raising=False)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: declared.append(name))
    assert torchvision_operators.declare() is not healthy
    assert declared == ([] if healthy else ["torchvision::nms", "torchvision::qnms"])
