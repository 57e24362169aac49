"""Clients through signed files: the same bytes and head as in one process, and whatever goes wrong in between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from probekit.errors import Cancelled, InputError, MissingClientsError, Pending, VerificationError
from probekit.federated import client, node
from probekit.federated.envelope import ANSWER, Envelope
from probekit.federated.files import FilesCarrier, answer_file, open_questions, take_in
from probekit.federated.in_process import InProcess
from probekit.federated.membership import safe_name
from probekit.federated.message import Answer, Ask, encode
from probekit.federated.methods.fedavg import FedAvg
from probekit.federated.networks import train_network
from probekit.federated.partition import partition
from probekit.federated.policy import Policy
from probekit.federated.rows import design_for, head_problem
from probekit.federated.trained import Trained
from probekit.federated.training import train
from probekit.models.jvp import WholeNetwork
from probekit.models.linear_problem import HeadProblem
from probekit.models.pretraining import Pretraining
from probekit.unlearning.choice import unlearn
from probekit.unlearning.method import Material
from probekit.unlearning.request import UnlearnRequest
from probekit.values import EmbeddingSet, Partition
from tests.nodes import Machines

MakeSet = Callable[..., EmbeddingSet]
POINT = np.full((7, 3), 0.1)


class Case:
    """Some rows, divided over machines of their own, with a problem."""

    def __init__(self, data: EmbeddingSet, root: Path, *, problem: Any = None) -> None:
        self.data, self.root = data, root
        self.partition: Partition = partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.2, seed=1)
        self.problem = problem or head_problem(data, design_for(data))
        self.machines = Machines(root, data, self.partition.clients)
        self.counts = {name: len(own) for name, own in self.partition.clients.items()}
        self.serve = self.machines.serve

    def federation(self, **options: Any) -> Any:
        return self.machines.federation(self.problem, **options)

    def answering(self, **options: Any) -> Any:
        return self.machines.answering(self.problem, **options)

    def files(self, suffix: str, name: str = "*") -> list[Path]:
        where = "*" if name == "*" else safe_name(name)
        return sorted(self.machines.exchange.glob(f"{where}/*{suffix}"), key=lambda path: path.stat().st_mtime_ns)

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
    return Case(make_set(120), tmp_path)


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
    near, far = case.in_process, case.answering()
    wanted, found = (case.train(one, method, **options) for one in (near, far))
    assert found.head.digest == wanted.head.digest
    assert dict(found.traffic) == dict(wanted.traffic)
    assert far.traffic == near.traffic
    asked = [Envelope.read(path.read_bytes(), "probekit question 1")[0] for path in case.files(".question")]
    assert far.traffic.down == sum(len(one.content) - len("job") for one in asked if one.number)


def test_a_network_through_files(make_set: MakeSet, tmp_path: Path) -> None:
    data = make_set(80)
    options = WholeNetwork("mlp", subset=1, pretraining=Pretraining(epochs=1))
    method = FedAvg(rounds=2, local_steps=2)
    split = partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.2, seed=1)
    wanted = train_network(data, split, ridge=0.1, options=options, method=method)
    case = Case(data, tmp_path, problem=wanted.problem)
    found = case.train(case.answering(), method, keep="gradients")
    assert found.head.digest == wanted.head.digest
    assert dict(found.traffic) == dict(wanted.traffic)


SERVER = """
import sys, time
from pathlib import Path
import numpy as np
from probekit.federated.files import serve
from probekit.federated.node import Node
from probekit.values import EmbeddingSet, EncodingSpec
own = np.load(sys.argv[2])
spec = EncodingSpec("test", "0" * 64, {}, "proj", dtype="float64")
names = tuple(f"class {number}" for number in range(3))
data = EmbeddingSet(spec, own["rows"], own["labels"], own["ids"].tolist(), class_names=names)
node, exchange = Node.open(Path(sys.argv[1]), lambda _: data), Path(sys.argv[3])
while not (exchange / "end").exists():
    serve(node, exchange)
    time.sleep(0.02)
