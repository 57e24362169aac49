"""The paper's figures, to stand beside ours; for comparison only."""

from __future__ import annotations

from importlib import resources

from probekit.arrays import Json
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


def published_tables() -> dict[str, Json]:
    content = (resources.files("probekit.bench") / FILE).read_bytes()
    document = parse_json(content)
    assert isinstance(document, dict)
    return document


def published_values(key: str) -> dict[str, tuple[str, str]]:
    """Accuracy and backdoor in percent by our names of methods; `full_parameter.mnist`.

    The paper counts the backdoor on the client's own poisoned rows, the target's class included.
    """
    if not key:
        return {}
    table, _, name = key.partition(".")
    tables = published_tables().get(table)
    values = tables.get(name) if isinstance(tables, dict) else None
    if not isinstance(values, dict):
        raise NotFoundError(f"The paper has no table {key!r}. See bench/{FILE}.")
    figures = {}
    for theirs, ours in METHODS.items():
        pairs = values.get(theirs)
        if isinstance(pairs, list):
            accuracy, backdoor = (f"{mean} ± {error}" for mean, error in pairs)
            figures[ours] = (accuracy, backdoor)
    return figures
