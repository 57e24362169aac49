"""`compare`: runs side by side, each number that of its own report, in every form."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from tests.cli.conftest import Command, Probekit
from tests.conftest import spec
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def runs(probekit: Probekit, shelve: Shelve, store: DiskStore) -> dict[str, Run]:
    """A run that forgot client 2 exactly, one that forgot it by a step, and one that forgot nothing."""
    shelve("rows", rows=160)
    shelve("test", rows=60, seed=5)
    shelve("pasted", rows=50, seed=6, spec=spec(trigger="square"))
    made = {name: Run.train(name, "rows", clients=4, server_share=0.25, ridge=0.01, store=store) for name in "abc"}
    made["a"].unlearn("2", test="test")
    made["b"].unlearn("2", method="fedremoval")
    return made


def test_every_number_is_that_of_the_run_s_report(runs: dict[str, Run], probekit: Probekit) -> None:
    words = ("--test", "test", "--triggered", "pasted", "--target", "1", "--csv", "t.csv", "--markdown", "t.md")
    code, value, said = probekit("compare", *runs, *words)
    assert code == 0, said
    assert [line["run"] for line in value["runs"]] == list(runs)
    for line, run in zip(value["runs"], runs.values(), strict=True):
        last = run.report(["test"], triggered="pasted", target=1).plain["stages"][-1]
        now, retrained = last["now"], last["retrained"]
        assert (line["distance"], line["bound"], line["method"]) == (last["distance"], last["bound"], last["method"])
        assert (line["accuracy"], line["retrained"]) == (
            now["accuracy"]["test"]["value"],
            retrained["accuracy"]["test"]["value"],
        )
        assert line["backdoor"] == now["backdoor"]["excluding_target"]["value"]
    assert [line["forgotten"] for line in value["runs"]] == ["client 2", "client 2", "nothing"]
    assert [line["verdict"] for line in value["runs"]] == ["proven", "proven", "no certificate"]
    assert value["runs"][0]["distance"] < 1e-8 < value["runs"][1]["distance"]
    read = list(csv.DictReader(io.StringIO(Path("t.csv").read_text())))
    assert [float(one["distance"]) for one in read] == [one["distance"] for one in value["runs"]]
    table = [line for line in Path("t.md").read_text().splitlines() if line.startswith("|")]
    assert (len(table), {line.count("|") for line in table}) == (5, {table[0].count("|")})


def test_a_page_holds_the_table_and_every_run(runs: dict[str, Run], probekit: Probekit) -> None:
    assert probekit("compare", "a", "b", "--test", "test", "-o", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert (page.count("<article"), page.count('<a href="#r')) == (2, 2)


def test_people_see_a_table_and_what_cannot_be_compared(
    runs: dict[str, Run], command: Command, store: DiskStore, shelve: Shelve
) -> None:
    seen = " ".join(command("compare", "a", "c", "--cache", str(store.root)).out.split())
    for words in ("runs, judged on", "client 2", "nothing", "no certificate"):
        assert words in seen
    assert "cannot be compared" not in seen
    shelve("others", rows=120, seed=9)
    Run.train("d", "others", clients=3, server_share=0.25, ridge=0.01, store=store)
    seen = " ".join(command("compare", "a", "d", "--cache", str(store.root)).out.split())
    assert "judged on different rows, so their accuracies cannot be compared" in seen


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("a",), 2, "takes 2 runs or more; found 1"),
        (("a", "nothing"), 3, "not a run folder"),
        (("a", "b", "-o", "page.pdf"), 2, "must end in .html"),
        (("a", "b", "--target", "1"), 2, "--triggered, a set, and --target"),
    ],
)
def test_bad_input(words: tuple[str, ...], code: int, message: str, runs: dict[str, Run], probekit: Probekit) -> None:
    found, value, _ = probekit("compare", *words)
    assert (found, message in value["error"]["message"]) == (code, True), json.dumps(value)
