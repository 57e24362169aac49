"""Runs across clients elsewhere: the same heads as from the cache, the same verbs, and no row of theirs here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from probekit import Run
from probekit.cache import DiskStore
from probekit.errors import InputError, MismatchError, NotFoundError
from probekit.federated.in_process import InProcess
from probekit.runs import federation
from probekit.runs.rows import usable
from probekit.values import EmbeddingSet, Partition
from tests.runs.parties import PlayedParty
from tests.shelves import Shelve, rows_around_centres
from tests.shelves import shelve as shelve

NAMES = ("a", "b", "c", "d")
COLUMN = "column:client_id"


@pytest.fixture
def rows(shelve: Shelve) -> EmbeddingSet:
    """160 rows of four clients."""
    owners = [NAMES[number % 7 % 4] for number in range(160)]
    return shelve("rows", rows=160, dimension=12, clients=owners)


@pytest.fixture
def elsewhere(tmp_path: Path, rows: EmbeddingSet) -> DiskStore:
    """A cache without these rows."""
    return DiskStore(tmp_path / "other-cache")


@pytest.fixture
def party(rows: EmbeddingSet) -> PlayedParty:
    """Their clients."""
    return PlayedParty(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ridge": 0.01},
        {"ridge": "auto:kfold", "fit_view": "standardise"},
        {"ridge": 0.01, "keep": "nothing", "class_weight": "balanced"},
        {"ridge": 0.01, "keep": "gradients"},
        {"method": "fedavg", "rounds": 5, "ridge": 0.01},
        {"method": "fedavg", "rounds": 4, "ridge": 0.01, "participation": 0.5, "batch_size": 8, "weights": "uniform"},
        {"method": "cg", "rounds": 9, "ridge": 0.01},
        {"method": "logistic"},
    ],
    ids=lambda given: "-".join(map(str, given.values())) or "auto",
)
def test_heads_are_those_of_a_run_on_the_same_rows(
    options: dict[str, Any], party: PlayedParty, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    here = Run.train(tmp_path / "here", "rows", partition=COLUMN, store=store, **options)
    there = Run.train(tmp_path / "there", federation=party, store=elsewhere, **options)
    assert there.head().digest == here.head().digest
    assert np.array_equal(there.head().params, here.head().params)
    assert there.trained().counts == here.trained().counts
    assert there.training is not None
    assert here.training is not None
    able = {name: one.possible for name, one in there.training.can_unlearn.items()}
    assert able == {name: one.possible for name, one in here.training.can_unlearn.items()}
    recipes = [{k: v for k, v in one.head().recipe.items() if k != "dataset"} for one in (here, there)]
    assert recipes[0] == recipes[1]
    assert elsewhere.sets.digests() == []


@pytest.mark.parametrize("method", ["sga", "neggrad:rounds=3", "puf:post=2", "pga:post=2", "federaser", "cf:rounds=2"])
def test_methods_ask_clients_that_leave(
    method: str, party: PlayedParty, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": "fedavg", "rounds": 4, "ridge": 0.01, "keep_history": True}
    here = Run.train(tmp_path / "here", "rows", partition=COLUMN, store=store, **options)
    there = Run.train(tmp_path / "there", federation=party, store=elsewhere, **options)
    leaving = next(iter(here.trained().counts))
    wanted = here.unlearn(leaving, method=method)
    party.log.clear()
    found = there.unlearn(leaving, method=method, federation=party)
    assert found.plain["head"] == wanted.plain["head"]
    assert any(name == leaving for *_, name in party.log) == (method.partition(":")[0] not in ("federaser", "cf"))
    jobs = {job for job, *_ in party.log}
    assert jobs <= {*party.finished}
    assert (found.cost.up, found.cost.rounds) == (wanted.cost.up, wanted.cost.rounds)


def test_a_run_says_where_its_rows_are(party: PlayedParty, elsewhere: DiskStore, tmp_path: Path) -> None:
    run = Run.train(tmp_path / "run", federation=party, ridge=0.01, store=elsewhere)
    assert (run.folder.inputs["federation"], run.folder.config["federation"]) == ("played", "played")
    assert run.folder.partition().scheme == run.folder.config["partition"] == "federation"
    assert {name: len(own) for name, own in run.folder.partition().clients.items()} == run.trained().counts
    with pytest.raises(NotFoundError, match=r"across the federation played: its rows lie with the clients\.$"):
        run.folder.embeddings(elsewhere)
    assert not list(tmp_path.glob(".run.job"))


@pytest.mark.parametrize("options", [{}, {"keep": "gradients"}, {"method": "fedavg", "rounds": 5}])
def test_forgetting_asks_the_same_clients_and_gives_the_same_head(
    options: dict[str, Any], party: PlayedParty, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    here = Run.train(tmp_path / "here", "rows", partition=COLUMN, ridge=0.01, store=store, **options)
    there = Run.train(tmp_path / "there", federation=party, ridge=0.01, store=elsewhere, **options)
    party.log.clear()
    local, remote = here.unlearn("b"), there.unlearn("b", federation=party)
    assert there.head().digest == here.head().digest
    assert remote.certificate.method == local.certificate.method
    assert remote.certificate.retained == local.certificate.retained
    assert {name for *_, name in party.log} <= {"a", "c", "d"}
    assert bool(party.log) == bool(options)
    assert there.verify().intact
    assert there.unlearn("b", federation=party).already_done
    assert not list(tmp_path.glob(".there.job"))


def test_samples_are_forgotten_by_the_client_that_holds_them(
    party: PlayedParty, rows: EmbeddingSet, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    here = Run.train(tmp_path / "here", "rows", partition=COLUMN, ridge=0.01, store=store)
    there = Run.train(tmp_path / "there", federation=party, ridge=0.01, store=elsewhere)
    some = [f"b/{rows.ids[row]}" for row in party.rows["b"][:3].tolist()]
    party.log.clear()
    here.unlearn(samples=some)
    there.unlearn(samples=some, federation=party)
    assert there.head().digest == here.head().digest
    assert there.trained().counts == here.trained().counts
    assert [(kind, name) for _, _, kind, name in party.log] == [("statistics", "b")]
    assert there.verify().intact
    more = [f"b/{rows.ids[party.rows['b'][7]]}", f"c/{rows.ids[party.rows['c'][0]]}"]
    here.unlearn(samples=more)
    there.unlearn(samples=more, federation=party)
    assert there.head().digest == here.head().digest
    here.unlearn("d", method="retrain")
    there.unlearn("d", method="retrain", federation=party)
    assert there.head().digest == here.head().digest
    fewer = PlayedParty(rows.select(np.setdiff1d(np.arange(len(rows)), party.rows["b"][-1:])))
    with pytest.raises(MismatchError, match=r"Client b has \d+ rows now, and had \d+ when it was trained on"):
        there.unlearn("c", method="retrain", federation=fewer)
    with pytest.raises(InputError, match="Cannot forget 1 samples of client a: without them it has"):
        there.unlearn(samples=[f"a/{'0' * 64}"], federation=party)
    for text in (rows.ids[0], f"b/{rows.ids[0][:12]}"):
        with pytest.raises(InputError, match="a sample is written CLIENT/ID, with the 64 digits"):
            there.unlearn(samples=[text], federation=party)
    with pytest.raises(InputError, match="A label is put right where its row is"):
        there.unlearn(relabel={f"b/{rows.ids[0]}": 1}, federation=party)


def test_the_last_sample_takes_its_client_along(
    shelve: Shelve, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    found = shelve("few", rows=40, dimension=12, clients=["a"] * 19 + ["b"] * 20 + ["c"])
    party = PlayedParty(found)
    here = Run.train(tmp_path / "here", "few", partition=COLUMN, ridge=0.01, store=store)
    there = Run.train(tmp_path / "there", federation=party, ridge=0.01, store=elsewhere)
    last = f"c/{found.ids[39]}"
    here.unlearn(samples=[last])
    there.unlearn(samples=[last], federation=party)
    assert tuple(there.trained().counts) == ("a", "b")
    assert there.head().digest == here.head().digest


def test_a_client_that_came_back_with_other_rows_is_refused_by_name_unless_it_joins(
    shelve: Shelve, rows: EmbeddingSet, party: PlayedParty, elsewhere: DiskStore, tmp_path: Path
) -> None:
    party.keys = {name: bytes([number + 1]) * 32 for number, name in enumerate(NAMES)}
    run = Run.train(tmp_path / "run", federation=party, ridge=0.01, keep="gradients", store=elsewhere)
    keep = np.setdiff1d(np.arange(len(rows)), party.rows["d"][:2])
    fewer = PlayedParty(rows.select(keep), keys=party.keys)
    with pytest.raises(MismatchError, match=r"Client d has \d+ rows now, and had \d+ when it was trained on"):
        run.unlearn("a", federation=fewer)
    run.unlearn(clients=["a", "d"], federation=fewer)
    run.unlearn(add=["d"], federation=fewer)
    assert run.trained().counts["d"] == len(party.rows["d"]) - 2
    leaves = run.folder.at().commitments()
    assert leaves is not None
    assert {name: one.key for name, one in leaves.leaves.items()} == {n: party.keys[n] for n in ("b", "c", "d")}
    gone = PlayedParty(rows.select(np.flatnonzero(np.asarray(rows.clients) != "c")))
    with pytest.raises(MismatchError, match=r"Client c of .* is not in the federation played any more"):
        run.unlearn("b", federation=gone)


def test_the_server_brings_rows_of_its_own(
    shelve: Shelve, store: DiskStore, party: PlayedParty, tmp_path: Path
) -> None:
    own = shelve("own", rows=60, dimension=12, seed=5)
    run = Run.train(
        tmp_path / "run", federation=party, server_set="own", method="fedavg", rounds=4, ridge=0.01, store=store
    )
    server = run.trained().server
    assert server is not None
    assert server.statistics is not None
    assert (len(server.rows), len(run.folder.partition().server)) == (60, 60)
    found = run.folder.server_set(store)
    assert found is not None
    assert found.digest == own.digest
    done = run.unlearn("b", federation=party)
    assert done.certificate.method.startswith("fedremoval-pcg")
    assert run.verify().intact
    alone = Run.train(tmp_path / "alone", federation=party, server_set="own", ridge=0.01, keep="gradients", store=store)
    party.log.clear()
    assert alone.unlearn("b", server_only=True, method="fedremoval").certificate.method == "fedremoval"
    assert party.log == []
    other, labels = rows_around_centres(30, 7, 3, seed=1)
    shelve("wide", embeddings=other, labels=labels, spec=own.spec.__class__("x", "1" * 64, {}, "v"))
    with pytest.raises(MismatchError, match="The set wide has another encoding than the clients' rows"):
        Run.train(tmp_path / "bad", federation=party, server_set="wide", store=store)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clients": 3}, "`clients` is for a set of the cache"),
        ({"partition": "classes"}, "`partition` is for a set of the cache"),
        ({"server_share": 0.1}, "`server_share` is for a set of the cache"),
        ({"client_keys": {"a": b"0" * 32}}, "bring their keys"),
        ({"embeddings": "rows"}, "found the set rows. Leave it out"),
    ],
)
def test_what_is_for_rows_of_the_cache_is_refused(
    given: dict[str, Any], why: str, party: PlayedParty, store: DiskStore, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=why):
        Run.train(tmp_path / "run", federation=party, store=store, **given)
    assert not (tmp_path / "run").exists()


def test_what_is_for_clients_elsewhere_is_refused_of_rows_in_the_cache(
    rows: EmbeddingSet, store: DiskStore, tmp_path: Path
) -> None:
    for given in ({"at_least": 2}, {"timeout": 3.0}, {"server_set": "rows"}):
        with pytest.raises(InputError, match="is for clients elsewhere"):
            Run.train(tmp_path / "run", "rows", store=store, **given)
    with pytest.raises(InputError, match="name a set of the cache, or clients elsewhere"):
        Run.train(tmp_path / "run", store=store)
    with pytest.raises(NotFoundError, match="There is no federation nowhere: that is no folder"):
        Run.train(tmp_path / "run", federation="nowhere", store=store)


def test_a_class_that_no_client_has_is_refused(shelve: Shelve, elsewhere: DiskStore, tmp_path: Path) -> None:
    labels = np.arange(40) % 2
    found = shelve("two", rows=40, dimension=12, labels=labels, clients=["a"] * 20 + ["b"] * 20)
    with pytest.raises(InputError, match="no client and not the server has one of class class 2"):
        Run.train(tmp_path / "run", federation=PlayedParty(found), ridge=0.01, store=elsewhere)


@pytest.mark.parametrize("targets", ["real", "labels"])
def test_real_targets_are_trained_and_forgotten_elsewhere(
    targets: str, store: DiskStore, elsewhere: DiskStore, tmp_path: Path
) -> None:
    generator = np.random.default_rng(3)
    X = generator.normal(size=(90, 6))
    Y = X @ generator.normal(size=(6, 3)) + generator.normal(size=(90, 3))
    Y = np.where(generator.random(Y.shape) < 0.2, np.nan, Y if targets == "real" else Y > 0)
    found = EmbeddingSet.from_numpy(X, Y, clients=[NAMES[row % 4] for row in range(90)], class_names=("x", "y", "z"))
    party = PlayedParty(usable(store.adopt(found, "targets"))[0])
    here = Run.train(tmp_path / "here", "targets", partition=COLUMN, store=store)
    there = Run.train(tmp_path / "there", federation=party, store=elsewhere)
    assert there.head().digest == here.head().digest
    here.unlearn("b")
    there.unlearn("b", federation=party)
    assert there.head().digest == here.head().digest


def test_networks_are_pretrained_on_the_servers_rows_and_trained_elsewhere(
    shelve: Shelve, store: DiskStore, party: PlayedParty, tmp_path: Path
) -> None:
    shelve("own", rows=40, dimension=12, seed=5)
    options: dict[str, Any] = {"backend": "jvp", "pretrain_epochs": 3, "rounds": 20, "ridge": 0.1}
    run = Run.train(tmp_path / "run", federation=party, server_set="own", store=store, **options)
    assert run.trained().problem.knows_server
    done = run.unlearn("b", federation=party, method="fedremoval-pcg:3")
    assert done.certificate.bounds.weights is not None
    assert run.verify().intact
    with pytest.raises(NotFoundError, match="its rows lie with the clients"):
        run.verify(rows=True)
    weights = {name: np.array(one) for name, one in run.trained().problem.arrays.items()}
    save_file(weights, tmp_path / "w.safetensors")
    given = options | {"network_weights": str(tmp_path / "w.safetensors")}
    bare = Run.train(tmp_path / "bare", federation=party, store=store, **given)
    assert bare.trained().server is None
    with pytest.raises(InputError, match="Pretraining needs the server's own rows"):
        Run.train(tmp_path / "none", federation=party, store=store, **options)


def test_an_engine_asks_clients_whose_rows_are_in_the_cache(
    rows: EmbeddingSet, store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def engine(spec: str, problem: Any, data: EmbeddingSet, held: Partition, _: DiskStore, names: Any) -> InProcess:
        asked.append((spec, tuple(names)))
        return InProcess.of(problem, data, {name: held.clients[name] for name in names})

    monkeypatch.setattr(federation, "ENGINES", {"ray": f"{__name__}:engine"})
    monkeypatch.setattr(federation, "import_module", lambda name: SimpleNamespace(engine=engine))
    here = Run.train(tmp_path / "here", "rows", clients=4, ridge=0.01, keep="gradients", store=store)
    run = Run.train(
        tmp_path / "run", "rows", clients=4, ridge=0.01, keep="gradients", federation="ray:head:6379", store=store
    )
    assert (run.head().digest, run.folder.config["federation"]) == (here.head().digest, "ray:head:6379")
    assert run.folder.embeddings(store).digest == rows.digest
    here.unlearn("1")
    run.unlearn("1")
    assert run.head().digest == here.head().digest
    assert asked == [("ray:head:6379", ("0", "1", "2", "3")), ("ray:head:6379", ("0", "2", "3"))]
