"""`probekit train --release` and `probekit export`: flags, exit codes and what people read."""

from __future__ import annotations

from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.models.serving import load_head
from tests.cli.conftest import Command, Probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

TRAIN = ("train", "rows", "--clients", "4", "--ridge", "0.01", "--run", "run")


@pytest.fixture(autouse=True)
def rows(shelve: Shelve) -> None:
    """A set to train on."""
    shelve("rows", rows=160)


def test_a_head_leaves_with_noise_the_same_each_time(probekit: Probekit, store: DiskStore) -> None:
    code, value, said = probekit(*TRAIN, "--release", "0.001", "--epsilon", "0.5", "--delta", "1e-6")
    assert code == 0, said
    assert (value["release"]["mechanism"], value["release"]["epsilon"]) == ("discrete Gaussian", 0.5)
    code, value, said = probekit("export", "run", "first", "--to", "a clinic")
    assert (code, value["to"], value["epsilon"], value["delta"]) == (0, "a clinic", 0.0, 1e-6), said
    assert probekit("export", "run", "second")[0] == 0
    read = [(Path(name) / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert read[0] == read[1]
    noise = load_head(Path("first")).params - Run.open("run", store=store).head().params
    assert 0.0005 < noise.std() < 0.002
    assert probekit("unlearn", "run", "--client", "2")[1]["privacy"]["mechanism"] == "discrete Gaussian"
    assert probekit("export", "run", "third", "--seed", "1")[0] == 2, "there is no seed"
    code, value, _ = probekit("export", "run", "third", "--without-noise")
    assert (code, value["epsilon"], value["head"]) == (0, None, Run.open("run", store=store).head().digest)


def test_people_read_what_it_is_not(command: Command, store: DiskStore) -> None:
    where = ("--cache", str(store.root))
    shown = command(*TRAIN, "--release", "0.001", *where)
    assert "Fixed before fitting: discrete Gaussian noise of sigma 0.001" in shown.err
    shown = command("export", "run", "out", *where)
    for words in ("not differential privacy of training", "still know the forgotten", "all releases of this run"):
        assert words in " ".join(shown.out.split())
    shown = command("unlearn", "run", "--client", "2", *where)
    assert "Not differential privacy of training; earlier heads still know the forgotten" in " ".join(shown.out.split())
