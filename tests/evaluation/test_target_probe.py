"""Probes of several labels and of real targets, some of them unknown."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score, roc_auc_score

import probekit
from probekit.cache import DiskStore
from probekit.cache.transfer import bring, export
from probekit.errors import InputError, MismatchError
from probekit.evaluation.target_probe import TargetProbe
from probekit.values import EmbeddingSet

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def data() -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 9)) + 1
    return X, X @ generator.normal(size=(9, 3)) + 2 * generator.normal(size=(300, 3))


def labelled(targets: Array) -> Array:
    found = (targets > np.median(targets, axis=0)).astype(float)
    found[np.random.default_rng(1).random(found.shape) < 0.25] = np.nan
    return found


def test_several_labels(data: tuple[Array, Array], tmp_path: Path) -> None:
    X, Y = data[0], labelled(data[1])
    found = probekit.probe((X[:200], Y[:200]), test=(X[200:], Y[200:]))
    assert isinstance(found, TargetProbe)
    for k, one in enumerate(found.scores.by_target):
        seen = ~np.isnan(Y[:200, k])
        alpha = found.head.ridge * seen.sum()
        theirs = Ridge(alpha=alpha, solver="svd").fit(X[:200][seen], Y[:200][seen, k])
        assert np.abs(theirs.coef_ - found.head.params[:-1, k]).max() < 1e-8
        there = ~np.isnan(Y[200:, k])
        truth, scores = Y[200:][there, k], theirs.predict(X[200:][there])
        assert one.auc is not None
        assert one.average_precision is not None
        assert one.auc.value == pytest.approx(roc_auc_score(truth, scores))
        assert one.average_precision.value == pytest.approx(average_precision_score(truth, scores))
        assert one.count == there.sum()
        assert np.array_equal(found.predict(X[200:])[there, k], (scores > 0.5).astype(int))
    chances = found.predict_proba(X[200:])
    assert np.array_equal(chances > 0.5, found.predict(X[200:]) == 1)
    assert len(found.temperatures) == 3
    assert "mean average precision" in repr(found)
    assert "3 labels" in found._repr_html_()
    assert np.array_equal(probekit.predict(probekit.load_head(found.save(tmp_path / "head")), X), found.predict(X))
    assert json.loads((tmp_path / "head" / "probe.json").read_text())["scores"]["mean_auc"]["low"] > 0.5
    lines = list(csv.DictReader(found.to_csv(tmp_path / "a.csv").read_text().splitlines()))
    assert [line["target"] for line in lines] == ["mean", "mean", "0", "0", "1", "1", "2", "2"]
    with pytest.raises(AttributeError, match="`scores`"):
        _ = found.accuracy


def test_real_targets_are_judged_by_rows_left_out(data: tuple[Array, Array]) -> None:
    X, y = data[0], data[1][:, 0].copy()
    y[::7] = np.nan
    found = probekit.probe((X, y), ridge=0.01, groups=np.arange(300) % 50)
    assert isinstance(found, TargetProbe)
    seen, groups = np.flatnonzero(~np.isnan(y)), np.arange(300) % 50
    errors = 0.0
    for group in range(50):
        held, rest = seen[groups[seen] == group], seen[groups[seen] != group]
        one = Ridge(alpha=0.01 * len(rest), solver="svd").fit(X[rest], y[rest])
        errors += float(np.square(one.predict(X[held]) - y[held]).sum()) if len(held) else 0.0
    assert found.scores.mean_r2 is not None
    r2 = 1 - errors / float(np.square(y[seen] - y[seen].mean()).sum())
    assert found.scores.mean_r2.value == pytest.approx(r2, abs=1e-10)
    assert found.scores.mean_r2.how.startswith("bootstrap over groups")
    assert found.main == found.scores.mean_r2
    assert found.rows == len(seen)
    assert found.most_wrong[0].margin >= found.most_wrong[-1].margin > 0
    with pytest.raises(InputError, match="no chances"):
        found.predict_proba(X)


def test_a_set_keeps_its_targets(data: tuple[Array, Array], tmp_path: Path) -> None:
    X, Y = data[0], labelled(data[1])
    Y[5] = np.nan
    made = EmbeddingSet.from_numpy(X, Y, class_names=("rain", "wind", "sun"))
    assert made.labels[5] == -1
    assert np.array_equal(made.labels == -1, np.isnan(Y).all(axis=1))
    assert made.digest != EmbeddingSet.from_numpy(X, np.nan_to_num(Y), class_names=("rain", "wind", "sun")).digest
    store = DiskStore(tmp_path)
    store.adopt(made, "weather")
    again = store.open("weather")
    assert again.targets is not None
    assert np.array_equal(again.targets, Y, equal_nan=True)
    assert again.digest == made.digest
    assert again.class_names == made.class_names
    picked = again.select(np.array([3, 1])).targets
    assert picked is not None
    assert np.array_equal(picked, Y[[3, 1]], equal_nan=True)
    export(store, "weather", tmp_path / "shared", form="dataset")
    other = DiskStore(tmp_path / "other")
    assert other.open(bring(other, tmp_path / "shared")).digest == made.digest
    found = probekit.probe("weather", store=store)
    assert found.head.classes == ("rain", "wind", "sun")
    assert found.rows == (made.labels == 0).sum()


def test_what_cannot_be_probed_is_refused(data: tuple[Array, Array]) -> None:
    X, Y = data
    with pytest.raises(MismatchError, match="same targets"):
        probekit.probe((X, Y), test=(X, np.zeros(300, int)))
    with pytest.raises(MismatchError, match="several labels"):
        probekit.probe((X, np.arange(300) % 3), test=EmbeddingSet.from_numpy(X, Y))
    with pytest.raises(InputError, match="infinite"):
        probekit.probe((X, np.where(np.arange(300)[:, None] == 4, np.inf, Y)))
    with pytest.raises(InputError, match="a matrix of numbers"):
        probekit.probe((X, Y.astype(str)))
    with pytest.raises(InputError, match="None of the 300"):
        probekit.probe((X, np.full((300, 2), np.nan)))
    with pytest.raises(InputError, match="must have shape"):
        EmbeddingSet.from_numpy(X, Y, class_names=("a", "b"))
