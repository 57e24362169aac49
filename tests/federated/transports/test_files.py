"""Statistics files: the bits of rows, and nothing but what was written is read."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probekit.embeddings import EmbeddingSet
from probekit.errors import InputError, MismatchError, NotFoundError, ProbekitError
from probekit.federated.federation import Federation
from probekit.federated.local import LocalPlan
from probekit.federated.training.closed_form import ClosedForm
from probekit.federated.training.fedavg import FedAvg
from probekit.federated.transports.files import (
    StatisticsFile,
    is_statistics_file,
    read_files,
    summarize,
)
from probekit.linear.model import LinearModel
from probekit.linear.ridge import Gcv
from probekit.linear.stats import SufficientStats
from probekit.records import dump
from tests.federated.examples import divided, federation
from tests.oracles import one_hot, random_set, with_ones

CLIENTS = divided()
SMALL = {"min_rows": 1, "min_class_rows": 1}


def written(folder: Path, clients: dict[str, EmbeddingSet], **options: object) -> list[Path]:
    paths = []
    for name, rows in clients.items():
        path = folder / f"{name}.safetensors"
        path.write_bytes(summarize(rows, name, **{**SMALL, **options}).to_bytes())
        paths.append(path)
    return paths


def of_files(paths: list[Path]) -> Federation:
    return federation({name: file.stats for name, file in read_files(paths).items()})


def test_a_file_has_the_sums_of_its_rows(tmp_path: Path) -> None:
    rows = CLIENTS["a"]
    file = StatisticsFile.read(written(tmp_path, {"a": rows})[0])
    Z, Y = with_ones(rows.rows), one_hot(rows.labels, 3)
    assert np.allclose(file.stats.gram, Z.T @ Z, rtol=1e-13)
    assert np.allclose(file.stats.moment, Z.T @ Y, rtol=1e-13)
    assert (file.stats.target_squares == np.bincount(rows.labels)).all()
    assert (file.client, file.outputs, file.task) == ("a", rows.class_names, "classes")
    assert file.read_encoding() == rows.encoding


@pytest.mark.parametrize("sizes", [(40, 25, 30, 35), (3, 2, 30, 35)], ids=["sums", "roots"])
def test_training_from_files_has_the_bits_of_training_from_rows(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    clients = divided(sizes, width=10)
    asked = of_files(written(tmp_path, clients)[::-1])
    for ridge in (0.1, Gcv()):
        by_rows = ClosedForm().train(federation(clients), ridge=ridge)
        assert dump(ClosedForm().train(asked, ridge=ridge)) == dump(by_rows)


def test_full_gradient_rounds_need_no_rows(tmp_path: Path) -> None:
    trainer = FedAvg(5, LocalPlan(0.05, steps=2))
    by_rows = trainer.train(federation(CLIENTS), ridge=0.1)
    by_files = trainer.train(of_files(written(tmp_path, CLIENTS)), ridge=0.1)
    assert np.allclose(by_files.params, by_rows.params, rtol=1e-12)


def test_who_lacks_a_class_joins_with_the_names_of_all(tmp_path: Path) -> None:
    rows = CLIENTS["a"]
    owls = rows.take(np.flatnonzero(rows.labels != 0))
    names = rows.class_names
    own = replace(owls, labels=owls.labels - 1, class_names=names[1:])
    paths = written(tmp_path, {"b": CLIENTS["b"], "c": own})
    with pytest.raises(MismatchError):
        read_files(paths)
    paths = written(tmp_path, {"b": CLIENTS["b"], "c": own}, classes=names)
    by_rows = ClosedForm().train(federation({"b": CLIENTS["b"], "c": owls}), ridge=0.1)
    assert dump(ClosedForm().train(of_files(paths), ridge=0.1)) == dump(by_rows)
    with pytest.raises(InputError):
        summarize(rows, "a", classes=names[1:], **SMALL)


def labeled(counts: list[int], width: int = 4) -> EmbeddingSet:
    rows = random_set(sum(counts), width, len(counts))
    return replace(rows, labels=np.repeat(np.arange(len(counts)), counts))


def test_too_few_rows_are_refused() -> None:
    summarize(labeled([10, 10]), "a")
    with pytest.raises(InputError):
        summarize(labeled([10, 9]), "a")
    with pytest.raises(InputError):
        summarize(labeled([10, 10], width=20), "a")  # 21 columns
    summarize(labeled([10, 10], width=19), "a")
    summarize(labeled([10, 0, 10]), "a")
    two = labeled([10, 10])
    for ones in (1, 10, 19):
        marks = np.where(np.arange(20)[:, None] < ones, 1.0, 0.0)
        targets = replace(two, labels=None, class_names=(), targets=marks, target_names=("t",))
        if ones == 10:
            assert summarize(targets, "a").task == "labels"
        else:
            with pytest.raises(InputError):
                summarize(targets, "a")


def test_a_class_of_one_row_is_that_row() -> None:
    rows = labeled([1, 30])
    file = summarize(rows, "a", **SMALL)
    assert (file.stats.moment[:-1, 0] == rows.rows[0]).all()


def test_two_files_that_differ_by_a_row_show_it() -> None:
    rows = labeled([20, 20])
    more = summarize(rows, "a").stats
    less = summarize(rows.take(np.arange(1, 40)), "a").stats
    assert np.allclose((more.moment - less.moment)[:-1, 0], rows.rows[0], atol=1e-12)


CHANGES: dict[str, Callable[[EmbeddingSet], tuple[EmbeddingSet, dict[str, object]]]] = {
    "encoding": lambda rows: (
        replace(rows, encoding=replace(rows.encoding, identity={"weights": "other"})),
        {},
    ),
    "classes": lambda rows: (replace(rows, class_names=("x", "y", "z")), {}),
    "columns": lambda rows: (replace(rows, rows=rows.rows[:, :3]), {}),
    "normalization": lambda rows: (rows, {"normalize": "l2"}),
    "federation": lambda rows: (rows, {"federation": "another"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_foreign_file_is_refused(tmp_path: Path, name: str) -> None:
    rows, options = CHANGES[name](CLIENTS["b"])
    paths = [*written(tmp_path, {"a": CLIENTS["a"]}), *written(tmp_path, {"b": rows}, **options)]
    with pytest.raises(MismatchError, match=str(paths[1])):
        read_files(paths)


def test_a_client_has_one_file(tmp_path: Path) -> None:
    paths = written(tmp_path, {"a": CLIENTS["a"]})
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(paths[0].read_bytes())
    with pytest.raises(InputError):
        read_files([*paths, copy])
    with pytest.raises(NotFoundError):
        read_files([tmp_path / "none.safetensors"])


GOOD = summarize(CLIENTS["a"], "a", **SMALL)
HEAVY = replace(GOOD.stats, gram_sum=GOOD.stats.gram * 1e200, count=1, weight=4e201)
FORGED = {
    "NaN": replace(GOOD.stats, moment_sum=GOOD.stats.moment * np.nan),
    "1e200": HEAVY,
    "indefinite": replace(GOOD.stats, gram_sum=GOOD.stats.gram - np.diag([1e3] * 6 + [0])),
    "other counts": replace(GOOD.stats, target_squares_sum=GOOD.stats.target_squares + 1),
    "other rows": replace(GOOD.stats, count=41),
}


@pytest.mark.parametrize("name", FORGED)
def test_sums_that_no_rows_have_are_refused_with_a_right_checksum(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(unchecked(GOOD.stats))
    assert StatisticsFile.read(path).client == "a"
    path.write_bytes(unchecked(FORGED[name]))
    with pytest.raises(ProbekitError, match=str(path)):
        StatisticsFile.read(path)


def unchecked(stats: SufficientStats) -> bytes:
    """The bytes of a file with these sums, which nobody looked at."""
    file = object.__new__(StatisticsFile)
    vars(file).update({**vars(GOOD), "stats": stats, "checksum": ""})
    vars(file)["checksum"] = hashlib.sha256(dump(file)).hexdigest()
    return dump(file)


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """Other bytes, a piece missing, twice or in front, a number of the header changed."""
    data = bytearray(content)
    kind = generator.integers(6)
    place = int(generator.integers(len(data)))
    length = int(generator.integers(1, 40))
    if kind == 0:
        for spot in generator.integers(len(data), size=generator.integers(1, 5)):
            data[spot] = generator.integers(256)
    elif kind == 1:
        del data[place:]
    elif kind == 2:
        del data[place : place + length]
    elif kind == 3:
        data[place:place] = generator.bytes(length)
    elif kind == 4:
        digits = [spot for spot in range(1000) if chr(data[spot]).isdigit()]
        for spot in generator.choice(digits, 3):
            data[spot] = ord("0") + int(generator.integers(10))
    else:
        data[:8] = int(generator.integers(1 << 62)).to_bytes(8, "little")
    return bytes(data)


@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_changed_file_is_read(tmp_path: Path, count: int) -> None:
    """Each is refused by its path, and takes a few times its bytes at most."""
    generator = np.random.default_rng(0)
    originals = [
        summarize(rows, name, **SMALL).to_bytes()
        for name, rows in divided((3, 40), width=12).items()
    ]
    path = tmp_path / "a.safetensors"
    StatisticsFile.read(written(tmp_path, {"a": CLIENTS["a"]})[0])  # imports
    tracemalloc.start()
    for number in range(count):
        original = originals[number % 2]
        content = mutated(original, generator)
        if content == original:
            continue
        path.write_bytes(content)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        is_statistics_file(path)
        with pytest.raises(ProbekitError, match=str(path)):
            StatisticsFile.read(path)
        peak = tracemalloc.get_traced_memory()[1] - before
        assert peak < 100_000 + 10 * len(content)
    tracemalloc.stop()


def test_other_safetensors_are_no_statistics_files(tmp_path: Path) -> None:
    path = tmp_path / "vectors.safetensors"
    path.write_bytes(dump(LinearModel(3, 2)))
    assert not is_statistics_file(path)
    with pytest.raises(MismatchError, match=str(path)):
        StatisticsFile.read(path)
    old = GOOD.to_bytes().replace(b"statistics-file/1", b"statistics-file/0")
    path.write_bytes(old)
    assert is_statistics_file(path)
    with pytest.raises(MismatchError, match="statistics-file/0"):
        StatisticsFile.read(path)
