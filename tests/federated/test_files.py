"""Clients through files: the same bytes and the same head as in one process, and whatever goes wrong in between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from probekit.errors import Cancelled, InputError, MismatchError, MissingClientsError, Pending
from probekit.federated import files
from probekit.federated.files import FilesClient, FilesFederation, client_folder
from probekit.federated.in_process import InProcess
from probekit.federated.message import Answer, Ask, encode
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.networks import train_network
from probekit.federated.partition import partition
from probekit.federated.rows import design_for, head_problem
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.files import write_bytes
from probekit.models.jvp import WholeNetwork
from probekit.models.linear_problem import HeadProblem
from probekit.models.pretraining import Pretraining
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition

MakeSet = Callable[..., EmbeddingSet]
POINT = np.full((7, 3), 0.1)


class Case:
    """Some rows, divided, with a problem and a folder; every client answers when it is looked for answers."""

    def __init__(self, data: EmbeddingSet, folder: Path, *, problem: Any = None) -> None:
        self.data, self.folder = data, folder
        self.partition: Partition = partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.2, seed=1)
        self.problem = problem or head_problem(data, design_for(data))
        self.clients = {name: self.client(name) for name in self.partition.clients}
        self.counts = {name: len(own) for name, own in self.partition.clients.items()}

    def client(self, name: str, **options: Any) -> FilesClient:
        return FilesClient(self.folder, name, self.data, self.partition.clients[name], **options)

    def serve(self, *names: str) -> int:
        return sum(self.clients[name].serve() for name in names or self.clients)

    def federation(self, **options: Any) -> FilesFederation:
        return FilesFederation(self.folder, self.problem, **{"members": tuple(self.clients), **options})

    @property
    def answering(self) -> FilesFederation:
        """One whose clients answer at once."""
        return self.federation(wait=60.0, pause=lambda _: self.serve() and None)

    @property
    def in_process(self) -> InProcess:
        return InProcess.of(self.problem, self.data, self.partition.clients)

    def train(self, federation: Any, method: Any = "closed-form", **options: Any) -> Trained:
        return train(
            self.data,
            self.partition,
            **{"ridge": 0.1, "method": method, "problem": self.problem, "federation": federation, **options},
        )


@pytest.fixture
def case(make_set: MakeSet, tmp_path: Path) -> Case:
    return Case(make_set(120), tmp_path / "common")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("closed-form", {"keep": "statistics"}),
        ("closed-form", {"keep": "nothing"}),
        ("closed-form", {"ridge": "auto:loo"}),
        ("closed-form", {"ridge": "auto:kfold"}),
        (FedAvg(rounds=11, local_steps=2), {}),
        (FedAvg(rounds=3, local_steps=None, local_epochs=1, batch_size=4), {"keep": "statistics"}),
        ("cg", {}),
    ],
)
def test_same_head_and_same_bytes_as_in_one_process(
    make_set: MakeSet, tmp_path: Path, dtype: str, method: Any, options: Any
) -> None:
    case = Case(make_set(120, 8, dtype=dtype), tmp_path)
    near, far = case.in_process, case.answering
    wanted, found = (case.train(one, method, **options) for one in (near, far))
    assert found.head.digest == wanted.head.digest
    assert dict(found.traffic) == dict(wanted.traffic)
    assert far.traffic == near.traffic
    sent = [path.stat().st_size for path in tmp_path.glob("*/*.ask")]
    assert far.traffic.down == sum(sent)


def test_a_network_through_files(make_set: MakeSet, tmp_path: Path) -> None:
    data = make_set(80)
    options = WholeNetwork("mlp", subset=1, pretraining=Pretraining(epochs=1))
    method = FedAvg(rounds=2, local_steps=2)
    split = partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.2, seed=1)
    wanted = train_network(data, split, ridge=0.1, options=options, method=method)
    case = Case(data, tmp_path, problem=wanted.problem)
    found = case.train(case.answering, method, keep="gradients")
    assert found.head.digest == wanted.head.digest
    assert dict(found.traffic) == dict(wanted.traffic)


SERVER = """
import sys, time
from pathlib import Path
import numpy as np
from probekit.federated.files import FilesClient
from probekit.values import EmbeddingSet, EncodingSpec
folder, name, own = Path(sys.argv[1]), sys.argv[2], np.load(sys.argv[3])
spec = EncodingSpec("test", "0" * 64, {}, "proj", dtype="float64")
names = tuple(f"class {number}" for number in range(3))
data = EmbeddingSet(spec, own["rows"], own["labels"], own["ids"].tolist(), class_names=names)
client = FilesClient(folder, name, data, np.arange(len(data)))
while not (folder / "end").exists():
    client.serve()
    time.sleep(0.02)
