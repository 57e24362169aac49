"""A report's plain values: what is set beside what, and nothing that JSON has no word for."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from probekit.certificates.agreement import Margins
from probekit.evaluation.backdoor import BackdoorSuccess
from probekit.evaluation.metrics import Confusion, Share, share
from probekit.report.report import (
    DRAWN,
    Judged,
    Measured,
    Report,
    StateReport,
    compared,
    comparison,
    json_text,
)
from probekit.unlearning.influence import Influence


def hits(right: int, count: int = 20) -> Share:
    """So many right rows."""
    return share(np.arange(count) < right)


def measured(head: str, right: int, worked: int | None = None) -> Measured:
    """A head that is right on so many rows of `t`, and whose backdoor works so often."""
    success = None
    if worked is not None:
        success = BackdoorSuccess(0, hits(worked + 2), hits(worked), 0.1)
    return Measured(head, {"t": hits(right)}, success)


FIRST = StateReport(1, "closed-form", {"a": 5, "b": 7}, measured("h1", 18, 15), measured("r1", 18, 15))
LAST = StateReport(3, "fedremoval", {"b": 7}, measured("h3", 14, 1), measured("r3", 17, 3), "rows", 0.5, 0.1, 2.0, 1e-9)


def report(*stages: StateReport, **more: object) -> Report:
    """A report of these states."""
    made = Report("r", {"ledger": "d"}, {"ridge": 0.1}, {"python": "3"}, stages)
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_current_head_is_measured_by_the_head_retrained_on_the_same_rows() -> None:
    accuracy, every, excluding = comparison([FIRST, LAST], names=["t"])
    assert accuracy["measure"] == "accuracy on t"
    assert {label: one["hits"] for label, one in accuracy["heads"].items()} == {
        "before": 18,
        "after": 14,
        "retrained": 17,
    }
    assert accuracy["difference_to_retraining"] == pytest.approx(3 / 20)
    assert [one["hits"] for one in every["heads"].values()] == [17, 3, 5]
    assert excluding["difference_to_retraining"] == pytest.approx(2 / 20)  # lower than retraining is a deviation too


def test_without_an_earlier_state_or_a_retrained_head_there_is_less_to_compare() -> None:
    assert list(compared([FIRST])) == ["trained", "retrained"]
    assert list(compared([LAST])) == ["after", "retrained"]
    alone = replace(LAST, retrained=None)
    assert list(compared([FIRST, alone])) == ["before", "after"]
    assert comparison([FIRST, alone], names=["t"])[0]["difference_to_retraining"] is None
    empty = replace(LAST, now=Measured("h", {"t": hits(0, 0)}))
    assert comparison([empty], names=["t"])[0]["difference_to_retraining"] is None


def test_forgotten_clients_are_marked() -> None:
    influence = (Influence("a", 5, 2.0, 1.0), Influence("b", 7, None, 0.5))
    value = report(FIRST, LAST, influence=influence, influence_state=1).plain
    assert {one["client"]: one["forgotten_since"] for one in value["influence"]["clients"]} == {"a": True, "b": False}


@pytest.mark.parametrize("rows", [1, 7, DRAWN, 3 * DRAWN + 1])
def test_all_rows_are_counted_and_few_are_told(rows: int) -> None:
    random = np.random.default_rng(rows)
    margins = Margins(random.random(rows), random.random(rows))
    judged = Judged("t", "d", "a test", rows, 0, {}, Confusion(("x",), ((rows,),)), margins)
    told = report(LAST, judged=[judged]).plain["judged"][0]["margins"]
    certain = sum(bool(lead > need) for lead, need in zip(margins.lead, margins.needed, strict=True))
    assert (told["rows"], told["certified"]) == (rows, certain)
    assert len(told["points"]) == min(rows, DRAWN)
    assert told["points"][0] == pytest.approx([margins.lead[0], margins.needed[0]], rel=1e-5)
    assert told["points"][-1] == pytest.approx([margins.lead[-1], margins.needed[-1]], rel=1e-5)


def test_json_holds_what_plain_values_say_and_no_infinity() -> None:
    stage = replace(LAST, bound=float("inf"), own_bound=float("nan"), distance=np.float64(0.5))
    value = report(stage).plain
    assert json.loads(json_text(value)) == value
    assert (value["stages"][0]["bound"], value["stages"][0]["own_bound"]) == (None, None)
    assert value["stages"][0]["distance"] == 0.5
    assert value["unlearned"] is False
    assert report(stage, ledger=[{"action": "unlearn"}]).plain["unlearned"] is True
