"""`probekit train`: what it trains, what it says, and what it refuses."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.cache import DiskStore
from probekit.cli.main import run as run_command
from probekit.errors import NotFoundError
from probekit.runs.folder import RunFolder
from probekit.values import EmbeddingSet
from tests.cli.conftest import Command, Probekit
from tests.shelves import Shelve
from tests.shelves import shelve as shelve

FORK = multiprocessing.get_context("fork")


def oracle(embeddings: EmbeddingSet, rows: NDArray[np.int64], ridge: float, *, classes: int = 3) -> NDArray[np.float64]:
    """The ridge head with penalised intercept by least squares on the rows themselves, stacked on the penalty."""
    columns = np.hstack([embeddings.embeddings[rows].astype(np.float64), np.ones((len(rows), 1))])
    targets = np.eye(classes)[embeddings.labels[rows]]
    root = np.sqrt(len(rows) * ridge) * np.eye(columns.shape[1])
    stacked = np.vstack([columns, root]), np.vstack([targets, np.zeros((columns.shape[1], classes))])
    found: NDArray[np.float64] = np.linalg.lstsq(*stacked, rcond=None)[0]
    return found


@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.1", "shards:2", "classes"])
def test_the_head_is_that_of_all_rows_whoever_holds_them(probekit: Probekit, shelve: Shelve, scheme: str) -> None:
    embeddings = shelve("small")
    code, value, _ = probekit("train", "small", "--partition", scheme, "--ridge", "0.05", "--run", "r")
    assert code == 0
    head = RunFolder.open("r").head()
    assert np.allclose(head.params, oracle(embeddings, np.arange(90), 0.05), rtol=0, atol=1e-10)
    assert value["rows"] == sum(value["clients"].values()) == 90
    assert len(value["clients"]) == (3 if scheme == "classes" else 10)
    assert value["residual"] < 1e-12
    assert value["head"] == head.digest


def test_the_server_keeps_its_share_to_itself(probekit: Probekit, shelve: Shelve) -> None:
    embeddings = shelve("small")
    arguments = ("--server-share", "0.2", "--server-choice", "representative", "--clients", "4", "--seed", "7")
    code, value, _ = probekit("train", "small", "--ridge", "0.05", "--run", "r", *arguments)
    assert code == 0
    assert value["server_rows"] == 18
    run = RunFolder.open("r")
    held = np.sort(np.concatenate(list(run.partition().clients.values())))
    assert len(held) == 72
    assert np.allclose(run.head().params, oracle(embeddings, held, 0.05), rtol=0, atol=1e-10)
    server = run.trained().server
    assert server is not None
    assert server.statistics is not None
    assert server.statistics.count == 18
    assert value["can_unlearn"]["exact"]["possible"]
    assert value["can_unlearn"]["fedremoval"]["possible"]


@pytest.mark.parametrize("how", ["auto", "auto:loo", "auto:kfold", "auto:clients"])
def test_a_chosen_ridge_is_told_with_how(probekit: Probekit, shelve: Shelve, how: str) -> None:
    embeddings = shelve("small")
    code, value, _ = probekit("train", "small", "--clients", "5", "--ridge", how, "--run", "r")
    assert code == 0
    assert value["ridge_chosen"]["candidates"] == 45
    assert value["ridge_chosen"]["by"]
    assert RunFolder.open("r").config["ridge_by"] == how
    assert np.allclose(RunFolder.open("r").head().params, oracle(embeddings, np.arange(90), value["ridge"]), atol=1e-9)


def test_the_chosen_ridge_leaves_each_row_out_best(probekit: Probekit, shelve: Shelve) -> None:
    """Against refits without each row, at the chosen ridge and at a quarter and four times it."""
    embeddings = shelve("small", rows=40)
    _, value, _ = probekit("train", "small", "--clients", "4", "--run", "r")
    targets = np.eye(3)[embeddings.labels]

    def error(ridge: float) -> float:
        total = 0.0
        for row in range(40):
            rest = np.delete(np.arange(40), row)
            params = oracle(embeddings, rest, ridge)
            guess = np.append(embeddings.embeddings[row].astype(np.float64), 1.0) @ params
            total += float(np.square(guess - targets[row]).sum())
        return total / (40 * 3)

    best = error(value["ridge"])
    assert np.isclose(best, value["ridge_chosen"]["squared_error"], rtol=1e-6)
    assert best < error(value["ridge"] / 4)
    assert best < error(value["ridge"] * 4)


def test_system_figures_are_those_of_the_matrix(probekit: Probekit, shelve: Shelve) -> None:
    embeddings = shelve("small")
    _, value, _ = probekit("train", "small", "--ridge", "0.3", "--run", "r")
    _, chosen, _ = probekit("train", "small", "--run", "s")
    columns = np.hstack([embeddings.embeddings[np.arange(90)].astype(np.float64), np.ones((90, 1))])
    for found in (value, chosen):
        matrix = columns.T @ columns + 90 * found["ridge"] * np.eye(6)
        assert np.isclose(found["condition_number"], np.linalg.cond(matrix))
        trace = np.trace(np.linalg.solve(matrix, columns.T @ columns))
        assert np.isclose(found["effective_dimension"], trace)


def test_rows_that_cannot_be_used_are_left_out_with_a_note(probekit: Probekit, shelve: Shelve) -> None:
    labels = np.arange(90) % 3
    labels[[3, 7]] = -1
    masked = np.zeros(90, bool)
    masked[[7, 80]] = True
    embeddings = shelve("small", labels=labels, masked=masked)
    code, value, said = probekit("train", "small", "--ridge", "0.05", "--run", "r")
    assert code == 0
    assert (value["rows"], value["left_out"]) == (87, 3)
    assert "3 rows without a label or an embedding were left out" in said
    good = np.setdiff1d(np.arange(90), [3, 7, 80])
    assert np.allclose(RunFolder.open("r").head().params, oracle(embeddings, good, 0.05), atol=1e-10)


def test_fedavg_goes_to_the_closed_form_and_says_what_it_sent(probekit: Probekit, shelve: Shelve) -> None:
    embeddings = shelve("small")
    arguments = ("--method", "fedavg", "--rounds", "3000", "--local-steps", "1", "--ridge", "0.05", "--clients", "4")
    code, value, _ = probekit("train", "small", *arguments, "--tolerance", "1e-14", "--run", "r")
    assert code == 0
    assert np.allclose(RunFolder.open("r").head().params, oracle(embeddings, np.arange(90), 0.05), atol=1e-6)
    assert value["bytes_up"] == sum(sent["up"] for sent in value["traffic"].values())
    assert value["traffic"]["rounds"]["up"] > 8 * 18 * 4 * value["rounds"]
    assert value["loss"][0] > value["loss"][1]
    assert value["can_unlearn"]["exact"]["possible"] is False


def test_fedavg_options_reach_the_method(probekit: Probekit, shelve: Shelve) -> None:
    shelve("small")
    arguments = ["--method", "fedavg", "--preset", "f2l2", "--rounds", "3", "--batch-size", "4", "--clients", "4"]
    code, value, _ = probekit("train", "small", *arguments, "--keep-history", "--run", "r")
    assert code == 0
    assert (value["rounds"], value["ridge"], value["learning_rate"]) == (3, 0.0, 1e-4)
    assert value["history_bytes"] == 8 * 18 * (3 * 4 + 3 + 1)
    config = RunFolder.open("r").config
    assert (config["optimiser"], config["weights"], config["init"]) == ("adam", "uniform", "random")
    history = RunFolder.open("r").trained().history
    assert history is not None
    assert len(history.rounds) == 3


def test_a_logistic_head_says_that_it_cannot_be_unlearned(probekit: Probekit, shelve: Shelve) -> None:
    from sklearn.linear_model import LogisticRegression

    embeddings = shelve("small")
    code, value, _ = probekit("train", "small", "--method", "logistic", "--run", "r")
    assert code == 0
    possible = {name: able["possible"] for name, able in value["can_unlearn"].items()}
    assert possible["retrain"]
    quadratic = ("exact", "fedremoval", "fedremoval-line", "fedremoval-pcg")
    assert not any(possible[name] for name in (*quadratic, "federaser", "knot", "sifu"))
    assert "no sufficient statistics" in value["can_unlearn"]["exact"]["why"]
    rows = embeddings.embeddings[np.arange(90)].astype(np.float64)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(rows, embeddings.labels)
    assert np.allclose(RunFolder.open("r").head().params[:-1].T, model.coef_, atol=1e-5)


def test_exact_arithmetic_takes_its_grid_from_the_server(probekit: Probekit, shelve: Shelve) -> None:
    shelve("small")
    code, value, _ = probekit("train", "small", "--arithmetic", "exact", "--run", "r")
    assert code == 2
    assert "--server-share" in value["error"]["message"]
    code, value, _ = probekit("train", "small", "--arithmetic", "exact", "--server-share", "0.2", "--run", "r")
    assert code == 0
    assert RunFolder.open("r").config["grid"] > 0
    one = probekit("train", "small", "--arithmetic", "exact", "--normalise", "l2", "--ridge", "1", "--run", "s")[1]
    two = probekit(
        "train", "small", "--arithmetic", "exact", "--normalise", "l2", "--ridge", "1", "--run", "t", "--clients", "3"
    )[1]
    assert one["head"] == two["head"]


def test_weights_of_classes_and_views_of_the_fit(probekit: Probekit, shelve: Shelve) -> None:
    shelve("small")
    for arguments in (
        ("--class-weight", "balanced"),
        ("--class-weight", "1,2,0.5", "--standardise", "standardise"),
        ("--normalise-classes", "--standardise", "centre"),
        ("--normalise", "l2", "--intercept", "free", "--scaling", "sum", "--arithmetic", "fast"),
    ):
        code, value, _ = probekit("train", "small", "--run", "r", "--force", *arguments)
        assert code == 0, value
        recipe = RunFolder.open("r").head().recipe
        assert (recipe["fit_view"] == "none") == ("--standardise" not in arguments)
        assert recipe["normalise_classes"] == ("--normalise-classes" in arguments)


def test_a_toml_file_gives_the_options_and_flags_overrule_it(
    probekit: Probekit, shelve: Shelve, tmp_path: Path
) -> None:
    shelve("small")
    (tmp_path / "run.toml").write_text(
        '[train]\nembeddings = "small"\nclients = 4\nridge = 0.25\nserver-share = 0.1\nnormalise = "l2"\n'
        'fit_view = "centre"\nrun = "from-file"\n'
    )
    code, value, _ = probekit("train", "--config", "run.toml", "--clients", "5")
    assert code == 0
    assert (value["ridge"], len(value["clients"]), value["server_rows"]) == (0.25, 5, 9)
    assert value["run"] == "from-file"
    head = RunFolder.open("from-file").head()  # a flag's name and the option's own are both known
    assert (head.recipe["fit_view"], head.view) == ("centre", "l2")
    (tmp_path / "wrong.toml").write_text("[train]\nrigde = 1\n")
    code, value, _ = probekit("train", "small", "--config", "wrong.toml")
    assert code == 2
    assert "ridge" in value["error"]["message"]


def test_the_folder_has_a_name_of_its_own_and_is_not_overwritten(probekit: Probekit, shelve: Shelve) -> None:
    shelve("small")
    code, value, _ = probekit("train", "small")
    assert (code, value["run"]) == (0, "runs/small-closed-form")
    code, value, _ = probekit("train", "small")
    assert code == 2
    assert "--force" in value["error"]["message"]
    assert probekit("train", "small", "--force")[0] == 0


def test_people_see_what_was_done(command: Command, shelve: Shelve, store: DiskStore) -> None:
    shelve("small")
    outcome = command("train", "small", "--cache", str(store.root), "--clients", "3", "--server-share", "0.1")
    assert outcome.code == 0
    for words in ("runs/small-closed-form", "effective dimension", "rows per client", "leave-one-out", "fedremoval"):
        assert words in outcome.out
    assert command("train", "small", "--cache", str(store.root), "--force", "-q").out == ""


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "more clients than rows": (("--clients", "91"), 2, "91 clients were asked for and 90 of 90 rows"),
    "unknown column": (("--partition", "column:hospital"), 2, "'hospital' was asked for"),
    "no client column": (("--partition", "column:client_id"), 2, "names none"),
    "unknown scheme": (("--partition", "irichlet:1"), 3, "dirichlet"),
    "negative ridge": (("--ridge", "-1"), 2, "0 or more"),
    "no number": (("--ridge", "much"), 2, "'much'"),
    "unknown way": (("--ridge", "auto:bayes"), 3, "auto:loo"),
    "share of one": (("--server-share", "1"), 2, "[0, 1)"),
    "rounds without fedavg": (("--rounds", "5"), 2, "it belongs to --method cg or"),
    "history without fedavg": (("--keep-history",), 2, "or fedavg or"),
    "weights with fedavg": (("--method", "fedavg", "--class-weight", "balanced"), 2, "closed-form"),
    "steps and epochs": (("--method", "fedavg", "--local-steps", "2", "--local-epochs", "1"), 2, "one of them"),
    "adam without rate": (("--method", "fedavg", "--optimiser", "adam"), 2, "learning_rate"),
    "diverging": (("--method", "fedavg", "--learning-rate", "1e4", "--ridge", "1"), 1, "Lower the learning rate"),
    "logistic auto": (("--method", "logistic", "--ridge", "auto"), 2, "is a number"),
    "logistic keep": (("--method", "logistic", "--keep", "statistics"), 2, "can keep nothing"),
    "class weights": (("--class-weight", "1,x"), 2, "'1,x'"),
    "too few class weights": (("--class-weight", "1,2"), 2, "Each of the 3 classes needs one weight"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(probekit: Probekit, shelve: Shelve, tmp_path: Path, what: str) -> None:
    arguments, wanted, words = REFUSED[what]
    shelve("small")
    code, value, _ = probekit("train", "small", *arguments, "--run", "r")
    assert code == wanted, value
    assert words in value["error"]["message"]
    assert not (tmp_path / "r").exists()
    assert not list(tmp_path.glob(".aside*"))


def without(label: int) -> NDArray[np.int64]:
    labels: NDArray[np.int64] = np.arange(90) % 3
    return np.where(labels == label, 0, labels)


def with_nan() -> NDArray[np.float32]:
    rows = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32)
    rows[13, 2] = np.nan
    return rows


def flat() -> NDArray[np.float32]:
    rows = np.random.default_rng(0).normal(size=(90, 5)).astype(np.float32)
    rows[:, 4] = rows[:, 3]
    return rows


BAD_SETS: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "a class that no client has": ({"labels": without(2)}, (), "no client and not the server has one of class class 2"),
    "one class only": ({"labels": np.zeros(90, np.int64), "classes": 1}, (), "at least two classes"),
    "one class among more": ({"labels": np.ones(90, np.int64)}, (), "only class 1"),
    "no labels": ({"labels": np.full(90, -1)}, (), "No row can be used"),
    "NaN rows": ({"embeddings": with_nan()}, (), "(row 13) holds NaN"),
    "no ridge, singular Gram": ({"embeddings": flat()}, ("--ridge", "0"), "rank 5 of 6"),
    "an empty client": ({"clients": ("a", "") * 45}, ("--partition", "column:client_id"), "row 1 has none"),
}


@pytest.mark.parametrize("what", BAD_SETS)
def test_refused_sets(probekit: Probekit, shelve: Shelve, tmp_path: Path, what: str) -> None:
    changes, arguments, words = BAD_SETS[what]
    shelve("small", **changes)
    code, value, _ = probekit("train", "small", *arguments, "--run", "r")
    assert code == 2, value
    assert words in value["error"]["message"]
    assert not (tmp_path / "r").exists()


def test_an_unknown_set_offers_the_near_one(probekit: Probekit, shelve: Shelve) -> None:
    found = shelve("small")
    code, value, _ = probekit("train", "smal")
    assert code == 3
    assert "small" in value["error"]["message"]
    code, value, _ = probekit("train", found.digest[:10])
    assert (code, value["set"]) == (0, "small")


def _train(root: Path, place: Path) -> None:
    os.chdir(place)
    endless = ["--method", "fedavg", "--rounds", "10000000", "--batch-size", "8", "--ridge", "1"]
    run_command(["train", "small", "--cache", str(root), *endless])


def test_a_killed_run_leaves_nothing_and_the_same_command_works(
    probekit: Probekit, shelve: Shelve, store: DiskStore, tmp_path: Path
) -> None:
    shelve("small")
    process = FORK.Process(target=_train, args=(store.root, tmp_path))
    process.start()
    process.join(0.5)
    assert process.exitcode is None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not (tmp_path / "runs" / "small-fedavg").exists()
    code, _, _ = probekit("train", "small", "--method", "fedavg", "--rounds", "5", "--ridge", "1")
    assert code == 0
    assert json.loads((tmp_path / "runs/small-fedavg/run.json").read_text())["state"] == 1


def test_ridge_auto_in_python(shelve: Shelve) -> None:
    import probekit as library
    from probekit.federated.partition import partition

    embeddings = shelve("small")
    divided = partition(embeddings.labels, "iid", clients=4)
    trained = library.train(embeddings, divided, ridge="auto")
    rows = np.arange(90)
    assert np.allclose(trained.head.params, oracle(embeddings, rows, trained.ridge), atol=1e-9)
    again = library.train(embeddings, divided, ridge="auto:clients", method="fedavg")
    assert again.ridge > 0
    with pytest.raises(NotFoundError, match="auto:loo"):
        library.train(embeddings, divided, ridge="auto:magic")


def test_groups_stay_at_one_client_and_choose_the_ridge_together(command: Command, store: DiskStore) -> None:
    generator = np.random.default_rng(0)
    rows, users = generator.standard_normal((60, 4)), np.arange(60) // 5
    made = EmbeddingSet.from_numpy(rows, (rows[:, 0] > 0).astype(int), groups=users)
    store.adopt(made, "people")
    line = ("train", "people", "--clients", "3", "--cache", store.root)
    found = command(*line, "--partition", "groups", "--server-share", "0.2", "--run", "a", "--json")
    assert found.code == 0, found.message
    assert found.value["ridge_chosen"]["by"] == "3 parts left out in turn"
    assert found.err == ""
    divided = RunFolder.open("a").partition()
    places = [set(users[held].tolist()) for held in (divided.server, *divided.clients.values())]
    assert sum(map(len, places)) == 12
    plain = command(*line, "--run", "b")
    assert "leaving out single rows. Whole groups are left out with --partition groups" in plain.message
