"""What `import probekit` promises."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from importlib import import_module, metadata

import pytest

import probekit


@pytest.mark.parametrize("name", probekit.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(probekit, name)
    assert not isinstance(found, types.ModuleType)
    if name != "__version__":
        assert inspect.getdoc(found), name


def test_all_is_what_can_be_had() -> None:
    assert sorted(probekit.__all__) == dir(probekit)
    assert len(set(probekit.__all__)) == len(probekit.__all__)
    starred: dict[str, object] = {}
    exec("from probekit import *", starred)
    assert set(probekit.__all__) <= set(starred)


def test_public_names_and_submodules_do_not_hide_each_other() -> None:
    """Importing `probekit.encoding.extract` must not replace `probekit.extract`, whatever is imported first."""
    script = """
import pkgutil, importlib, probekit
before = {name: getattr(probekit, name) for name in probekit.__all__}
for module in pkgutil.iter_modules(probekit.__path__):
    assert module.name not in probekit.__all__, module.name
    if module.name != "__main__":
        importlib.import_module(f"probekit.{module.name}")
assert before == {name: getattr(probekit, name) for name in probekit.__all__}
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize("name", probekit.__all__)
def test_the_second_look_gives_the_same(name: str) -> None:
    assert getattr(probekit, name) is getattr(probekit, name)


def test_names_are_those_of_their_home() -> None:
    for name, home in probekit._HOMES.items():
        assert getattr(import_module(home), name) is getattr(probekit, name)
        assert getattr(probekit, name).__module__ == home


def test_unknown_names_are_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="no attribute 'extarct'"):
        _ = probekit.extarct


def test_version_is_the_distribution_s() -> None:
    assert metadata.version("probekit") == probekit.__version__
