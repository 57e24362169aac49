"""Several labels and real targets over clients: trained, forgotten exactly, certified, purged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

import probekit
from probekit.cache import DiskStore
from probekit.certificates.certificate import Certificate
from probekit.certificates.verdicts import FALSE, PROVEN, verdict_of
from probekit.certificates.verify import Evidence, verify
from probekit.cli.main import run as command
from probekit.errors import InputError
from probekit.values import EmbeddingSet

Array = NDArray[np.float64]
CLAIMS = ("head", "statistics", "retained", "objective", "curvature", "residual", "weights", "excess-loss", "outputs")
MISSING = ("none", "sources", "anywhere")
TARGETS = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DiskStore:
    """A cache with a set of each kind of missing targets, and one of labels."""
    store, generator = DiskStore(tmp_path_factory.mktemp("cache")), np.random.default_rng(5)
    X = generator.normal(size=(240, 12)) + 1
    Y = 3 * (X @ generator.normal(size=(12, TARGETS)) + generator.normal(size=(240, TARGETS))) + 40
    for missing in (*MISSING, "labels"):
        targets = Y.copy()
        if missing == "sources":
            targets[:120, :2] = np.nan
        if missing in ("anywhere", "labels"):
            targets[generator.random(Y.shape) < 0.3] = np.nan
        if missing == "labels":
            targets = np.where(np.isnan(targets), np.nan, targets > np.nanmedian(targets, axis=0))
        names = ("a", "b", "c", "d")
        store.adopt(EmbeddingSet.from_numpy(X, targets, class_names=names, source=missing), missing)
    return store


def ridges(data: EmbeddingSet, rows: NDArray[np.int64], ridge: float) -> Array:
    """scikit-learn's Ridge of every target on the rows that know it; the intercept is a penalised column."""
    assert data.targets is not None
    X, found = np.hstack([data.to_numpy(), np.ones((len(data), 1))]), []
    for y in data.targets.T:
        seen = rows[~np.isnan(y[rows])]
        found.append(Ridge(ridge * len(seen), fit_intercept=False, solver="svd").fit(X[seen], y[seen]).coef_)
    return np.array(found).T


def held(run: Any, store: DiskStore, without: tuple[str, ...] = ()) -> tuple[EmbeddingSet, NDArray[np.int64]]:
    whole = store.open(str(run.folder.inputs["set"]))
    data = whole.select(np.flatnonzero(whole.labels == 0))
    clients = run.folder.partition().clients
    return data, np.concatenate([rows for name, rows in clients.items() if name not in without])


@pytest.mark.parametrize("clients", [4, 30])  # sums, and roots of few rows
@pytest.mark.parametrize("missing", [*MISSING, "labels"])
def test_trained_over_clients_and_forgotten_exactly(
    store: DiskStore, tmp_path: Path, missing: str, clients: int
) -> None:
    run = probekit.Run.train(tmp_path / "run", missing, clients=clients, store=store)
    head: Any = run.folder.head()
    assert head.targets == ("labels" if missing == "labels" else "real")
    assert np.abs(head.params - ridges(*held(run, store), head.ridge)).max() < 1e-8
    run.unlearn(client="2")
    data, rest = held(run, store, ("2",))
    again = probekit.train(
        data.select(rest),
        probekit.Partition({"all": np.arange(len(rest))}, np.zeros(0, np.int64), len(rest), "iid", 0),
        ridge=head.ridge,
    ).head
    left = run.folder.head()
    assert np.abs(left.params - again.params).max() < 1e-9
    assert np.abs(left.params - ridges(data, rest, head.ridge)).max() < 1e-8
    found = run.verify(rows=True)
    assert verdict_of(found.findings, CLAIMS) == PROVEN
    assert run.verify(require=["transition"]).verdict == PROVEN
    run.unlearn(samples=[data.ids[int(rest[0])]])
    assert np.abs(run.folder.head().params - ridges(data, rest[1:], head.ridge)).max() < 1e-8
    assert verdict_of(run.verify(rows=True).findings, CLAIMS) == PROVEN


@pytest.mark.parametrize("options", [{"intercept": "free"}, {"fit_view": "standardise"}, {"view": "l2"}])
def test_other_designs_are_proven_too(store: DiskStore, tmp_path: Path, options: dict[str, Any]) -> None:
    run = probekit.Run.train(tmp_path / "run", "anywhere", clients=6, store=store, ridge=0.02, **options)
    run.unlearn(client="2")
    exact = run.folder.head().params
    assert verdict_of(run.verify(rows=True).findings, CLAIMS) == PROVEN
    other = probekit.Run.train(tmp_path / "other", "anywhere", clients=6, store=store, ridge=0.02, **options)
    other.unlearn(client="2", method="retrain")
    assert np.abs(other.folder.head().params - exact).max() < 1e-10
    assert verdict_of(other.verify(rows=True).findings, CLAIMS) == PROVEN