assert "torch" not in sys.modules
"""


def test_processes_that_share_nothing_but_the_folder(case: Case, tmp_path: Path) -> None:
    running, exchange = [], case.machines.exchange
    exchange.mkdir()
    for name, rows in case.partition.clients.items():
        own = tmp_path / f"{name}.npz"
        ids = [case.data.ids[row] for row in rows]
        np.savez(own, rows=np.asarray(case.data.embeddings)[rows], labels=case.data.labels[rows], ids=ids)
        command = [sys.executable, "-c", SERVER, str(case.machines.nodes[name].folder), str(own), str(exchange)]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    try:
        for number, method in enumerate(("closed-form", FedAvg(rounds=3, local_steps=2))):
            carrier = FilesCarrier(exchange, wait=120.0)
            found = case.train(case.federation(carrier=carrier, job=f"job {number}"), method)
            assert found.head.digest == case.train(case.in_process, method).head.digest
    finally:
        (exchange / "end").touch()
        errors = [one.communicate(timeout=60)[1] for one in running]
    assert [one.returncode for one in running] == [0] * 4, errors


def test_the_same_command_goes_on_when_answers_are_there(case: Case) -> None:
    names, waits = tuple(case.machines.keys), list[Pending]()

    def attempt() -> Trained | None:
        try:
            return case.train(case.federation(), FedAvg(rounds=2, local_steps=2), keep="nothing")
        except Pending as error:
            waits.append(error)
            return None

    while (found := attempt()) is None:
        case.serve(names[0])
        attempt()
        case.serve()
    near = case.in_process
    assert found.head.digest == case.train(near, FedAvg(rounds=2, local_steps=2), keep="nothing").head.digest
    questions = near.traffic.rounds
    assert [one.awaited for one in waits] == [names, names[1:]] * (questions + 1)  # the problem comes first
    assert all("Give the same command" in str(one) for one in waits)
    assert len(case.files(".question")) == 4 * (questions + 1)
    assert case.serve() == 0
    with pytest.raises(Pending):  # another job has questions of its own
        case.federation(job="again").ask("statistics")


def test_what_was_accepted_needs_no_carrier_again(case: Case) -> None:
    """The process that asks is killed: another one finds every answer in the job's folder."""
    method = FedAvg(rounds=3, local_steps=2)
    wanted = case.train(case.answering(), method).head.digest

    class Cut:
        remedy = ""

        def carry(self, parcels: Any, *, timeout: float | None) -> Any:
            raise AssertionError(f"{list(parcels)} are asked again")

    assert case.train(case.federation(carrier=Cut()), method).head.digest == wanted


def test_a_client_is_asked_only_what_it_is_asked(case: Case) -> None:
    federation = case.answering()
    assert federation.ask("statistics", clients=("1",)).total().count == case.counts["1"]
    assert [path.parent.name[0] for path in case.files(".question")[4:]] == ["1"]


def test_who_does_not_answer_in_time_is_late_for_good(case: Case) -> None:
    names, pauses = tuple(case.machines.keys), list[float]()
    case.answering().offers("gradient")

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        case.serve(*names[:3])

    def asked() -> Any:
        federation = case.federation(carrier=FilesCarrier(case.machines.exchange, pause=pause))
        return federation.ask("gradient", {"params": POINT}, at_least=3, timeout=0.2)

    answers = asked()
    total = answers.total()
    assert answers.missing[names[3]].reason == "late"
    assert pauses
    wanted = case.in_process.ask("gradient", {"params": POINT}, clients=names[:3]).total()
    assert total.arrays["gradient"].tobytes() == wanted.arrays["gradient"].tobytes()
    assert case.serve() == 0  # the question is closed
    answers = asked()
    assert answers.total().arrays["gradient"].tobytes() == wanted.arrays["gradient"].tobytes()
    assert answers.missing[names[3]].reason == "late"
    with pytest.raises(MissingClientsError, match="late, it did not answer in time"):
        case.federation().ask("gradient", {"params": POINT}).total()


def resealed(case: Case, name: str, answer: bytes, **changes: Any) -> bytes:
    """An answer with other contents, signed by the client's own key."""
    envelope = Envelope.read(answer, ANSWER)[0]
    return replace(envelope, **changes).sealed(case.machines.nodes[name].key)


