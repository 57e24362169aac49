"""Clients on Ray: the same bits and bytes as in one process, whoever dies meanwhile."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probekit.cache import DiskStore
from probekit.encoding.cluster import FIXED, TOKEN, TOKEN_FILE, Cluster
from probekit.errors import InputError, MissingClientsError, NotFoundError, OfflineError
from probekit.federated import ray as on_ray
from probekit.federated import ray_tasks
from probekit.federated.in_process import InProcess
from probekit.federated.message import Ask, Selection
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.partition import partition
from probekit.federated.ray import RayFederation, ray_federation
from probekit.federated.ray_tasks import ClientBatch, Outcome
from probekit.federated.rows import design_for, head_problem
from probekit.federated.summation import order
from probekit.federated.training import train
from probekit.linear.threads import libraries
from probekit.models.jvp import WholeNetwork, network_problem
from probekit.models.pretraining import Pretraining
from probekit.testing import check_federation
from probekit.testing.federations import same
from probekit.values import EmbeddingSet, Partition
from tests.clusters import Death

MakeSet = Callable[..., EmbeddingSet]


class Case:
    """A set of a store, divided; its clients in this process and on Ray."""

    def __init__(self, data: EmbeddingSet, store: DiskStore, cluster: Cluster, clients: int = 12) -> None:
        self.store, self.cluster = store, cluster
        self.data = store.adopt(data, "data")
        self.problem = head_problem(self.data, design_for(self.data))
        self.partition: Partition = partition(self.data.labels, "iid", clients=clients)

    @property
    def here(self) -> InProcess:
        return InProcess.of(self.problem, self.data, self.partition.clients)

    @property
    def there(self) -> RayFederation:
        return RayFederation(self.problem, self.data, self.partition.clients, self.store, self.cluster)


@pytest.fixture
def case(make_set: MakeSet, store: DiskStore, ray_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Twelve clients, two of them to a task or a batch."""
    monkeypatch.setattr(on_ray, "MOST_CLIENTS", 2)
    return Case(make_set(240), store, ray_cluster)


def test_the_kit_passes(ray_cluster: Cluster, tmp_path: Path) -> None:
    made: list[RayFederation] = []

    def make(problem: Any, data: Any, rows: Any) -> RayFederation:
        store = DiskStore(tmp_path / str(len(made)))
        made.append(RayFederation(problem, store.adopt(data, "data"), rows, store, ray_cluster))
        return made[-1]

    assert {check.name: check.detail for check in check_federation(make) if not check.passed} == {}


@pytest.mark.parametrize("method", ["closed-form", FedAvg(rounds=2)], ids=["closed form", "FedAvg"])
@pytest.mark.parametrize("keep", ["nothing", None])
def test_training_gives_the_same_head_for_the_same_bytes(case: Case, method: Any, keep: str | None) -> None:
    given: Any = {"problem": case.problem, "ridge": 0.1, "method": method, "keep": keep}
    with libraries().limit(limits=1, user_api="blas"):
        here, there = (train(case.data, case.partition, federation=one, **given) for one in (case.here, case.there))
    assert here.head.digest == there.head.digest
    assert here.traffic == there.traffic


