"""`report`: flags become arguments, the report goes where it should, errors have exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from tests.cli.conftest import Command, Probekit
from tests.conftest import spec
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def run(probekit: Probekit, shelve: Shelve, store: DiskStore) -> Run:
    """A run that forgot client 2, test sets, and one with a trigger."""
    shelve("rows", rows=160)
    shelve("test", rows=60, seed=5)
    shelve("pasted", rows=50, seed=6, spec=spec(trigger="square"))
    made = Run.train("run", "rows", clients=4, server_share=0.25, ridge=0.01, store=store)
    made.unlearn("2", test="test")
    return made


def test_flags_are_the_arguments_of_the_library(run: Run, probekit: Probekit) -> None:
    code, value, said = probekit("report", "run")
    assert code == 0, said
    assert value == {"folder": "run/report", **run.report().write("wanted")}
    words = ("--test", "test", "--test", "rows", "--triggered", "pasted", "--target", "1", "--rows", "--out", "here")
    code, value, said = probekit("report", "run", *words)
    assert code == 0, said
    wanted = run.report(["test", "rows"], triggered="pasted", target=1, from_rows=True).write("wanted")
    assert value == {"folder": "here", **wanted}
    assert json.loads(Path("here/report.json").read_text()) == wanted


def test_several_runs_give_one_page(run: Run, probekit: Probekit, store: DiskStore) -> None:
    other = Run.train("other", "rows", clients=2, server_share=0.25, ridge=0.1, store=store)
    code, value, said = probekit("report", "run", "other", "--test", "test", "-o", "deep/page.html")
    assert code == 0, said
    assert value["page"] == "deep/page.html"
    plain = [one.report(["test"]).plain for one in (run, other)]
    assert value["runs"] == plain
    page = Path("deep/page.html").read_text()
    assert (page.count("<article"), page.count('<a href="#r')) == (2, 2)
    assert [path.name for path in Path("deep").iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "run"), 2, "2 runs give one page: name it"),
        (("nothing",), 3, "not a run folder"),
        (("run", "--test", "nothing"), 3, "nothing"),
        (("run", "--triggered", "rows", "--target", "1"), 4, "without a trigger"),
        (("run", "--target", "1"), 2, "--triggered, a set, and --target"),
        (("run", "--out", "cache"), 2, "is not a report"),
    ],
)
def test_errors_have_their_exit_codes_and_name_flags(
    words: tuple[str, ...], code: int, message: str, run: Run, probekit: Probekit
) -> None:
    found, value, _ = probekit("report", *words)
    assert (found, message in value["error"]["message"]) == (code, True), value
    assert not Path("run/report").exists()


def test_what_was_tampered_with_exits_6(run: Run, probekit: Probekit) -> None:
    certificate = Path("run/states/0002/certificate.json")
    certificate.write_text(certificate.read_text().replace('"method": "exact"', '"method": "exakt"'))
    assert probekit("report", "run")[0] == 6
    assert not Path("run/report").exists()


def test_people_see_what_matters(run: Run, command: Command, store: DiskStore) -> None:
    shown = command("report", "run", "--test", "test", "--cache", str(store.root)).out
    for words in ("wrote run/report/report.html", "the chain holds", "accuracy on test", "proven at most"):
        assert words in " ".join(shown.split())


def test_matplotlib_waits_until_a_report_is_written() -> None:
    code = (
        "import sys, probekit.cli.report, probekit.cli.audit; "
        "print('matplotlib' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