def test_claims_that_are_too_small_are_false(store: DiskStore, tmp_path: Path) -> None:
    """The verifier's own route, at parameters beside the minimum."""
    run = probekit.Run.train(tmp_path / "run", "anywhere", clients=6, store=store)
    certificate = run.unlearn(client="2").certificate
    assert isinstance(certificate, Certificate)
    after = run.folder.trained()
    moved: Any = replace(after.head, params=after.head.params + np.array([0, 0, 1e-3, 0]))  # type: ignore[type-var]
    claimed = replace(certificate, after={**certificate.after, "head": moved.digest})
    assert after.statistics is not None
    told = {one.name: one.verdict for one in verify(claimed, Evidence(head=moved, statistics=after.statistics))}
    assert (told["weights"], told["residual"], told["excess-loss"]) == (FALSE, FALSE, FALSE)
    data, _ = held(run, store)
    rows = {name: own for name, own in run.folder.partition().clients.items() if name != "2"}
    honest = {one.name: one.verdict for one in verify(certificate, Evidence(after.head, embeddings=data, rows=rows))}
    assert {honest[name] for name in ("weights", "residual", "curvature", "excess-loss")} == {PROVEN}
    swapped = {**rows, "0": rows["1"], "1": rows["0"]}
    given = Evidence(after.head, statistics=after.statistics, embeddings=data, rows=swapped)
    assert {one.name: one.verdict for one in verify(certificate, given)}["statistics"] == FALSE


def test_the_commands(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROBEKIT_CACHE", str(store.root))
    store.adopt(store.open("labels"), "mine")
    place = str(tmp_path / "run")
    assert command(["train", "mine", "--run", place, "--clients", "8", "--server-share", "0.1"]) == 0
    capsys.readouterr()
    assert command(["evaluate", place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"][0]
    assert found["scores"]["mean_auc"]["value"] > 0.7
    assert [one["name"] for one in found["scores"]["by_target"]] == ["a", "b", "c", "d"]
    assert command(["evaluate", place, "mine"]) == 0
    assert "average precision" in capsys.readouterr().out
    assert command(["unlearn", place, "--client", "3"]) == 0
    assert command(["verify", f"{place}/states/0002/certificate.json", "--run", place, "--rows"]) == 7
    assert command(["purge", place, "--yes"]) == 0
    assert command(["unlearn", place, "--client", "5"]) == 0
    assert command(["audit", "influence", place]) == 0
    assert command(["report", place, "-o", str(tmp_path / "report")]) == 0
    capsys.readouterr()
    wanted = {
        "closed form": ["train", "mine", "--run", f"{place}-2", "--method", "fedavg"],
        "wants classes": ["train", "mine", "--run", f"{place}-2", "--method", "logistic", "--ridge", "1"],
        "no classes to divide": ["train", "mine", "--run", f"{place}-2", "--partition", "dirichlet:0.5"],
        "auto:loo": ["train", "mine", "--run", f"{place}-2", "--ridge", "auto:kfold"],
        "no objective noise": ["train", "mine", "--run", f"{place}-2", "--ridge", "1", "--objective-noise", "1"],
        "several labels or real targets": ["audit", "membership", place],
        "--knn judges classes": ["evaluate", place, "--knn", "3"],
    }
    for message, line in wanted.items():
        assert command(line) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_target_that_nobody_knows_and_a_new_class_are_refused(store: DiskStore, tmp_path: Path) -> None:
    data = store.open("sources")
    assert data.targets is not None
    first = data.select(np.arange(120))
    divided = probekit.partition(first.labels, "iid", clients=3, seed=0)
    with pytest.raises(InputError, match="no client has one for a"):
        probekit.train(first, divided, ridge=0.1)
    run = probekit.Run.train(tmp_path / "run", "none", clients=3, store=store)
    with pytest.raises(InputError, match="Only classes can be certified"):
        run.unlearn(client="1", test="none")
    with pytest.raises(InputError, match="Only a class"):
        run.unlearn(relabel={data.ids[0]: 1})


def test_a_probe_becomes_a_run(store: DiskStore, tmp_path: Path) -> None:
    probed = probekit.probe("anywhere", store=store)
    run = probekit.Run.from_probe(tmp_path / "run", probed, clients=5, store=store)
    assert np.abs(run.folder.head().params - probed.head.params).max() < 1e-9
    run.unlearn(client="1")
    assert verdict_of(run.verify(rows=True).findings, CLAIMS) == PROVEN
