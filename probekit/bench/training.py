"""A training of a setting under a seed: a run, the rows that judge it, and its references."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from probekit.arrays import Indices
from probekit.bench.experiment import TUNING_SEED, Setting
from probekit.cache import Cache
from probekit.data import Dataset, Sample, read_dataset
from probekit.data.splits import choose_split
from probekit.data.triggers import TriggeredDataset, parse_trigger
from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, NotFoundError
from probekit.evaluation.unlearning import BEFORE, MINIMUM, RETRAINED, UnlearningRows
from probekit.extraction import ExtractOptions
from probekit.extraction.extract import extract_dataset, open_backbone
from probekit.federated.state import State
from probekit.federated.training.cg import ConjugateGradients
from probekit.federated.training.fedavg import FedAvg, Resume
from probekit.files import write_bytes
from probekit.heads import BaseHead, load_head
from probekit.linear.model import LinearModel
from probekit.linear.stats import normalized
from probekit.progress import Progress, silent
from probekit.registry import nearest
from probekit.runs.evaluate import minimum_of
from probekit.runs.rounds import SavedRounds
from probekit.runs.rows import TRAINING, RunRows
from probekit.runs.run import Run, RunData, head_of, single_thread
from probekit.runs.train import train
from probekit.runs.unlearn import removal_of
from probekit.unlearning.methods.ferrari import Ferrari
from probekit.unlearning.methods.retrain import Retrain
from probekit.unlearning.removal import Need, Promise, Questions, Removal, Unlearner, unlearn

ROWS_STREAM = 41
TEST_STREAM = 44
VALIDATION_SHARE = 0.1
OF_TRIGGER = "trigger"
"""As in `ferrari:directions=trigger`."""
DIRECTIONS = 64
NETWORK_PRODUCTS = 100_000
NETWORK_TOLERANCE = 1e-2
"""Bounds the relative error of a linearized network's minimum; on MNIST it was below 1e-3."""


