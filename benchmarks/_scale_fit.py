"""From what was measured to the model's constants: which settings are measured, and what follows from which."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from _scale import CACHE, LOCAL_STEPS, ROUNDS, Cost, Machine, audit, closed_form, fedavg, removal, together
from _scale_sizes import Setting

POINTS = (
    Setting(10, 5_000, 512, 10),
    Setting(10_000, 2, 512, 10),
    Setting(100, 100, 512, 1_000),
    Setting(8, 2_100, 2_048, 100),
    Setting(3, 2_200, 4_096, 10),
    Setting(30, 800, 1_024, 50),
    Setting(2_000, 10, 768, 200),
    Setting(16, 700, 768, 300),
    Setting(500, 40, 1_536, 20),
)
AVERAGED = (Setting(10, 5_000, 512, 10), Setting(200, 2, 512, 50), Setting(20, 100, 1_024, 200))
"""What the model is held against, and what FedAvg is. The formulas were settled with these in view."""
FEW, MANY = Setting(50, 2, 512, 10), Setting(20_000, 2, 256, 10)
LARGE, JUDGED, CLASSED = Setting(6, 1_100, 2_048, 20), Setting(20, 1_100, 1_024, 20), Setting(50, 100, 256, 1_000)
"""What its constants are from: few and many clients, large statistics and more of them, many classes."""
FEDAVG = "fedavg"
COMMANDS = ("train", "unlearn", "verify")

Measured = dict[tuple[Setting, str], Cost]


def predicted(at: Setting, on: Machine) -> dict[str, Cost]:
    """What the model says of commands that have all clients in one process."""
    judged, first = audit(at, on), together(at, closed_form(at, on))
    seen = {"train": first, "unlearn": removal(at, on)["server"], "verify": judged["run"]}
    return {**seen, "verify a bundle": judged["bundle"], FEDAVG: together(at, fedavg(at, on))}


def measured_of(kept: Mapping[str, Any]) -> Measured:
    """What was measured, by setting and command."""
    return {(Setting(**one["setting"]), one["command"]): Cost(**one["measured"]) for one in kept["commands"]}


def points_of(found: Measured) -> Iterator[tuple[Setting, str, Cost]]:
    """The measurements that the model is held against."""
    for (at, command), one in found.items():
        if at in (AVERAGED if command == FEDAVG else POINTS):
            yield at, command, one


def machine_of(found: Measured, kernels: Mapping[str, float]) -> Machine:
    """The constants: commands of few clients, what many add to them, and what is left over of large ones."""
    start = {name: found[FEW, name].seconds for name in COMMANDS}
    more = MANY.clients - FEW.clients
    each = {name: (found[MANY, name].seconds - start[name]) / more for name in COMMANDS}
    local = (found[FEW, FEDAVG].seconds - start["train"]) / FEW.clients / (ROUNDS * LOCAL_STEPS)
    known: dict[str, Any] = {"label": dict.fromkeys(COMMANDS, 0.0), "local": local}
    known |= dict.fromkeys(("receive", "second", "judge"), math.inf)  # which take no time

    def rest(at: Setting, command: str) -> float:
        """What the model, as far as it is known, leaves of a command's seconds."""
        model = predicted(at, Machine(start, each, **known, **kernels))[command]
        return max(found[at, command].seconds - model.seconds, 1e-6)

    known["receive"] = JUDGED.clients * JUDGED.dense / rest(JUDGED, "train")
    known["second"] = (LARGE.dense - CACHE) / rest(LARGE, "verify a bundle")
    apart = found[JUDGED, "verify"].seconds - found[JUDGED, "verify a bundle"].seconds
    model = predicted(JUDGED, Machine(start, each, **known, **kernels))
    apart -= model["verify"].seconds - model["verify a bundle"].seconds
    known["judge"] = (JUDGED.clients - 1) * JUDGED.dense / max(apart, 1e-6)
    known["label"] = {name: rest(CLASSED, name) / CLASSED.classes for name in ("unlearn", "verify")}
    return Machine(start, each, **known, **kernels)
