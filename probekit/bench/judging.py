"""What is measured of a head that has forgotten, beside both retrainings, in plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probekit.bench.scenario import ANOTHER, FEDAVG, MINIMUM, Scenario
from probekit.evaluation.forgetting import forgetting_accuracy, js_divergence, tug_of_war, worst_client_drop
from probekit.evaluation.shadow_attacks import rmia
from probekit.linear.temperature import best_temperature
from probekit.unlearning.removal import Removal
from probekit.values import Array, EmbeddingSet, Indices

VECTOR_STREAM = 74
Numbers = dict[str, float | None]


@dataclass(eq=False)
class Judge:
    """Scores of heads on the rows of a scenario; those of its retraining are computed once."""

    scenario: Scenario
    part: str = "test"

    def __post_init__(self) -> None:
        rows = self.scenario.rows
        self.clean: EmbeddingSet = rows.test if self.part == "test" else rows.validation
        self.marked = rows.test_triggered if self.part == "test" else rows.validation_triggered
        self.label = self.scenario.key.setting.poison.label
        self._references: dict[str, Array] = {}

    def scores(self, params: Array, rows: Any) -> Array:
        """The score of each class for each row."""
        problem = self.scenario.trained.problem
        return np.asarray(problem.scores(self.scenario.head(params), rows))

    @property
    def retrained(self) -> Array:
        """The parameters that methods are held against."""
        return self.scenario.references[self.scenario.reference]

    def of_reference(self, what: str, rows: Any) -> Array:
        """The retraining's scores on some rows, by a name for them."""
        if what not in self._references:
            self._references[what] = self.scores(self.retrained, rows)
        return self._references[what]

    @property
    def forgotten(self) -> tuple[Any, Indices]:
        """The forgotten rows and the labels that they came with."""
        embeddings, rows = self.scenario.rows.embeddings, self.scenario.forgotten
        return np.asarray(embeddings.embeddings[rows]), embeddings.labels[rows]

    def utility(self, params: Array) -> Numbers:
        """Accuracy on unseen rows, and how often the trigger works: on others' rows, on all, and as the paper counts.

        `backdoor_paper`: on the poisoned training rows themselves, those of the target class included.
        """
        found: Numbers = {"accuracy": _accuracy(self.scores(params, self.clean.embeddings), self.clean.labels)}
        if self.marked is not None:
            hits = self.scores(params, self.marked.embeddings).argmax(axis=1) == self.label
            found["backdoor"] = float(hits[self.marked.labels != self.label].mean())
            found["backdoor_all"] = float(hits.mean())
        rows, labels = self.forgotten
        own = _accuracy(self.scores(params, rows), labels)
        found["forgotten_accuracy"] = own
        if self.scenario.rows.poisoned is not None and self.scenario.rows.poisoned in self.scenario.everything.clients:
            found["backdoor_paper"] = own
        return found

    def distance(self, params: Array) -> Numbers:
        """How far the parameters are from each retraining, relative to that one's size."""
        names = {MINIMUM: "distance", FEDAVG: "distance_fedavg"}
        known = self.scenario.references
        return {new: apart(params, known[name]) for name, new in names.items() if name in known}

    def disagreement(self, params: Array) -> float:
        """The share of rows, with and without the trigger, that get another class than from retraining."""
        sets = [("clean", self.clean)] + ([("marked", self.marked)] if self.marked is not None else [])
        apart_of = [
            self.scores(params, rows.embeddings).argmax(axis=1)
            != self.of_reference(name, rows.embeddings).argmax(axis=1)
            for name, rows in sets
            if rows is not None
        ]
        return float(np.concatenate(apart_of).mean())

    def aim(self, params: Array, aim: str) -> float:
        """What tuning makes small, on its own rows.

        "oracle": disagreement with retraining. "blind": errors on unseen rows, and how far the forgotten rows are from
        being treated like unseen ones (of a poisoned client: how often its labels are still given).
        """
        if aim == "oracle":
            return self.disagreement(params)
        rows, labels = self.forgotten
        right = _accuracy(self.scores(params, self.clean.embeddings), self.clean.labels)
        kept = _accuracy(self.scores(params, rows), labels)
        return 1 - right + (kept if self.scenario.rows.poisoned is not None else abs(kept - right))

    @cached_property
    def temperature(self) -> float:
        """Of the softmax that makes chances of scores: of least log loss for retraining, on validation rows."""
        rows = self.scenario.rows.validation
        return best_temperature(self.of_reference("validation", rows.embeddings), rows.labels)

    def divergence(self, params: Array) -> Numbers:
        """How far the answers on test rows are from retraining's, and the tug of war with it."""
        clean, retained = self.clean, self._retained()
        own, other = self.scores(params, clean.embeddings), self.of_reference("clean", clean.embeddings)
        rows, labels = self.forgotten
        found = forgetting_accuracy(
            (self.scores(params, rows), labels), (self.scores(params, retained[0]), retained[1]), (own, clean.labels)
        )
        retrained = forgetting_accuracy(
            (self.of_reference("forgotten", rows), labels),
            (self.of_reference("retained", retained[0]), retained[1]),
            (other, clean.labels),
        )
        return {
            "disagreement": self.disagreement(params),
            "js": js_divergence(own, other, temperature=self.temperature).mean,
            "tow": tug_of_war(found, retrained),
        }

    def _retained(self) -> tuple[Any, Indices]:
        """Some retained rows and their labels: as many as test rows, or all."""
        embeddings, parts = self.scenario.rows.embeddings, self.scenario.rows.partition.clients
        every = np.setdiff1d(np.concatenate([*parts.values()]), self.scenario.forgotten)
        some = every[:: max(1, len(every) // max(1, len(self.clean)))]
        return np.asarray(embeddings.embeddings[some]), embeddings.labels[some]

    def clients(self, params: Array) -> Numbers:
        """The largest loss of accuracy of a retained client, against before."""
        rows, parts = self.scenario.rows.embeddings, self.scenario.rows.partition.clients
        left = {name: np.setdiff1d(own, self.scenario.forgotten) for name, own in parts.items()}
        every = np.concatenate([*left.values()])
        ends = np.cumsum([len(own) for own in left.values()])
        places = dict(zip(left, np.split(np.arange(len(every)), ends[:-1]), strict=True))
        some = np.asarray(rows.embeddings[every])
        if "before" not in self._references:
            self._references["before"] = self.scores(self.scenario.trained.params, some)
        drop = worst_client_drop(
            self._references["before"], self.scores(params, some), rows.labels[every], clients=places
        )
        return {"worst_client_drop": drop.drop}

    def membership(self, params: Array) -> Numbers:
        """RMIA: are the forgotten rows told from test rows? The references are the retrainings, without those rows."""
        rows, labels = self.forgotten
        tuned = self.scenario.rows.validation
        references = [self.scenario.references[name] for name in self.scenario.references]
        apart_of = [np.stack([self.scores(one, some) for one in references]) for some in (rows, self.clean.embeddings)]
        found = rmia(
            (self.scores(params, rows), labels),
            (self.scores(params, self.clean.embeddings), self.clean.labels),
            (apart_of[0], apart_of[1]),
            calibration=(self.scores(params, tuned.embeddings), tuned.labels),
        )
        one = found.attack
        return {"rmia_auc": one.auc, "rmia_auc_low": one.low, "rmia_auc_high": one.high}

    def curvature(self, params: Array) -> Numbers:
        """How well the server's rows stand for the retained ones' curvature: by v^T H v, and by what a step needs.

        `curvature_error`: |H^-1/2 (H_p - H) H^-1/2|; `step_error`: |H_p^-1 g - H^-1 g| / |H^-1 g|, g the retained
        gradient at the head before.
        """
        scenario = self.scenario
        removal = Removal(scenario.trained, scenario.everything, scenario.material())
        if removal.statistics is None or removal.server_set is None or removal.server_set.statistics is None:
            return {}
        total, own, ridge = removal.statistics.total, removal.server_set.statistics, removal.ridge
        whole, server = (np.asarray(one.dense.gram) / one.count for one in (total, own))
        v = np.random.Generator(np.random.PCG64([scenario.key.seed, VECTOR_STREAM])).standard_normal(len(whole))
        ridged = ridge * np.eye(len(whole))
        values, vectors = np.linalg.eigh(whole + ridged)
        root = vectors / np.sqrt(values)
        gradient = removal.gradient
        steps = [np.linalg.solve(one + ridged, gradient) for one in (server, whole)]
        return {
            "vhv": float(v @ whole @ v),
            "vhv_server": float(v @ server @ v),
            "curvature_error": float(np.linalg.norm(root.T @ (server - whole) @ root, 2)),
            "step_error": float(np.linalg.norm(steps[0] - steps[1]) / np.linalg.norm(steps[1])),
        }


def apart(params: Array, other: Array) -> float:
    """The distance of two parameters, relative to the second's size."""
    size = float(np.linalg.norm(other))
    return float(np.linalg.norm(np.asarray(params, np.float64) - other)) / (size or 1.0)


def seeds_apart(scenario: Scenario) -> float | None:
    """How far retraining is from retraining with another seed: what no method can be asked to beat."""
    known = scenario.references
    return apart(known[ANOTHER], known[FEDAVG]) if ANOTHER in known else None


def _accuracy(scores: Array, labels: Indices) -> float:
    return float((scores.argmax(axis=1) == labels).mean())


MEASURES: dict[str, Callable[[Judge, Array], Numbers]] = {
    "utility": Judge.utility,
    "distance": Judge.distance,
    "divergence": Judge.divergence,
    "clients": Judge.clients,
    "membership": Judge.membership,
    "curvature": Judge.curvature,
}
"""What each group of metrics computes from the parameters alone."""
