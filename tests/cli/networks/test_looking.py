"""Evaluating, reporting, auditing and purging runs of whole networks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from probekit.cache import DiskStore
from probekit.runs.folder import RunFolder
from tests.cli.conftest import Command, Probekit
from tests.cli.networks.shop import (
    Shop,
    certificate,
    minimum,
    network_head,
    sentence,
)


def test_evaluate_tells_states_apart(poisoned: Path, probekit: Probekit) -> None:
    assert probekit("unlearn", poisoned, "--client", "0")[0] == 0
    for state, success in ((1, 0.9), (2, None)):
        code, value, said = probekit(
            "evaluate", poisoned, "test", "--triggered", "test-triggered", "--state", str(state)
        )
        assert code == 0, said
        assert (value["state"], value["head"]) == (state, network_head(poisoned, state).digest)
        assert value["results"][0]["accuracy"]["value"] > 0.8
        found = value["backdoor"]
        if success is not None:
            assert found["head"]["excluding_target"]["value"] > success
        else:
            assert found["head"]["excluding_target"]["value"] < 0.2
        assert found["difference_to_retraining"] < 0.05
    assert len(list((poisoned / "references").iterdir())) == 2


def test_the_servers_rows_flatter_a_network_that_was_pretrained_on_them(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("evaluate", trained)
    assert code == 0, said
    assert "pretrained on" in value["results"][0]["meaning"]


def test_few_shot_curves_are_of_heads(trained: Path, probekit: Probekit) -> None:
    code, _, said = probekit("evaluate", trained, "test", "--shots", "1,2")
    assert (code, "whole network" in sentence(said)) == (2, True)


def test_the_report_tells_margins_and_bounds(poisoned: Path, probekit: Probekit, shop: Shop) -> None:
    assert probekit("unlearn", poisoned, "--client", "0")[0] == 0
    code, value, said = probekit("report", poisoned, "--test", "test", "--triggered", "test-triggered")
    assert code == 0, said
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


def test_purge_leaves_no_byte_of_the_forgotten(trained: Path, command: Command, shop: Shop, tmp_path: Path) -> None:
    cache = Path(shutil.copytree(shop.cache, tmp_path / "cache"))
    base = ("--cache", cache, "--json")
    opened = RunFolder.open(trained)
    kept = opened.trained().gradients
    assert kept is not None
    embeddings, partition = opened.embeddings(DiskStore(cache)), opened.partition()
    rows = [embeddings.embeddings[int(row)].tobytes() for row in partition.clients["1"]]
    secrets = [np.ascontiguousarray(kept.aggregate["1"]).tobytes(), opened.head().params.tobytes()]
    assert command("unlearn", trained, "--client", "1", *base).code == 0
    assert command("report", trained, *base).code == 0
    assert len(list((trained / "references").iterdir())) == 2
    assert all(holds(trained, secret) for secret in secrets)
    assert all(holds(cache, row) for row in rows)
    gone = command("purge", trained, "--rows", "--yes", *base)
    assert (gone.code, gone.value["cache"]["remains"], gone.value["cache"]["rows"]) == (0, [], 2 * 24), (
        gone.err
    )  # triggered, too
    assert not (trained / "references").exists()
    assert not (trained / "report").exists()
    assert RunFolder.open(trained).states() == [2]
    assert not [secret for secret in [*secrets, *rows] if holds(trained, secret) or holds(cache, secret)]
    assert command("verify", certificate(trained), "--run", trained, *base).code == 0
    assert command("unlearn", trained, "--client", "2", *base).code == 0
    assert command("verify", certificate(trained, 3), "--run", trained, *base).code == 0
    assert command("report", trained, *base).code == 0


def test_audits_work_or_say_why_not(trained: Path, probekit: Probekit) -> None:
    code, value, said = probekit("audit", "duplicates", trained, "--test", "test")
    assert (code, value.get("across")) == (0, []), said
    code, value, said = probekit("audit", "influence", trained)
    assert code == 0, said
    assert "bounds only" in value["computed_from"]
    assert {one["client"]: one["distance"] for one in value["clients"]} == dict.fromkeys(("0", "1", "2"))
    before = network_head(trained).params
    for one in value["clients"]:
        copied = shutil.copytree(trained, f"without-{one['client']}")
        assert probekit("unlearn", copied, "--client", one["client"], "--method", "retrain")[0] == 0
        assert np.linalg.norm(network_head(Path(copied), 2).params - before) <= one["bound"]
    for more in ((), ("--client", "0"), ("--unseen", "test")):
        code, _, said = probekit("audit", "membership", trained, *more)
        assert (code, "a whole network has none" in sentence(said)) == (2, True)


def test_people_read_it_without_json(trained: Path, command: Command, shop: Shop) -> None:
    base = ("--cache", shop.cache)
    for arguments in (
        ("unlearn", trained, "--client", "1", "--test", "test"),
        ("verify", certificate(trained), "--run", trained),
        ("evaluate", trained, "test", "--triggered", "test-triggered"),
        ("report", trained),
        ("audit", "influence", trained),
    ):
        found = command(*arguments, *base)
        assert found.code == 0, (arguments, found.err)
        assert len(found.out) > 100
