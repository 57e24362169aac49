"""Differences from a baseline on the same rows, against McNemar's and Holm's own formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from probekit.embeddings import EmbeddingSet, Encoding
from probekit.errors import InputError
from probekit.extraction.sources import RowSplits
from probekit.probing import ProbeResult, probe

Make = Callable[..., tuple[NDArray[Any], NDArray[Any]]]


def hits_of(result: ProbeResult, head: str, X: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(result.heads[head].predict(X) == y)


def test_heads_are_compared_with_a_head(make_clusters: Make) -> None:
    train = make_clusters(60, signal=1.0)
    X, y = make_clusters(400, signal=1.0, seed=1)
    heads = ("ridge", "nearest-mean", "lda")
    result = probe(train, test=(X, y), heads=heads, against="ridge", controls=False)
    assert [item.head for item in result.differences] == ["nearest-mean", "lda"]
    base = hits_of(result, "ridge", X, y)
    p_values = []
    for item in result.differences:
        hits = hits_of(result, item.head, X, y)
        gained, lost = (hits & ~base).sum(), (base & ~hits).sum()
        p_values.append(chi2.sf((gained - lost) ** 2 / (gained + lost), 1))
        assert item.difference is not None
        assert item.difference.value == pytest.approx(hits.mean() - base.mean())
        assert item.difference.count == 400
    low, high = np.sort(p_values)
    expected = np.where(p_values == low, 2 * low, max(2 * low, high))
    found = [item.difference.p_value for item in result.differences if item.difference]
    assert found == pytest.approx(np.minimum(expected, 1).tolist())


def layer(number: int, rows: int = 150, seed: int = 0) -> EmbeddingSet:
    generator = np.random.default_rng([seed, number])
    labels = np.random.default_rng(seed).integers(0, 3, rows)
    vectors = generator.normal(size=(rows, 5))
    vectors[np.arange(rows), labels] += number
    made = EmbeddingSet.from_numpy(vectors, labels, source="photos")
    ids = np.random.default_rng(seed).integers(0, 256, (rows, 32), np.uint8)
    encoding = Encoding(f"hf:vit{number}#cls", {"view": "cls", "layer": number})
    return replace(made, ids=ids, encoding=encoding)


def splits(number: int, test_seed: int = 9) -> RowSplits:
    return RowSplits(layer(number), test=layer(number, seed=test_seed))


def test_backbones_are_compared_with_a_backbone_on_the_same_samples() -> None:
    result = probe(
        [splits(1), splits(3), splits(2, test_seed=8)],
        heads=("ridge", "lda"),
        controls=False,
    )
    from probekit.probing.against import differences

    items = differences(result.cells, "hf:vit1")
    assert [(item.backbone, item.head) for item in items] == [
        (name, head) for name in ("hf:vit3", "hf:vit2") for head in ("ridge", "lda")
    ]
    for item in items[:2]:
        assert item.difference is not None
        assert item.difference.differs
        assert 0.1 < item.difference.value < 0.6
    for item in items[2:]:
        assert item.difference is None
        assert "different rows" in item.error


def test_what_does_not_differ_is_marked(make_clusters: Make) -> None:
    data = make_clusters(120)
    same = probe(data, heads=("knn:120", "knn:119"), against="knn:120", controls=False)
    (item,) = same.differences
    assert item.difference is not None
    assert not item.difference.differs
    assert "no difference shown" in str(same)
    assert same.to_dict()["differences"][0]["difference"]["differs"] is False


def test_other_metrics_are_compared_too(make_clusters: Make, tmp_path: Path) -> None:
    """Those need more than hits: recorded cells are computed again."""
    vectors, labels = make_clusters(200, classes=2, signal=1.0)
    options = {"heads": ("ridge", "nearest-mean"), "metric": "auroc", "controls": False}
    result = probe((vectors, labels), **options, record=tmp_path / "r.jsonl")
    assert result.differences == ()
    for _ in range(2):
        again = probe((vectors, labels), **options, record=tmp_path / "r.jsonl", against="ridge")
        (item,) = again.differences
        assert item.difference is not None
        assert item.difference.metric == "auroc"
    accuracy = {**options, "metric": "accuracy", "record": tmp_path / "a.jsonl"}
    first = probe((vectors, labels), **accuracy, against="ridge")
    recorded = probe((vectors, labels), **accuracy, against="ridge")
    assert recorded.heads == {}
    assert recorded.differences == first.differences


def test_a_baseline_that_no_cell_has_is_refused_at_once(make_clusters: Make) -> None:
    with pytest.raises(InputError, match=r"--against.*Did you mean ridge"):
        probe(make_clusters(60), heads=("ridge", "lda"), against="rigde")


@pytest.mark.parametrize(
    "options", [{"heads": "ridge"}, {"heads": "ridge", "protocol": "big-vision"}]
)
def test_a_baseline_alone_is_refused(options: dict[str, Any], make_clusters: Make) -> None:
    with pytest.raises(InputError, match="--against"):
        probe(make_clusters(60), against="ridge", **options)