def test_altered_foreign_and_replayed_answers_are_garbage(case: Case) -> None:
    case.answering().ask("gradient", {"params": POINT}).total()
    [_, own], [_, other] = case.files(".answer", "0"), case.files(".answer", "1")
    [define, _] = case.files(".answer", "0")
    good, said = own.read_bytes(), Envelope.read(own.read_bytes(), ANSWER)[0].question
    stranger = Envelope.read(good, ANSWER)[0].sealed(case.machines.nodes["1"].key)
    where = next(case.machines.folder.path.glob(f"jobs/job/*-{said[:32]}")) / f"{safe_name('0')}.answer"
    told: Any = [
        (other.read_bytes(), "not signed by key"),
        (stranger, "it is signed by key"),
        (define.read_bytes(), "it is an old one"),
        (good[:-1] + bytes([good[-1] ^ 1]), "not those that were sent"),
        (good[: len(good) // 2], "not those that were sent"),
        (b"", "not a message"),
        (resealed(case, "0", good, federation="0" * 32), "is of federation 0000"),
        (resealed(case, "0", good, client="1"), "is client 1's, not client 0's"),
    ]
    for note, words in [
        ({"client": "0", "ask": said, "missing": "on holiday"}, "no reason 'on holiday'"),
        ({"client": "0", "ask": said}, "not an answer"),
        ({"client": "1", "ask": said, "missing": "late"}, "client 1's answer"),
        ({"client": "0", "ask": "f" * 64, "missing": "late"}, "answer to ffffffffffffffff, not 0's to"),
    ]:
        told.append((resealed(case, "0", good, content=encode(note, {})), words))
    for content, words in told:
        where.unlink(missing_ok=True)
        own.write_bytes(content)
        answers = case.federation().ask("gradient", {"params": POINT}, at_least=3)
        assert len(list(answers.each())) == 3
        assert answers.missing["0"].reason == "garbage", words
        assert words in answers.missing["0"].why
        assert "Delete its .answer file" in answers.missing["0"].why
    own.unlink()
    assert case.serve() == 1
    assert own.read_bytes() == good


def test_one_bit_anywhere_is_found(case: Case) -> None:
    federation = case.answering()
    federation.ask("gradient", {"params": POINT}).total()
    good = case.files(".answer", "0")[-1].read_bytes()
    ask = Ask("gradient", {"params": POINT}, {}, "job", 1, case.problem.digest)
    federation.accepted(good, ask, "0")
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(good), size=60):
        bad = bytearray(good)
        bad[place] ^= 1 << int(generator.integers(8))
        with pytest.raises(Exception, match=r"not a message|not signed"):
            federation.accepted(bytes(bad), ask, "0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: replace(found, count=found.count + 1), "rows, and of"),
        (lambda found: replace(found, arrays={**found.arrays, "gradient": found.arrays["gradient"][:-1]}), "has shape"),
        (lambda found: replace(found, arrays={"gradient": found.arrays["gradient"] * np.nan}), "NaN or infinity"),
        (lambda found: replace(found, arrays={}), "it holds nothing"),
    ],
)
def test_a_member_that_sends_garbage_is_left_out_by_name(
    case: Case, change: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lying(ask: Ask, holding: Any, memory: Any, *, name: str = "") -> Any:
        found, memory = true(ask, holding, memory, name=name)
        return (change(found) if name == "2" else found), memory

    true = client.answer
    monkeypatch.setattr(node, "answer", lying)
    answers = case.answering(at_least=3).ask("gradient", {"params": POINT})
    wanted = case.in_process.ask("gradient", {"params": POINT}, clients=("0", "1", "3")).total()
    assert answers.total().arrays["gradient"].tobytes() == wanted.arrays["gradient"].tobytes()
    assert answers.missing["2"].reason == "garbage"
    assert words in answers.missing["2"].why
    with pytest.raises(MissingClientsError, match="Client 2: garbage"):
        case.answering(job="strict").ask("gradient", {"params": POINT}).total()


def test_what_a_client_cannot_or_may_not_answer_is_said(case: Case) -> None:
    plan = {"epochs": 1, "batch": 50, "drop_last": True, "rate": 0.1}
    answers = case.answering().ask("fit", {"params": POINT}, plan, at_least=0)
    assert list(answers.each()) == []
    assert {one.reason for one in answers.missing.values()} == {"cannot"}
    assert "drop_last" in answers.missing["0"].why
    Policy(allow=("statistics",)).write(case.machines.nodes["0"].folder / "policy.toml")
    federation = case.answering(job="other")
    answers = federation.ask("gradient", {"params": POINT}, at_least=3)
    assert answers.total().count == sum(case.counts.values()) - case.counts["0"]
    assert answers.missing["0"].reason == "refused"
    assert answers.missing["0"].why == "this node's policy does not allow 'gradient'."
    assert not federation.offers("gradient")
    assert federation.offers("statistics")


def test_rows_that_cannot_be_used_are_named(make_set: MakeSet, tmp_path: Path) -> None:
    data = make_set(120)
    rows = np.array(data.embeddings)
    own = partition(data.labels, "dirichlet:0.5", clients=4, server_share=0.2, seed=1).clients["2"]
    rows[own[0]] = np.nan
    case = Case(replace(data, embeddings=rows), tmp_path)
    with pytest.raises(MissingClientsError, match="Client 2: cannot, Training needs finite embeddings; sample"):
        case.train(case.answering())


def test_a_client_without_the_backend_cannot_take_part(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("no such backend here")

    monkeypatch.setattr(node, "backend_named", missing)
    with pytest.raises(MissingClientsError, match="Client 0: gone, ImportError: no such backend here 3 more"):
        case.train(case.answering())


def test_who_cannot_take_part_is_left_out_where_fewer_are_enough(case: Case) -> None:
    Policy().write(case.machines.nodes["1"].folder / "policy.toml")
    federation = case.answering(at_least=3)
    assert federation.clients == ("0", "1", "2", "3")  # it takes part, and answers nothing
    Policy(backends=()).write(case.machines.nodes["1"].folder / "policy.toml")
    federation = case.answering(at_least=3, job="other")
    assert federation.clients == ("0", "2", "3")
    assert federation.missing["1"].reason == "refused"
    with pytest.raises(MissingClientsError, match=r"4 clients have to take part, 3 can\. Client 1: refused"):
        _ = case.answering(job="all").clients


def test_what_is_still_on_its_way_is_left_alone(case: Case) -> None:
    with pytest.raises(Pending):
        case.federation().ask("gradient", {"params": POINT})
    [question] = case.files(".question", "0")
    whole = question.read_bytes()
    question.write_bytes(whole[:50])
    assert case.serve("0") == 0
    question.write_bytes(whole)
    assert case.serve("0") == 1


def test_odd_names_have_folders_of_their_own() -> None:
    names = ["a", "A", "..", "../x", "", "x" * 300, "Zoë"]
    folders = {safe_name(name) for name in names}
    assert len({one.lower() for one in folders}) == len(names)
    assert not any("/" in one or one.startswith(".") for one in folders - {safe_name(".."), safe_name("../x")})
    assert {Path(one).name for one in folders} == folders


def remembering(ask: Ask, holding: Any, memory: Any, *, name: str = "") -> tuple[Answer, Any]:
    """A client that counts its questions, and adds up what it is sent."""
    times, total = memory.get("times", 0) + 1, memory.get("total", 0.0) + ask.arrays["params"]
    return Answer(name, holding.count, {"total": total}, {"times": times}), {"times": times, "total": total}


@pytest.fixture
def counting(case: Case, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(node, "answer", remembering)
    monkeypatch.setattr(node, "unable", lambda ask, holding: "")
    return case


def test_what_a_client_remembers_stays_with_it_over_restarts(counting: Case) -> None:
    federation = counting.answering(names=("0",))
    for times in (1, 2, 3):
        counting.machines.restart("0")
        [found] = federation.ask("add up", {"params": POINT}).each()
        assert found.values["times"] == times
        np.testing.assert_allclose(found.arrays["total"], times * POINT)
    kept = list(counting.machines.nodes["0"].folder.glob("memory/*/*"))
    assert sorted(path.name for path in kept) == ["2.memory", "3.memory"]
    again = counting.answering(names=("0",))  # the process that asks was killed
    assert [next(again.ask("add up", {"params": POINT}).each()).values["times"] for _ in range(4)] == [1, 2, 3, 4]


def test_an_answer_that_was_never_accepted_does_not_count(counting: Case) -> None:
    federation = counting.answering(names=("0",))
    [first] = federation.ask("add up", {"params": POINT}).each()
    late = counting.federation(names=("0",))
    late.number, late._remembers = 7, {"0": 1}
    with pytest.raises(Pending):
        late.ask("add up", {"params": POINT})
    counting.serve()  # it answers a question that nobody waits for any more
    [second] = federation.ask("add up", {"params": POINT}).each()
    assert (first.values["times"], second.values["times"]) == (1, 2)


def test_a_node_that_lost_its_memory_says_so(counting: Case) -> None:
    federation = counting.answering(names=("0",))
    federation.ask("add up", {"params": POINT}).total()
    counting.machines.restart("0").forget_jobs()
    answers = federation.ask("add up", {"params": POINT}, at_least=0)
    assert list(answers.each()) == []
    assert answers.missing["0"].reason == "cannot"
    assert "does not remember question 1 of this job" in answers.missing["0"].why


@dataclass(frozen=True, eq=False)
class Singing(HeadProblem):
    canary: ClassVar[str | None] = "of other code"


def test_clients_with_other_code_do_not_take_part(case: Case) -> None:
    plain = case.problem
    case.problem = Singing(plain.design, plain.classes, plain.spec_digest)
    assert case.problem.plain == plain.plain
    assert case.problem.digest != plain.digest
    with pytest.raises(MissingClientsError, match="cannot, the problem that was sent is another one here"):
        case.train(case.answering())


def test_answers_come_by_mail_under_any_name(case: Case, tmp_path: Path) -> None:
    folder, exchange, keys = case.machines.folder, case.machines.exchange, case.machines.keys
    with pytest.raises(Pending):
        case.federation().offers("statistics")
    asked = open_questions(exchange)
    assert {name: len(found) for name, found in asked.items()} == dict.fromkeys(keys, 1)
    mail = tmp_path / "mail"
    mail.mkdir()
    question = mail / "from the operator.question"
    question.write_bytes(asked["2"][0].read_bytes())
    answer = answer_file(case.machines.nodes["2"], question)
    given: Any = {"federation": folder.id, "members": keys}
    foreign = {name: key for name, key in keys.items() if name != "2"}
    for members, federation, words in [
        (foreign, folder.id, "is of 2, who is not a member"),
        ({**keys, "2": keys["1"]}, folder.id, "client 2: This answer is not signed by key"),
        (keys, "0" * 32, "not of this one"),
    ]:
        with pytest.raises(VerificationError, match=words):
            take_in(exchange, answer, members=members, federation=federation)
    altered = mail / "altered.answer"
    altered.write_bytes(answer.read_bytes()[:-1])
    with pytest.raises(VerificationError, match=r"altered.answer is not an answer"):
        take_in(exchange, altered, **given)
    assert take_in(exchange, answer, **given) == "2"
    assert set(open_questions(exchange)) == set(keys) - {"2"}
    with pytest.raises(InputError, match="client 2: its question was answered"):
        take_in(exchange, answer, **given)
    for path in case.files(".question", "2") + case.files(".answer", "2"):
        path.unlink()
    with pytest.raises(VerificationError, match=r"client 2: it answers question .* which nobody asks here"):
        take_in(exchange, answer, **given)


def test_a_hundred_organisations_with_no_server_process(make_set: MakeSet, tmp_path: Path) -> None:
    data = make_set(400)
    divided = partition(data.labels, "iid", clients=100, seed=1)
    problem = head_problem(data, design_for(data))
    machines = Machines(tmp_path, data, divided.clients)
    given: Any = {"ridge": 0.1, "problem": problem}

    def attempt() -> Trained:
        return train(data, divided, federation=machines.federation(problem), **given)

    for _ in range(2):
        with pytest.raises(Pending) as waiting:
            attempt()
        assert len(waiting.value.awaited) == 100
        assert machines.serve() == 100
    found = attempt()
    assert found.head.digest == train(data, divided, **given).head.digest
    rest = {name: own for name, own in divided.clients.items() if name != "7"}
    done = unlearn(found, UnlearnRequest(("7",)), method="exact")
    total = InProcess.of(problem, data, rest).ask("statistics").total()
    anew = problem.minimum(problem.stats(total.arrays), 0.1)[0]
    assert done.trained_after.head.params.tobytes() == anew.params.tobytes()


@pytest.mark.parametrize("method", ["fedremoval", "fedremoval-pcg:4", "exact", "retrain"])
def test_unlearning_through_files(case: Case, method: str) -> None:
    keep = "statistics" if method == "exact" else "gradients"
    trained = case.train(case.in_process, keep=keep)
    left = [name for name in case.counts if name != "3"]
    rest = {name: case.partition.clients[name] for name in left}
    near = InProcess.of(case.problem, case.data, rest)
    far = case.answering(names=left)
    request = UnlearnRequest(("3",))
    wanted, found = (unlearn(trained, request, method=method, material=Material(clients=one)) for one in (near, far))
    assert found.trained_after.head.digest == wanted.trained_after.head.digest
    assert (found.cost.up, found.cost.down, found.cost.rounds) == (wanted.cost.up, wanted.cost.down, wanted.cost.rounds)
    asked = len(
        [path for path in case.files(".question") if Envelope.read(path.read_bytes(), "probekit question 1")[0].number]
    )
    assert asked == len(left) * found.cost.rounds  # every question goes to all at once


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("method", ["fedavg:rounds=5", "cg"])
def test_whoever_watches_can_stop_between_two_questions(case: Case, method: str, far: bool) -> None:
    federation = case.answering() if far else case.in_process

    def stop(now: Any) -> None:
        if now.done >= 2:
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        case.train(federation, method, watch=lambda stage: stop)
    whole = case.in_process
    case.train(whole, method)
    assert 0 < federation.traffic.rounds < whole.traffic.rounds
