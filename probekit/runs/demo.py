"""The whole story on digits: a backdoor that one client planted, and that client forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from probekit.arrays import Json
from probekit.cache import Cache
from probekit.evaluation.unlearning import AFTER, BEFORE, MINIMUM, RETRAINED
from probekit.progress import Progress, silent
from probekit.runs.evaluate import RunEvaluation, evaluate_run
from probekit.runs.rows import SERVER
from probekit.runs.train import train
from probekit.runs.verify import verify_run

DATA = "packaged:digits"
BACKBONE = "pixels:8"
CLIENTS = 5
POISONED = "3"
POISON = f"client={POISONED},trigger=square:size=2,target=0"


@dataclass(frozen=True)
class Way:
    """A way to forget, in a run of its own."""

    folder: str
    method: str
    server_share: float


WAYS = (
    Way("exact", "exact", 0.3),
    Way("fedremoval", "fedremoval", 0.3),
    Way("fedremoval-few-rows", "fedremoval", 0.02),
)
"""The server of the last has too few rows of its own for a step with their curvature."""


@dataclass(frozen=True)
class DemoLine:
    """A head: accuracy, backdoor success, distance to the minimum, and what is certified of it.

    verified: the exit code of `verify`: 0 true, 7 farther from the minimum than the run tolerates.
    """

    head: str
    accuracy: float
    backdoor: float
    distance: float
    certified: float | None = None
    verified: int | None = None


@dataclass(frozen=True, eq=False)
class Demo:
    """The evaluated runs, and a line for each head that is worth comparing."""

    evaluations: tuple[RunEvaluation, ...]
    lines: tuple[DemoLine, ...]

    def to_dict(self) -> dict[str, Json]:
        return {
            "heads": [vars(line) for line in self.lines],
            "runs": [str(evaluation.run.folder) for evaluation in self.evaluations],
        }


def run_demo(
    folder: Path, *, backbone: str = BACKBONE, cache: Cache, progress: Progress = silent
) -> Demo:
    """Train with a poisoned client, forget it in several ways, and evaluate each.

    What an earlier demo left in the folder is used again.
    """
    evaluations = []
    for way in WAYS:
        run = train(
            DATA,
            run=folder / way.folder,
            backbone=backbone,
            clients=CLIENTS,
            poison=POISON,
            server_share=way.server_share,
            cache=cache,
            progress=progress,
        )
        run.unlearn(client=POISONED, method=way.method, progress=progress)
        evaluations.append(evaluate_run(run, progress=progress))
    first = evaluations[0]
    lines = [_line(f"trained with client {POISONED}", first, BEFORE)]
    for way, evaluation in zip(WAYS, evaluations, strict=True):
        server = int((evaluation.run.newest.rows.roles == SERVER).sum())
        note = f", {server} server rows" if way.method == "fedremoval" else ""
        lines.append(_line(f"forgotten by {way.method}{note}", evaluation, AFTER))
    lines.append(_line(f"retrained without client {POISONED}", first, RETRAINED))
    return Demo(tuple(evaluations), tuple(lines))


def _line(title: str, evaluation: RunEvaluation, name: str) -> DemoLine:
    measures = evaluation.unlearning.heads[name]
    distance = evaluation.unlearning.distances[MINIMUM][name]
    line = DemoLine(title, measures["test"].value, measures["backdoor"].value, distance)
    certificate = evaluation.run.certificate
    if name != AFTER or certificate is None:
        return line
    run = evaluation.run
    verified = verify_run(run.folder, cache=run.cache, forgot=[f"client={POISONED}"])
    return replace(line, certified=certificate.distance, verified=verified.exit_code)
