"""The public names, the error tree and its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

import probekit
from probekit import errors

PUBLIC = {
    *("Cache", "DataOptions", "EmbeddingSet", "Encoding", "ExtractOptions", "Head", "KNNProbe"),
    *("LDAProbe", "LogisticProbe", "NearestMeanProbe"),
    *("ProbeResult", "ProbekitError", "RidgeProbe", "extract", "load_backbone", "load_head"),
    *("Run", "probe", "read_dataset", "train", "zero_shot_head", "__version__"),
}
EXIT_CODES = {
    "ProbekitError": 1,
    "InputError": 2,
    "SampleError": 2,
    "NotFoundError": 3,
    "OfflineError": 3,
    "CacheError": 4,
    "CorruptError": 4,
    "MismatchError": 4,
    "StorageError": 4,
    "WireError": 4,
    "MissingClients": 1,
    "SolverError": 1,
}


def test_public_names_are_these() -> None:
    assert set(probekit.__all__) == PUBLIC
    assert set(dir(probekit)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_public_names_lead_to_what_they_name(name: str) -> None:
    assert getattr(probekit, name).__name__ == name


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="prob_"):
        _ = probekit.prob_


def test_the_version_is_that_of_the_distribution() -> None:
    assert probekit.__version__ == metadata.version("probekit-heads")
    command = [sys.executable, "-m", "probekit", "--version"]
    printed = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    assert printed.split() == ["probekit", probekit.__version__]


def test_every_error_is_ours_and_has_its_exit_code() -> None:
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, Exception)
    }
    assert {name: cls.exit_code for name, cls in classes.items()} == EXIT_CODES
    assert all(issubclass(cls, errors.ProbekitError) for cls in classes.values())


def test_the_drawn_error_tree_is_the_real_one() -> None:
    parents: list[str] = []
    drawn: set[str] = set()
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error|MissingClients) +(\d)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        cls = getattr(errors, match[2])
        assert cls.exit_code == int(match[3]), line
        if depth:
            assert issubclass(cls, getattr(errors, parents[depth - 1])), line
        parents[depth:] = [match[2]]
        drawn.add(match[2])
    assert drawn == EXIT_CODES.keys()
