"""The kit for unlearning methods passes ours and catches each way of being a bad one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from probekit.federated.trained import Kept
from probekit.registry import methods
from probekit.testing import check_method
from tests.unlearning.methods.test_by_rounds import NAMES

BUILT_IN = (
    *("exact", "fedremoval", "fedremoval-line", "fedremoval-pcg", "retrain", "retrain-fedavg"),
    *("fused:layers=1", "ferrari:region=0:2", "ferrari:region=0:2,space=embedding", "fedau", "guo"),
    *("fedaccum", "federaser", "fedrecover", "fedrecovery", "knot", "sifu"),
)


@pytest.mark.parametrize("name", BUILT_IN)
def test_ours_pass(name: str) -> None:
    checks = check_method(name)
    assert [check for check in checks if not check.passed] == []
    assert len(checks) >= 10


def test_all_built_in_methods_are_checked() -> None:
    assert {name.partition(":")[0] for name in (*BUILT_IN, *NAMES)} == {point.name for point in methods.built_in}


@dataclass(frozen=True)
class Good:
    """A gradient step of the others, from the average of what they sent last."""

    name: ClassVar[str] = "good"
    needs: ClassVar[tuple[Any, ...]] = (("kept", "history"), ("retained", "gradient"))
    keeps: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[frozenset[str]] = frozenset()

    def params(self, removal: Any) -> Any:
        sent = [removal.before.history.last_upload(name) for name in removal.counts]
        start = np.mean(sent, axis=0)
        return start - removal.before.learning_rate * removal.loss.gradient(start)

    def unlearn(self, removal: Any) -> Any:
        return removal.finish(self, params=self.params(removal))


class OldHead(Good):
    def params(self, removal: Any) -> Any:
        return removal.params + 1e-9


class NotFinite(Good):
    def params(self, removal: Any) -> Any:
        return np.full_like(removal.params, np.nan)


class HiddenNan(Good):
    """Does not finish as others do."""

    def unlearn(self, removal: Any) -> Any:
        done = super().unlearn(removal)
        head = done.trained_after.head
        bad = replace(head)
        object.__setattr__(bad, "params", np.full_like(head.params, np.nan))
        return replace(done, trained_after=replace(done.trained_after, head=bad))


class Curious(Good):
    """Asks the client that leaves for a gradient."""

    def params(self, removal: Any) -> Any:
        removal.target.ask("gradient", {"params": removal.params}).total()
        return super().params(removal)


class CuriousOnline(Good):
    def params(self, removal: Any) -> Any:
        removal.online.ask("fit", {"params": removal.params}, {"steps": 1, "rate": 0.1}).total()
        return super().params(removal)


class Greedy(Good):
    """Uses gradients that it does not say it needs."""

    def params(self, removal: Any) -> Any:
        return super().params(removal) - 0.1 * sum(removal.before.gradients.aggregate.values())


class Clumsy(Good):
    """Changes what was before."""

    def params(self, removal: Any) -> Any:
        for gradient in removal.before.gradients.aggregate.values():
            gradient += 1
        return super().params(removal)


class Tidy(Good):
    """Takes the client out of the run before, too."""

    def unlearn(self, removal: Any) -> Any:
        done = super().unlearn(removal)
        removal.before.weights.pop("1")
        return done


class Hoarder(Good):
    def unlearn(self, removal: Any) -> Any:
        return removal.finish(self, params=self.params(removal), history=removal.before.history)


class HoarderOfGradients(Good):
    def unlearn(self, removal: Any) -> Any:
        return removal.finish(self, params=self.params(removal), gradients=removal.before.gradients)


class SecretHoarder(Good):
    def unlearn(self, removal: Any) -> Any:
        kept = {"uploads": Kept(parts={"1": {"last": removal.before.history.last_upload("1")}})}
        return removal.finish(self, params=self.params(removal), kept=kept)


class Random(Good):
    def params(self, removal: Any) -> Any:
        return super().params(removal) + np.random.default_rng().normal(scale=0.01, size=removal.params.shape)


class Crooked(Good):
    def unlearn(self, removal: Any) -> Any:
        raise RuntimeError("not today")


class Needy(Good):
    needs: ClassVar[tuple[Any, ...]] = (("kept", "a recipe for cake", "bake one"),)


class Vague(Good):
    needs: ClassVar[tuple[Any, ...]] = (("history",),)


def failures(unlearner: Any) -> dict[str, str]:
    return {check.name: check.detail for check in check_method(unlearner, network=False) if not check.passed}


def test_a_good_one_passes_on_a_head_and_on_a_network() -> None:
    checks = check_method(Good())
    assert [check for check in checks if not check.passed] == []
    assert {check.name.partition(":")[0] for check in checks} == {
        "declaration",
        "FedAvg with history",
        "network with history",
        "conventional network with history",
        "applies",
    }


@pytest.mark.parametrize(
    ("bad", "caught", "words"),
    [
        (OldHead, "moves", "exact removal by"),
        (NotFinite, "runs", "finite"),
        (HiddenNan, "runs", "must end in finite parameters"),
        (Curious, "declared questions", "('target', 'gradient')"),
        (CuriousOnline, "declared questions", "('online', 'fit')"),
        (Greedy, "declared material", "NoneType"),
        (Clumsy, "before", "stay as it was"),
        (Tidy, "before", "stay as it was"),
        (Hoarder, "forgotten", "still in history"),
        (HoarderOfGradients, "forgotten", "still in gradients"),
        (SecretHoarder, "forgotten", "still in uploads"),
        (Random, "again", "wanted 0"),
        (Crooked, "runs", "not today"),
    ],
)
def test_each_fault_is_caught(bad: type[Good], caught: str, words: str) -> None:
    assert words in failures(bad())[f"FedAvg with history: {caught}"]


def test_one_that_no_run_has_material_for_is_told_so() -> None:
    assert "bake one" in failures(Needy())["applies"]


def test_one_that_does_not_say_what_it_needs_is_refused() -> None:
    assert "history" in failures(Vague())["declaration"]
    assert "needs" in failures(object())["declaration"]
