"""docs/scale.md is what its model gives, and the model is what commands take: bytes, disk and memory within 30 %."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from probekit.federated.message import Answer
from probekit.federated.summation import StatisticsTree
from probekit.linear.design import ClientStats, Design
from probekit.linear.roots import RootStats, client_statistics
from probekit.runs.stored import write_sums

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
NAMES = ("_scale_sizes", "_scale_text", "_scale", "_scale_fit", "_scale_page")
POINTS = ((60, 2, 512, 10), (6, 600, 512, 40), (100, 20, 256, 200))


class Modules(NamedTuple):
    """The model's parts."""

    sizes: ModuleType
    text: ModuleType
    costs: ModuleType
    fit: ModuleType
    page: ModuleType

    def predicted(self, at: Any, kept: dict[str, Any]) -> Any:
        """What the model says of every command, with the constants that were measured."""
        machine = self.fit.machine_of(self.fit.measured_of(kept), kept["kernels"])
        return self.fit.predicted(at, machine)


@pytest.fixture(scope="module")
def parts() -> Iterator[Modules]:
    """The modules beside the script."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield Modules(*map(importlib.import_module, NAMES))
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in NAMES:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """What the script measured when it last wrote the page."""
    found: dict[str, Any] = json.loads((BENCHMARKS / "scale.json").read_text())
    return found


def test_the_page_is_what_the_model_gives(parts: Modules, kept: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "scale.md").read_text() == parts.page.page(kept), "run benchmarks/scale.py --page"


def test_the_model_is_within_30_percent_of_every_kept_point(parts: Modules, kept: dict[str, Any]) -> None:
    points = [*parts.fit.points_of(parts.fit.measured_of(kept))]
    assert len(points) == 4 * len(parts.fit.POINTS) + len(parts.fit.AVERAGED)
    for at, command, measured in points:
        model = parts.predicted(at, kept)[command]
        for what in ("sent", "seconds", "memory", "disk"):
            found = getattr(measured, what)
            assert not found or 1 / 1.3 < getattr(model, what) / found < 1.3, (at, command, what)


def test_everything_that_breaks_has_a_remedy(parts: Modules) -> None:
    assert set(parts.text.REMEDIES) == set(parts.page.LIMITS)


@pytest.mark.parametrize(("rows", "dimension", "classes"), [(3, 40, 4), (60, 40, 4), (5, 24, 300)])
def test_an_answer_has_the_bytes_that_the_model_says(parts: Modules, rows: int, dimension: int, classes: int) -> None:
    generator = np.random.default_rng(0)
    stats = client_statistics(
        generator.standard_normal((rows, dimension)), np.arange(rows) % classes, Design(dimension, classes)
    )
    arrays = {"gram": stats.gram, "moment": stats.moment}
    if isinstance(stats, RootStats):
        arrays = {"root": stats.root}
    answer = Answer(
        "17", rows, {**arrays, "class_counts": stats.class_counts}, symmetric=("gram",) * (len(arrays) == 2)
    )
    at = parts.sizes.Setting(1, rows, dimension, classes)
    assert at.rooted == isinstance(stats, RootStats)
    apart = at.own_classes - np.count_nonzero(stats.class_counts)  # classes are drawn: this is of their mean
    assert at.answer - 8 * rows * at.rooted * apart == pytest.approx(answer.size, abs=60)


@pytest.mark.parametrize(("clients", "rows"), [(1, 5), (2, 5), (40, 5), (40, 30), (300, 1), (300, 3)])
def test_the_tree_keeps_as_many_sums_as_the_model_says(parts: Modules, tmp_path: Path, clients: int, rows: int) -> None:
    design = Design(4, 2)
    each = ClientStats(design, np.eye(5) * rows, np.ones((5, 2)), np.array([rows - rows // 2, rows // 2]))
    tree = StatisticsTree.of({str(name): each for name in range(clients)}, keep_sums=True)
    assert tree.total.count == clients * rows
    assert len(write_sums(tmp_path, tree)) == parts.sizes.Setting(clients, rows, 4, 2).tree.sums


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_commands_take_the_bytes_disk_and_memory_that_the_model_says(
    parts: Modules, kept: dict[str, Any], point: tuple[int, int, int, int]
) -> None:
    script = (sys.executable, str(BENCHMARKS / "scale.py"), "--point", ",".join(map(str, point)))
    measured = json.loads(subprocess.run(script, check=True, text=True, capture_output=True, cwd=ROOT).stdout)
    model = parts.predicted(parts.sizes.Setting(*point), kept)
    for command, found in measured.items():
        for what in ("sent", "memory", "disk"):
            assert not found[what] or 1 / 1.3 < getattr(model[command], what) / found[what] < 1.3, (command, what)
