"""The cost model of docs/scale.md: its constants measured, then held against whole commands as a user runs them.

Without arguments: measure the constants and the points, compare, end with 1 where the model is off by more than 30 %.
--write: keep what was measured in benchmarks/scale.json, and write the page. --page: the page from what was kept.
--point CLIENTS,ROWS,DIMENSION,CLASSES: measure one point and print it.
All of it is CPU seconds of one core (one BLAS thread), the fewest of two sweeps over everything: a machine that is
shared makes everything slower and nothing faster.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # before NumPy is there

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from _measure import finish, report
from _scale import ROUNDS, Cost
from _scale_fit import (
    AVERAGED,
    CLASSED,
    FEDAVG,
    FEW,
    JUDGED,
    LARGE,
    MANY,
    POINTS,
    Measured,
    machine_of,
    measured_of,
    points_of,
    predicted,
)
from _scale_page import page
from _scale_sizes import Setting
from custody import NOT_PROVEN, PROBEKIT, RIDGE, Spent, bench, size

HERE = Path(__file__).parent
KEPT, PAGE = HERE / "scale.json", HERE.parent / "docs" / "scale.md"
OFF = 1.3
SWEEPS = 2
WATCHED = ("sent", "seconds", "memory", "disk")


def commands(at: Setting) -> dict[str, Cost]:
    """`train`, `unlearn` and `verify` as a user runs them, and `verify` of a bundle with sums."""
    with bench(at.clients * at.rows, at.dimension, at.classes) as own:
        run, bundle = Path(own.run(at.clients)), own.folder / "bundle.zip"

        def spent(*arguments: str) -> Spent:
            return own.spent(PROBEKIT, *arguments, "--json", *own.cache, ends=(0, NOT_PROVEN))

        train = spent("train", "rows", "--run", str(run), "--clients", str(at.clients), "--ridge", RIDGE)
        first = size(str(run))
        found = {"train": _cost(train, first, *traffic(run))}
        found["unlearn"] = _cost(spent("unlearn", str(run), "--client", "0"), size(str(run)) - first)
        found["verify"] = _cost(spent("verify", str(run)), size(str(run)))
        spent("bundle", str(run), "--bundle", str(bundle), "--with-sums", "auditor")
        found["verify a bundle"] = _cost(spent("verify", str(bundle)), bundle.stat().st_size)
    return found


def traffic(run: Path) -> tuple[int, int]:
    """Bytes up and down as the run counted them."""
    note = json.loads((run / "states" / "0001" / "trained.json").read_text())
    return sum(one[1] for one in note["traffic"]), sum(one[2] for one in note["traffic"])


def averaging(at: Setting) -> Cost:
    """Twenty rounds of FedAvg as a user runs them."""
    with bench(at.clients * at.rows, at.dimension, at.classes) as own:
        run = own.run(at.clients)
        how = ("--clients", str(at.clients), "--ridge", RIDGE, "--method", FEDAVG, "--rounds", str(ROUNDS))
        spent = own.spent(PROBEKIT, "train", "rows", "--run", run, *how, "--json", *own.cache)
        return _cost(spent, size(run), *traffic(Path(run)))


def _cost(spent: Spent, disk: int, sent: int = 0, received: int = 0) -> Cost:
    return Cost(sent, received, round(spent.cpu, 4), int(spent.megabytes * 2**20), disk)


def sweep() -> tuple[Measured, dict[str, float]]:
    """Everything once: commands of all settings, and kernels by themselves."""
    found: Measured = {}
    for at in (FEW, MANY, LARGE, JUDGED, CLASSED, *POINTS):
        found |= {(at, name): one for name, one in commands(at).items()}
    for at in (FEW, *AVERAGED):
        found[at, FEDAVG] = averaging(at)
    program = (sys.executable, str(HERE / "_kernels.py"))
    rates: dict[str, float] = json.loads(subprocess.run(program, check=True, capture_output=True).stdout)
    return found, rates


def better(one: Cost, other: Cost) -> Cost:
    """The fewest seconds and the most memory."""
    return replace(one, seconds=min(one.seconds, other.seconds), memory=max(one.memory, other.memory))


def measure(sweeps: int, watch: Callable[[Measured, dict[str, float]], None]) -> None:
    """Some sweeps, one after the other, so that a machine that is busy for a while is so for everything."""
    found, rates = sweep()
    watch(found, rates)
    for _ in range(1, sweeps):
        again, faster = sweep()
        found = {key: better(one, again[key]) for key, one in found.items()}
        rates = {name: max(rate, faster[name]) for name, rate in rates.items()}
        watch(found, rates)


def compare(at: Setting, command: str, found: Cost, model: Cost) -> None:
    """Print each ratio of model and measurement; the bar is 30 % either way."""
    said = {"clients": at.clients, "rows": at.rows, "dimension": at.dimension, "classes": at.classes}
    for what in WATCHED:
        ours, theirs = getattr(model, what), getattr(found, what)
        if theirs:
            name = f"{command}, {what}: model over measured"
            off, both = max(ours / theirs, theirs / ours), {"model": ours, "measured": theirs}
            report(name, off, 1.0, bar=OFF, better="lower", **both, **said)


def main() -> None:
    """Measure, compare, and write where that was asked for."""
    asked, last = sys.argv[1:], dict[str, Any]()
    if asked[:1] == ["--point"]:
        found = commands(Setting(*map(int, asked[1].split(","))))
        print(json.dumps({command: one.plain for command, one in found.items()}))
        return

    def keep(found: Measured, kernels: dict[str, float]) -> None:
        listed = [
            {"setting": plain_of(at), "command": name, "measured": one.plain} for (at, name), one in found.items()
        ]
        last.update(kernels=kernels, commands=listed)
        if asked == ["--write"]:
            KEPT.write_text(json.dumps(last, indent=1) + "\n")

    if asked != ["--page"]:
        measure(SWEEPS, keep)
    kept = last or json.loads(KEPT.read_text())
    found = measured_of(kept)
    on = machine_of(found, kept["kernels"])
    print(json.dumps({"name": "constants", **vars(on)}), flush=True)
    for at, command, one in points_of(found):
        compare(at, command, one, predicted(at, on)[command])
    if asked:
        PAGE.write_text(page(kept))
    finish()


def plain_of(at: Setting) -> dict[str, int]:
    """A setting's four numbers."""
    return {name: getattr(at, name) for name in ("clients", "rows", "dimension", "classes")}


if __name__ == "__main__":
    main()
