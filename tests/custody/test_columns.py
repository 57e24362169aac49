"""Columns that can be asked and not read."""

from __future__ import annotations

import numpy as np

from probekit.custody.columns import WIDTH, matching, salted
from probekit.values.groups import column_text


def test_every_row_is_found_by_its_value_and_no_other() -> None:
    values = ["a", "b", "a", "", "ä", "a "]
    column = salted(values)
    assert column.shape == (6, WIDTH)
    assert matching(column, "a").tolist() == [0, 2]
    assert matching(column, "ä").tolist() == [4]
    assert matching(column, "").tolist() == []
    assert matching(column, "c").tolist() == []
    assert matching(column[[2, 1]], "a").tolist() == [0]
    assert matching(salted([]), "a").tolist() == []


def test_rows_of_one_person_cannot_be_told_to_be_so() -> None:
    column = salted(["a"] * 50)
    assert len(np.unique(column[:, :32], axis=0)) == len(np.unique(column[:, 32:], axis=0)) == 50
    assert not np.array_equal(column, salted(["a"] * 50))


def test_values_are_compared_as_text() -> None:
    assert [column_text(one) for one in (17, 17.0, "17", 1.5, None, float("nan"), True)] == [
        *("17", "17", "17", "1.5", "", "", "True")
    ]