class Subset:
    """Some rows of a dataset; of some classes where they are named."""

    def __init__(self, dataset: Dataset, rows: Indices, classes: tuple[str, ...] = ()) -> None:
        self.dataset = dataset
        self.rows = rows
        self.name = dataset.name
        self.kind = dataset.kind
        self.class_names = classes or dataset.class_names
        self.target_names = dataset.target_names
        self.labels = {
            label: self.class_names.index(name)
            for label, name in enumerate(dataset.class_names)
            if name in self.class_names
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        sample = self.dataset[int(self.rows[index])]
        return replace(sample, label=self.labels.get(sample.label, sample.label))


def of_classes(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The rows of these classes, which are numbered in this order."""
    if not classes:
        return dataset
    for name in classes:
        if name not in dataset.class_names:
            hint = nearest(name, list(dataset.class_names))
            raise NotFoundError(f"{dataset.name} has no class {name!r}. {hint}")
    chosen = {dataset.class_names.index(name) for name in classes}
    rows = [row for row in range(len(dataset)) if dataset[row].label in chosen]
    return Subset(dataset, np.array(rows), classes)


def read_splits(setting: Setting) -> tuple[Dataset, Dataset]:
    """Training and test rows of the setting's classes; a share that is split off is always the
    same, so that no seed trains on another's test rows."""
    splits = read_dataset(setting.data).by_name
    names = list(splits)
    if len(names) == 1 and not setting.test_share:
        raise InputError(
            f"{setting.name} needs test rows; {setting.data} has one split. Set test_share = 0.2."
        )
    train_rows = of_classes(splits[choose_split(names, None)], setting.classes)
    if setting.test_share:
        order = np.random.Generator(np.random.PCG64(TEST_STREAM)).permutation(len(train_rows))
        count = round(setting.test_share * len(order))
        return Subset(train_rows, order[count:]), Subset(train_rows, order[:count])
    return train_rows, of_classes(splits[choose_split(names, "test")], setting.classes)


def draw_rows(setting: Setting, seed: int) -> dict[str, Dataset]:
    """Training and test rows by name; to tune, the test rows come from the training split too."""
    train_rows, test_rows = read_splits(setting)
    generator = np.random.Generator(np.random.PCG64([seed, ROWS_STREAM]))
    order = generator.permutation(len(train_rows))
    if seed == TUNING_SEED:
        count = setting.test_rows or max(1, round(VALIDATION_SHARE * len(order)))
        test: Dataset = Subset(train_rows, order[:count])
        order = order[count:]
    else:
        test = Subset(test_rows, generator.permutation(len(test_rows))[: setting.test_rows])
    if not len(order[: setting.rows]):
        raise InputError(f"{setting.name} leaves no training rows. Lower test_rows.")
    return {"train": Subset(train_rows, order[: setting.rows]), "test": test}


@dataclass(frozen=True)
class ResumedRetraining:
    """`retrain` of a run by FedAvg, going on after the rounds that a killed one did."""

    trainer: FedAvg
    saved: Resume
    promise: ClassVar[Promise] = "retrained"

    def needs(self, removal: Removal) -> frozenset[Need]:
        return Retrain().needs(removal)

    def questions(self, removal: Removal) -> Sequence[Questions]:
        return Retrain().questions(removal)

    def unlearn(self, removal: Removal) -> State:
        setting = removal.state.ridge_choice.setting
        return self.trainer.train(
            removal.retained, ridge=setting, progress=removal.progress, resume=self.saved
        )


@dataclass(frozen=True, eq=False)
class Training:
    """A setting under a seed, in a folder: the run, and the heads that others are compared with."""

    setting: Setting
    seed: int
    folder: Path
    cache: Cache

    def write(self, progress: Progress = silent) -> None:
        """Train, retrain without the forgotten client, and find the minimum, as far as needed."""
        with single_thread():
            self.train(progress)
            for name in (RETRAINED, MINIMUM):
                if not (self.folder / name).is_dir():
                    self._write_reference(name, progress)

    def train(self, progress: Progress = silent) -> Run:
        return train(
            draw_rows(self.setting, self.seed),
            run=self.folder / "run",
            backbone=self.setting.backbone,
            clients=self.setting.clients,
            poison=self.setting.poison(self.seed),
            seed=self.seed,
            cache=self.cache,
            progress=progress,
            **self.setting.train,
        )

    @cached_property
    def run(self) -> Run:
        return Run(self.folder / "run", cache=self.cache)

    @property
    def client(self) -> str:
        return self.setting.forgotten(self.seed)

    def removal(self, progress: Progress = silent) -> Removal:
        return removal_of(self.run, [self.client], progress)

    @cached_property
    def retained(self) -> RunRows:
        rows = self.run.newest.all_rows
        return rows.take(~rows.held_by([self.client]))

    def head(self, state: State) -> BaseHead:
        """Of a state without the forgotten client."""
        return head_of(state, self.retained, self.run.newest.description)

    @property
    def references(self) -> dict[str, BaseHead]:
        """The head before, retrained, and at the minimum where there is one."""
        folders = {name: self.folder / name for name in (RETRAINED, MINIMUM)}
        heads = {name: load_head(path) for name, path in folders.items() if path.is_dir()}
        return {BEFORE: self.run.head, **heads}

    def _write_reference(self, name: str, progress: Progress) -> None:
        removal = self.removal(progress)
        saved = SavedRounds(self.folder / name, self.run.fingerprint.encode())
        state: State | None = None
        if name == RETRAINED:
            method: Unlearner = Retrain()
            if isinstance(removal.state.trainer, FedAvg):
                method = ResumedRetraining(removal.state.trainer, saved)
            state = unlearn(method, removal)
        elif self.setting.minimum and removal.state.model.is_linear and removal.state.ridge:
            state = self._minimum(removal, progress)
        if state is not None:
            self.head(state).save(self.folder / name)
        saved.remove()

    def _minimum(self, removal: Removal, progress: Progress) -> State:
        """Over the retained rows; of a linearized network from the retrained head on."""
        ridge = removal.ridge_choice.value
        if isinstance(removal.state.model, LinearModel):
            return minimum_of(removal.retained, ridge, progress)
        trainer = ConjugateGradients(NETWORK_PRODUCTS, NETWORK_TOLERANCE)
        start = self.references[RETRAINED].params
        params = trainer.minimize(removal.retained, start, ridge=ridge, progress=progress)
        return replace(removal.state, params=params)

    def rows(self, progress: Progress = silent) -> UnlearningRows:
        """What heads are evaluated on."""
        newest = self.run.newest
        data = RunData.of(newest.all_rows, newest.description, self.cache)
        training = data.rows.role_set(data.matrix, data.encoding, data.classes, TRAINING)
        assert training is not None
        count = len(training)
        forgotten = data.rows.held_by([self.client])[:count]
        triggered = self._triggered(progress) if self.setting.trigger else None
        clients: Mapping[str, Indices] = {self.client: np.flatnonzero(forgotten)}
        return UnlearningRows(
            training, clients, forgotten, data.test, triggered, self.setting.target
        )

    def completed(self, method: Unlearner, progress: Progress = silent) -> Unlearner:
        """Ferrari that asks for the trigger's directions gets them: what it adds to the embeddings
        of some training pictures."""
        if not isinstance(method, Ferrari) or method.directions != OF_TRIGGER:
            return method
        path = self.folder / "directions.npy"
        if not path.is_file():
            dataset = draw_rows(self.setting, self.seed)["train"]
            some = Subset(dataset, np.arange(min(DIRECTIONS, len(dataset))))
            triggered = TriggeredDataset(some, parse_trigger(self.setting.trigger))
            parts = (("directions", triggered), ("clean", some))
            normalize = self.run.options.normalize
            rows = [
                normalized(self._extracted(part, name, progress), normalize).to_numpy()
                for name, part in parts
            ]
            content = io.BytesIO()
            np.save(content, rows[0] - rows[1])
            write_bytes(path, content.getvalue())
        return replace(method, directions=str(path))

    def _triggered(self, progress: Progress) -> EmbeddingSet:
        """The test pictures with the trigger."""
        dataset = draw_rows(self.setting, self.seed)["test"]
        triggered = TriggeredDataset(dataset, parse_trigger(self.setting.trigger))
        return self._extracted(triggered, "triggered", progress)

    def _extracted(self, dataset: Dataset, name: str, progress: Progress) -> EmbeddingSet:
        backbone = open_backbone(self.setting.backbone, "image", ExtractOptions())
        extracted = extract_dataset(
            dataset,
            backbone,
            name=f"bench-{self.folder.name}-{name}",
            source=self.setting.data,
            cache=self.cache,
            progress=progress,
        )
        (rows,) = extracted.sets.values()
        return rows
