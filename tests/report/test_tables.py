"""The tables of a report and the numbers in them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from probekit.evaluation.unlearning import ClientChange, UnlearningEvaluation
from probekit.report.tables import (
    ReportData,
    bounds_table,
    clients_table,
    costs_table,
    format_bound,
    format_number,
    heads_table,
    runs_table,
)
from probekit.runs.layout import Cost


@given(st.floats(0, 1e300))
def test_a_printed_bound_is_never_below_the_bound(value: float) -> None:
    assert value <= float(format_bound(value)) <= value * 1.1 + 5e-324


def test_what_is_not_known_is_left_empty() -> None:
    assert [format_number(None), format_bound(None)] == ["", ""]


def test_heads_stand_beside_each_other(data: ReportData) -> None:
    table = heads_table(data.evaluation)
    assert table.headers == (
        "", "before", "after", "retrained", "minimum", "after minus retrained",
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in table.rows}
    estimates = data.evaluation.heads
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
    evaluation = UnlearningEvaluation({"before": {}, "after": {}}, clients=tuple(changes))
    table = clients_table(evaluation)
    assert [row[0] for row in table.rows[:3]] == ["client 7 (forgotten)", "client 0", "client 1"]
    assert len(table.rows) == 30
    assert "10" in table.note


def test_costs_of_each_event() -> None:
    rows = costs_table([("trained", Cost(1200, 300, 2_000_000, 0.1234))]).rows
    assert rows == (("trained", "1,200", "300 bytes", "2.0 MB", "0.123 s"),)


def test_runs_stand_below_each_other(data: ReportData) -> None:
    trained = UnlearningEvaluation({"before": data.evaluation.heads["before"]})
    table = runs_table([data, ReportData("runs/b", trained)])
    assert [row[0] for row in table.rows] == ["runs/a", "runs/b"]
    assert table.rows[0][4] == "0.013"
    assert table.rows[1][3:] == ("", "", "")
