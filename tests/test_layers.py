"""Imports go one way, and heavy libraries are imported only where they are used."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GROUND = {"errors", "files", "registry", "progress", "arrays", "records", "rows"}
BELOW: dict[str, set[str]] = {
    "embeddings": GROUND,
    "cache": {"embeddings"},
    "data": {"cache"},
    "backbones": {"data"},
    "extraction": {"backbones"},
    "objective": {"embeddings"},
    "linear": {"objective"},
    "networks": {"backbones", "heads"},
    "heads": {"linear"},
    "estimators": {"heads"},
    "evaluation": {"heads"},
    "probing": {"evaluation", "extraction", "estimators"},
    "federated": {"linear"},
    "unlearning": {"federated"},
    "certificates": {"unlearning"},
    "runs": {"certificates", "networks", "probing"},
    "report": {"runs"},
    "testing": {"backbones", "unlearning"},
    "bench": {"report"},
    "cli": {"bench", "testing"},
    "__main__": {"cli"},
}
"""What stands directly below a room; it may import from there and from all that is below that."""
UPWARDS = {
    *{("probekit.runs.run", "report"), ("probekit.probing.result", "report")},
    ("probekit.heads", "networks"),
}
"""Runs and probes draw their pages, a saved network is loaded as a head: inside functions only."""
TORCH_ROOMS = ("probekit.backbones", "probekit.networks", "probekit.extraction.loading")
TORCH_INSIDE = {
    "probekit.bench.cost",
    "probekit.embeddings",
    "probekit.extraction.vector_files",
    "probekit.cli.doctor",
    "probekit.testing.backbones",
}
"""Modules that import torch inside a function only."""
LAZY = {"torch", "torchvision", "transformers", "open_clip", "timm", "datasets", "faiss", "h5py"}
HEAVY = (*sorted(LAZY), "sklearn", "scipy", "numpy", "pandas", "pyarrow", "PIL", "matplotlib")


@cache
def modules() -> dict[str, Path]:
    """Every module of the package and its file, the two linked folders included."""
    folders = {"probekit": ROOT / "probekit", "probekit.cli": ROOT / "cli"}
    folders["probekit.cache"] = ROOT / "cache"
    paths = {}
    for package, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            names = [part for part in parts if part != "__init__"]
            paths[".".join([package, *names])] = path
    return paths


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The dotted names that a file imports, and whether that happens when it is imported."""
    tree = ast.parse(path.read_text())
    deferred: set[int] = set()
    for node in ast.walk(tree):
        type_checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if type_checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            deferred |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else str(node.module), id(node) not in deferred


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def all_below(name: str) -> set[str]:
    direct = BELOW.get(name, set())
    return direct.union(*(all_below(other) for other in direct))


def test_every_module_has_a_room() -> None:
    rooms = {room(module) for module in modules() if module != "probekit"}
    assert rooms <= GROUND | set(BELOW)


def test_imports_point_downwards() -> None:
    upwards = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name, at_once in imports(path)
        if name.startswith("probekit.") and module != "probekit"
        and room(name) != room(module)
        and room(name) not in (GROUND if room(module) in GROUND else all_below(room(module)))
        and (at_once or (module, room(name)) not in UPWARDS)
    ]  # fmt: skip
    assert upwards == []


def test_torch_is_imported_where_it_belongs() -> None:
    elsewhere = {
        (module, at_once)
        for module, path in modules().items()
        for name, at_once in imports(path)
        if name.partition(".")[0] == "torch" and not module.startswith(TORCH_ROOMS)
    }
    assert {module for module, at_once in elsewhere if at_once} == set()
    assert {module for module, _ in elsewhere} <= TORCH_INSIDE


def test_heavy_libraries_wait_until_they_are_used() -> None:
    at_once = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name, immediately in imports(path)
        if immediately and name.partition(".")[0] in LAZY and not module.startswith(TORCH_ROOMS)
    ]
    assert at_once == []


def loaded_by(code: str, **environment: str) -> set[str]:
    """The heavy libraries that a new process has loaded after running some code."""
    script = f"""
import atexit, sys
loaded = lambda: [name for name in {HEAVY!r} if name in sys.modules]
atexit.register(lambda: print("LOADED", *loaded(), file=sys.stderr))
try:
    {code}
except SystemExit:
    pass
"""
    process = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=True,
    )
    [line] = [line for line in process.stderr.splitlines() if line.startswith("LOADED")]
    return set(line.split()[1:])


COMMANDS = (
    *([], ["probe"], ["predict"], ["extract"], ["import"], ["doctor"]),
    *(["cache"], ["cache", "ls"], ["backbone"], ["backbone", "check"]),
    *(["dataset"], ["dataset", "show"], ["evaluate"], ["report"], ["demo"], ["method", "ls"]),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "all")
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    arguments = [*command, "--help"]
    assert loaded_by(f"from probekit.cli.main import run; assert run({arguments!r}) == 0") == set()


@pytest.mark.parametrize("words", ["probekit ", "probekit cache ", "probekit extract --"])
def test_shell_completion_loads_nothing_heavy(words: str) -> None:
    environment = {
        "_PROBEKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    assert loaded_by("from probekit.cli.main import main; main()", **environment) == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import probekit; dir(probekit); probekit.__version__") == set()


def test_a_head_predicts_with_numpy_alone(tmp_path: Path) -> None:
    assert loaded_by("import probekit; probekit.Head; probekit.load_head") == {"numpy"}


@pytest.mark.parametrize("name", ["Cache", "EmbeddingSet", "RidgeProbe", "probe"])
def test_public_names_load_no_encoders(name: str) -> None:
    assert not loaded_by(f"import probekit; probekit.{name}") & LAZY


def test_the_measure_measures() -> None:
    assert loaded_by("import scipy.linalg") >= {"scipy", "numpy"}
