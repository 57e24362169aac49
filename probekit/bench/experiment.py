"""Experiments: settings in TOML, each trained by several seeds and unlearned by every method."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from probekit.arrays import Json
from probekit.errors import InputError, NotFoundError
from probekit.files import MAX_JSON_BYTES, read_limited
from probekit.registry import nearest
from probekit.runs.options import TrainOptions

FOLDER = "experiments"
NOTHING = "nothing"
"""The row of the head before, which every method must beat."""
SHADOWS = "shadows"
"""The row of the attack on membership, for all methods at once."""
CURVATURE = "curvature"
"""The row of the server's curvature beside that of the retained rows."""
COST = "cost"
"""The row of a product's cost with the curvature of the server's rows, and of all."""
EXTRAS = (SHADOWS, CURVATURE, COST)
"""Rows that are no methods."""
TUNING_SEED = 1000
"""Methods are tuned on a training of its own, whose test rows are taken from the training split."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several clients is poisoned, and forgotten by every method.

    classes: these alone, in this order; (): all.
    test_share: of the rows of the training split, which become the test split; 0: the dataset's.
    rows, test_rows: how many are drawn from each split; None: all.
    trigger, target: the backdoor of the poisoned client; "" plants none.
    train: fields of TrainOptions, beside clients and seed.
    methods: names with options, as `unlearn --method` takes them.
    curvature: also compare the server's curvature with that of the retained rows.
    cost: also what a product with either of them costs.
    tune: how many settings of a method are tried; None: as many as the experiment says.
    minimum: distances to the minimum too; of a large network it takes longer than all else.
    shadows: how many trainings on random halves of the rows attack membership; 0: no attack.
    published: the paper's table to stand beside ("full_parameter.mnist").
    """

    name: str
    data: str
    backbone: str = "pixels"
    classes: tuple[str, ...] = ()
    test_share: float = 0.0
    rows: int | None = None
    test_rows: int | None = None
    clients: int = 5
    trigger: str = "square"
    target: str = "0"
    train: dict[str, Any] = {}
    methods: tuple[str, ...]
    shadows: int = 0
    curvature: bool = False
    cost: bool = False
    tune: int | None = None
    minimum: bool = True
    published: str = ""

    def __post_init__(self) -> None:
        counts = [count for count in (self.rows, self.test_rows) if count is not None]
        if min(counts, default=1) < 1 or self.clients < 2:
            raise ValueError(
                "a setting needs rows and two clients or more; found "
                f"rows {self.rows}, test_rows {self.test_rows}, clients {self.clients}"
            )
        if not 0 <= self.test_share < 1 or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                "a setting needs a test_share from 0 to below 1 and classes once each; found "
                f"{self.test_share} and {', '.join(self.classes)}"
            )
        self.options(0)

    def options(self, seed: int) -> TrainOptions:
        """How it is trained under a seed."""
        try:
            return TrainOptions(clients=self.clients, seed=seed, **self.train)
        except TypeError as error:
            raise ValueError(f"train: {error}") from error

    def forgotten(self, seed: int) -> str:
        """The client that is poisoned and forgotten."""
        return str(seed % self.clients)

    def poison(self, seed: int) -> str | None:
        if not self.trigger:
            return None
        return f"client={self.forgotten(seed)},trigger={self.trigger},target={self.target}"

    @property
    def rows_to_compute(self) -> tuple[str, ...]:
        """Doing nothing, every method, and what is measured beside them."""
        further = [f"{SHADOWS}:{self.shadows}"] * (self.shadows > 0)
        further += [CURVATURE] * self.curvature + [COST] * self.cost
        return (NOTHING, *self.methods, *further)

    def training(self, seed: int) -> dict[str, Json]:
        """What determines a training: the key of its run."""
        values: dict[str, Json] = msgspec.to_builtins(self)
        for name in ("name", "methods", "shadows", "curvature", "cost", "tune", "published"):
            del values[name]
        for name in ("classes", "test_share"):
            if not values[name]:
                del values[name]
        if self.minimum:
            del values["minimum"]
        return {**values, "seed": seed}


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings and the seeds that are reported; tune: how many settings of a method are tried."""

    title: str
    about: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    tune: int = 1
    settings: tuple[Setting, ...]

    def __post_init__(self) -> None:
        names = [setting.name for setting in self.settings]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"settings need names of their own; found {names}")
        if not self.seeds or TUNING_SEED in self.seeds or min(self.seeds) < 0:
            raise ValueError(
                f"seeds are 0 or more and not {TUNING_SEED}, which tunes; found {self.seeds}"
            )

    def budget(self, setting: Setting) -> int:
        """How many settings of each method are tried there."""
        return self.tune if setting.tune is None else setting.tune

    def only(self, names: tuple[str, ...]) -> tuple[Setting, ...]:
        """The settings of these names; all where there are none."""
        settings = {setting.name: setting for setting in self.settings}
        for name in names:
            if name not in settings:
                hint = nearest(name, list(settings))
                raise NotFoundError(f"This experiment has no setting {name!r}. {hint}")
        return tuple(settings[name] for name in names or settings)


def packaged_experiments() -> dict[str, Path]:
    """The experiments that come with the package, by name."""
    folder = Path(str(resources.files("probekit.bench"))) / FOLDER
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_experiment(name: str) -> Experiment:
    """An experiment by its name, or in a TOML file of one's own."""
    packaged = packaged_experiments()
    path = packaged.get(name, Path(name).expanduser())
    if not path.is_file():
        raise NotFoundError(
            f"No experiment and no TOML file {name!r}. {nearest(name, list(packaged))}"
        )
    try:
        document = tomllib.loads(read_limited(path, MAX_JSON_BYTES).decode())
        return msgspec.convert(document, Experiment)
    except (ValueError, InputError) as error:  # msgspec's and tomllib's errors are ValueErrors
        raise InputError(f"{path} is no experiment: {error}. See docs/bench.md.") from error
