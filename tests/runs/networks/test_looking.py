"""Evaluating, reporting, auditing and purging runs of whole networks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import InputError
from probekit.runs.folder import RunFolder
from tests.cli.networks.shop import (
    Shop,
    certificate,
    minimum,
    network_head,
)
from tests.runs.conftest import Opened


def test_evaluate_tells_states_apart(poisoned: Path, opened: Opened) -> None:
    opened(poisoned).unlearn("0")
    for state, success in ((1, 0.9), (2, None)):
        value = opened(poisoned).evaluate("test", triggered="test-triggered", state=state).plain
        assert (value["state"], value["head"]) == (state, network_head(poisoned, state).digest)
        assert value["results"][0]["accuracy"]["value"] > 0.8
        found = value["backdoor"]
        if success is not None:
            assert found["head"]["excluding_target"]["value"] > success
        else:
            assert found["head"]["excluding_target"]["value"] < 0.2
        assert found["difference_to_retraining"] < 0.05
    # state 2 was trained anew on its rows, and is its own reference
    assert len(list((poisoned / "references").iterdir())) == 1


def test_the_servers_rows_flatter_a_network_that_was_pretrained_on_them(trained: Path, opened: Opened) -> None:
    value = opened(trained).evaluate().plain
    assert "pretrained on" in value["results"][0]["meaning"]


def test_few_shot_curves_are_of_heads(trained: Path, opened: Opened) -> None:
    with pytest.raises(InputError, match=re.escape("whole network")):
        opened(trained).evaluate("test", shots=[1, 2])


def test_the_report_tells_margins_and_bounds(poisoned: Path, opened: Opened, shop: Shop) -> None:
    opened(poisoned).unlearn("0", method="fedremoval-pcg:10")
    value = opened(poisoned).report(["test"], triggered="test-triggered").write(Path(poisoned) / "report")
    page = (poisoned / "report" / "report.md").read_text()
    assert len(value["pictures"]) >= 4
    assert all((poisoned / "report" / one).is_file() and one in page for one in _files(value["pictures"]))
    last = value["stages"][-1]
    gap = float(np.linalg.norm(network_head(poisoned, 2).params - minimum(poisoned, shop.store, 2)))
    assert np.isclose(last["distance"], gap, rtol=1e-3)
    assert last["distance"] <= last["bound"]
    margins = value["judged"][0]["margins"]
    assert (margins["rows"], margins["certified"]) == (45, 45)
    assert {one["client"] for one in value["influence"]["clients"]} == {"0", "1", "2"}
    success = next(one for one in value["comparison"] if one["measure"].startswith("backdoor success"))
    assert success["heads"]["before"]["value"] > success["heads"]["after"]["value"]


def _files(pictures: Any) -> list[str]:
    found = pictures.values() if isinstance(pictures, dict) else pictures
    return [one if isinstance(one, str) else one["file"] for one in found]


def holds(folder: Path, secret: bytes) -> list[Path]:
    """The files below a folder that contain these bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_purge_leaves_no_byte_of_the_forgotten(trained: Path, shop: Shop, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(shop.cache, tmp_path / "cache"))
    run = Run.open(trained, store=DiskStore(cache))
    folder = RunFolder.open(trained)
    kept = folder.trained().gradients
    assert kept is not None
    embeddings, partition = folder.embeddings(DiskStore(cache)), folder.partition()
    rows = [embeddings.embeddings[int(row)].tobytes() for row in partition.clients["1"]]
    secrets = [np.ascontiguousarray(kept.aggregate["1"]).tobytes(), folder.head().params.tobytes()]
    run.unlearn("1")
    run.report().write(trained / "report")
    assert len(list((trained / "references").iterdir())) == 1  # state 2 is its own
    assert all(holds(trained, secret) for secret in secrets)
    assert all(holds(cache, row) for row in rows)
    gone = run.purge(rows=True, yes=True).cache
    assert gone is not None
    assert (gone.remains, gone.rows) == ((), 2 * 24)  # triggered, too
    assert not (trained / "references").exists()
    assert not (trained / "report").exists()
    assert RunFolder.open(trained).states() == [2]
    assert not [secret for secret in [*secrets, *rows] if holds(trained, secret) or holds(cache, secret)]
    assert run.verify().intact
    run.unlearn("2")
    assert run.verify(certificate(trained, 3)).intact
    run.report().write(trained / "report")


def test_audits_work_or_say_why_not(trained: Path, opened: Opened) -> None:
    value = opened(trained).duplicates(test="test").plain
    assert value.get("across") == []
    value = opened(trained).influence().plain
    assert "bounds only" in value["computed_from"]
    assert {one["client"]: one["distance"] for one in value["clients"]} == dict.fromkeys(("0", "1", "2"))
    before = network_head(trained).params
    for one in value["clients"]:
        copied = shutil.copytree(trained, f"without-{one['client']}")
        opened(copied).unlearn(one["client"], method="retrain")
        assert np.linalg.norm(network_head(Path(copied), 2).params - before) <= one["bound"]
    options: list[dict[str, str]] = [{}, {"client": "0"}, {"unseen": "test"}]
    for more in options:
        with pytest.raises(InputError, match="heads in closed form; this model has none"):
            opened(trained).membership(**more)
