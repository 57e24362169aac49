"""What is installed is what stands here, and it works elsewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from probekit import registry
from probekit.cache import DiskStore
from probekit.custody.signatures import new_private_key, public_key_of
from probekit.runs.run import Run
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

ROOT = Path(__file__).parent.parent
LINKS = {"cache": "../cache", "cli": "../cli"}
TOOLS = {"beartype", "build", "mypy", "pre-commit", "pytest-xdist", "ruff"}
"""Of the development tools, those that are run or named and not imported."""
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "probekit", "cache", "cli", "tests", "examples", "Makefile")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages() -> set[str]:
    """Every folder with an `__init__.py`, under the name it is installed by."""
    found = {path.parent.relative_to(ROOT) for path in (ROOT / "probekit").rglob("__init__.py")}
    found |= {Path("probekit") / folder for folder in LINKS if (ROOT / folder / "__init__.py").exists()}
    return {".".join(folder.parts) for folder in found}


def test_package_list_is_complete(project: dict[str, Any]) -> None:
    assert set(project["tool"]["setuptools"]["packages"]) == packages()


def test_map_and_links_are_in_step(project: dict[str, Any]) -> None:
    mapped = project["tool"]["setuptools"]["package-dir"]
    assert mapped == {"probekit": "probekit", **{f"probekit.{name}": name for name in LINKS}}
    for name, target in LINKS.items():
        link = ROOT / "probekit" / name
        if link.is_symlink():
            assert link.readlink() == Path(target)
        else:  # git without symbolic links writes the target into a plain file
            assert link.read_text() == target
        assert not (ROOT / name).is_symlink()


@pytest.mark.parametrize("kind", ["backbones", "datasets", "methods", "trainers", "problems"])
def test_built_in_names_lead_somewhere(project: dict[str, Any], kind: str) -> None:
    found: registry.Registry = getattr(registry, kind)
    assert found.group not in project["project"].get("entry-points", {})  # one place
    assert len(found.built_in) > 1
    assert all(callable(point.load()) for point in found.built_in)


def test_the_script_leads_somewhere(project: dict[str, Any]) -> None:
    module, _, attribute = project["project"]["scripts"]["probekit"].partition(":")
    assert callable(getattr(import_module(module), attribute))


def test_constraints_pin_every_dependency(project: dict[str, Any]) -> None:
    pinned = {
        normal(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    stated = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]
    for extra in ("offline", "flower", "ray", "docs"):
        stated += project["project"]["optional-dependencies"][extra]
    assert set(map(normal, stated)) <= pinned


UNLIKE = {"griffe": "griffelib"}
"""Distributions that are called unlike what they hold, and that may not be installed."""


def distributions(*folders: str) -> set[str]:
    """The distributions that the modules below these folders import, lazily or not; ours and Python's own aside."""
    named: set[str] = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named.add(str(node.module).partition(".")[0])
    ours = {"probekit", "tests", "tiny_cells", *(path.stem for path in (ROOT / "benchmarks").glob("*.py"))}
    homes = metadata.packages_distributions()
    return {normal(homes.get(name, [UNLIKE.get(name, name)])[0]) for name in named - ours - sys.stdlib_module_names}


def normal(requirement: str) -> str:
    """The name in a requirement, as the package index spells it."""
    return re.split(r"[><=~! \[]", requirement)[0].lower().replace("_", "-")


def test_what_is_imported_is_declared_and_what_is_declared_is_imported(project: dict[str, Any]) -> None:
    needed = {normal(one) for one in project["project"]["dependencies"]}
    extras = {name: set(map(normal, one)) for name, one in project["project"]["optional-dependencies"].items()}
    library = distributions("probekit", "cli", "cache")
    assert library == needed.union(*(extras[name] for name in ("offline", "sign", "flower", "ray")))
    assert set(extras) == {"offline", "sign", "flower", "ray", "docs", "dev"}
    assert extras["docs"] - needed == distributions("docs") - needed | {"mkdocs-material", "mkdocstrings"}
    engines = extras["flower"] | extras["ray"]
    used_with_tests = distributions("tests", "benchmarks", "examples") - needed - extras["offline"] - engines
    assert used_with_tests | TOOLS | extras["sign"] == extras["dev"]


def test_no_package_of_a_general_name_is_installed() -> None:
    """`import cli` and `import cache` must not be ours."""
    script = (
        "import importlib.util, sys; sys.path = [p for p in sys.path if p];"
        "import probekit, probekit.cli, probekit.cache;"
        "print([name for name in ('cli', 'cache') if importlib.util.find_spec(name)])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd="/", text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "[]"


def _isolation() -> list[str]:
    """No environment of its own, where the one that is running can build: then no network is needed."""
    try:
        return ["--no-isolation"] if int(metadata.version("setuptools").partition(".")[0]) >= 77 else []
    except metadata.PackageNotFoundError:
        return []


def _build(source: Path, target: Path, kind: str) -> Path:
    """The sdist or wheel that the build tool makes of a folder."""
    command = [sys.executable, "-m", "build", f"--{kind}", *_isolation(), "--outdir", str(target), str(source)]
    done = subprocess.run(command, cwd=target, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = target.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from a copy so that the checkout stays clean."""
    pytest.importorskip("build")
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy2(source, copy / name)
    return _build(copy, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the unpacked source distribution, not from the checkout."""
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked := tmp_path_factory.mktemp("unpacked"), filter="data")
    [source] = unpacked.iterdir()
    return _build(source, tmp_path_factory.mktemp("wheel"), "wheel")


def test_sdist_holds_what_a_wheel_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "cli/main.py", "cache/disk.py", "probekit/py.typed"} <= names


