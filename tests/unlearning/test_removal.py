"""What a method may use: kept statistics and gradients, cached rows, clients online; what is asked, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError, MismatchError, MissingClientsError
from probekit.federated.federation import Answers, Traffic
from probekit.federated.in_process import InProcess
from probekit.federated.message import Ask
from probekit.federated.trained import Gradients, History, Kept, Round
from probekit.linear.design import Solution
from probekit.unlearning.choice import carried_out, choose, unlearn
from probekit.unlearning.method import Material, Unlearned, missing
from probekit.unlearning.methods.exact import Exact
from probekit.unlearning.methods.fedremoval import FedRemoval
from probekit.unlearning.methods.retrain import Retrain, RetrainFedAvg
from probekit.unlearning.removal import Removal
from probekit.unlearning.request import SampleRef, UnlearnRequest
from tests.oracles import columns, one_hot, relative
from tests.unlearning.conftest import Run, make_run

FORGET = UnlearnRequest.of(["1"])
KINDS = ("statistics", "gradient", "product", "form", "scales", "importance", "fit", "leave-out", "evaluate")

Array = NDArray[np.float64]


class Forbidden:
    """A federation that must not be asked, nor looked at."""

    @property
    def clients(self) -> tuple[str, ...]:
        raise AssertionError("looked at")

    @property
    def counts(self) -> Mapping[str, int]:
        raise AssertionError("looked at")

    @property
    def traffic(self) -> Traffic:
        raise AssertionError("looked at")

    def offers(self, kind: str, how: str = "each") -> bool:
        raise AssertionError(f"asked whether it offers {kind}")

    def ask(self, kind: str, *_: Any, **__: Any) -> Answers:
        raise AssertionError(f"asked for {kind}")


def gradient_of(run: Run, rows: NDArray[np.int64]) -> Array:
    """The gradient of the mean ridge loss of these rows at the run's head, from the explicit matrix."""
    X, Y = columns(run.embeddings.to_numpy()[rows]), one_hot(run.embeddings.labels[rows], 3)
    return np.asarray(X.T @ (X @ run.trained.params - Y) / len(X) + run.trained.ridge * run.trained.params)


@pytest.mark.parametrize("source", ["statistics", "gradients", "rows", "online"])
def test_every_source_gives_the_retained_gradient_and_counts_what_it_sent(source: str) -> None:
    run = make_run(keep=source if source in ("statistics", "gradients") else "nothing")
    material = {"rows": run.material, "online": Material(clients=run.online("1"))}.get(source, Material())
    removal = Removal(run.trained, FORGET, material)
    assert relative(removal.gradient, gradient_of(run, run.rows_without("1"))) < 1e-10
    kept = {name: len(rows) for name, rows in run.held("1").items()}
    assert removal.counts == kept == removal.retained.counts
    cost = removal.cost
    if source in ("statistics", "gradients"):
        assert (cost.up, cost.down, cost.rounds) == (0, 0, 0)
    else:
        params = {"params": run.trained.params}
        answers = run.online("1").ask("gradient", params).each()
        assert cost.up == sum(one.size for one in answers)
        question = Ask("gradient", params, number=1, problem=run.trained.problem.digest)
        assert (cost.down, cost.rounds) == (4 * question.size, 1)


@pytest.mark.parametrize(
    ("source", "offers"),
    [
        ("statistics", {"statistics", "gradient", "product", "form", "scales", "importance"}),
        ("gradients", {"gradient"}),
        ("nothing", set()),
        ("rows", {*KINDS}),
    ],
)
def test_what_a_source_can_answer(source: str, offers: set[str]) -> None:
    run = make_run(keep="nothing" if source == "rows" else source)
    removal = Removal(run.trained, FORGET, run.material if source == "rows" else Material())
    assert {kind for kind in KINDS if removal.retained.offers(kind)} == offers


def test_kept_gradients_answer_at_the_head_alone_and_the_clients_elsewhere() -> None:
    run = make_run(keep="gradients")
    alone = Removal(run.trained, FORGET).retained
    with pytest.raises(MissingClientsError, match="only its gradient at the head was kept"):
        alone.ask("gradient", {"params": run.trained.params + 1}).total()
    with pytest.raises(MissingClientsError, match="only its gradient at the head was kept"):
        alone.ask("gradient", {"params": run.trained.params}, {"loss": True}).total()
    asked = Removal(run.trained, FORGET, Material(clients=run.online("1")))
    assert np.isfinite(asked.gradient).all()
    assert asked.cost.rounds == 0
    asked.loss.gradient(run.trained.params + 1)
    assert asked.cost.rounds == 1
    asked.online.ask("scales").total()
    assert asked.cost.rounds == 2


