"""Experiments are typed: what is misspelled or impossible is refused before hours of work."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit.bench.experiment import TUNING_SEED, packaged_experiments, read_experiment
from probekit.bench.published import published_values
from probekit.bench.training import draw_rows
from probekit.bench.tuning import GRIDS, trials
from probekit.errors import InputError, NotFoundError
from probekit.registry import configured
from tests.bench.conftest import SMALL, small_experiment


@pytest.mark.parametrize("name", packaged_experiments())
def test_packaged_experiments_can_be_read(name: str) -> None:
    experiment = read_experiment(name)
    for setting in experiment.settings:
        for method in setting.methods:
            for trial in trials(method, experiment.budget(setting)):
                configured(trial)
        published_values(setting.published)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("title =", "tittle ="), "tittle"),
        (("clients = 4", 'clients = "four"'), "clients"),
        (("clients = 4", "clients = 1"), "clients 1"),
        (("rows = 300", "rows = 0"), "rows 0"),
        (("seeds = [0, 1]", f"seeds = [{TUNING_SEED}]"), str(TUNING_SEED)),
        (("ridge = 0.01", "rigde = 0.01"), "rigde"),
        (("ridge = 0.01", "ridge = -1"), "-1"),
        (("rounds=20", "runds=20"), "runds"),
        (("[[settings]]", "[[settings"), "toml"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace(*change))
    with pytest.raises(InputError, match=named):
        read_experiment(str(path))


def test_an_unknown_experiment_or_setting_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="digits"):
        read_experiment("digts")
    with pytest.raises(NotFoundError, match="few digits"):
        small_experiment(tmp_path).only(("few",))


def test_tuning_reads_no_test_row(tmp_path: Path) -> None:
    """The rows that tune and the test rows that are reported have nothing in common."""
    (setting,) = small_experiment(tmp_path).settings
    tuning = draw_rows(setting, TUNING_SEED)
    reported = [draw_rows(setting, seed)["test"] for seed in (0, 1)]
    keys = {part[index].key for part in tuning.values() for index in range(len(part))}
    train = {tuning["train"][index].key for index in range(len(tuning["train"]))}
    validation = {tuning["test"][index].key for index in range(len(tuning["test"]))}
    assert not train & validation
    assert len(keys) == 450
    for part in reported:
        contents = {bytes(part[index].content().tobytes()) for index in range(len(part))}
        seen = {
            bytes(rows[index].content().tobytes())
            for rows in tuning.values()
            for index in range(len(rows))
        }
        assert len(contents & seen) < 0.05 * len(contents)  # digits has a few equal pictures


def test_budgets_are_equal_and_begin_with_the_defaults() -> None:
    for name in GRIDS:
        assert trials(name, 1) == (name,)
        assert len(set(trials(name, 6))) == 6
        assert trials(name, 6)[0] == name
    assert trials("ferrari:columns=0:4", 2) == (
        "ferrari:columns=0:4",
        "ferrari:columns=0:4,rate=0.001",
    )
    assert trials("exact", 6) == ("exact",)
    assert trials("cf:rounds=3", 6) == ("cf:rounds=3",)
    assert trials("sga:steps=3", 9) == (
        *("sga:steps=3", "sga:steps=3,rate-scale=0.03", "sga:steps=3,rate-scale=0.3"),
    )
