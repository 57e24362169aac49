"""The rows that a run stands on, from the cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.errors import CorruptError, MismatchError, NotFoundError
from probekit.values import EmbeddingSet


def cached_rows(run: Path, inputs: Mapping[str, Any], rows: NDArray[np.int64] | None, store: DiskStore) -> EmbeddingSet:
    """These rows (None: all) of the set that a run's inputs name; refused if they are no longer the same."""
    if inputs["set"] not in store.sets.digests():
        meant = store.sets.names().get(inputs["name"])
        wanted = f"{run} was trained on set {inputs['name']} ({inputs['set'][:12]})"
        if meant is not None:
            raise MismatchError(
                f"{wanted}; in {store.root} that name now means {meant[:12]}. Train again with `force=True`, or "
                "extract the set as it was."
            )
        raise NotFoundError(
            f"{wanted}, which is not in {store.root}. Extract it again, bring it with `probekit cache import`, or "
            "name its cache (`cache`)."
        )
    found = store.open(inputs["set"])
    found = found if rows is None else found.select(rows)
    if found.digest != inputs["rows"]:
        raise CorruptError(
            f"The set {inputs['name']} in {store.root} is not the one that {run} was trained on, though it "
            "has its name. Run `probekit cache verify`."
        )
    return found
