"""The verb: rows, divided among clients, to a run in a folder."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from probekit.arrays import TEXT, Ids, Texts
from probekit.cache import Cache
from probekit.cache.erasure import Tombstones
from probekit.cache.runs import note_run, noted_runs
from probekit.data import DataOptions, read_dataset
from probekit.data.partition import Scheme, partition
from probekit.data.triggers import Poison, TriggeredDataset, parse_trigger
from probekit.embeddings import EmbeddingSet
from probekit.errors import CacheError, InputError, MismatchError, MissingClients, NotFoundError
from probekit.extraction import ExtractOptions
from probekit.extraction.extract import extract_dataset, open_backbone, set_name
from probekit.extraction.sources import RowSplits, read_rows
from probekit.extraction.vectors import VectorOptions
from probekit.federated.federation import Federation
from probekit.federated.state import KeptStatistics, State
from probekit.federated.training.fedavg import FedAvg
from probekit.files import (
    ASIDE,
    new_folder,
    remove_folder,
    restore_folder,
    sha256_file,
    write_bytes,
)
from probekit.linear.stats import SufficientStats
from probekit.objective import Model
from probekit.progress import Progress, silent
from probekit.records import dump
from probekit.registry import nearest
from probekit.runs import layout
from probekit.runs.layout import Commitment, Cost, Description, Joined, Trained
from probekit.runs.options import TrainOptions
from probekit.runs.rounds import SavedRounds
from probekit.runs.rows import (
    SERVER,
    TEST,
    TRAINING,
    Bytes,
    RunFiles,
    RunRows,
    commit,
    fingerprint_of,
    leaves_of,
    part_of,
    sort_leaves,
)
from probekit.runs.run import (
    Connect,
    Run,
    RunData,
    certify_state,
    connection,
    matrix_of,
    single_thread,
    write_state,
)

RANDOM_WEIGHTS = (
    "The network is linearized around random weights. Pretrain it on the server's rows "
    "(--server-share 0.1), or pass --weights."
)
MADE_COLUMNS = ("key", "client", "group")
"""Columns that readers make; others are kept where they are asked for."""
Reading = Mapping[str, Any]
"""DataOptions (data), ExtractOptions (options) and VectorOptions (vectors) of `read_rows`."""


def train(data: object, *, add: bool = False, progress: Progress = silent, **options: Any) -> Run:
    """Train a head across clients and write a run; the same call again finds it done.

    add: the clients of these data join the run that is there. options: those of `plan_training`.
    """
    plan = plan_training(data, progress=progress, **options)
    return plan.add(progress) if add else plan.write(progress)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """Who would train on what, and where the run would be written.

    sums: of clients of whom only statistics files exist, for the classes of `rows`.
    transport: where clients answer: "ray", "ray:HOST:PORT"; None: in this process.
    weights: the file with which a network starts.
    """

    folder: Path
    cache: Cache
    description: Description
    rows: RunRows
    poison: str | None
    notes: tuple[str, ...]
    sums: Mapping[str, SufficientStats] = field(default_factory=dict)
    transport: str | None = None
    weights: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        roles = np.bincount(self.rows.roles, minlength=3).tolist()
        return {
            "run": str(self.folder),
            "exists": self.folder.exists(),
            "clients": self.rows.counts(),
            "rows": sum(self.rows.counts().values()),
            "test_rows": roles[TEST],
            "server_rows": roles[SERVER],
            "classes": list(self.rows.classes),
            "trainer": type(self.description.options.trainer()).__name__,
        }

    def write(self, progress: Progress = silent) -> Run:
        """Train and write, unless it was done."""
        restore_folder(self.folder)
        if os.path.lexists(self.folder):
            return self._existing()
        if self.rows.labels is not None and len(self.rows.classes) < 2:
            raise InputError(
                "A head needs training rows of two classes; those of "
                f"{self.description.source} are all {self.rows.classes[0]!r}. Check the labels "
                "(--label-column)."
            )
        started = time.monotonic()
        with single_thread(), connection(self.transport) as connect:
            data, federation, state, missing = self._fit(connect, progress)
            rows, leaves = commit(data.rows, data.matrix)
            certificate, refused = certify_state(
                state, federation, test=data.test, class_labels=rows.targets is None
            )
            description = replace(self.description, network=state.model.digest)
            content = description.dump()
            fingerprint = fingerprint_of(content, leaves)
            cost = Cost.of(federation, started)
            event = Trained(layout.now(), fingerprint, cost, self.poison)
            with self.cache.changing():
                if os.path.lexists(self.folder):
                    return self._existing()
                self._check_erased()
                self._sweep()
                note_run(self.cache, self.description.id, self.folder, done=False)
                with new_folder(self.folder) as aside:
                    write_bytes(aside / layout.DESCRIPTION, content)
                    write_bytes(aside / layout.COMMITMENT, dump(Commitment(leaves)))
                    write_bytes(aside / layout.ROWS, dump(rows))
                    first = layout.state_folder(aside, 1)
                    write_state(first, rows, state, certificate, [event], description)
                note_run(self.cache, self.description.id, self.folder, done=True)
        return Run(self.folder, cache=self.cache, notes=(*self.notes, *missing, *refused))

    def add(self, progress: Progress = silent) -> Run:
        """Train with these clients too; kept sums of the run's others are not asked for again.

        The run gets a new commitment, and with it another fingerprint.
        """
        restore_folder(self.folder)
        self._sweep()
        run = Run(self.folder, cache=self.cache)
        _check_joining(self, run)
        plan = replace(self, rows=self.rows.take(self.rows.roles == TRAINING))
        with (
            layout.working(run.folder, progress),
            single_thread(),
            connection(self.transport) as connect,
        ):
            return _join(plan, run, connect, progress)

    def _fit(
        self, connect: Connect, progress: Progress
    ) -> tuple[RunData, Federation, State, tuple[str, ...]]:
        """The state, and the data of those who answered."""
        options = self.description.options
        rows = self.rows
        notes: list[str] = []
        while True:
            data = RunData.of(rows, self.description, self.cache)
            model = self._model(data, progress)
            kept = KeptStatistics(self.sums) if self.sums else None
            federation = data.federation(model, kept, connect)
            try:
                state = self._train(federation, model, progress)
            except MissingClients as missing:
                rows = rows.take(~rows.held_by(missing.reasons))
                if options.at_least is None or len(rows.counts()) < options.at_least:
                    raise
                reasons = missing.reasons.items()
                notes += [f"Without {name}: {reason}." for name, reason in reasons]
            else:
                return data, federation, state, tuple(notes)

    def _train(self, federation: Federation, model: Model, progress: Progress) -> State:
        """FedAvg goes on after the rounds that a killed command did."""
        options = self.description.options
        trainer = options.trainer()
        if not isinstance(trainer, FedAvg):
            return trainer.train(federation, ridge=options.setting(), progress=progress)
        clients = "".join(f"{name} {rows}\n" for name, rows in federation.clients.items())
        description = replace(self.description, id="", network=model.digest)
        training = [description.dump(), clients.encode(), self.rows.ids.tobytes()]
        training += [self.rows.holders.tobytes(), self.rows.answers.tobytes()]
        saved = SavedRounds(self.folder, b"".join(training))
        # noted before, so that an erasure finds what a kill leaves here
        note_run(self.cache, self.description.id, self.folder, done=False)
        state = trainer.train(federation, ridge=options.setting(), progress=progress, resume=saved)
        saved.remove()
        return state

    def _model(self, data: RunData, progress: Progress) -> Model:
        """What is trained; a network starts from weights that are pretrained here."""
        options = self.description.options
        if options.network is None:
            return options.linear_model(self.description.width, len(data.classes))
        from probekit.runs.networks import first_network

        return first_network(data, self.weights, progress)

    def _check_erased(self) -> None:
        """Rows may have been erased since they were read."""
        erased = int(Tombstones.read(self.cache).holds(self.rows.ids).sum())
        if erased and isinstance(self.rows, RunFiles):
            raise CacheError(
                f"The sums of {erased:,} clients were erased from {self.cache.root} and stay out. "
                "Leave their files out, or use another cache (--cache)."
            )
        if erased:
            raise CacheError(
                f"Rows of a run must be in the cache; {erased:,} were erased from it meanwhile. "
                "Run the same command again."
            )

    def _existing(self) -> Run:
        """The run that is here already, if it is this one."""
        notes = (*self.notes, "This run was trained before; nothing was changed.")
        if not (self.folder / layout.DESCRIPTION).is_file():
            raise InputError(f"{self.folder} is there, and is no run. Choose another --run.")
        run = Run(self.folder, cache=self.cache, notes=notes)
        newest = run.newest
        theirs = newest.description
        ours = replace(
            self.description, id=theirs.id, versions=theirs.versions, network=theirs.network
        )
        if ours.dump() != theirs.dump() or not self.rows.same_rows(newest.all_rows):
            raise InputError(
                f"{self.folder} is a run already, with other options or rows. Choose another --run."
            )
        run.note_place()
        return run

    def _sweep(self) -> None:
        """Remove what a killed training of this run left beside it."""
        pattern = re.compile(re.escape(f"{ASIDE}{self.folder.name}") + r"-\d+-[0-9a-f]{8}")
        for path in self.folder.parent.glob(f"{ASIDE}*"):
            if pattern.fullmatch(path.name):
                remove_folder(path)


def _join(plan: TrainingPlan, run: Run, connect: Connect, progress: Progress) -> Run:
    started = time.monotonic()
    stored = run.newest
    joined = stored.rows.take(stored.rows.held_by(plan.rows.clients))
    if joined.same_rows(plan.rows):
        note = "These clients joined before; nothing was changed."
        return Run(run.folder, cache=run.cache, notes=(*plan.notes, note))
    replaced = _replaced(plan.rows, stored.rows)
    taken = (stored.clients & set(plan.rows.clients)) - replaced
    if taken:
        raise InputError(
            f"Clients that join need new names; {min(taken)!r} is or was in this run, with "
            "other rows, or was forgotten. Rename it."
        )
    rows, commitment = _committed_with(plan, run, replaced)
    description = stored.description
    content = description.dump()
    fingerprint = fingerprint_of(content, commitment)
    retained = layout.retained(rows, stored.events)
    data = RunData.of(retained, description, run.cache)
    state = stored.state
    kept = state.get(KeptStatistics)
    if plan.sums and kept is not None:
        kept = KeptStatistics({**kept.parts, **plan.sums})
    elif data.classes != stored.rows.classes:
        kept = None  # sums of fewer classes
    model = state.model
    if description.options.network is None:
        model = description.options.linear_model(description.width, len(data.classes))
    elif len(data.classes) != model.classes:
        raise InputError(
            f"Clients that join a network have its {model.classes} classes; with them there would "
            f"be {len(data.classes)}. Train anew with all of them."
        )
    federation = data.federation(model, kept, connect)
    setting = state.ridge_choice.setting
    state = state.trainer.train(federation, ridge=setting, progress=progress)
    cost = Cost.of(federation, started)
    certificate, notes = certify_state(
        state, federation, test=data.test, class_labels=rows.targets is None
    )
    event = Joined(layout.now(), fingerprint, plan.rows.size, cost)
    dropped = {layout.COMMITMENT, layout.ROWS, layout.LOCK}
    states = run.folder / layout.STATES
    unchanged = {
        path.relative_to(run.folder): path.read_bytes()
        for path in run.folder.rglob("*")
        if path.is_file() and path.name not in dropped
        if not replaced or states not in path.parents  # they hold the replaced sums
    }
    with new_folder(run.folder) as aside:
        for path, file in unchanged.items():
            write_bytes(aside / path, file)
        write_bytes(aside / layout.COMMITMENT, dump(Commitment(commitment)))
        write_bytes(aside / layout.ROWS, dump(rows))
        folder = layout.state_folder(aside, stored.number + 1)
        write_state(folder, retained, state, certificate, [*stored.events, event], description)
    return Run(run.folder, cache=run.cache, notes=(*plan.notes, *notes))


def _replaced(new: RunRows, old: RunRows) -> frozenset[str]:
    """The clients of whom a newer file is here."""
    if not isinstance(new, RunFiles) or not isinstance(old, RunFiles):
        return frozenset()
    replaced = frozenset(new.clients) & set(old.clients)
    for name in sorted(replaced):
        if new.files[name].date <= old.files[name].date:
            raise MismatchError(
                f"A file replaces an older one; that of {name} is of {new.files[name].date}, the "
                f"run's of {old.files[name].date}. Ask for the newest."
            )
    return replaced


def _committed_with(plan: TrainingPlan, run: Run, replaced: frozenset[str]) -> tuple[RunRows, Ids]:
    """The rows of a run and those that join, and the leaves of both; erased ones stay closed."""
    stored = run.newest
    gone = stored.all_rows.held_by(replaced)
    stays = np.ones(len(stored.commitment), bool)
    stays[stored.all_rows.leaves[gone]] = False
    earlier = stored.all_rows.take(~gone)
    earlier = replace(earlier, leaves=(np.cumsum(stays) - 1)[earlier.leaves])
    added = leaves_of(plan.rows, matrix_of(plan.rows, stored.description, run.cache))
    leaves = np.concatenate([stored.commitment[stays], added])
    numbers, commitment = sort_leaves(leaves)
    old = replace(earlier, leaves=numbers[earlier.leaves])
    new = replace(plan.rows, leaves=numbers[len(leaves) - len(added) :])
    return old.joined(new), commitment


def _check_files(
    new: RunFiles, rows: RunRows, ours: Description, theirs: Description, name: str
) -> None:
    if not isinstance(rows, RunFiles):
        raise MismatchError(
            f"Files join runs of files; {name} was trained on rows. Train a run on the files of "
            "all clients."
        )
    if (rows.outputs, rows.kind) != (new.outputs, new.kind) or (
        (ours.source, ours.options.normalize) != (theirs.source, theirs.options.normalize)
    ):
        raise MismatchError(
            f"A file that joins is like those of {name}: {', '.join(rows.outputs)}, {ours.source}, "
            f"normalized by {ours.options.normalize}; found {', '.join(new.outputs)}, "
            f"{theirs.source}, {theirs.options.normalize}. Summarize again alike."
        )


def _check_joining(plan: TrainingPlan, run: Run) -> None:
    ours = run.newest.description
    theirs = plan.description
    rows = run.newest.all_rows
    has_targets = rows.targets is not None
    if isinstance(plan.rows, RunFiles):
        _check_files(plan.rows, rows, ours, theirs, run.folder.name)
    if (
        type(rows) is not type(plan.rows)
        or ours.read_encoding().digest != theirs.read_encoding().digest
        or has_targets != (plan.rows.targets is not None)
        or (has_targets and plan.rows.outputs != rows.outputs)
    ):
        raise MismatchError(
            f"Who joins needs rows like those of {run.folder.name}, by "
            f"{ours.encoding['backbone']} as {ours.encoding['dtype']}, with the same labels or "
            f"targets; found {theirs.encoding['backbone']} as {theirs.encoding['dtype']}. "
            "Extract them alike."
        )


def plan_training(
    data: object,
    *,
    run: Path | str,
    backbone: object = None,
    test: object = None,
    poison: str | None = None,
    transport: str | None = None,
    weights: Path | str | None = None,
    cache: Cache | Path | str | None = None,
    progress: Progress = silent,
    **options: Any,
) -> TrainingPlan:
    """Read the rows, encode what is not encoded yet, and divide them among clients.

    data, backbone, test: as in `probe`. Test rows are certified, never trained on; a validation
        split joins the training rows.
    run: the folder to write.
    poison: `client=3,trigger=square,target=0` puts a backdoor on a client's pictures, for trials.
    transport: "ray" or "ray:HOST:PORT"; the head has the same bits.
    weights: a file of a network's weights (a state dict), with which training starts.
    options: the fields of TrainOptions, DataOptions, ExtractOptions and VectorOptions.
    """
    settings, reading = _sorted_options(options)
    weights_file = None if weights is None else Path(weights).expanduser()
    if weights_file is not None:
        if not weights_file.is_file():
            raise NotFoundError(
                f"No weights at {weights_file}. Pass a state dict (--weights FILE)."
            )
        settings = replace(settings, weights=sha256_file(weights_file))
    if settings.network is not None:
        from probekit.networks.architectures import check_name

        check_name(settings.network)
    attack = None if poison is None else Poison.parse(poison)
    store = cache if isinstance(cache, Cache) else Cache(cache)
    parts = read_rows(data, cache=store, backbone=backbone, test=test, progress=progress, **reading)
    if len(parts) != 1:
        raise InputError(f"A run is about one view; {backbone} has {len(parts)}. Name one (#VIEW).")
    splits = parts[0]
    folder = Path(run).expanduser().resolve()
    run_id = run_id_of(folder, store)
    rows, roles, notes = _joined(splits, run_id, store)
    owners, roles = _divided(rows, roles, settings)
    if attack is not None:
        is_poisoned = owners[: len(splits.train.labeled())] == attack.client
        keys = frozenset(_column(rows, "key")[: len(is_poisoned)][is_poisoned].tolist())
        poisoned = _poisoned(data, backbone, attack, keys, splits.train, store, reading, progress)
        rows, _, _ = _joined(replace(splits, train=poisoned), run_id, store)
    if rows.targets is not None and settings.head == "logistic":
        raise InputError(
            f"Cross-entropy needs classes; {rows.source} has targets. Pass --head ridge."
        )
    run_rows = RunRows.of(rows, clients=owners, roles=roles)
    clients = len(run_rows.counts())
    if settings.at_least is not None and settings.at_least > clients:
        raise InputError(
            f"--at-least must be {clients} or less, the number of clients; found "
            f"{settings.at_least}."
        )
    encoding = splits.train.encoding
    description = Description.of(run_id, settings, encoding, width=rows.width, source=rows.source)
    is_trained = weights_file is not None
    is_trained |= settings.is_pretrained and bool((run_rows.roles == SERVER).any())
    if settings.network is not None and settings.linearize and not is_trained:
        notes = (*notes, RANDOM_WEIGHTS)
    return TrainingPlan(
        folder,
        store,
        description,
        run_rows,
        poison,
        (*splits.notes, *notes),
        transport=transport,
        weights=weights_file,
    )


def _joined(
    splits: RowSplits, run_id: str, cache: Cache
) -> tuple[EmbeddingSet, Bytes, tuple[str, ...]]:
    """Training, validation and test rows as one set, kept in the cache; which are test rows."""
    sets = splits.by_role
    first = splits.train
    entry = cache.entry(first.encoding)
    notes = []
    if splits.validation is not None:
        notes.append(f"{len(splits.validation):,} validation rows joined the training rows.")
    labeled = {}
    for name, rows in sets.items():
        _check_alike(first, rows)
        if not entry.index().holds(rows.ids).all():
            cache.save(f"run-{run_id[:12]}-{name}", rows)
        labeled[name] = rows.labeled()
        if len(labeled[name]) < len(rows):
            dropped = len(rows) - len(labeled[name])
            notes.append(f"{dropped:,} {name} rows without a label were left out.")
    if not len(labeled["train"]):
        raise InputError(f"{first.source} has no row with a label. Pass labels (--labels FILE).")
    names = tuple(dict.fromkeys(name for part in labeled.values() for name in part.class_names))
    parts = [part.with_classes(names) for part in labeled.values()]
    trained = [part for name, part in labeled.items() if name != "test"]
    shared = set(first.columns).intersection(*(part.columns for part in trained))
    columns = {name: np.concatenate([_column(part, name) for part in parts]) for name in shared}
    arrays: dict[str, Any] = {
        name: np.concatenate([vars(part)[name] for part in parts])
        for name in ("ids", "labels", "targets")
        if vars(first)[name] is not None
    }
    matrix = entry.rows(arrays["ids"], first.width)
    joined = replace(first, rows=matrix, class_names=names, columns=columns, **arrays)
    roles = [
        np.full(len(part), TEST if name == "test" else TRAINING, np.uint8)
        for name, part in labeled.items()
    ]
    return joined, np.concatenate(roles), tuple(notes)


def _check_alike(first: EmbeddingSet, rows: EmbeddingSet) -> None:
    if rows.labels is None and rows.targets is None:
        raise InputError(f"{rows.source} has no labels. Pass labels (--labels FILE).")
    if rows.weights is not None:
        raise InputError(f"Rows of a run have no weights; those of {rows.source} do. Drop them.")
    if rows.encoding.digest != first.encoding.digest or rows.target_names != first.target_names:
        raise MismatchError(
            f"All rows of a run have one encoding and the same targets; {first.source} is by "
            f"{first.encoding.backbone} as {first.encoding.dtype}, {rows.source} by "
            f"{rows.encoding.backbone} as {rows.encoding.dtype}. Extract both alike."
        )


def _column(rows: EmbeddingSet, name: str) -> Texts:
    """A column; texts that are empty where there is none."""
    return rows.columns[name] if name in rows.columns else np.full(len(rows), "", TEXT)


def _divided(rows: EmbeddingSet, roles: Bytes, options: TrainOptions) -> tuple[Texts, Bytes]:
    """The client and the role of every row."""
    count = int((roles == TRAINING).sum())  # they come first
    scheme = None if options.partition is None else Scheme.parse(options.partition)
    grouped = "group" in rows.columns and isinstance(options.clients, int) and scheme is None
    division = partition(
        part_of(rows, 0, count),
        options.clients,
        scheme=scheme,
        groups="group" if grouped else None,
        server_share=options.server_share,
        seed=options.seed,
    )
    owners = np.full(len(rows), "", TEXT)
    for client, numbers in division.clients.items():
        owners[numbers] = client
    owners[division.server] = division.server_origin
    roles = roles.copy()
    roles[division.server] = SERVER
    return owners, roles


def _poisoned(
    source: object,
    backbone: object,
    attack: Poison,
    keys: frozenset[str],
    clean: EmbeddingSet,
    cache: Cache,
    reading: Reading,
    progress: Progress,
) -> EmbeddingSet:
    """The training split with a trigger on these pictures, which are encoded anew."""
    if backbone is None:
        raise InputError(
            "A trigger goes on pictures before they are encoded; found vectors. Pass the pictures "
            "and a backbone (-b)."
        )
    if not keys:
        raise InputError(f"Client {attack.client!r} has no rows to poison. Name another one.")
    data: DataOptions = reading["data"]
    options: ExtractOptions = reading["options"]
    split, dataset = read_dataset(source, data).choose(data.split)
    target = attack.target_class(dataset.class_names)
    triggered = TriggeredDataset(dataset, parse_trigger(attack.trigger), keys, target)
    encoder = open_backbone(backbone, dataset.kind, options)
    name = set_name(f"{clean.source}-poisoned", split, encoder.name)
    extracted = extract_dataset(
        triggered,
        encoder,
        name=name,
        source=clean.source,
        cache=cache,
        window=data.window,
        options=options,
        progress=progress,
    )
    (poisoned,) = extracted.sets.values()
    if len(poisoned) != len(clean):
        raise InputError(
            f"The trigger must leave all {len(clean)} pictures usable; found "
            f"{len(poisoned)}. {poisoned.skipped[-1].reason}"
        )
    return poisoned


def run_id_of(folder: Path, cache: Cache) -> str:
    """That of a training of this folder that was killed, else a new one."""
    for run_id, noted in noted_runs(cache).items():
        if not noted.done and noted.folder(cache) == folder:
            return run_id
    return secrets.token_hex(16)


def _sorted_options(options: dict[str, Any]) -> tuple[TrainOptions, Reading]:
    """Keywords as TrainOptions, and as what `read_rows` takes."""
    from probekit.probing.probe import reading_options

    ours = {field.name for field in fields(TrainOptions)}
    kinds = (DataOptions, ExtractOptions, VectorOptions)
    names = ours.union(*([field.name for field in fields(kind)] for kind in kinds))
    for name in options:
        if name not in names:
            hint = nearest(name, [*signature(plan_training).parameters, *names])
            raise InputError(f"train() has no argument {name!r}. {hint}")
    clients = options.get("clients")
    if isinstance(clients, str) and clients not in MADE_COLUMNS:
        options = {**options, "keep_columns": (*options.get("keep_columns", ()), clients)}
    settings = TrainOptions(**{name: options[name] for name in options if name in ours})
    reading = {name: options[name] for name in options if name not in ours}
    return settings, reading_options(reading)
