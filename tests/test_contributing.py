"""The snippets of CONTRIBUTING.md work as printed: each thing is registered, used and tested by a kit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import registry
from probekit.cache import MemoryStore
from probekit.encoding.extract import extract
from probekit.federated.partition import partition
from probekit.federated.training import train
from probekit.unlearning.choice import unlearn
from probekit.unlearning.request import UnlearnRequest
from tests.unlearning.conftest import embedding_set

TEXT = (Path(__file__).parents[1] / ".github" / "CONTRIBUTING.md").read_text()
REGISTRIES = (registry.methods, registry.trainers, registry.backbones, registry.datasets)


@pytest.fixture
def page() -> Iterator[dict[str, Any]]:
    """The names that the page's snippets define; what they register is forgotten afterwards."""
    before = [dict(one._registered) for one in REGISTRIES]
    scope: dict[str, Any] = {"__name__": __name__}
    for snippet in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(snippet, "CONTRIBUTING.md", "exec", dont_inherit=True), scope)
    yield scope
    for one, known in zip(REGISTRIES, before, strict=True):
        one._registered.clear()
        one._registered.update(known)


def test_the_page_has_a_snippet_for_each_kind_of_plugin(page: dict[str, Any]) -> None:
    assert [len(one._registered) for one in REGISTRIES] == [1, 1, 1, 1]
    assert {"HalfWay", "OneStep", "MeanColour", "Greys"} <= set(page)


def test_the_trainer_and_the_method_of_the_page_work(page: dict[str, Any]) -> None:
    rows = embedding_set()
    divided = partition(rows.labels, "iid", clients=4, server_share=0.2)
    trained = train(rows, divided, ridge=0.1, method="one-step:rate=0.2")
    assert trained.method == "one-step"
    assert trained.solution.steps == 1
    done = unlearn(trained, UnlearnRequest(("2",)), method="half-way:0.25")
    assert done.method == "half-way:0.25"
    assert "2" not in done.trained_after.counts
    assert not np.array_equal(done.trained_after.params, trained.params)


def test_the_backbone_and_the_data_set_of_the_page_work(page: dict[str, Any]) -> None:
    made = extract("mean-colour", "greys:6", store=MemoryStore())
    assert made.embeddings.shape == (6, 3)
    assert made.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert np.allclose(np.asarray(made.embeddings)[:, 0], [row * 255 // 6 for row in range(6)])


def test_the_map_names_every_room() -> None:
    root = Path(registry.__file__).parent
    rooms = {path.name for path in root.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {room for room in rooms if f"`{room}/`" not in TEXT} == set()
