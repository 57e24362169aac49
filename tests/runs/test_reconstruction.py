"""Reconstruction on runs: a single sample is rebuilt, a client is not; certificates and reports say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certify import ONE_ROW
from probekit.certificates.verdicts import PROVEN
from probekit.cli import main
from probekit.errors import InputError
from tests.runs.conftest import Opened
from tests.shelves import Shelve
from tests.shelves import shelve as shelve


@pytest.fixture
def run(opened: Opened, shelve: Shelve, store: DiskStore) -> Run:
    """A run of which a sample, then a client was forgotten exactly."""
    shelve("rows", rows=240, dimension=20)
    made = Run.train("run", "rows", clients=4, server_share=0.2, ridge=0.01, store=store)
    sample = made.folder.embeddings(store).ids[int(made.folder.partition().clients["1"][0])]
    made.unlearn(samples=[sample])
    opened("run").unlearn("2")
    return opened("run")


def test_a_sample_is_found_and_a_client_is_not(run: Run) -> None:
    found = run.reconstruction(noise=(0.0, 1.0), trials=10)
    assert found.public == "48 rows of the server's own"
    one, many = found.requests
    assert (one.state, many.state) == (2, 3)
    exact, noisy, public, _ = one.outcomes
    assert (exact.curvature, exact.noise, exact.found.found) == ("retained", 0.0, 1)
    assert exact.found.centred == pytest.approx(1, abs=1e-6)
    assert noisy.found.found == 0
    assert public.curvature == "public"
    assert public.found.centred < 0.999999
    assert many.outcomes[0].found.found == 0
    assert many.outcomes[0].found.deleted == 48
    sure, hidden = found.trials[:2]
    assert (sure.rate.identified.value, sure.rate.requests) == (1.0, 10)
    assert sure.rate.centred == pytest.approx(1, abs=1e-6)
    assert hidden.rate.centred < 0.5
    assert "collect requests" in found.meaning[1]


def test_the_certificate_of_one_row_names_the_risk(run: Run) -> None:
    texts = [Path(f"run/states/{state:04d}/certificate.json").read_text() for state in (2, 3)]
    assert [ONE_ROW in json.loads(text)["certificate"]["caveats"] for text in texts] == [True, False]
    for state in (2, 3):
        assert run.verify(f"run/states/{state:04d}/certificate.json", require=("statements",)).verdict == PROVEN


def test_the_report_tells_the_figure_and_what_follows(run: Run) -> None:
    value = run.report().write("page")
    assert [one["state"] for one in value["reconstruction"]] == [2, 3]
    assert [one["curvature"] for one in value["reconstruction"][0]["outcomes"]] == ["retained", "public"]
    for name in ("report.md", "report.html"):
        text = Path("page", name).read_text()
        assert "1 of 1 rows found among" in text
        assert "carry requests out together" in text


def test_on_the_command_line(run: Run, store: DiskStore, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", "reconstruction", "run", "--trials", "4", "--cache", str(store.root)]
    assert main.run([*words, "--noise", "0", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["trials"][0]["rate"]["identified"]["hits"] == 4
    assert main.run(words) == 0
    assert "rows found" in capsys.readouterr().out


def test_other_models_and_bad_numbers_are_refused(run: Run, store: DiskStore) -> None:
    with pytest.raises(InputError, match="0 or more"):
        run.reconstruction(noise=(-1.0,))
    scaled = Run.train("scaled", "rows", clients=4, ridge=0.01, fit_view="standardise", store=store)
    with pytest.raises(InputError, match="another model"):
        scaled.reconstruction()
    assert "reconstruction" not in scaled.report().left_out
    scaled.unlearn("1")
    assert "another model" in scaled.report().left_out["reconstruction"]