assert "torch" not in sys.modules
"""


def test_processes_that_share_nothing_but_the_folder(case: Case, tmp_path: Path) -> None:
    running = []
    case.folder.mkdir()
    for name, rows in case.partition.clients.items():
        own = tmp_path / f"{name}.npz"
        ids = [case.data.ids[row] for row in rows]
        np.savez(own, rows=np.asarray(case.data.embeddings)[rows], labels=case.data.labels[rows], ids=ids)
        command = [sys.executable, "-c", SERVER, str(case.folder), name, str(own)]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    try:
        for number, method in enumerate(("closed-form", FedAvg(rounds=3, local_steps=2))):
            found = case.train(case.federation(wait=120.0, job=f"job {number}"), method)
            assert found.head.digest == case.train(case.in_process, method).head.digest
    finally:
        (case.folder / "end").touch()
        errors = [one.communicate(timeout=60)[1] for one in running]
    assert [one.returncode for one in running] == [0] * 4, errors


def test_the_same_command_goes_on_when_answers_are_there(case: Case) -> None:
    names, waits = tuple(case.clients), list[Pending]()

    def attempt() -> Trained | None:
        try:
            return case.train(case.federation(job="train"), FedAvg(rounds=2, local_steps=2), keep="nothing")
        except Pending as error:
            waits.append(error)
            return None

    while (found := attempt()) is None:
        case.serve(names[0])
        attempt()
        case.serve()
    near = case.in_process
    near.job = "train"
    assert found.head.digest == case.train(near, FedAvg(rounds=2, local_steps=2), keep="nothing").head.digest
    questions = near.traffic.rounds
    assert [one.awaited for one in waits] == [names, names[1:]] * (questions + 1)  # the problem comes first
    assert all("Give the same command again" in str(one) for one in waits)
    assert len(list(case.folder.glob("*/*.ask"))) == 4 * questions
    assert case.serve() == 0
    with pytest.raises(Pending):  # another job has questions of its own
        case.federation(job="again").ask("statistics")


def test_a_client_is_asked_only_what_it_is_asked(case: Case) -> None:
    federation = case.answering
    assert federation.ask("statistics", clients=("1",)).total().count == case.counts["1"]
    assert [path.parent.name[0] for path in case.folder.glob("*/*.ask")] == ["1"]


def test_who_does_not_answer_in_time_is_late_for_good(case: Case) -> None:
    names = tuple(case.clients)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        case.serve(*names[:3])

    def asked() -> Any:
        federation = case.federation(members=case.counts, pause=pause)
        return federation.ask("gradient", {"params": POINT}, at_least=3, timeout=0.2)

    answers = asked()
    total = answers.total()
    assert answers.missing[names[3]].reason == "late"
    assert pauses
    wanted = case.in_process.ask("gradient", {"params": POINT}, clients=names[:3]).total()
    assert total.arrays["gradient"].tobytes() == wanted.arrays["gradient"].tobytes()
    assert case.serve() == 1  # the problem alone: the question is closed
    answers = asked()
    assert answers.total().arrays["gradient"].tobytes() == wanted.arrays["gradient"].tobytes()
    assert answers.missing[names[3]].reason == "late"
    with pytest.raises(MissingClientsError, match="late, it did not answer in time"):
        case.federation(members=case.counts).ask("gradient", {"params": POINT}).total()


def answered(case: Case) -> tuple[Path, Path]:
    """Two clients' answers to one question."""
    case.answering.ask("gradient", {"params": POINT}).total()
    first, second = (next(client_folder(case.folder, name).glob("*.ask")) for name in ("0", "1"))
    return first.with_suffix(".answer"), second.with_suffix(".answer")


