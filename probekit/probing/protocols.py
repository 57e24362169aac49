"""Published probes by name: what each sets, where that stands, and what was not verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.arrays import Indices
from probekit.errors import InputError
from probekit.probing import draws

Holdout = Callable[[Indices], Indices]
"""Labels of training rows to the rows that choose C, where there is no validation split."""
Draw = Callable[[Indices, int, int], draws.Drawn]
"""Labels of training rows, shots and the number of draws to the rows of every draw."""

DINO_CS = tuple((10 ** np.linspace(-6, 5, 45)).tolist())
CLIP_CS = tuple((10 ** np.linspace(-6, 6, 97)).tolist())
DINO_NEIGHBORS = ("knn:10", "knn:20", "knn:100", "knn:200")


@dataclass(frozen=True)
class Protocol:
    """What a published probe sets.

    reference: the paper and the file that define it.
    heads: what it evaluates, the first by default.
    settings: fields of ProbeOptions.
    view: which vector of the encoders that it was published with; "" is whatever they return.
    holdout: how validation rows are drawn where the data have none.
    draw: how few-shot rows are drawn.
    full: whether heads of all training rows are evaluated, not few-shot heads only.
    unverified: what was not found in the reference's own files.
    """

    reference: str
    heads: tuple[str, ...]
    settings: Mapping[str, object]
    view: str = ""
    holdout: Holdout | None = None
    draw: Draw | None = None
    full: bool = True
    unverified: tuple[str, ...] = ()

    def merged(self, name: str, typed: Mapping[str, Any]) -> dict[str, Any]:
        """What a person set and what the protocol sets; where they differ, an error."""
        for option, value in self.settings.items():
            found = typed.get(option, value)
            if found != value:
                flag = f"--{option.lower().replace('_', '-')}"
                raise InputError(
                    f"protocol {name} sets {option} ({flag}) to {_shortened(value)}; found "
                    f"{_shortened(found)}. Drop one of the two."
                )
        return {**self.settings, **typed}


def _sweep(Cs: tuple[float, ...], search: str) -> dict[str, object]:
    """A logistic head with the C that is most accurate on validation rows."""
    settings = {"normalize": "none", "C": "auto", "Cs": Cs, "search": search}
    return {**settings, "criterion": "accuracy", "refit": True}


PROTOCOLS: dict[str, Protocol] = {
    "clip": Protocol(
        reference="Radford et al. 2021, arXiv:2103.00020, A.3; openai/CLIP README.md",
        heads=("logistic",),
        settings=_sweep(CLIP_CS, "coarse-to-fine"),
        view="proj",
        holdout=draws.stratified_tenth,
        unverified=(
            "the grid of C and its coarse-to-fine search (read in a summary of A.3)",
            "validation rows where the data have none (here a stratified tenth)",
            "the final fit on training and validation rows",
        ),
    ),
    "dinov2": Protocol(
        reference="Oquab et al. 2023, arXiv:2304.07193; dinov2/eval/log_regression.py and knn.py",
        heads=("logistic", *DINO_NEIGHBORS),
        settings=_sweep(DINO_CS, "grid"),
        view="cls",
        holdout=draws.random_tenth,
    ),
    "dinov3": Protocol(
        reference="Siméoni et al. 2025, arXiv:2508.10104; dinov3/eval/log_regression.py, data.py",
        heads=("logistic", *DINO_NEIGHBORS),
        settings=_sweep(DINO_CS, "grid"),
        view="cls",
        holdout=draws.stratified_tenth,
        draw=draws.dinov3_shots,
    ),
    "patho-bench": Protocol(
        reference="Zhang et al. 2025, arXiv:2502.06750; "
        "patho_bench/experiments/LinearProbeExperiment.py, ExperimentFactory.py",
        heads=("logistic",),
        settings={"normalize": "none", "C": 1.0, "refit": False},
        unverified=("how slides are pooled before",),
    ),
    "mteb": Protocol(
        reference="Muennighoff et al. 2022, arXiv:2210.07316; mteb/abstasks/classification.py",
        heads=("logistic",),
        settings={"normalize": "none", "C": 1.0, "refit": False, "shots": (8,), "draws": 10},
        draw=draws.mteb_shots,
        full=False,
        unverified=("settings of single tasks that differ from the class's defaults",),
    ),
    "big-vision": Protocol(
        reference="Dosovitskiy et al. 2020, arXiv:2010.11929; big_vision/evaluators/fewshot_lsr.py",
        heads=("ridge",),
        settings={
            "normalize": "standardize",
            "alpha": 1024.0,
            "refit": False,
            "shots": (1, 5, 10, 25),
            "draws": 3,
        },
        draw=draws.big_vision_shots,
        full=False,
    ),
}


def describe_protocol(name: str) -> str:
    protocol = PROTOCOLS[name]
    settings = [f"{option} {_shortened(value)}" for option, value in protocol.settings.items()]
    if protocol.view:
        settings.insert(0, f"view #{protocol.view}")
    text = f"Protocol {name} ({protocol.reference}): {', '.join(settings)}."
    if protocol.unverified:
        text += f" Not verified: {'; '.join(protocol.unverified)}."
    return text


def _shortened(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{value[0]:.3g}, ..., {value[-1]:.3g} ({len(value)} values)"
    return str(value)