def test_statistics_are_kept_for_those_who_stay_and_asked_for_from_those_who_changed() -> None:
    run = make_run()
    statistics = run.trained.statistics
    assert statistics is not None
    sample = run.embeddings.ids[int(run.partition.clients["0"][0])]
    removal = Removal(run.trained, UnlearnRequest(("1",), (SampleRef(sample, "0"),)), run.material)
    tree = removal.statistics
    assert tree is not None
    assert removal.changed == {"0"}
    assert removal.forgotten == {"0", "1"}
    assert set(tree) == {"0", "2", "3", "4"}
    assert tree["0"].count == statistics["0"].count - 1
    assert all(tree[name] is statistics[name] for name in "234")
    assert removal.cost.rounds == 1
    assert removal.cost.up == next(iter(removal.online.ask("statistics", clients=["0"]).each())).size
    anew = Removal(run.trained, removal.request, run.material)
    assert FedRemoval().unlearn(anew).cost.rounds == 2  # its gradient, and its statistics to keep
    assert Retrain().unlearn(Removal(run.trained, removal.request, run.material)).cost.rounds == 1


def test_arriving_statistics_of_clients_that_do_not_join_are_not_used() -> None:
    run = make_run()
    statistics = run.trained.statistics
    assert statistics is not None
    after = Exact().unlearn(Removal(run.trained, FORGET, Material(arriving=statistics))).trained_after
    assert set(after.counts) == {"0", "2", "3", "4"} == set(after.statistics or {})
    assert relative(after.params, run.oracle(run.rows_without("1"))) < 1e-9


def test_traffic_of_earlier_removals_is_not_counted_again() -> None:
    run = make_run(keep="nothing")
    clients = run.online("1")
    costs = []
    for method in (FedRemoval(), FedRemoval(), Retrain()):
        cost = method.unlearn(Removal(run.trained, FORGET, Material(clients=clients))).cost
        costs.append((cost.up, cost.down, cost.rounds))
    assert costs[0] == costs[1]
    assert [rounds for _, _, rounds in costs] == [1, 1, 1]
    assert costs[2][0] == sum(one.size for one in clients.ask("statistics").each())


def test_samples_are_forgotten_by_clients_online_without_the_cached_rows() -> None:
    run = make_run(keep="nothing", ridge=0.05)
    row = int(run.partition.clients["0"][0])
    request = UnlearnRequest.of(samples=[run.embeddings.ids[row]])
    rest = {name: rows[rows != row] for name, rows in run.partition.clients.items()}
    material = Material(clients=InProcess.of(run.trained.problem, run.embeddings, rest))
    found = unlearn(run.trained, request, method="fedremoval-pcg:30", material=material).trained_after
    assert relative(found.params, run.oracle(np.concatenate([*rest.values()]))) < 1e-9
    assert found.counts["0"] == run.trained.counts["0"] - 1


def test_the_forgotten_clients_can_be_asked_where_their_rows_are_at_hand() -> None:
    run = make_run()
    row = int(run.partition.clients["0"][0])
    removal = Removal(run.trained, UnlearnRequest(("1",), (SampleRef(run.embeddings.ids[row]),)), run.material)
    assert dict(removal.target.counts) == {"0": 1, "1": len(run.partition.clients["1"])}
    assert removal.available("target", "fit")
    assert not Removal(run.trained, FORGET).available("target", "fit")
    own = InProcess.of(run.trained.problem, run.embeddings, {"1": run.partition.clients["1"]})
    given = Removal(run.trained, FORGET, Material(target=own))
    given.target.ask("gradient", {"params": run.trained.params}).total()
    assert given.cost.rounds == 1
    with pytest.raises(InputError, match="found 'stranger'"):
        given.available("stranger", "fit")


@pytest.mark.parametrize("keep", ["statistics", "gradients"])
def test_server_only_asks_nobody(keep: str) -> None:
    run = make_run(keep=keep)
    server = Material(clients=Forbidden(), target=Forbidden(), server_only=True)
    both = replace(server, embeddings=run.embeddings, partition=run.partition)
    for material in (server, both):
        done = unlearn(run.trained, FORGET, material=material)
        assert done.method == ("exact" if keep == "statistics" else "fedremoval")
        assert (done.cost.up, done.cost.down, done.cost.rounds) == (0, 0, 0)
        assert choose(Removal(run.trained, FORGET, material))[0] == done.method
        for name in ("retrain", *(("fedremoval-line", "fedremoval-pcg") if keep == "gradients" else ())):
            with pytest.raises(InputError, match="nobody may be asked"):
                unlearn(run.trained, FORGET, method=name, material=material)
    sample = UnlearnRequest.of(samples=[run.embeddings.ids[int(run.partition.clients["0"][0])]])
    for name in ("auto", "exact", "fedremoval"):
        with pytest.raises(InputError, match="single samples"):
            unlearn(run.trained, sample, method=name, material=both)
    with pytest.raises(InputError, match="Cannot add client 9"):
        unlearn(run.trained, UnlearnRequest(added=("9",)), material=both)


