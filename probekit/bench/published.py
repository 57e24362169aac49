"""The paper's figures, to stand beside ours; for comparison only."""

from __future__ import annotations

from importlib import resources
from typing import Any

from probekit.arrays import Json
from probekit.bench.experiment import Setting
from probekit.errors import NotFoundError
from probekit.files import parse_json

FILE = "published.json"
METHODS = {
    "F2L2": "fedremoval",
    "FedEraser": "federaser",
    "PGA": "pga",
    "EWSGA": "ew-sga",
    "SGA": "sga",
    "CF": "cf",
    "Flipping": "flipping",
    "Ferrari": "ferrari",
    "FUSED": "fused",
    "Retrain": "retrain",
}


NETWORKS = "full_parameter"
NON_IID = "non_iid_dirichlet"


def published_tables() -> dict[str, Json]:
    content = (resources.files("probekit.bench") / FILE).read_bytes()
    document = parse_json(content)
    assert isinstance(document, dict)
    return document


def published_values(key: str) -> dict[str, tuple[str, str]]:
    """Accuracy and backdoor in percent by our names of methods; `full_parameter.mnist`, or
    `non_iid_dirichlet.mnist.5`.

    The paper counts the backdoor on the client's own poisoned rows, the target's class included.
    """
    if not key:
        return {}
    values: Any = published_tables()
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    if key.startswith(NON_IID) and isinstance(values, list):
        accuracy, backdoor, *retrained = map(str, values)
        return {"fedremoval": (accuracy, backdoor), "retrain": (retrained[0], retrained[1])}
    if not isinstance(values, dict):
        raise NotFoundError(f"The paper has no table {key!r}. See bench/{FILE}.")
    figures = {}
    for theirs, ours in METHODS.items():
        pairs = values.get(theirs)
        if isinstance(pairs, list):
            accuracy, backdoor = (f"{mean} ± {error}" for mean, error in pairs)
            figures[ours] = (accuracy, backdoor)
    return figures


def published_before(setting: Setting) -> str:
    """Accuracy / backdoor before forgetting, of the paper's networks by all rows."""
    values = _of_dataset("linear_vs_conventional_training", setting)
    if not values:
        return ""
    accuracy, backdoor = values[:2] if setting.options(0).linearize else values[2:]
    return f"{accuracy} / {backdoor}"


def published_cost(setting: Setting) -> tuple[str, ...]:
    """GFLOP of an epoch with the approximation, and without it."""
    values = _of_dataset("unlearning_cost_per_epoch", setting)
    return tuple(str(operations) for _, _, operations, *_ in reversed(values))


def _of_dataset(name: str, setting: Setting) -> list[Any]:
    """The values of a table about whole networks; [] where the setting stands beside none."""
    table, _, dataset = setting.published.partition(".")
    values: Any = published_tables()[name]
    found: list[Any] = values.get(dataset, []) if table == NETWORKS else []
    return found
