"""The tables of a report and the numbers in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.evaluation.unlearning import ClientChange, HeadEvaluation, UnlearningEvaluation
from probekit.report.tables import (
    Cost,
    ReportData,
    bounds_table,
    clients_table,
    costs_table,
    format_bound,
    format_bytes,
    format_number,
    heads_table,
    runs_table,
)


@given(st.floats(0, 1e300))
def test_a_printed_bound_is_never_below_the_bound(value: float) -> None:
    assert value <= float(format_bound(value)) <= value * 1.1 + 5e-324


@pytest.mark.parametrize(
    ("count", "printed"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (10**17, "100000.0 TB"),
    ],
)
def test_bytes(count: int, printed: str) -> None:
    assert format_bytes(count) == printed


def test_what_is_not_known_is_left_empty() -> None:
    assert [format_number(None), format_bound(None), format_bytes(None)] == ["", "", ""]


def test_heads_stand_beside_each_other(data: ReportData) -> None:
    table = heads_table(data.evaluation)
    assert table.headers == (
        "", "before", "after", "retrained", "minimum", "after minus retrained",
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in table.rows}
    estimates = {name: head.estimates for name, head in data.evaluation.heads.items()}
    backdoor = rows["backdoor success, other classes"]
    assert backdoor[0].startswith(f"{100 * estimates['before']['backdoor'].value:.1f}%")
    difference = estimates["after"]["test"].value - estimates["retrained"]["test"].value
    assert rows["accuracy, test rows"][-1] == f"{100 * difference:+.1f} points"
    assert rows["distance to the minimum"][1] == f"{data.truth:.3g}"
    assert rows["distance to the minimum"][3] == ""
    assert "of the test rows" in table.note
    assert {len(row) for row in table.rows} == {len(table.headers)}


def test_bound_and_truth(data: ReportData) -> None:
    rows = dict(bounds_table(data).rows)
    assert rows["certified: at most"] == "0.013"
    assert rows["a priori: at most"] == "2.5"
    assert rows["test rows that provably keep their class"] == "388 of 400"
    assert len(bounds_table(replace(data, certificate=None, a_priori=None)).rows) == 1


def test_the_forgotten_come_first_and_then_who_lost_most() -> None:
    changes = [
        ClientChange(f"client {number}", 10, number == 7, {"before": 0.5, "after": number / 100})
        for number in range(40)
    ]
    heads = {"before": HeadEvaluation(), "after": HeadEvaluation()}
    table = clients_table(UnlearningEvaluation(heads, clients=tuple(changes)))
    assert [row[0] for row in table.rows[:3]] == ["client 7 (forgotten)", "client 0", "client 1"]
    assert len(table.rows) == 30
    assert "10" in table.note


def test_costs_are_empty_where_they_were_not_measured() -> None:
    rows = costs_table([Cost("trained", 1200, 300, 2_000_000, 0.1234), Cost("unlearned")]).rows
    assert rows[0] == ("trained", "1,200", "300 B", "2.0 MB", "0.123 s")
    assert rows[1] == ("unlearned", "", "", "", "")


def test_runs_stand_below_each_other(data: ReportData) -> None:
    trained = UnlearningEvaluation({"before": data.evaluation.heads["before"]})
    table = runs_table([data, ReportData("runs/b", trained)])
    assert [row[0] for row in table.rows] == ["runs/a", "runs/b"]
    assert table.rows[0][4] == "0.013"
    assert table.rows[1][3:] == ("", "", "")
