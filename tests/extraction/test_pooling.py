"""Bags of rows pooled into one vector each: the same as pandas' groupby, read in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError
from probekit.extraction import pooling
from probekit.extraction.vectors import VectorOptions, read_vectors

X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
BAGS = np.array([f"s{number % 7}" for number in np.random.default_rng(1).permutation(30)])
TUMOR = np.array(["yes" if bag in ("s1", "s4") else "no" for bag in BAGS])


def read(path: Path, **options: Any) -> EmbeddingSet:
    (rows,) = read_vectors(path, VectorOptions(**options))[0].values()
    return rows


def label_names(rows: EmbeddingSet) -> list[str]:
    assert rows.labels is not None
    return [rows.class_names[label] for label in rows.labels]


def write(path: Path, **changes: Any) -> Path:
    columns = {"x": X, "slide": BAGS, "label": TUMOR, **changes}
    np.savez(path, **{name: column for name, column in columns.items() if column is not None})
    return path


@given(
    bags=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    pool=st.sampled_from(pooling.POOLS),
    block=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_pooled_rows_are_those_of_a_group_by(
    bags: list[int], pool: pooling.Pool, block: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(len(bags), 3))
    is_bad = generator.random(len(bags)) < 0.2
    vectors[is_bad, 1] = np.nan
    without = np.flatnonzero(generator.random(len(bags)) < 0.2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooling, "BLOCK", block)
        result = pooling.pool_rows(
            vectors,
            {"bag": np.array(bags)},
            pool=pool,
            by="bag",
            required={},
            without=without,
            source="test",
        )
    frame = pd.DataFrame(vectors, index=np.array(bags).astype(str))
    used = ~is_bad & ~np.isin(np.arange(len(bags)), without)
    expected = frame[used].groupby(level=0).agg(pool)
    order = [name for name in dict.fromkeys(frame.index) if name in expected.index]
    assert result.names.tolist() == order
    np.testing.assert_allclose(result.vectors, expected.loc[order], rtol=1e-12)
    assert result.not_finite.tolist() == np.flatnonzero(is_bad).tolist()


@pytest.mark.parametrize("pool", pooling.POOLS)
def test_label_group_client_and_split_are_carried_along(tmp_path: Path, pool: str) -> None:
    site = np.array([f"site {bag[-1]}" for bag in BAGS])
    split = np.array(["test" if bag == "s4" else "train" for bag in BAGS])
    path = write(tmp_path / "tiles.npz", site=site, split=split, tile=np.arange(30))
    options = {"pool": pool, "by": "slide", "client_column": "site", "group_column": "slide"}
    sets, notes = read_vectors(path, VectorOptions(**options))
    assert sorted(sets["train"].columns["key"].tolist()) == sorted({*BAGS} - {"s4"})
    assert label_names(sets["test"]) == ["yes"]
    assert sets["test"].columns["client"].tolist() == ["site 4"]
    assert sets["test"].columns["group"].tolist() == ["s4"]
    expected = getattr(X[BAGS == "s4"], pool)(axis=0)
    np.testing.assert_allclose(sets["test"].to_numpy()[0], expected, rtol=1e-6)
    assert any("30 rows" in note for note in notes)


def test_a_bag_whose_labels_disagree_is_refused_by_name(tmp_path: Path) -> None:
    labels = TUMOR.copy()
    row = int(np.flatnonzero(BAGS == "s4")[0])
    labels[row] = "no"
    path = write(tmp_path / "tiles.npz", label=labels)
    with pytest.raises(
        InputError, match=r"'label' \(--label-column\); 1 of .*s4: no and yes.*--by"
    ):
        read(path, pool="mean", by="slide")
    path = write(tmp_path / "tiles.npz", ward=np.arange(30))
    for option, flag in (("group_column", "--group"), ("client_column", "--client-column")):
        with pytest.raises(InputError, match=rf"'ward' \({flag}\)"):
            read(path, pool="mean", by="slide", **{option: "ward"})
    assert len(read(path, pool="mean", by="slide")) == len({*BAGS})


def test_labels_are_joined_to_bags_or_to_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "tiles.npz", label=None)
    table = pd.DataFrame({"slide": BAGS, "tumor": TUMOR}).drop_duplicates()
    table.to_csv(tmp_path / "slides.csv", index=False)
    expected = read(write(tmp_path / "labelled.npz"), pool="mean", by="slide")
    by_bag = read(path, pool="mean", labels=tmp_path / "slides.csv", join="slide")
    assert by_bag.digest == expected.digest
    np.savez(tmp_path / "plain.npz", x=X)
    pd.DataFrame({"slide": BAGS, "tumor": TUMOR}).to_csv(tmp_path / "tiles.csv", index=False)
    by_row = read(tmp_path / "plain.npz", pool="mean", by="slide", labels=tmp_path / "tiles.csv")
    assert by_row.digest == expected.digest
    table[table["slide"] != "s4"].to_csv(tmp_path / "slides.csv", index=False)
    with pytest.raises(InputError, match=rf"1 of {len({*BAGS})} rows.*first: s4"):
        read(path, pool="mean", labels=tmp_path / "slides.csv", join="slide")


def test_rows_with_nan_are_left_out_of_their_bag(tmp_path: Path) -> None:
    vectors = X.copy()
    row = int(np.flatnonzero(BAGS == "s4")[0])
    vectors[row] = np.inf
    vectors[BAGS == "s1"] = np.nan
    path = write(tmp_path / "tiles.npz", x=vectors)
    with pytest.raises(InputError, match=r"NaN or infinity.*--on-error skip"):
        read(path, pool="max", by="slide")
    rows = read(path, pool="max", by="slide", on_error="skip")
    used = (BAGS == "s4") & (np.arange(30) != row)
    position = rows.columns["key"].tolist().index("s4")
    np.testing.assert_array_equal(rows.to_numpy()[position], X[used].max(axis=0))
    assert "s1" not in rows.columns["key"].tolist()
    assert len(rows.skipped) == np.count_nonzero(~np.isfinite(vectors[:, 0]))


def test_what_pooling_needs_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "tiles.npz")
    with pytest.raises(InputError, match=r"--by\b.*slide"):
        read(path, pool="mean")
    with pytest.raises(InputError, match=r"'slyde' \(--by\).*slide"):
        read(path, pool="mean", by="slyde")
    with pytest.raises(InputError, match="--pool"):
        VectorOptions(by="slide")
    with pytest.raises(InputError, match="'median'"):
        VectorOptions(pool="median")  # type: ignore[arg-type]
    bags = np.array(["", *BAGS[1:]])
    with pytest.raises(InputError, match=r"1 have none"):
        read(write(tmp_path / "tiles.npz", slide=bags), pool="mean", by="slide")
