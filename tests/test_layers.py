"""Imports go one way, modules stay small, and what is heavy is imported only where it is needed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import probekit

LAYERS = (
    ("errors",),
    ("syncing", "files", "values", "protocols", "registry"),
    *(
        (name,)
        for name in (
            *("custody", "cache", "linear", "jacobian", "datasets", "backbones", "encoding", "models", "federated"),
            *(
                "unlearning",
                "certificates",
                "pages",
                "evaluation",
                "report",
                "runs",
                "bench",
                "testing",
                "cli",
                "__main__",
            ),
        )
    ),
)
"""A module may import from its own layer and from those before it."""

TORCH_AT_THE_TOP = (
    *("probekit.backbones", "probekit.jacobian", "probekit.federated.networks"),
    *(f"probekit.models.{name}" for name in ("jvp", "network_holding", "network_problem", "networks", "pretraining")),
    *(f"probekit.models.{name}" for name in ("conventional", "flat_module")),
)
TORCH_INSIDE = ("probekit.encoding.loading", "probekit.values", "probekit.cli.doctor")
LOADED_LATE = ("probekit.datasets.hub", "probekit.datasets.huggingface")
ON_DEMAND = {"torch", "torchvision", "transformers", "datasets", "faiss", "open_clip", "timm"}
ENGINES = ("flwr", "ray", "uvicorn", "httpx", "cryptography")
HEAVY = (*sorted(ON_DEMAND), *ENGINES, "sklearn", "scipy", "numpy", "matplotlib", "jinja2")
LONGEST = 300
VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "manager", "core", "misc"}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package and its file, the two linked folders included."""
    root = Path(probekit.__file__).parent
    folders = {"probekit": root}
    for child in sorted(root.iterdir()):  # a glob would not follow the links
        if child.is_dir() and (child / "__init__.py").exists():
            folders[f"probekit.{child.name}"] = child
    if "probekit.cli" not in folders:  # a checkout without symbolic links
        folders |= {f"probekit.{name}": root.parent / name for name in ("cache", "cli")}
    found = {}
    for package, folder in folders.items():
        inside = "*.py" if package == "probekit" else "**/*.py"
        for path in sorted(folder.glob(inside)):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The dotted names that a file imports, and whether that happens as soon as it is imported itself."""
    tree = ast.parse(path.read_text())
    later: set[int] = set()
    for node in ast.walk(tree):
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if typing_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            later |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in later) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else str(node.module), id(node) not in later


def layer(module: str) -> int:
    """The number of the layer of a module; -1: it has none yet."""
    part = module.split(".")[1]
    return next((number for number, names in enumerate(LAYERS) if part in names), -1)


def test_every_module_has_its_place() -> None:
    assert {module for module in modules() if module != "probekit" and layer(module) < 0} == set()


def test_imports_point_downwards() -> None:
    upwards = {
        f"{module} imports {name}"
        for module, path in modules().items()
        for name, _ in imports(path)
        if module != "probekit" and name.startswith("probekit.") and layer(name) > layer(module)
    }
    assert upwards == set()


def test_torch_is_imported_where_it_belongs() -> None:
    found = {
        (module, at_once)
        for module, path in modules().items()
        for name, at_once in imports(path)
        if name.partition(".")[0] == "torch" and not module.startswith(TORCH_AT_THE_TOP)
    }
    assert {module for module, at_once in found if at_once} == set()
    assert {module for module, _ in found} <= set(TORCH_INSIDE)


def test_heavy_libraries_wait_until_they_are_used() -> None:
    at_once = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name, now in imports(path)
        if now and name.partition(".")[0] in ON_DEMAND and not module.startswith((*TORCH_AT_THE_TOP, *LOADED_LATE))
    ]
    assert not at_once


def test_modules_are_short_and_named_for_what_they_hold() -> None:
    lengths = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    assert {module: length for module, length in lengths.items() if length > LONGEST} == {}
    assert [module for module in modules() if VAGUE & set(module.split("."))] == []


def loaded_by(code: str, **environment: str) -> set[str]:
    """Which heavy libraries a new process has loaded after running this code."""
    script = f"""
import atexit, sys
atexit.register(lambda: print("LOADED", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr))
try:
{code}
except SystemExit:
    pass
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        check=True,
    )
    [line] = [line for line in done.stderr.splitlines() if line.startswith("LOADED")]
    return set(line.split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["--version"], *([name, "--help"] for name in ("extract", "train", "cache", "report", "compare"))],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert loaded_by(f"    from probekit.cli.main import run; run({arguments!r})") == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("    import probekit; dir(probekit)") == set()


@pytest.mark.parametrize("words", ["probekit ", "probekit cache ", "probekit extract --", "probekit extract --dtype "])
def test_shell_completion_loads_nothing_heavy(words: str) -> None:
    asked = {"_PROBEKIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert loaded_by("    from probekit.cli.main import main; main()", **asked) == set()


def test_engines_are_imported_by_who_uses_them_alone() -> None:
    """`pip install probekit` brings none of them: whoever trains here must not need one."""
    lines = """
    import tempfile
    import numpy as np
    from probekit import Run
    from probekit.cache import DiskStore
    from probekit.values import EmbeddingSet
    from probekit.cli import federate, train, unlearn, verify
    import probekit.runs.federations, probekit.runs.nodes, probekit.runs.trials
    with tempfile.TemporaryDirectory() as folder:
        store = DiskStore(folder + "/cache")
        rows = np.random.default_rng(0).normal(size=(40, 3))
        store.adopt(EmbeddingSet.from_numpy(rows, np.arange(40) % 2), "rows")
        run = Run.train(folder + "/run", "rows", clients=4, ridge=0.1, store=store)
        run.unlearn("1")
        run.verify()
"""
    assert not loaded_by(lines) & {*ENGINES, "torch"}


def test_heads_are_trained_served_and_unlearned_without_torch() -> None:
    names = [
        "models.serving",
        "models.estimators",
        "linear.ridge",
        "linear.logistic",
        "federated.training",
        "unlearning.methods.exact",
        "cache",
    ]
    lines = "\n".join(f"    import probekit.{name}" for name in names)
    assert not loaded_by(lines) & ON_DEMAND


def test_the_measure_measures() -> None:
    assert loaded_by("    import scipy.linalg") == {"scipy", "numpy"}
