"""One call: what it takes, what it judges on, and the numbers against scikit-learn's and plain loops."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier

import probekit
from probekit.cache import DiskStore
from probekit.encoding.extract import ExtractProgress
from probekit.errors import InputError, MismatchError
from probekit.evaluation.probe_options import CHOICE_ROWS, LEFT_GROUPS, LEFT_OUT, TEST
from probekit.linear.design import Design
from probekit.linear.leaveout import choose_ridge
from probekit.linear.path import decompose
from probekit.linear.statistics import statistics
from probekit.values import EmbeddingSet

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def digits() -> Arrays:
    rows, labels = load_digits(return_X_y=True)
    return rows / 16, labels


def test_arrays_give_the_head_of_scikit_learn_at_the_chosen_ridge(digits: Arrays) -> None:
    rows, labels = digits
    found = probekit.probe((rows[:1400], labels[:1400]), test=(rows[1400:], labels[1400:]))
    assert found.judged_on == TEST
    theirs = RidgeClassifier(alpha=found.head.ridge * 1400).fit(rows[:1400], labels[:1400])
    assert np.array_equal(found.predict(rows[1400:]), theirs.predict(rows[1400:]))
    assert found.accuracy.hits == int((theirs.predict(rows[1400:]) == labels[1400:]).sum())
    assert found.confusion.counts[3][3] == found.by_class[3].hits
    assert found.chance == np.bincount(labels[1400:]).max() / 397
    chances = found.predict_proba(rows[1400:])
    assert np.allclose(chances.sum(axis=1), 1)
    assert np.array_equal(chances.argmax(axis=1), found.predict(rows[1400:]))


def test_without_a_test_split_every_row_is_judged_by_the_head_of_the_others(digits: Arrays) -> None:
    rows, labels = digits[0][:60], digits[1][:60]
    found = probekit.probe((rows, labels), ridge=0.01)
    assert (found.judged_on, found.test_rows) == (LEFT_OUT, 60)
    hits = 0
    for row in range(60):
        others = np.arange(60) != row
        theirs = RidgeClassifier(alpha=0.01 * 59).fit(rows[others], labels[others])
        hits += int(theirs.predict(rows[[row]])[0] == labels[row])
    assert found.accuracy.hits == hits
    wrong = {one.row for one in found.most_wrong}
    assert len(wrong) == min(12, 60 - hits)


def test_groups_are_left_out_together_and_told_where_they_are_on_both_sides(digits: Arrays) -> None:
    rows, labels = digits[0][:90], digits[1][:90]
    people = [f"patient {number // 6}" for number in range(90)]
    found = probekit.probe((rows, labels), groups=people, ridge=0.01)
    assert found.judged_on == LEFT_GROUPS
    hits = 0
    for start in range(0, 90, 6):
        others = (np.arange(90) < start) | (np.arange(90) >= start + 6)
        theirs = RidgeClassifier(alpha=0.01 * 84).fit(rows[others], labels[others])
        hits += int((theirs.predict(rows[~others]) == labels[~others]).sum())
    assert found.accuracy.hits == hits
    both = probekit.probe(
        (rows, labels), test=(rows[:12], labels[:12]), groups=people, test_groups=["patient 1"] * 6 + ["new"] * 6
    )
    assert both.shared_groups == 1
    assert "1 groups are in both" in repr(both)
    assert both.mean_per_class.how == "bootstrap over groups"
    with pytest.raises(InputError, match="test_groups"):
        probekit.probe((rows, labels), test_groups=people)


def test_a_data_set_is_encoded_once_and_judged_on_its_own_test_split(tmp_path: Path) -> None:
    store = DiskStore(tmp_path / "cache")
    seen: list[ExtractProgress] = []
    found = probekit.probe("packaged:digits", backbone="pixels:8", store=store, progress=seen.append)
    assert (found.rows, found.test_rows, found.judged_on) == (1400, 397, TEST)
    assert sum(now.encoded for now in seen if now.rows == now.total) > 0
    seen.clear()
    again = probekit.probe("packaged:digits", backbone="pixels:8", store=store, progress=seen.append)
    assert {now.encoded for now in seen} == {0}
    assert again.head.digest == found.head.digest
    by_name = probekit.probe("digits-train-8", test="digits-test-8", store=store)
    assert by_name.head.digest == found.head.digest
    with pytest.raises(InputError, match="backbone"):
        probekit.probe("packaged:digits", store=store)
    with pytest.raises(InputError, match="vectors already"):
        probekit.probe("digits-train-8", backbone="pixels:8", store=store)


def test_a_probe_saves_tabulates_and_shows_itself(digits: Arrays, tmp_path: Path) -> None:
    names = np.array([f"<b>{number}</b>" for number in digits[1]])
    found = probekit.probe((digits[0], names))
    folder = found.save(tmp_path / "head")
    assert probekit.load_head(folder).digest == found.head.digest
    assert json.loads((folder / "probe.json").read_text()) == json.loads(json.dumps(found.to_dict(), allow_nan=False))
    with found.to_csv(tmp_path / "probe.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12
    assert int(lines[0]["hits"]) == found.accuracy.hits
    assert float(lines[0]["low"]) == found.accuracy.low
    assert lines[2]["what"] == "<b>0</b>"
    shown = probekit.probe(EmbeddingSet.from_numpy(digits[0], digits[1], source="<script>"))._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown


def test_what_cannot_be_probed_is_refused_with_a_remedy(digits: Arrays) -> None:
    rows, labels = digits
    with pytest.raises(InputError, match="two classes"):
        probekit.probe((rows[:5], np.zeros(5, int)))
    with pytest.raises(InputError, match="has a label"):
        probekit.probe((rows[:5], np.full(5, -1)))
    with pytest.raises(MismatchError, match="same classes"):
        probekit.probe((rows, labels.astype(str)), test=(rows, np.array(["x"] * len(rows))))
    with pytest.raises(InputError, match="Row 2 holds NaN"):
        probekit.probe((np.where(np.arange(6)[:, None] == 2, np.nan, rows[:6]), labels[:6]))
    with pytest.raises(InputError, match="auto"):
        probekit.probe((rows, labels), ridge="best")


def test_the_ridge_of_many_rows_is_chosen_by_some_of_them(digits: Arrays) -> None:
    rows, labels = digits
    path = decompose(statistics(rows, labels, Design(64, 10, intercept="free")))
    whole, some = (choose_ridge(path, rows, labels, most=most) for most in (None, 600))
    assert CHOICE_ROWS == 50_000
    assert some[0] == pytest.approx(whole[0], rel=5)
    place = int(np.argmin(whole[1].squared))
    assert some[1].squared[place] == pytest.approx(whole[1].squared[place], rel=0.2)
    assert not np.array_equal(some[1].squared, whole[1].squared)


def test_vectors_become_a_set_with_ids_by_content() -> None:
    rows = np.arange(12, dtype=np.float16).reshape(4, 3)
    found = EmbeddingSet.from_numpy(
        rows, ["b", "a", "b", "a"], ids=[7, 8, 9, 10], clients=[1, 1, 2, 2], groups=list("xxyy")
    )
    assert found.embeddings.dtype == np.float16
    assert (found.labels.tolist(), found.class_names) == ([1, 0, 1, 0], ("a", "b"))
    assert (found.names, found.clients) == (("7", "8", "9", "10"), ("1", "1", "2", "2"))
    assert found.groups is not None
    assert np.unique(found.groups, return_inverse=True)[1].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    moved = EmbeddingSet.from_numpy(rows[::-1], source="vectors")
    assert list(moved.ids) == list(found.ids)[::-1]
    assert moved.spec == found.spec
    assert EmbeddingSet.from_numpy(rows, source="elsewhere").spec != found.spec
    with pytest.raises(InputError, match="int64"):
        EmbeddingSet.from_numpy(np.ones((2, 2), int))
    with pytest.raises(InputError, match="class numbers, texts or real numbers"):
        EmbeddingSet.from_numpy(rows, np.array([1j, 1, 2, 3]))
