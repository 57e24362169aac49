"""Reports: every number beside an independent one, the same bytes twice, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit import Run
from probekit.cache import DiskStore
from probekit.cache.removal import remove_set
from probekit.certificates.agreement import agreement, margins
from probekit.certificates.certificate import Certificate
from probekit.certificates.certify import certify, known_at, objective_of
from probekit.errors import CacheError, InputError, NotFoundError, ProbekitError, VerificationError
from probekit.pages import pictures
from probekit.report.page import markdown
from probekit.runs import unlearning
from probekit.runs.folder import RunFolder
from probekit.runs.openings import certificate_openings, read_openings
from tests.conftest import spec, tree
from tests.oracles import columns, least_squares, one_hot
from tests.runs.conftest import Opened
from tests.shelves import Shelve, rows_around_centres
from tests.shelves import shelve as shelve

RIDGE = 0.01
OPTIONS: dict[str, Any] = {"clients": 4, "server_share": 0.25, "ridge": RIDGE}


@pytest.fixture
def run(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Path:
    """A run that forgot client 2 exactly, then client 1 by a single step; and a test set."""
    shelve("rows", rows=160)
    shelve("test", rows=60, seed=5)
    made = Run.train("run", "rows", **OPTIONS, store=store)
    made.unlearn("2", test="test")
    made.unlearn("1", method="fedremoval")
    return tmp_path / "run"


def oracle(run: Path, store: DiskStore, clients: str, *, ridge: float = RIDGE) -> NDArray[np.float64]:
    """The parameters that retraining on these clients gives, from the rows and nothing of ours."""
    folder = RunFolder.open(run)
    embeddings, partition = folder.embeddings(store), folder.partition()
    rows = np.concatenate([partition.clients[name] for name in clients])
    X, Y = columns(embeddings.to_numpy()[rows]), one_hot(embeddings.labels[rows], 3)
    return least_squares(X, Y, penalty=ridge * len(rows))


def page_of(folder: Path) -> str:
    """The report as people read it."""
    return (folder / "report.md").read_text()


def test_every_state_stands_beside_retraining(run: Path, opened: Opened, store: DiskStore) -> None:
    value = opened("run").report(["test"]).write("run/report")
    assert value["left_out"].keys() == {"backdoor_success"}
    test = store.open("test")
    X = columns(test.to_numpy())
    for told, clients in zip(value["stages"], ("0123", "013", "03"), strict=True):
        retrained, own = oracle(run, store, clients), RunFolder.open(run).head(told["state"]).params
        distance = float(np.linalg.norm(own - retrained))
        assert told["distance"] == pytest.approx(distance, rel=1e-6, abs=1e-11)
        assert distance <= told["bound"] + told["own_bound"]
        for params, measured in ((own, told["now"]), (retrained, told["retrained"])):
            right = int((np.argmax(X @ params, axis=1) == test.labels).sum())
            assert measured["accuracy"]["test"]["hits"] == right
    assert value["stages"][2]["distance"] > 1e-3
    [accuracy] = value["comparison"]
    shares = {label: one["value"] for label, one in accuracy["heads"].items()}
    assert shares.keys() == {"before", "after", "retrained"}
    assert accuracy["difference_to_retraining"] == pytest.approx(abs(shares["after"] - shares["retrained"]))
    everybody = oracle(run, store, "0123")
    for one in value["influence"]["clients"]:
        rest = oracle(run, store, "0123".replace(one["client"], ""))
        assert one["distance"] == pytest.approx(float(np.linalg.norm(everybody - rest)), rel=1e-6)
        assert one["distance"] <= one["bound"]
    assert {one["client"] for one in value["influence"]["clients"] if one["forgotten_since"]} == {"1", "2"}


def test_the_page_holds_every_part_and_its_pictures(run: Path, opened: Opened) -> None:
    value = opened("run").report(["test"]).write("run/report")
    folder, page = run / "report", page_of(run / "report")
    assert json.loads((folder / "report.json").read_text()) == {k: v for k, v in value.items() if k != "folder"}
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert titles == [
        "Before, after, retrained",
        "Distance to retraining",
        "Margins against the certified output bound",
        "Influence of each client",
        "Classes",
        "Certificate of state 2",
        "Certificate of state 3",
        "What both heads together tell of the deleted",
        "Ledger",
        "Configuration and environment",
        "What this report was made from",
        "Left out",
    ]
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert sorted(shown) == sorted(path.name for path in folder.glob("*.svg"))
    assert len(shown) == 6
    for state, said in ((2, value["certificates"][0]), (3, value["certificates"][1])):
        written = json.loads((run / f"states/{state:04d}/certificate.json").read_text())
        openings = read_openings(certificate_openings(run, state))
        claims = Certificate.from_stored(written["certificate"], openings)
        assert (said["digest"], said["certificate"]) == (written["digest"], claims.plain)
        assert written["digest"] in page
        verdicts = {one["name"]: one["verdict"] for one in said["findings"]}
        assert (verdicts["weights"], verdicts["request"]) == ("proven", "not proven")
        for line in written["certificate"]["assumptions"] + written["certificate"]["caveats"]:
            assert line in page
    assert "not computable" in page or "not computed" in page
    assert "statistics of the retained clients" in page
    assert [entry["action"] for entry in value["ledger"]] == ["train", "unlearn", "unlearn"]
    assert value["inputs"]["ledger"] == RunFolder.open(run).entries()[-1].digest


def test_the_same_run_gives_the_same_bytes_and_pictures_hold_text(run: Path, opened: Opened) -> None:
    for out in ("one/deep", "two", "two"):
        opened("run").report(["test"]).write(out)
    one, two = (tree(run.parent / name) for name in ("one/deep", "two"))
    assert one == two
    assert len(one) == 9
    for path in (run.parent / "two").glob("*.svg"):
        root = ElementTree.fromstring(path.read_text())
        words = [element for element in root.iter() if element.tag.endswith("}text")]
        assert len(words) > 4
        assert "dc:date" not in path.read_text()
    assert sorted(path.name for path in run.parent.iterdir() if "two" in path.name) == [".two.lock", "two"]


@pytest.mark.parametrize("extra", [{}, {"fit_view": "standardise"}, {"intercept": "none"}, {"view": "l2"}])
def test_rows_told_certain_are_those_that_agreement_counts_and_keep_their_class(
    opened: Opened, shelve: Shelve, store: DiskStore, tmp_path: Path, extra: dict[str, Any]
) -> None:
    shelve("rows", rows=160)
    shelve("test", rows=300, seed=5)
    Run.train("run", "rows", **OPTIONS, **extra, store=store)
    method = "exact" if "fit_view" in extra else "fedremoval-pcg:2"
    opened("run").unlearn("2", method=method)
    value = opened("run").report(["test"]).write("run/report")
    told = value["judged"][0]["margins"]
    trained, test = RunFolder.open(tmp_path / "run").trained(), store.open("test")
    known = known_at(trained.params, objective_of(trained), trained.problem, statistics=trained.statistics)
    assert known is not None
    assert known.curvature is not None
    counted = agreement(trained.head, test, known=known, problem=trained.problem)
    assert told["certified"] == counted.certified
    found = margins(trained.head, test, known=known, problem=trained.problem)
    rows = test.to_numpy().astype(np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True) if "view" in extra else rows
    scores = np.sort(columns(rows) @ trained.head.params, axis=1)
    assert (found.lead >= scores[:, -1] - scores[:, -2] - 1e-6).all()


def test_certain_rows_have_the_retrained_class_and_others_may_not(run: Path, store: DiskStore) -> None:
    opened, test = RunFolder.open(run), store.open("test")
    trained = opened.trained()
    known = known_at(trained.params, objective_of(trained), trained.problem, statistics=trained.statistics)
    assert known is not None
    found = margins(trained.head, test, known=known, problem=trained.problem)
    X = columns(test.to_numpy())
    same = np.argmax(X @ trained.head.params, axis=1) == np.argmax(X @ oracle(run, store, "03"), axis=1)
    certain = found.lead > found.needed
    assert 0 < certain.sum() < len(certain)
    assert same[certain].all()


def test_a_run_in_which_nothing_was_unlearned_has_fewer_parts(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("rows")
    Run.train("run", "rows", clients=4, server_share=0.25, ridge=RIDGE, store=store)
    value = opened("run").report().write("run/report")
    assert (value["unlearned"], value["certificates"]) == (False, [])
    assert list(value["comparison"][0]["heads"]) == ["trained", "retrained"]
    assert value["judged"][0]["meaning"].startswith("the server's own rows")
    page = page_of(tmp_path / "run/report")
    assert "Nothing was unlearned in this run yet" in page
    assert "Certificate of state" not in page


def test_without_rows_to_judge_on_that_is_said(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("rows")
    Run.train("run", "rows", clients=4, ridge=0.1, store=store)
    opened("run").unlearn("3")
    value = opened("run").report().write("run/report")
    assert (value["judged"], value["comparison"]) == ([], [])
    assert "the server has no rows of its own" in value["left_out"]["evaluation"]
    assert set(value["pictures"]) == {"distance", "influence"}
    assert "server has no rows of its own" in page_of(tmp_path / "run/report")


@pytest.mark.parametrize(
    "extra",
    [
        {"keep": "gradients"},
        {"keep": "nothing"},
        {"method": "fedavg", "rounds": 5},
        {"class_weight": "balanced"},
        {"arithmetic": "exact", "view": "l2"},
        {"normalise_classes": True},
    ],
)
def test_runs_of_every_kind_are_told(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore, extra: dict[str, Any]
) -> None:
    shelve("rows", rows=160)
    Run.train("run", "rows", **OPTIONS, **extra, store=store)
    value = opened("run").report().write("run/report")
    told = value["stages"][0]
    kept = "keep" not in extra and "method" not in extra
    assert told["source"] == ("the kept statistics" if kept else told["source"])
    assert told["distance"] is not None
    assert told["source"] in ("the kept statistics", "the cached rows")
    assert (told["bound"] is None) == ("normalise_classes" in extra)
    if "method" not in extra:
        assert told["distance"] < 1e-8
    assert "## Distance to retraining" in page_of(tmp_path / "run/report")


def test_a_logistic_head_is_compared_with_training_anew_and_nothing_is_bounded(
    opened: Opened, shelve: Shelve, store: DiskStore
) -> None:
    shelve("rows")
    Run.train("r", "rows", method="logistic", ridge=0.1, server_share=0.2, store=store)
    value = opened("r").report().write(Path("r") / "report")
    assert value["stages"][0]["distance"] == 0  # it was trained on these rows itself
    assert value["stages"][0]["bound"] is None
    assert "not quadratic" in value["stages"][0]["why"]
    assert list(value["comparison"][0]["heads"]) == ["trained", "retrained"]


def test_rows_instead_of_statistics(run: Path, opened: Opened, store: DiskStore) -> None:
    value = opened("run").report(from_rows=True).write("run/report")
    assert {one["source"] for one in value["stages"]} == {"the cached rows"}
    [found] = [one for one in value["certificates"][0]["findings"] if one["name"] == "statistics"]
    assert found["verdict"] == "proven"
    remove_set(store, "rows")
    with pytest.raises(NotFoundError):
        opened("run").report(["test"], from_rows=True).write("run/report")
    value = opened("run").report().write("run/report")
    assert "not at hand" in value["left_out"]["evaluation"]


def test_single_samples_that_were_forgotten(opened: Opened, shelve: Shelve, store: DiskStore) -> None:
    embeddings = shelve("rows", rows=160)
    Run.train("run", "rows", clients=4, server_share=0.25, ridge=RIDGE, store=store)
    rows = RunFolder.open("run").partition().clients["1"][:5]
    opened("run").unlearn(samples=[embeddings.ids[int(row)] for row in rows])
    opened("run").unlearn("0")
    value = opened("run").report(from_rows=True).write("run/report")
    assert [sum(one["counts"].values()) for one in value["stages"]] == [120, 115, 85]
    assert all(one["distance"] < 1e-8 for one in value["stages"])
    assert "5 samples forgotten" in page_of(Path("run/report"))


def test_a_purged_run_has_no_before(run: Path, opened: Opened) -> None:
    opened("run").purge()
    value = opened("run").report(["test"]).write("run/report")
    assert list(value["comparison"][0]["heads"]) == ["after", "retrained"]
    assert [one["state"] for one in value["certificates"]] == [3]
    assert "1 states" in value["left_out"]["purged_states"]
    assert {one["client"] for one in value["influence"]["clients"]} == {"0", "3"}


def test_backdoor_success_with_and_without_the_target_class(
    opened: Opened, shelve: Shelve, store: DiskStore, tmp_path: Path
) -> None:
    rows, labels = rows_around_centres(160, 5, 3, seed=0)
    trigger = np.array([0, 0, 0, 0, 6], np.float32)
    rows[:40] += trigger
    labels[:40] = 1
    shelve("rows", embeddings=rows, labels=labels, clients=("bad",) * 40 + ("b", "c") * 60)
    clean, true = rows_around_centres(90, 5, 3, seed=7)
    shelve("triggered", embeddings=clean + trigger, labels=true, spec=spec(trigger="square"))
    Run.train("run", "rows", partition="column:client_id", ridge=0.01, store=store)
    opened("run").unlearn("bad")
    value = opened("run").report(triggered="triggered", target=1).write("run/report")
    every, excluding = value["comparison"]
    for state, label in ((1, "before"), (2, "after")):
        hit = (
            np.argmax(columns((clean + trigger).astype(np.float64)) @ RunFolder.open("run").head(state).params, axis=1)
            == 1
        )
        assert every["heads"][label]["hits"] == hit.sum()
        assert excluding["heads"][label]["hits"] == hit[true != 1].sum()
    assert every["difference_to_retraining"] == excluding["difference_to_retraining"] == 0
    assert excluding["heads"]["before"]["value"] > 0.9
    page = page_of(tmp_path / "run/report")
    assert "33.33% of them are of that class" in page
    wrong: list[tuple[dict[str, Any], type[ProbekitError]]] = [
        ({"triggered": "triggered"}, InputError),
        ({"target": 1}, InputError),
        ({"triggered": "rows", "target": 1}, CacheError),
        ({"triggered": "triggered", "target": 3}, InputError),
    ]
    for options, error in wrong:
        with pytest.raises(error):
            opened("run").report(**options)


def test_names_of_any_kind_are_text_and_nothing_else(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    owners = ("a|b", "<script>x</script>", "$c_1$ `d`", "日本") * 40
    shelve("rows", rows=160, clients=owners, class_names=("$x^2$ | y", "[link](z)", "猫" * 40))
    Run.train("run", "rows", partition="column:client_id", server_share=0.2, ridge=0.1, store=store)
    opened("run").unlearn("a|b")
    opened("run").report().write("run/report")
    page = page_of(tmp_path / "run/report")
    assert "\\<script\\>" in page
    assert not re.search(r"(?<!\\)<script", page)
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    names = "".join(path.read_text() for path in (tmp_path / "run/report").glob("*.svg"))
    assert "$x^2$ | y" in names
    assert "日本" in names


def test_many_classes_and_clients_stay_legible(
    opened: Opened, shelve: Shelve, tmp_path: Path, store: DiskStore
) -> None:
    shelve("rows", rows=600, classes=60, clients=tuple(f"client number {n % 50}" for n in range(600)))
    Run.train("run", "rows", partition="column:client_id", server_share=0.2, ridge=0.1, store=store)
    least = opened("run").influence().plain["clients"][-1]["client"]
    opened("run").unlearn(least)
    value = opened("run").report().write("run/report")
    drawn = {key: (tmp_path / "run/report" / one["file"]).read_text() for key, one in value["pictures"].items()}
    assert "the worst 30 of 60 classes" in drawn["classes_1"]
    assert "31 of 50 clients" in drawn["influence"]
    assert "forgotten since" in drawn["influence"]
    assert max(map(len, drawn.values())) < 400_000


def test_the_old_report_stands_until_the_new_one_is_whole(
    run: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened("run").report().write("run/report")
    before = tree(run / "report")

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pictures, "confusion", broken)
        with pytest.raises(KeyboardInterrupt):
            opened("run").report(["test"]).write("run/report")
    assert tree(run / "report") == before
    assert not list(run.glob(".report.new"))
    (run / ".report.new").mkdir()  # what a killed process leaves
    opened("run").unlearn("0")
    value = opened("run").report().write("run/report")
    assert value["state"] == 4
    assert not list(run.glob(".report.new"))


def test_a_folder_that_is_no_report_is_left_alone(run: Path, opened: Opened) -> None:
    mine = run.parent / "mine"
    mine.mkdir()
    opened("run").report().write("mine")
    (run.parent / "other").mkdir()
    (run.parent / "other/thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=re.escape("is not a report")):
        opened("run").report().write("other")
    assert (run.parent / "other/thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("nothing", {}, NotFoundError, "not a run folder"),
        ("run", {"tests": ["nothing"]}, NotFoundError, "nothing"),
        ("run", {"tests": ["foreign"]}, CacheError, "spec"),
        ("run", {"tests": ["cats"]}, CacheError, "other classes"),
        ("run", {"triggered": "nothing", "target": 0}, NotFoundError, "nothing"),
    ],
)
def test_bad_input(
    run: Path,
    opened: Opened,
    shelve: Shelve,
    name: str,
    options: dict[str, Any],
    error: type[ProbekitError],
    words: str,
) -> None:
    shelve("foreign", seed=1, spec=spec(weights="1" * 64))
    shelve("cats", seed=1, class_names=("cat", "dog", "cow"))
    with pytest.raises(error, match=words):
        opened(name).report(**options)
    assert not (run / "report").exists()


def test_what_was_tampered_with_gets_no_report(run: Path, opened: Opened) -> None:
    ledger, certificate = run / "ledger.jsonl", run / "states/0002/certificate.json"
    whole, sealed = ledger.read_bytes(), certificate.read_text()
    ledger.write_bytes(whole.replace(b'"exact"', b'"exakt"'))
    with pytest.raises(VerificationError):
        opened("run").report().write("run/report")
    ledger.write_bytes(whole)
    certificate.write_text(sealed.replace('"method": "exact"', '"method": "exakt"'))
    with pytest.raises(VerificationError):
        opened("run").report().write("run/report")
    certificate.write_text((run / "states/0003/certificate.json").read_text())
    with pytest.raises(VerificationError, match=re.escape("not the certificate that the ledger says")):
        opened("run").report().write("run/report")
    certificate.unlink()
    with pytest.raises(CacheError):
        opened("run").report().write("run/report")
    certificate.write_text(sealed)
    head = run / "states/0003/head/model.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\1")
    with pytest.raises(CacheError):
        opened("run").report().write("run/report")
    assert not (run / "report").exists()


def test_a_certificate_that_does_not_hold_gets_no_report(
    run: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_good(*given: Any, **more: Any) -> Any:
        found = certify(*given, **more)
        assert found.bounds.weights is not None
        return replace(found, bounds=replace(found.bounds, weights=found.bounds.weights / 1e9))

    with monkeypatch.context() as patched:
        patched.setattr(unlearning, "certify", too_good)
        opened("run").unlearn("3")
    with pytest.raises(VerificationError, match=re.escape("state 4 does not hold: weights")):
        opened("run").report().write("run/report")
    assert not (run / "report").exists()


def test_markdown_is_made_of_the_json_alone(run: Path, opened: Opened) -> None:
    opened("run").report().write("run/report")
    assert markdown(json.loads((run / "report/report.json").read_text())) == page_of(run / "report")