def test_altered_foreign_and_replayed_answers_are_garbage(case: Case) -> None:
    own, other = answered(case)
    good = own.read_bytes()
    replayed = Answer.decode(good)[0].encode("f" * 64)
    for content, words in [
        (other.read_bytes(), "client 1's answer"),
        (replayed, "answer to ffffffffffffffff, not 0's to"),
        (good[:-1] + bytes([good[-1] ^ 1]), "not those that were sent"),
        (good[: len(good) // 2], "not those that were sent"),
        (b"", "not a message"),
        (encode({"client": "0", "ask": own.stem, "missing": "on holiday"}, {}), "no reason 'on holiday'"),
        (encode({"client": "0", "ask": own.stem}, {}), "not an answer"),
    ]:
        own.write_bytes(content)
        answers = case.federation().ask("gradient", {"params": POINT}, at_least=3)
        assert len(list(answers.each())) == 3
        assert answers.missing["0"].reason == "garbage"
        assert words in answers.missing["0"].why
        assert own.name in answers.missing["0"].why
    own.unlink()
    assert case.serve() == 1
    assert own.read_bytes() == good


def test_what_a_client_cannot_or_will_not_answer_is_said(case: Case) -> None:
    case.serve()
    plan = {"epochs": 1, "batch": 50, "drop_last": True, "rate": 0.1}
    answers = case.answering.ask("fit", {"params": POINT}, plan, at_least=0)
    assert list(answers.each()) == []
    assert {one.reason for one in answers.missing.values()} == {"cannot"}
    assert "drop_last" in answers.missing["0"].why
    case.clients["0"] = case.client(
        "0", decline=lambda ask: "it shares no gradients." if ask.kind == "gradient" else ""
    )
    answers = case.answering.ask("gradient", {"params": POINT}, at_least=3)
    assert answers.total().count == sum(case.counts.values()) - case.counts["0"]
    assert (answers.missing["0"].reason, answers.missing["0"].why) == ("refused", "it shares no gradients.")


def test_rows_that_cannot_be_used_are_named(case: Case) -> None:
    rows = np.array(case.data.embeddings)
    rows[case.partition.clients["2"][0]] = np.nan
    case.data = replace(case.data, embeddings=rows)
    case.clients = {name: case.client(name) for name in case.clients}
    with pytest.raises(MissingClientsError, match="Client 2: cannot, Training needs finite embeddings; sample"):
        case.train(case.answering)


def test_clients_that_do_not_fit_are_refused(case: Case) -> None:
    counts = {**case.counts, "1": 7}
    with pytest.raises(MismatchError, match=f"Client 1 has {case.counts['1']} rows, 7 were expected"):
        case.train(case.federation(members=counts, wait=60.0, pause=lambda _: case.serve() and None))


def test_a_client_without_the_backend_cannot_take_part(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("no such backend here")

    monkeypatch.setattr(files, "backend_named", missing)
    with pytest.raises(MismatchError, match="Client 0 cannot take part: gone, ImportError: no such backend here"):
        case.train(case.answering)


def test_what_is_still_on_its_way_is_left_alone(case: Case) -> None:
    with pytest.raises(Pending):
        case.federation(members=case.counts).ask("gradient", {"params": POINT})
    folder = client_folder(case.folder, "0")
    [question], [definition] = folder.glob("*.ask"), folder.glob("*.define")
    whole = question.read_bytes()
    question.write_bytes(whole[:50])
    assert case.serve("0") == 1  # the problem alone
    question.write_bytes(whole)
    (folder / f"{'0' * 64}.ask").write_bytes(whole)  # a copy under another name is not the question
    hidden = definition.rename(folder / "hidden")
    assert case.serve("0") == 0
    hidden.rename(definition)
    assert case.serve("0") == 1


def test_odd_names_have_folders_of_their_own(case: Case) -> None:
    names = ["a", "A", "..", "../x", "", "x" * 300, "Zoë"]
    folders = {client_folder(case.folder, name) for name in names}
    assert len({str(one).lower() for one in folders}) == len(names)
    assert {one.parent for one in folders} == {case.folder}


def remembering(ask: Ask, holding: Any, memory: Any, *, name: str = "") -> tuple[Answer, Any]:
    """A client that counts its questions, and adds up what it is sent."""
    times, total = memory.get("times", 0) + 1, memory.get("total", 0.0) + ask.arrays["params"]
    return Answer(name, holding.count, {"total": total}, {"times": times}), {"times": times, "total": total}


def test_what_a_client_remembers_stays_with_it(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "answer", remembering)
    case.clients = {"0": case.client("0", memory=tmp_path / "own" / "memory")}
    for times in (1, 2, 3):
        case.clients = {"0": case.client("0", memory=tmp_path / "own" / "memory")}  # a new process each time
        federation = case.answering
        federation.number = times
        [found] = federation.ask("add up", {"params": POINT}).each()
        assert found.values["times"] == times
        np.testing.assert_allclose(found.arrays["total"], times * POINT)
    assert {path.suffix for path in case.folder.rglob("*") if path.is_file()} == {".ask", ".define", ".answer"}


def test_a_client_that_is_killed_before_it_answers_does_not_count_twice(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "answer", remembering)
    case.clients = {"0": case.client("0", memory=tmp_path / "memory")}
    case.answering.offers("add up")

    def killed(path: Path, content: bytes) -> None:
        if path.suffix == ".answer":
            raise KeyboardInterrupt
        write(path, content)

    write = write_bytes
    with pytest.raises(Pending):
        case.federation().ask("add up", {"params": POINT})
    monkeypatch.setattr(files, "write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        case.serve()
    monkeypatch.setattr(files, "write_bytes", write)
    case.serve()
    [found] = case.federation().ask("add up", {"params": POINT}).each()
    assert found.values["times"] == 1


def test_a_client_that_remembers_needs_a_place_for_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "answer", remembering)
    case.clients = {"0": case.client("0")}
    with pytest.raises(InputError, match="memory="):
        case.answering.ask("add up", {"params": POINT})


@dataclass(frozen=True, eq=False)
class Singing(HeadProblem):
    canary: ClassVar[str | None] = "of other code"


def test_clients_with_other_code_do_not_take_part(case: Case) -> None:
    plain = case.problem
    case.problem = Singing(plain.design, plain.classes, plain.spec_digest)
    assert case.problem.plain == plain.plain
    assert case.problem.digest != plain.digest
    with pytest.raises(MismatchError, match="is another one here"):
        case.train(case.answering)


def test_one_call_answers_what_is_open(case: Case) -> None:
    with pytest.raises(Pending):
        case.federation(members=("0",)).ask("statistics")
    rows = case.partition.clients["0"]
    assert FilesClient(case.folder, "0", case.data, rows).serve() == 1
    with pytest.raises(Pending):
        case.federation(members=("0",)).ask("statistics")
    assert [FilesClient(case.folder, "0", case.data, rows).serve() for _ in range(2)] == [1, 0]
    assert case.federation(members=("0",)).ask("statistics").total().count == len(rows)


@pytest.mark.parametrize("method", ["fedremoval", "fedremoval-pcg:4", "exact", "retrain"])
def test_unlearning_through_files(case: Case, tmp_path: Path, method: str) -> None:
    keep = "statistics" if method == "exact" else "gradients"
    trained = case.train(case.in_process, keep=keep)
    left = [name for name in case.clients if name != "3"]
    rest = {name: case.partition.clients[name] for name in left}
    near = InProcess.of(case.problem, case.data, rest)
    far = replace(case.answering, members=tuple(left))
    request = UnlearnRequest(("3",))
    wanted, found = (unlearn(trained, request, method=method, material=Material(clients=one)) for one in (near, far))
    assert found.trained_after.head.digest == wanted.trained_after.head.digest
    assert (found.cost.up, found.cost.down, found.cost.rounds) == (wanted.cost.up, wanted.cost.down, wanted.cost.rounds)
    asked = len(list(case.folder.glob("*/*.ask")))
    assert asked == len(left) * found.cost.rounds  # every question goes to all at once


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("method", ["fedavg:rounds=5", "cg"])
def test_whoever_watches_can_stop_between_two_questions(case: Case, method: str, far: bool) -> None:
    federation = case.answering if far else case.in_process

    def stop(now: Any) -> None:
        if now.done >= 2:
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        case.train(federation, method, watch=lambda stage: stop)
    whole = case.in_process
    case.train(whole, method)
    assert 0 < federation.traffic.rounds < whole.traffic.rounds
