"""Few-shot curves against scikit-learn on the rows that the documented stream draws."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from probekit.errors import InputError, MismatchError
from probekit.evaluation.few_shot import _shuffled, few_shot
from probekit.linear.design import Design
from probekit.linear.leaveout import choose_ridge
from probekit.linear.path import decompose
from probekit.linear.statistics import statistics
from probekit.values import EmbeddingSet, EncodingSpec


def embedding_set(seed: int, labels: NDArray[np.int64]) -> EmbeddingSet:
    centres = np.random.default_rng(0).normal(size=(3, 5))
    rows = centres[labels] + np.random.default_rng(seed).normal(size=(len(labels), 5))
    ids = [hashlib.sha256(f"{seed} {row}".encode()).hexdigest() for row in range(len(labels))]
    return EmbeddingSet(EncodingSpec("test", "0" * 64, {}, "proj", "float64"), rows, labels, ids)


TRAIN = embedding_set(1, np.arange(60) % 3)
TEST = embedding_set(2, np.arange(200) % 3)
DESIGN = Design(5, 3, intercept="free")


def test_each_draw_is_ridge_on_its_rows_and_grows_by_adding_rows() -> None:
    curve = few_shot(TRAIN, TEST, design=DESIGN, ridge=0.01, shots=(1, 4, 16), draws=3, seed=7)
    assert [one.shots for one in curve] == [1, 4, 16]
    for one in curve:
        for draw, found in enumerate(one.accuracies):
            generator = np.random.Generator(np.random.PCG64([7, 12, draw]))
            rows = np.concatenate(
                [generator.permutation(np.flatnonzero(TRAIN.labels == k))[: one.shots] for k in range(3)]
            )
            model = Ridge(alpha=0.01 * len(rows)).fit(TRAIN.embeddings[rows], np.eye(3)[TRAIN.labels[rows]])
            predicted = model.predict(np.asarray(TEST.embeddings)).argmax(axis=1)
            assert found == pytest.approx((predicted == TEST.labels).mean())
        assert asdict(one)["mean"] == pytest.approx(sum(one.accuracies) / 3)
        assert one.deviation == pytest.approx(np.std(one.accuracies) * np.sqrt(3 / 2))
    assert curve[0].mean < curve[2].mean


@pytest.mark.parametrize("width", [5, 40])
def test_each_draw_chooses_its_own_ridge_from_two_rows_per_class_on(width: int) -> None:
    wide = [replace(one, embeddings=np.tile(np.asarray(one.embeddings), (1, width // 5))) for one in (TRAIN, TEST)]
    design = Design(width, 3, intercept="free")
    curve = few_shot(*wide, design=design, ridge="auto", shots=(1, 4), draws=2, seed=7)
    for one in curve:
        for draw, ridge in enumerate(one.ridges):
            generator = np.random.Generator(np.random.PCG64([7, 12, draw]))
            rows = np.sort(
                np.concatenate(
                    [generator.permutation(np.flatnonzero(TRAIN.labels == k))[: one.shots] for k in range(3)]
                )
            )
            drawn, labels = np.asarray(wide[0].embeddings)[rows], TRAIN.labels[rows]
            wanted = float(np.square(drawn).sum() / len(rows))
            if one.shots > 1:
                path = decompose(statistics(drawn, labels, design))
                wanted = choose_ridge(path, drawn, labels)[0]
            assert ridge == pytest.approx(wanted, rel=1e-9)
        assert one.test is not None
        assert one.test.value == pytest.approx(one.mean, abs=1 / 200)


def test_a_single_draw_has_no_deviation() -> None:
    (one,) = few_shot(TRAIN, TEST, design=DESIGN, ridge=0.01, shots=(2,), draws=1)
    assert one.deviation is None


def test_curves_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="class 0 has 20"):
        few_shot(TRAIN, TEST, design=DESIGN, ridge=0.01, shots=(1, 21))
    with pytest.raises(InputError, match="found 0"):
        few_shot(TRAIN, TEST, design=DESIGN, ridge=0.01, shots=(0, 2))
    with pytest.raises(InputError, match="draws"):
        few_shot(TRAIN, TEST, design=DESIGN, ridge=0.01, draws=0)
    with pytest.raises(InputError, match="200 of 200"):
        few_shot(TRAIN, replace(TEST, labels=np.full(200, -1)), design=DESIGN, ridge=0.01)
    with pytest.raises(MismatchError):
        few_shot(TRAIN, replace(TEST, spec=replace(TEST.spec, view="pre")), design=DESIGN, ridge=0.01)


def test_examples_of_a_draw_are_of_different_groups() -> None:
    people = np.arange(60) // 6
    train = replace(TRAIN, groups=people)
    for draw in _shuffled(train, 3, 8, draws=4, seed=0):
        assert draw.shape == (3, 8)
        for k, rows in enumerate(draw):
            assert set(TRAIN.labels[rows].tolist()) == {k}
            assert len(set(people[rows].tolist())) == 8
    test = replace(TEST, groups=np.arange(200) // 50)
    (one,) = few_shot(train, test, design=DESIGN, ridge=0.01, shots=(2,), draws=2)
    assert one.test is not None
    assert one.test.how == "wilson over groups"
    with pytest.raises(InputError, match="as many groups of every class; class 0 has 10"):
        few_shot(train, TEST, design=DESIGN, ridge=0.01, shots=(11,))
