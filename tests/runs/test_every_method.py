"""Every registered method, on a head, a linearized and a conventional network, by `Run` and by the flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.registry import methods
from tests.cli.conftest import Probekit
from tests.cli.conftest import command as command
from tests.cli.conftest import probekit as probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

FEDAVG: dict[str, Any] = {"clients": 4, "server_share": 0.25, "rounds": 3, "local_steps": 2, "ridge": 0.05}
NETWORK: dict[str, Any] = {"pretrain_epochs": 1, "learning_rate": 0.02}
RUNS: dict[str, dict[str, Any]] = {
    "embeddings": {**FEDAVG, "keep": "statistics"},
    "jvp": {**FEDAVG, **NETWORK, "backend": "jvp", "subset": "1", "keep": "gradients"},
    "network": {**FEDAVG, **NETWORK, "backend": "network"},
}
OWN = {"knot": "knot:clusters=2,assign=random", "sifu": "sifu:share=0.01", "fedau": "fedau", "guo": "guo"}
"""Methods that come with a trainer of their own."""
SPECS = {"ferrari": "ferrari:region=0:2", "sifu": "sifu:epsilon=none"}
QUADRATIC = {"fedremoval", "fedremoval-line", "fedremoval-pcg", "retrain"}
"""Those of losses with one curvature; `retrain` finds a minimum, which a conventional network has not."""
ABSENT = {"embeddings": set[str](), "jvp": {"exact", "guo"}, "network": {"exact", "guo", *QUADRATIC}}


@pytest.fixture(autouse=True)
def rows(shelve: Shelve) -> None:
    """A set to train on."""
    shelve("rows", rows=160)


def trained(store: DiskStore, backend: str, method: str) -> Run:
    """A run that has all that a method could need."""
    name = OWN.get(method, "fedavg")
    path = Path(f"{backend}-{name.partition(':')[0]}")
    if path.exists():
        return Run.open(path, store=store)
    how = {**RUNS[backend], "method": name, **({"keep_history": True} if name == "fedavg" else {})}
    if name != "fedavg":
        how.pop("keep", None)
    if name == "guo":
        how = {"clients": 4, "server_share": 0.25, "method": "guo", "ridge": 100.0, "scaling": "sum"}
    return Run.train(path, "rows", store=store, **how)


@pytest.mark.parametrize("backend", RUNS)
def test_every_method_runs(store: DiskStore, backend: str, tmp_path: Path) -> None:
    for name in methods.names():
        if name in ABSENT[backend]:
            continue
        run = trained(store, backend, name).fork(tmp_path / name)
        before = run.folder.trained()
        if name == "guo":  # a whole client is more than its budget
            asked: dict[str, Any] = {"samples": [store.open("rows").ids[int(run.folder.partition().clients["1"][0])]]}
        else:
            asked = {"client": "1"}
        done = run.unlearn(**asked, method=SPECS.get(name, name))
        after = run.folder.trained()
        assert done.unlearned is not None, name
        assert np.isfinite(after.params).all(), name
        assert not np.array_equal(after.params, before.params), name
        assert ("1" in after.counts) == (name == "guo"), name
        found = run.verify()
        assert found.intact, (name, [one for one in found.findings if one.verdict == "false"])


@pytest.mark.parametrize("backend", RUNS)
def test_what_a_backend_has_not_is_said_in_a_sentence(store: DiskStore, backend: str) -> None:
    for name in sorted(ABSENT[backend]):
        run = trained(store, backend, "fedavg")
        with pytest.raises(InputError, match=r"needs|no exact|not quadratic|Only") as told:
            run.unlearn(client="1", method=name)
        assert len(str(told.value)) < 400, name
        assert run.state == 1, name


def test_every_method_runs_by_the_flags(probekit: Probekit, store: DiskStore, tmp_path: Path) -> None:
    for name in methods.names():
        if name == "guo":
            continue
        run, other = (trained(store, "embeddings", name).fork(tmp_path / f"{name}{copy}") for copy in range(2))
        spec = SPECS.get(name, name)
        code, value, said = probekit("unlearn", str(run.path), "--client", "1", "--method", spec)
        assert code == 0, (name, said)
        assert value["head"] == other.unlearn(client="1", method=spec).plain["head"], name
