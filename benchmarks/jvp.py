"""Whole networks: curvature products against torch.func and curvlinops, removal against Adam and plain CG, memory.

Fashion-MNIST's perceptron 784-100-50-10 (84,060 parameters), pretrained for 50 epochs as in the paper. The data set
is installed into the default cache first, as `probekit dataset get fashion-mnist` does it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import finish, race, report
from curvlinops import GGNLinearOperator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from probekit.datasets.installed import install
from probekit.errors import SolverError
from probekit.files import default_root
from probekit.jacobian.curvature import CurvatureSolver
from probekit.jacobian.linearize import Linearized, LinearizedRows, linearize
from probekit.linear.solvers import ConjugateGradient, Operator, residual_of
from probekit.models.networks import network
from probekit.models.pretraining import Pretraining, pretrain

SHAPE, CLASSES, ROWS, FEW = (1, 28, 28), 10, 6000, 600
Array = NDArray[np.float64]


def data() -> tuple[Tensor, NDArray[np.int64]]:
    """6,000 pictures, normalised, and their labels."""
    folder = install(
        "fashion-mnist", default_root(), progress=lambda step: print(json.dumps({"data": step}), flush=True)
    )
    order = np.random.default_rng(0).permutation(60_000)[:ROWS]
    images = np.load(folder / "train-images.npy", mmap_mode="r")[order] / 255
    labels = np.load(folder / "train-labels.npy")[order].astype(np.int64)
    return torch.from_numpy((images[:, None] - 0.2859) / 0.3530), labels


def two_calls(rows: LinearizedRows, module: nn.Module, v: Array) -> Callable[[], Tensor]:
    """J^T J v by torch.func.jvp, then torch.func.vjp, over the same batches."""
    params = dict(zip(rows.model.names, rows.model.base, strict=True))
    tangents = dict(zip(rows.model.names, rows.model.split(v), strict=True))

    def product() -> Tensor:
        total = torch.zeros(rows.model.size, dtype=rows.model.dtype)
        with torch.no_grad():
            for some in rows.input_batches():

                def outputs(p: dict[str, Tensor], x: Tensor = some) -> Any:
                    return functional_call(module, p, (x,))

                _, pushed = jvp(outputs, (params,), (tangents,))
                _, pull = vjp(outputs, params)
                total += torch.cat([one.reshape(-1) for one in pull(pushed)[0].values()])
        return total

    return product


def products(module: nn.Module, inputs: Tensor, labels: NDArray[np.int64], *, name: str) -> None:
    """Our product against two raw calls and against curvlinops, in float32."""
    own = module.float()
    rows = linearize(own).over(inputs.float())
    v = np.random.default_rng(1).standard_normal(rows.shape)
    curvature, raw = rows.curvature(0.0), two_calls(rows, own, v)
    batches = zip(rows.input_batches(), torch.from_numpy(labels).split(rows.plan.batch), strict=True)
    aims = [(x, nn.functional.one_hot(y, CLASSES).float()) for x, y in batches]
    loss = nn.MSELoss(reduction="sum")
    theirs = GGNLinearOperator(own, loss, list(own.parameters()), aims, check_deterministic=False)
    column = torch.from_numpy(v[:, 0]).float()
    wanted = raw().double().numpy() / rows.count
    for found in (curvature.matvec(v)[:, 0], (theirs @ column).double().numpy() / rows.count / 2):
        assert np.linalg.norm(found - wanted) < 1e-4 * np.linalg.norm(wanted)
    first, second = race(lambda: curvature.matvec(v), raw)
    report(f"{name}: curvature product over jvp then vjp", first, second, bar=1.2, better="lower", unit="seconds")
    first, second = race(lambda: curvature.matvec(v), lambda: theirs @ column)
    report(f"{name}: curvature product over curvlinops", first, second, bar=1.0, better="lower", unit="seconds")


def solved(rows: LinearizedRows, gradient: Array, ridge: float, *, bar: float | None) -> None:
    """Solve, and hold the true residual to its bar (or only print it)."""
    solver = CurvatureSolver(tolerance=1e-5 if bar is None else bar)
    began = time.perf_counter()
    try:
        solution = solver.solve(rows.curvature(ridge), gradient)
    except SolverError as error:
        solution = error.best  # type: ignore[assignment]
    took = time.perf_counter() - began
    true = residual_of(rows.cast(torch.float64).curvature(ridge), solution.value, gradient)
    what = f"{rows.count} rows, ridge {ridge:g}: true relative residual"
    more = {"seconds": round(took, 3), "steps": solution.steps, "way": solution.method}
    if bar is None:
        print(json.dumps({"name": what, "reached": true, **more}), flush=True)
    else:
        report(what, true, 1.0, bar=bar, better="lower", **more)


class LateError(Exception):
    """The time is over."""


class Timed:
    """An operator that stops when its time is over or the residual is reached."""

    def __init__(self, operator: Operator, seconds: float) -> None:
        self.operator, self.end = operator, time.perf_counter() + seconds

    def matvec(self, v: Array) -> Array:
        """The product, in time."""
        if time.perf_counter() > self.end:
            raise LateError
        return self.operator.matvec(v)

    def dense(self) -> Array | None:
        """None."""
        return None


class RawCurvature:
    """The curvature by two torch.func calls per batch."""

    def __init__(self, rows: LinearizedRows, ridge: float) -> None:
        self.rows, self.ridge = rows, ridge

    def matvec(self, v: Array) -> Array:
        """J^T J v / n + ridge v."""
        found = two_calls(self.rows, self.rows.model.module, v)().double().numpy()
        return np.asarray(found[:, None] / self.rows.count + self.ridge * v)

    def dense(self) -> Array | None:
        """None."""
        return None


def plain(rows: LinearizedRows, gradient: Array, ridge: float, *, limit: float, goal: float) -> float:
    """The seconds until plain CG reaches the goal (its true residual, in float64), or infinity."""
    began = time.perf_counter()
    try:
        found = ConjugateGradient(goal, 10**6).solve(Timed(RawCurvature(rows, ridge), limit), gradient)
    except LateError:
        return float("inf")
    took = time.perf_counter() - began
    left = residual_of(rows.cast(torch.float64).curvature(ridge), found.value, gradient)
    return took if left <= goal else float("inf")


def adam(rows: LinearizedRows, gradient: Array, ridge: float, *, limit: float, goal: float) -> float:
    """The seconds until the reference code's Adam (rate 0.01, times 0.9 every 400 steps) reaches it, or infinity."""
    began, operator = time.perf_counter(), RawCurvature(rows, ridge)
    v, first, second = np.zeros_like(gradient), np.zeros_like(gradient), np.zeros_like(gradient)
    scale = float(np.linalg.norm(gradient))
    for step in range(1, 10**6):
        slope = operator.matvec(v) - gradient
        if float(np.linalg.norm(slope)) <= goal * scale:
            return time.perf_counter() - began
        if time.perf_counter() - began > limit:
            break
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        size = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        v = v - 0.01 * 0.9 ** (step // 400) * (first / (1 - 0.9**step)) / size
    return float("inf")


def retained_gradient(model: Linearized, inputs: Tensor, labels: NDArray[np.int64], *, ridge: float) -> Array:
    """What a removal starts from: clients with a backdoor among them train, and the others' gradient is taken there."""
    pictures, aims = inputs.clone(), np.eye(CLASSES)[labels]
    pictures[: len(pictures) // 5, :, 20:27, 20:27] = 1.0
    aims[: len(aims) // 5] = np.eye(CLASSES)[0]
    everyone = model.over(pictures)
    moment = everyone.vjp(aims - everyone.offset) / everyone.count
    params = CurvatureSolver(tolerance=1e-6).solve(everyone.curvature(ridge), moment).value
    others = model.over(pictures[len(pictures) // 5 :])
    residual = others.outputs(params) - aims[len(aims) // 5 :]
    return np.asarray(others.vjp(residual) / others.count + ridge * params)


def removal(model: Linearized, inputs: Tensor, gradient: Array, *, ridge: float) -> None:
    """To a true relative residual of 1e-4: ours against Adam and plain CG, each given 20 times our time."""
    rows = model.over(inputs)
    solver = CurvatureSolver(tolerance=1e-4)
    solver.solve(model.over(inputs[:8]).curvature(ridge), gradient)  # what torch imports late is nobody's time
    began = time.perf_counter()
    solver.solve(rows.curvature(ridge), gradient)
    ours = time.perf_counter() - began
    for name, other in (("Adam", adam), ("plain CG", plain)):
        took = other(rows, gradient, ridge, limit=20 * ours, goal=1e-4)
        arrived = bool(np.isfinite(took))
        what = f"{rows.count} rows, ridge {ridge:g}: {name}'s time to a residual of 1e-4 over ours"
        report(what, took if arrived else 20 * ours, ours, bar=20 - 1e-9, arrived=arrived, unit="seconds")


def memory(inputs: Tensor) -> None:
    """The peak of a product's memory over the prediction: every pass kept."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def read(key: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(key))
        return int(line.split()[1]) * 1024

    pictures = torch.randn(1024, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for name, module, some in (
        ("perceptron", network("mlp", SHAPE, CLASSES).double(), inputs.double()),
        ("convolutions", network("cnn", (3, 32, 32), CLASSES), pictures),
    ):
        model = linearize(module)
        v = np.random.default_rng(0).standard_normal((model.size, 1))
        model.over(some[:8]).curvature(0.1).matvec(v)  # what torch sets up once is not the product's
        reset.write_text("5")
        before = read("VmRSS")
        rows = model.over(some)
        rows.curvature(0.1).matvec(v)
        taken = read("VmHWM") - before
        sizes = (float(taken), float(rows.plan.prediction.total))
        report(f"{name}: peak memory over the prediction", *sizes, bar=1.2, better="lower", unit="bytes")


def main() -> None:
    """All of it; the long comparisons last."""
    inputs, labels = data()
    memory(inputs)
    began = time.perf_counter()
    fresh = network("mlp", SHAPE, CLASSES)
    module = pretrain(fresh, inputs.float(), labels, options=Pretraining())
    print(json.dumps({"name": "pretraining", "seconds": round(time.perf_counter() - began, 3)}), flush=True)
    products(module, inputs, labels, name="784-100-50-10")
    model = linearize(module, dtype=torch.float64)
    ridges = ((1e-1, 1e-5), (1e-2, 1e-5), (1e-3, None))
    gradient = retained_gradient(model, inputs[FEW : 5 * FEW], labels[FEW : 5 * FEW], ridge=1e-2)
    for count in (FEW, ROWS):
        for ridge, bar in ridges:
            solved(model.over(inputs[:count]), gradient, ridge, bar=bar)
    for ridge in (1e-2, 1e-3):
        removal(model, inputs[:FEW], gradient, ridge=ridge)
    finish()


if __name__ == "__main__":
    main()