def test_wheel_holds_exactly_our_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        [points] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        entry_points = archive.read(points).decode()
    wanted = {
        f"{package.replace('.', '/')}/{path.name}"
        for package in packages()
        for path in (ROOT / package.replace(".", "/")).glob("*.py")
    }
    data = {f"probekit/bench/experiments/{path.name}" for path in (ROOT / "probekit/bench/experiments").iterdir()}
    data.add("probekit/bench/figures.json")
    templates = {f"probekit/pages/templates/{path.name}" for path in (ROOT / "probekit/pages/templates").iterdir()}
    assert set(names) == wanted | templates | data | {"probekit/py.typed"}
    assert len(names) == len(set(names))
    assert "probekit = probekit.cli.main:main" in entry_points


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new environment with the wheel in it, and a copy of the tests beside it.

    It sees the libraries of the running environment through a path file, so that torch is not installed twice. What a
    path file names comes after the environment's own packages, and path files that stand there are not read: so the
    probekit that is being edited is not seen.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    [own] = (folder / "venv").glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (own / "libraries.pth").write_text("\n".join(libraries) + "\n")
    for name in ("tests", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _outside(
    place: Path, *arguments: str, folder: Path | None = None, limit: float = 1500
) -> subprocess.CompletedProcess[str]:
    """Run the wheel's Python. What it prints goes to files: a pipe would be waited for while any process has it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        done = subprocess.run(
            [str(place / "venv" / "bin" / "python"), *arguments],
            cwd=folder or place,
            env={**clean, "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=errors,
            check=False,
            timeout=limit,
        )
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, out.read(), errors.read())


@pytest.mark.slow
def test_the_wheel_is_what_is_imported_elsewhere(elsewhere: Path) -> None:
    done = _outside(elsewhere, "-c", "import probekit, probekit.cli.main as m; print(probekit.__file__, m.__file__)")
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(str(elsewhere / "venv")) for path in done.stdout.split())


@pytest.mark.slow
def test_the_tests_pass_from_the_wheel(elsewhere: Path) -> None:
    """All quick tests but those about the checkout itself: its files, its README, its package list."""
    files = (
        "packaging",
        "claims",
        "comparison_page",
        "contributing",
        "shape",
        "erasure_page",
        "leaderboard_page",
        "machines_page",
        "methods_page",
        "scale",
        "pages",
        "first_minutes",
        "site",
        "notebook",
    )
    ignored = [f"--ignore=tests/test_{name}.py" for name in files]
    done = _outside(elsewhere, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *ignored)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_a_stranger_checks_a_bundle_with_the_wheel_alone(
    elsewhere: Path, tmp_path: Path, store: DiskStore, shelve: Shelve, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run, no cache, nothing of this tree: signature, transition and chain are proven, the rest is called so."""
    key = new_private_key()
    shelve("rows", rows=4000, dimension=64, classes=10)
    run = Run.train(tmp_path / "run", "rows", clients=1000, ridge=0.01, store=store)
    run.prove("17", tmp_path / "receipt.json", key=key)
    done = run.erase("17", key=key, reference="2026-17")
    bundle = done.register / done.records[0].runs[0].bundle
    run.bundle(tmp_path / "audit.zip", key=key, sums_for="the auditor")
    assert bundle.stat().st_size < 1_000_000
    desk = elsewhere / "desk"
    desk.mkdir()
    for source, name in (
        (bundle, "bundle.zip"),
        (tmp_path / "audit.zip", "audit.zip"),
        (tmp_path / "receipt.json", "r.json"),
    ):
        shutil.copy2(source, desk / name)
    (desk / "operator.pem").write_bytes(public_key_of(key))

    def verify(*arguments: str) -> tuple[int, dict[str, Any], float]:
        began = time.perf_counter()
        line = ("-m", "probekit", "verify", *arguments, "--json", "--cache", str(desk / "none"))
        checked = _outside(elsewhere, *line, folder=desk)
        assert checked.stdout, checked.stderr
        return checked.returncode, json.loads(checked.stdout), time.perf_counter() - began

    signed = ("--public-key", "operator.pem")
    code, value, seconds = verify("bundle.zip", *signed)
    found = {one["name"]: one["verdict"] for one in value["findings"]}
    assert code == 7
    proven = ("signature", "transition", "chain", "statement")
    assert {name for name in proven if found[name] == "proven"} == set(proven)
    assert {found[name] for name in ("weights", "rows-elsewhere", "copies", "erased", "clock")} == {"not proven"}
    assert "That no copies exist elsewhere" in value["statement"]
    assert verify("bundle.zip", *signed, "--require", "signature,transition,chain")[0] == 0
    code, value, _ = verify("bundle.zip", *signed, "--receipt", "r.json", "--client", "17")
    assert (code, value["emptied"]) == (0, 2)
    code, value, longer = verify(
        "audit.zip", *signed, "--require", "signature,transition,chain,weights,excess-loss,sums"
    )
    assert code == 0
    assert {path.name for path in desk.iterdir()} == {"bundle.zip", "audit.zip", "r.json", "operator.pem"}
    with capsys.disabled():
        print(f"\nbundle {bundle.stat().st_size} bytes, checked in {seconds:.2f} s; with sums {longer:.2f} s")
