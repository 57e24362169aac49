"""How long what is left to compute will take: from cells like it that are there, else from measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from probekit.bench.cells import BenchPlace, CellKey
from probekit.bench.scenario import ABOUT, ScenarioKey
from probekit.federated.training import trainer_named
from probekit.files import read_json

HEAD_RATE = 3e-9
"""CPU seconds for one number of a row in one pass, on one core that nobody else uses."""
NETWORK_RATES = {"jvp": 7e-10, "network": 2.2e-10}
"""CPU seconds for one parameter that a row meets in one pass: linearized, and conventional."""
PARAMETERS = {"mlp": 84_000, "mlp-large": 444_000, "cnn": 1_650_000}
"""Of a convolution as many as a dense network of the same cost has."""
WHOLE = {"jvp": 2.5, "network": 2.7}
"""Scenarios train, and retrain: a linearized network to its minimum, too."""
PART = {"jvp": 0.35, "network": 0.4}
"""A method takes about this share of a training."""
USUAL_WHOLE, USUAL_PART = 3.5, 0.6
Size = tuple[int, int]


@dataclass(frozen=True)
class TimeEstimate:
    """How many cells are there and how many are not, and the CPU seconds that these need."""

    cells: int
    missing: int
    scenarios: int
    seconds: float

    def text(self, jobs: int) -> str:
        """In words."""
        if not self.missing:
            return f"{self.cells} cells, all of them computed before."
        minutes = self.seconds / 60 / max(1, jobs)
        about = f"{minutes:.0f} minutes" if minutes >= 2 else f"{60 * minutes:.0f} seconds"
        return f"{self.missing} of {self.cells} cells and {self.scenarios} scenarios to compute: about {about}."


def estimate(
    place: BenchPlace,
    scenarios: Sequence[ScenarioKey],
    cells: Sequence[CellKey],
    sizes: Mapping[str, Size],
    done: Iterable[tuple[CellKey, float]] = (),
) -> float:
    """The CPU seconds for these scenarios and cells.

    `sizes`: rows and numbers in each, by their digest. `done`: what cells of the same experiment took.
    """
    taken: dict[tuple[str, str], list[float]] = {}
    for cell, used in done:
        taken.setdefault(_like(cell), []).append(used)
    seconds = 0.0
    for key in scenarios:
        whole = WHOLE.get(key.setting.model.kind, USUAL_WHOLE)
        seconds += whole * training_seconds(place, key, sizes[key.data])
    for cell in cells:
        if like := taken.get(_like(cell)):
            seconds += median(like)
            continue
        part, size = PART.get(cell.scenario.setting.model.kind, USUAL_PART), sizes[cell.scenario.data]
        seconds += part * training_seconds(place, cell.scenario, size) + 0.02
    return seconds


def _like(cell: CellKey) -> tuple[str, str]:
    """Alike are cells of a method in a setting, whatever its options and the seed."""
    return cell.scenario.setting.name, cell.method.partition(":")[0]


def training_seconds(place: BenchPlace, key: ScenarioKey, size: Size) -> float:
    """Of one training: as measured, where this one was made, else by what it has to pass over."""
    path = place.root / "scenarios" / key.digest / ABOUT
    if path.is_file():
        return float(read_json(path)["cpu_seconds"]["training"])
    model, trainer, (rows, width) = key.setting.model, trainer_named(key.setting.model.trainer), size
    rounds = getattr(trainer, "rounds", 1)
    batch, steps = getattr(trainer, "batch_size", None), getattr(trainer, "local_steps", None)
    passes = rounds * (getattr(trainer, "local_epochs", None) or (steps or 1))
    if batch is not None and steps is not None:
        passes = rounds * steps * batch * key.setting.clients.number / rows
    if model.kind in NETWORK_RATES:
        parameters = PARAMETERS.get(str(model.options.get("network", "mlp")), PARAMETERS["mlp"])
        return 0.3 + rows * passes * parameters * NETWORK_RATES[model.kind]
    return 0.1 + rows * passes * width * HEAD_RATE
