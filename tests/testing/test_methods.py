"""check_method passes every method of ours and names each planted fault of another one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from probekit.errors import InputError, NotFoundError
from probekit.federated.client import ClientData
from probekit.federated.queries import Arrays, Gradient, Shapes
from probekit.federated.state import KeptGradients, State
from probekit.objective import Model
from probekit.records import record
from probekit.registry import METHODS, configured
from probekit.testing import ConformanceError, check_method, example_removal
from probekit.testing.methods import LEAVER, TRAINERS
from probekit.unlearning.choice import Properties
from probekit.unlearning.removal import Need, Promise, Questions, Removal, unlearn
from tests.oracles import relative_error, with_ones

OWN = Path(__file__).parents[2] / "examples" / "own_method"


@pytest.mark.parametrize("name", sorted({*METHODS.names()} - {"ferrari"}))
def test_ours_do_what_a_method_must(name: str) -> None:
    coverage = check_method(name)
    assert {*coverage.tried, *coverage.lacking} == {
        f"{what} of {trainer}" for trainer in TRAINERS for what in ("a client", "samples")
    }


@pytest.mark.parametrize(
    "name",
    [
        *("ferrari:columns=1:3", "pga:post=0", "fused:rank=2", "fused:layers=1,density=0.3"),
        *("ew-sga:importance=target", "ew-sga:importance=server", "flipping:labels=client"),
        *("federaser:lengths=mean", "starfish:warmup=1,correction=2,tuning=1"),
        *("fedremoval:cg", "fedremoval:adam,steps=20,batch_size=8"),
    ],
)
def test_their_options_too(name: str) -> None:
    assert check_method(name).tried


@dataclass(frozen=True)
class MeanRow:
    """A question of a plugin's own, which is no record."""

    def answer(self, client: ClientData) -> Arrays:
        return {"mean": np.asarray(client.rows.rows, float).mean(axis=0)}

    def shapes(self, model: Model, rows: int) -> Shapes:
        return {"mean": (model.shape[0] - 1,)}


@dataclass(frozen=True)
class Good:
    """One gradient step on the retained loss."""

    promise: ClassVar[Promise] = "nothing"
    rate: float = 0.01

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.RETAINED, Need.RETAINED_ROWS})

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return [Questions(Gradient(removal.state.params))]

    def unlearn(self, removal: Removal) -> State:
        params = removal.state.params
        return removal.finish(params - self.rate * removal.loss.gradient(params))


class AsksBefore(Good):
    """Says nothing of a second round."""

    def unlearn(self, removal: Removal) -> State:
        removal.loss.gradient(removal.state.params)
        return super().unlearn(removal)


class NeedsMore(Good):
    """Wants what it does not declare."""

    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.RETAINED})


class NeedsHistory(Good):
    def unlearn(self, removal: Removal) -> State:
        if removal.state.kept:
            removal.kept(type(removal.state.kept[0]))
            return super().unlearn(removal)
        raise ValueError("nothing is kept")


class DoesNothing(Good):
    def unlearn(self, removal: Removal) -> State:
        return removal.finish(removal.state.params)


class Diverges(Good):
    def unlearn(self, removal: Removal) -> State:
        after = super().unlearn(removal)
        return replace(after, params=after.params * np.inf)


class WrongShape(Good):
    def unlearn(self, removal: Removal) -> State:
        after = super().unlearn(removal)
        return replace(after, params=after.params[:-1])


class Random(Good):
    def unlearn(self, removal: Removal) -> State:
        after = super().unlearn(removal)
        return replace(after, params=after.params + 1e-9 * np.random.default_rng().normal())


class KeepsEverything(Good):
    def unlearn(self, removal: Removal) -> State:
        return replace(super().unlearn(removal), kept=removal.state.kept)


class KeepsTheClient(Good):
    def unlearn(self, removal: Removal) -> State:
        return replace(super().unlearn(removal), clients=removal.state.clients)


class KeepsUploadsUnderAnotherName(Good):
    def unlearn(self, removal: Removal) -> State:
        after = super().unlearn(removal)
        kept = removal.state.get(KeptGradients)
        if kept is None or LEAVER not in kept.gradients:
            return after
        hidden = {"nobody": kept.gradients[LEAVER]}
        gradients = KeptGradients(kept.params, hidden, {"nobody": 1.0})
        return replace(after, kept=(gradients,))


@record("kept/test-notes")
@dataclass(frozen=True)
class Notes:
    text: str = "by a plugin"

    def without(self, clients: object) -> Notes:
        return self


