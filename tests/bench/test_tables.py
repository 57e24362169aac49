"""Tables of cells made by hand: what a reader must find in them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import binom

from probekit.arrays import Json, canonical_json
from probekit.bench.cost import RETAINED, SERVER
from probekit.bench.experiment import Setting, read_experiment
from probekit.bench.published import published_values
from probekit.bench.run import Row
from probekit.bench.tables import (
    Mean,
    across_table,
    costs_table,
    overall_tables,
    product_table,
    setting_table,
)

ROWS = 400
RETRAINED = {"test": 0.9, "backdoor": 0.02, "forgotten": 0.1}
METHODS = ("retrain", "cf")
SETTING = Setting(name="a", data="packaged:digits", methods=METHODS)
MNIST = {setting.name: setting for setting in read_experiment("networks").settings}


def cell(accuracy: float, backdoor: float, other: float) -> dict[str, Json]:
    shares = {"test": accuracy, "backdoor": backdoor, "forgotten": 0.1}
    shares |= {f"{name}, retrained": share for name, share in RETRAINED.items()}
    shares |= {"other class, test": other, "other class, triggered": other}
    measures: dict[str, Json] = {
        name: {"value": share, "rows": ROWS} for name, share in shares.items()
    }
    return {"measures": measures, "rounds": 3, "bytes": 2_000_000, "seconds": 0.5}


def row(method: str, *cells: dict[str, Json], setting: Setting = SETTING) -> Row:
    return Row(setting, method, method, 1, dict(enumerate(cells)))


NOTHING = row("nothing", cell(0.8, 0.7, 0.4), cell(0.82, 0.6, 0.4))
RETRAIN = row("retrain", cell(0.9, 0.02, 0.0), cell(0.9, 0.02, 0.0))
FEW = row("cf", cell(0.9, 0.0, 0.01))


def test_doing_nothing_and_the_retrained_head_stand_in_every_table() -> None:
    by_method = setting_table([NOTHING, RETRAIN])
    assert [line[0] for line in by_method.rows] == ["retrain", "nothing"]
    alone = setting_table([NOTHING, FEW])
    assert [line[0] for line in alone.rows] == ["(retrained)", "cf, 1 of 2 seeds", "nothing"]
    assert alone.rows[0][1].startswith("90.0")
    assert alone.rows[0][2].startswith("2.0")


def test_a_backdoor_below_the_retrained_heads_is_a_deviation() -> None:
    table = setting_table([NOTHING, RETRAIN, FEW])
    backdoors = {line[0].partition(",")[0]: line[2] for line in table.rows}
    assert backdoors["cf"].endswith("(-2.0)")
    assert backdoors["nothing"].endswith("(+63.0)")
    assert "below the retrained head's is a deviation too" in table.note
    assert "does not show that the client is forgotten" in table.note


def test_where_no_trigger_was_planted_no_backdoor_is_shown() -> None:
    setting = msgspec.structs.replace(SETTING, trigger="")
    share: dict[str, Json] = {"value": 0.5, "rows": 100}
    names = ("test", "forgotten", "other class, test")
    measures: dict[str, Json] = dict.fromkeys(names, share)
    table = setting_table([row("nothing", {"measures": measures}, setting=setting)])
    expected = ("method", "accuracy", "accuracy, forgotten rows", "other class, clean")
    assert table.headers == (*expected, "to retrained")
    assert {len(line) for line in table.rows} == {5}


def test_partial_results_say_what_is_missing() -> None:
    failed = row("cf", {"error": "no rows"}, cell(0.9, 0.0, 0.0))
    table = setting_table([NOTHING, failed, row("retrain")])
    texts = {line[0]: line[1] for line in table.rows}
    assert texts["cf"] == "no rows"
    assert texts["retrain"] == "not computed"
    assert "Nothing is computed yet" in setting_table([row("nothing"), row("cf")]).note
    assert not costs_table([row("nothing"), row("cf")]).rows
    assert across_table([row("nothing")]) is None


@pytest.mark.parametrize("share", [0.002, 0.02, 0.5, 0.98])
def test_intervals_contain_the_noise_of_the_rows(share: float) -> None:
    """Of all counts of hits that there may be, those that nobody hit too."""
    hits = np.arange(ROWS + 1)
    means = [Mean.of([count / ROWS], ROWS) for count in hits]
    covered = [abs(mean.value - share) <= mean.half for mean in means]
    assert binom.pmf(hits, ROWS, share)[covered].sum() > 0.92


def test_settings_stand_side_by_side_with_the_papers_figures_of_the_same() -> None:
    """Linear against conventional training; what is no network of the paper has no figure."""
    rows = []
    for setting in (MNIST["mnist"], MNIST["mnist, linearized"], SETTING):
        rows += [row("nothing", cell(0.8, 0.7, 0.4), setting=setting)]
        rows += [row("sga", cell(0.7, 0.1, 0.4), setting=setting)]
        rows += [row("shadows:8", {"membership": {}}, setting=setting)]
    rows.append(row("fedremoval", cell(0.7, 0.1, 0.4), setting=MNIST["mnist, linearized"]))
    table = across_table(rows)
    assert table is not None
    assert table.headers[:4] == ("setting", "before", "retrained", "sga")
    assert table.headers[4:] == ("before, its own rows", "paper: before, its own rows")
    ours = ("80.0 / 70.0", "90.0 / 2.0", "70.0 / 10.0", "80.0 / 10.0")
    assert table.rows[0] == ("mnist", *ours, "97.26 / 99.6")
    assert table.rows[1][-1] == "96.05 / 93.73"
    assert table.rows[2][-1] == ""


def test_a_products_cost_stands_beside_the_papers() -> None:
    part: dict[str, Any] = {"rows": 10, "GFLOP": 1.5, "seconds": 0.1, "rounds": 0, "bytes": 0}
    product = {SERVER: part, RETAINED: {**part, "rows": 72, "bytes": 1000}}
    cells: dict[str, Json] = {"products of a step": 31}
    cells |= json.loads(canonical_json({"product": product}))  # as it is read
    rows = [row("cost", cells, cells, setting=MNIST["cifar10, linearized"])]
    table = product_table(rows)
    assert table is not None
    assert [line[-1] for line in table.rows] == ["28.51", "205.1"]
    assert table.rows[0][:-1] == (SERVER, "10", "1.5", "0.1", "0", "0 bytes")
    assert table.rows[1][:-1] == (RETAINED, "72", "1.5", "0.1", "0", "1.0 kB")
    assert "takes 31" in table.note
    plain = product_table([row("cost", cells)])
    assert plain is not None
    assert "paper" not in " ".join((*plain.headers, plain.note))
    assert product_table([NOTHING]) is None


def test_every_table_of_the_paper_that_is_named_is_found() -> None:
    assert published_values("non_iid_dirichlet.mnist.5") == {
        "fedremoval": ("86.93", "14.39"),
        "retrain": ("96.06", "9.94"),
    }
    names = {setting.published for setting in read_experiment("dirichlet-networks").settings}
    assert len(names) == 9
    unlike = msgspec.structs.replace(
        MNIST["mnist"], published="foundation_model_linear_probe.mnist"
    )
    table = across_table(
        [row("nothing", cell(1, 1, 1), setting=setting) for setting in (unlike, SETTING)]
    )
    assert table is not None
    assert table.headers == ("setting", "before", "retrained")


def test_the_servers_curvature_is_a_line_for_each_setting() -> None:
    """Means over seeds; settings that do not measure it have no line."""
    cells: list[dict[str, Json]] = [
        {"curvature": {"relative error": share}} for share in (0.2, 0.4)
    ]
    setting = MNIST["mnist"]
    rows = [NOTHING, row("nothing", setting=setting), row("curvature", *cells, setting=setting)]
    table = overall_tables(rows)["the server's curvature"]
    assert table.headers == ("setting", "relative error")
    assert table.rows == (("mnist", "0.3"),)
    assert "the server's curvature" not in overall_tables([NOTHING])