def test_strangers_online_are_refused() -> None:
    run = make_run()
    with pytest.raises(MismatchError, match="those retained are 0, 2, 3, 4"):
        FedRemoval().unlearn(Removal(run.trained, FORGET, Material(clients=run.online())))


@dataclass(frozen=True)
class Half:
    """A stranger's method: half way to zero, with needs of its own."""

    name: ClassVar[str] = "half"
    needs: ClassVar[tuple[Any, ...]] = (
        (("kept", "history"), ("kept", "notes", "notes: train by half")),
        ("kept", "notes", "notes: train by half"),
        ("online", "fit"),
    )
    keeps: ClassVar[tuple[str, ...]] = ("notes",)
    traits: ClassVar[frozenset[str]] = frozenset()

    def unlearn(self, removal: Removal) -> Unlearned:
        params = removal.params / 2
        return removal.finish(self, Solution(params, 0.0, 1, "half"), params=params)


NOTES = {
    "notes": Kept(parts={name: {"x": np.ones(2)} for name in "01234"}, about=frozenset("01234")),
    "sums": Kept(arrays={"x": np.ones(2)}, about=frozenset("01")),
    "plain": Kept(plain={"seed": 3}),
    "others": Kept(arrays={"x": np.ones(2)}, plain=[1], about=frozenset("34")),
}


def test_needs_are_checked_at_once_each_with_its_remedy() -> None:
    run = make_run(keep="gradients")
    why = missing(Half(), Removal(run.trained, FORGET))
    assert why == (
        "Unlearning by half needs what this run does not have: the history of rounds: train by FedAvg with "
        "keep_history=True; notes: train by half; the cached rows of the retained clients: give the embedding set and "
        "the partition."
    )
    noted = replace(run.trained, kept=NOTES)
    assert "notes" not in missing(Half(), Removal(noted, FORGET))
    assert missing(Half(), Removal(noted, FORGET, run.material)) == ""
    with pytest.raises(InputError, match="needs what this run does not have: the cached rows"):
        carried_out(Removal(noted, FORGET), Half())
    with pytest.raises(InputError, match=r"cached rows of the retained.*; FedAvg options"):
        carried_out(Removal(run.trained, FORGET), RetrainFedAvg())


def test_what_knows_a_forgotten_client_is_dropped() -> None:
    run = make_run()
    zeros = np.zeros_like(run.trained.params)
    history = History((Round(zeros, ("1", "2"), (0.5, 0.5), np.stack([zeros, zeros])),), zeros)
    gradients = Gradients(dict.fromkeys("01234", zeros))
    noted = replace(run.trained, kept=NOTES, history=history, gradients=gradients)
    after = Half().unlearn(Removal(noted, FORGET, run.material)).trained_after
    assert set(after.kept) == {"notes", "plain", "others"}
    assert set(after.kept["notes"].parts) == {"0", "2", "3", "4"} == after.kept["notes"].about
    assert after.history is None
    assert after.gradients is None
    assert set(after.statistics or {}) == {"0", "2", "3", "4"}
    assert set(noted.kept["notes"].parts) == set("01234")
    sample = SampleRef(run.embeddings.ids[int(run.partition.clients["3"][0])])
    samples = Half().unlearn(Removal(noted, UnlearnRequest(samples=(sample,)), run.material)).trained_after
    assert set(samples.kept["notes"].parts) == {"0", "1", "2", "4"}
    assert set(samples.kept) == {"notes", "sums", "plain"}


def test_a_method_replaces_what_would_be_dropped_and_must_end_in_numbers() -> None:
    run = make_run()
    removal = Removal(run.trained, FORGET)
    solution = Solution(removal.params, 0.0, 1, "half")
    kept = {"notes": Kept(plain=1)}
    assert removal.finish(Half(), solution, params=removal.params, kept=kept).trained_after.kept == kept
    with pytest.raises(InputError, match="half must end in finite parameters"):
        removal.finish(Half(), solution, params=removal.params * np.nan)