def test_a_killed_worker_is_replaced_and_the_sum_is_the_same(
    make_set: MakeSet,
    store: DiskStore,
    tmp_path: Path,
    ray_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    death, real = Death(tmp_path / "died"), ray_tasks.summed

    def summed(*given: Any) -> Any:
        found = real(*given)
        death.meet()  # with the sum made and not yet given
        return found

    monkeypatch.setattr(on_ray, "MOST_CLIENTS", 4)
    monkeypatch.setattr(on_ray, "summed", summed)
    case = Case(make_set(240, 30), store, ray_cluster, clients=24)
    start = {"params": np.zeros(case.problem.shape)}
    plan: Any = {"epochs": 2, "batch": 1, "rate": 1e-4}
    found = case.there.ask("fit", start, plan).total()
    assert death.came
    with libraries().limit(limits=1, user_api="blas"):
        assert same(found, case.here.ask("fit", start, plan).total())


def test_few_answers_are_in_flight(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    read = on_ray._Tasks.read
    waiting: list[int] = []

    def look(tasks: Any, *arguments: Any, **options: Any) -> Any:
        waiting.append(len(tasks._open))
        return read(tasks, *arguments, **options)

    monkeypatch.setattr(on_ray._Tasks, "read", look)
    monkeypatch.setattr(on_ray, "MOST_CLIENTS", 1)
    monkeypatch.setattr(on_ray, "AHEAD", 1)
    assert len(list(case.there.ask("statistics").each())) == len(waiting) == 12
    assert max(waiting) <= case.cluster.cpus + 1


class Recorded:
    """Tasks that are noted instead of done."""

    def __init__(self) -> None:
        self.batches: list[ClientBatch] = []
        self.sums = 0

    def remote(self, work: Any) -> Any:
        def add(*parts: Any) -> None:
            self.sums += 1

        return SimpleNamespace(remote=add)

    def start(self, batch: ClientBatch) -> Any:
        self.batches.append(batch)
        return SimpleNamespace(result=None)

    def read(self, *_: Any, **__: Any) -> tuple[None, Outcome]:
        return None, Outcome()


def test_many_small_clients_share_a_task(make_set: MakeSet, store: DiskStore) -> None:
    rows = {str(number): np.arange(2 * number, 2 * number + 2) for number in range(60_000)}
    data = make_set(30, 256)
    found = RayFederation(head_problem(data, design_for(data)), data, rows, store)
    tasks: Any = Recorded()
    found._pass(tasks, found.counts, expected=True)
    assert sum(len(batch.names) for batch in tasks.batches) == 60_000
    assert min(len(batch.names) for batch in tasks.batches) >= 512
    assert max(len(batch.names) for batch in tasks.batches) <= on_ray.MOST_CLIENTS
    assert tasks.sums == len(tasks.batches) - 1
    one_by_one = list(found._batches(Ask("statistics"), order(rows)))
    assert [name for batch in one_by_one for name in batch.names] == order(rows)
    assert min(len(batch.names) for batch in one_by_one[:-1]) >= 512


@pytest.mark.slow
def test_whole_networks_too(make_set: MakeSet, store: DiskStore, ray_cluster: Cluster) -> None:
    data = store.adopt(make_set(120, dtype="float32"), "data")
    divided = partition(data.labels, "iid", clients=4, server_share=0.2)
    problem = network_problem(data, divided, WholeNetwork("mlp", pretraining=Pretraining(epochs=1)))
    here = InProcess.of(problem, data, divided.clients)
    there = RayFederation(problem, data, divided.clients, store, ray_cluster)
    given: Any = {"problem": problem, "ridge": 0.1, "method": "cg", "keep": "gradients"}
    with libraries().limit(limits=1, user_api="blas"):
        heads = [train(data, divided, federation=one, **given).head.digest for one in (here, there)]
    assert heads[0] == heads[1]
    assert here.traffic == there.traffic


def test_rows_of_a_set_that_the_cache_does_not_have_as_such_are_found(case: Case) -> None:
    some = case.data.select(np.arange(0, 240, 3))
    relabelled = replace(some, labels=np.roll(some.labels, 1), embeddings=case.data.embeddings[::3])
    divided = partition(relabelled.labels, "iid", clients=5)
    there = ray_federation("ray", case.problem, relabelled, divided, case.store)
    here = InProcess.of(case.problem, relabelled, divided.clients)
    for kind in ("statistics", "scales"):
        assert same(there.ask(kind).total(), here.ask(kind).total())


def test_who_has_no_rows_of_a_selection_stays_in_the_sum(case: Case) -> None:
    chosen = Selection("only", frozenset(case.data.ids[:30]))
    assert same(case.there.ask("statistics", rows=chosen).total(), case.here.ask("statistics", rows=chosen).total())


def test_a_worker_that_does_not_find_the_set_says_so(case: Case) -> None:
    elsewhere = case.there
    elsewhere.store = DiskStore(case.store.root.parent / "elsewhere")
    shutil.copytree(case.store.root, elsewhere.store.root)
    _ = elsewhere._setting
    shutil.rmtree(elsewhere.store.root)
    answers = elsewhere.ask("statistics", at_least=0)
    assert list(answers.each()) == []
    assert set(answers.missing) == set(case.partition.clients)
    assert {one.reason for one in answers.missing.values()} == {"gone"}
    assert "There is no set" in answers.missing["0"].why
    with pytest.raises(MissingClientsError, match="There is no set"):
        elsewhere.ask("statistics").total()


def test_who_does_not_answer_in_time_is_late(case: Case) -> None:
    answers = case.there.ask("statistics", at_least=0, timeout=0.0)
    assert len(list(answers.each())) + len(answers.missing) == 12
    assert {one.reason for one in answers.missing.values()} == {"late"}
    with pytest.raises(MissingClientsError, match="late, it did not answer in time"):
        case.there.ask("statistics", timeout=0.0).total()


def test_a_row_that_cannot_be_used_is_named(make_set: MakeSet, store: DiskStore, ray_cluster: Cluster) -> None:
    data = make_set(240)
    rows = np.array(data.embeddings)
    rows[7] = np.nan
    case = Case(replace(data, embeddings=rows), store, ray_cluster)
    for read in (lambda answers: list(answers.each()), lambda answers: answers.total()):
        with pytest.raises(InputError) as here:
            read(case.here.ask("statistics"))
        with pytest.raises(InputError, match=data.ids[7]) as there:
            read(case.there.ask("statistics"))
        assert str(here.value) == str(there.value)


@pytest.mark.parametrize(
    "address", ["10.0.0.7:6379", "head.example:6379", "[2001:db8::1]:6379", "ray://10.0.0.7:10001"]
)
def test_others_machines_without_a_token_are_refused(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (TOKEN, TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="there is no token for it"), Cluster.named(f"ray:{address}"):
        pass


@pytest.mark.parametrize("text", ["ray:", "rays", "ray//x"])
def test_a_cluster_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="Ray is written ray or ray:HOST:PORT"):
        Cluster.named(text)


def test_where_nobody_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cluster, idle = Cluster(address), SimpleNamespace(is_initialized=lambda: False)
        monkeypatch.setitem(sys.modules, "ray", idle)
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        with pytest.raises(OfflineError, match=f"There is no Ray at {address}"), cluster:
            pass


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotFoundError, match=r"probekit\[ray\]"), Cluster():
        pass


@pytest.mark.slow
def test_nothing_is_told_and_strangers_are_kept_out(ray_cluster: Cluster) -> None:
    assert {name: os.environ[name] for name in FIXED} == FIXED
    assert os.environ["RAY_AUTH_MODE"] == "token"
    address = ray_cluster.ray.get_runtime_context().gcs_address
    code = f"import ray; ray.init('{address}', logging_level='ERROR')"
    stranger = {**os.environ, TOKEN: "0" * 64}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=stranger, capture_output=True, check=False)
    assert done.returncode
    assert b"uthenticat" in done.stderr


ALONE = """
    import sys
    import numpy as np
    from probekit.cache import DiskStore
    from probekit.federated.partition import partition
    from probekit.federated.ray import ray_federation
    from probekit.federated.rows import design_for, head_problem
    from probekit.values import EmbeddingSet

    rows = np.random.default_rng(0).normal(size=(40, 5))
    store = DiskStore(sys.argv[1])
    data = store.adopt(EmbeddingSet.from_numpy(rows, np.arange(40) % 2), "data")
    problem = head_problem(data, design_for(data))
    with ray_federation("ray", problem, data, partition(data.labels, "iid", clients=4), store) as found:
        print(found.ask("statistics").total().count)
        found.close()
        print(sum(one.count for one in found.ask("statistics").each()))
"""


@pytest.mark.slow
def test_it_works_where_there_is_no_network(tmp_path: Path) -> None:
    cut = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*cut, "true"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    code = [sys.executable, "-c", textwrap.dedent(ALONE), str(tmp_path)]
    done = subprocess.run([*cut, *code], text=True, capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "40\n40"), done.stderr