class KeepsItsOwnKind(Good):
    def unlearn(self, removal: Removal) -> State:
        after = super().unlearn(removal)
        return replace(after, kept=(*after.kept, Notes()))


class WritesInPlace(Good):
    """Changes what it was given, and restores it in vain."""

    def unlearn(self, removal: Removal) -> State:
        params = removal.state.params
        params += 0.01
        after = super().unlearn(removal)
        params -= 0.01 * (1 + 1e-9)
        return after


class AsksNoRecord(Good):
    """Works in one process only: its question cannot be written."""

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return [*super().questions(removal), Questions(MeanRow())]

    def unlearn(self, removal: Removal) -> State:
        list(removal.retained.ask(MeanRow()))
        return super().unlearn(removal)


class Impossible(Good):
    def needs(self, removal: Removal) -> frozenset[Need]:
        return frozenset({Need.DIRECTIONS})


def test_a_good_method_passes() -> None:
    assert len(check_method(Good()).tried) == 2 * len(TRAINERS)


@pytest.mark.parametrize(
    "method",
    [
        *(AsksBefore, NeedsMore, NeedsHistory, DoesNothing, Diverges, WrongShape, Random),
        *(KeepsEverything, KeepsTheClient, KeepsUploadsUnderAnotherName, KeepsItsOwnKind),
        *(AsksNoRecord, Impossible, WritesInPlace),
    ],
)
def test_each_planted_fault_is_refused(method: type[Good]) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_method(method())
    assert isinstance(caught.value, InputError)


def test_an_own_method_is_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OWN)
    monkeypatch.syspath_prepend(str(OWN))
    assert check_method("py:neggrad:NegGrad").tried
    method = configured("py:neggrad:NegGrad:weight=0.1,steps=7")
    assert (method.weight, method.steps, method.rate) == (0.1, 7, 0.01)
    removal = example_removal()
    after = unlearn(method, removal).params
    W = removal.state.params
    loss = {}
    for part in ("retained", "target"):
        federation = getattr(removal, part)
        rows = [federation.transport.data[name] for name in federation.clients]
        Z = with_ones(np.concatenate([client.rows for client in rows]))
        Y = np.concatenate([client.target_matrix for client in rows])
        loss[part] = (Z.T @ Z / len(Z) + 0.1 * np.eye(6), Z.T @ Y / len(Z))
    for _ in range(7):
        gradients = {part: H @ W - b for part, (H, b) in loss.items()}
        W = W - 0.01 * (0.9 * gradients["retained"] - 0.1 * gradients["target"])
    assert relative_error(after, W) < 1e-12


@pytest.mark.parametrize(
    "text", ["py:neggrad", "py:neggrad:NegGrat", "py:neggrads:NegGrad", "py:neggrad:NegGrad:a=1"]
)
def test_own_methods_that_are_not_there(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OWN))
    with pytest.raises((InputError, NotFoundError)):
        configured(text)


def test_the_papers_columns_follow_from_needs_and_promises() -> None:
    """As in its table, but for what its own sources say otherwise (docs/methods.md)."""
    removal = example_removal()
    columns = {
        name: "".join(
            "-" if value is None else "ny"[value]
            for value in vars(Properties.of(configured(name), removal)).values()
        )
        for name in METHODS.names()
    }
    assert columns == {
        "cf": "nynyn",
        "ew-sga": "nnnyn",
        "exact": "yyyyy",
        "federaser": "nynnn",
        "fedrecovery": "yyynn",
        "fedremoval": "yyyyn",
        "fedremoval-line": "nynyn",
        "fedremoval-pcg": "nynyy",
        "ferrari": "nnyyn",
        "flipping": "nnnyn",
        "fused": "nynyn",
        "knot": "nynn-",
        "pga": "nnnnn",
        "retrain": "nyny-",
        "rounds": "nynyy",
        "sga": "nnyyn",
        "starfish": "nynnn",
    }


def test_a_client_elsewhere_understands_every_question() -> None:
    """In a new process one import registers all that methods may ask."""
    script = (
        "import probekit.unlearning.methods\n"
        "from probekit.records import _classes\n"
        "print(*(name for name in _classes if name.startswith(('query/', 'recipe/'))))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], text=True, capture_output=True, check=True
    )
    assert {
        *("query/importance", "query/quadratic-form", "query/local-fit", "recipe/elastic"),
        *("recipe/random-labels", "recipe/sparse-adapter", "recipe/low-rank-adapter"),
        *("recipe/blindness", "recipe/newton-step"),
    } <= set(process.stdout.split())
