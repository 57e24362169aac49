"""A client's own machine: what its owner allows, what it writes down before it answers, whom it knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.custody.signatures import new_private_key
from probekit.errors import CorruptError, InputError, MismatchError, NotFoundError, VerificationError
from probekit.federated.cards import Card
from probekit.federated.envelope import ANSWER, QUESTION, Envelope
from probekit.federated.federation import Missing
from probekit.federated.joining import card_path, join, rotate
from probekit.federated.membership import FederationFolder, read_note
from probekit.federated.message import Ask, Selection
from probekit.federated.node import Node, read_node
from probekit.federated.node_log import NodeLog
from probekit.federated.policy import Policy
from probekit.federated.remote import read_answer
from probekit.federated.rows import design_for, head_problem
from probekit.runs.federations import init, take_answers
from probekit.runs.nodes import answer_questions
from probekit.values import EmbeddingSet
from tests.nodes import OPEN, Machines

MakeSet = Callable[..., EmbeddingSet]


class Post:
    """A node with 40 rows, and questions that the federation's server signs."""

    def __init__(self, root: Path, data: EmbeddingSet, policy: Policy = OPEN) -> None:
        self.data, self.problem = data, head_problem(data, design_for(data))
        self.machines = Machines(root, data, {"a": np.arange(40)}, policy=policy)
        self.node = self.machines.nodes["a"]
        plan: Any = {"backend": "embeddings", "plain": dict(self.problem.plain), "spec": data.spec.digest}
        self.define = Ask("define", {}, plan, "job", 0, self.problem.digest)

    def sealed(self, ask: Ask, *, key: bytes | None = None, **changes: Any) -> bytes:
        folder = self.machines.folder
        envelope = Envelope(QUESTION, folder.id, "a", ask.digest, ask.number, 0, ask.encoded)
        return replace(envelope, **changes).sealed(key or folder.key)

    def asked(self, kind: str = "statistics", **more: Any) -> Ask:
        given: dict[str, Any] = {"job": "job", "number": 1, "problem": self.problem.digest, **more}
        return Ask(kind, **given)

    def answer(self, ask: Ask, **changes: Any) -> Any:
        content = self.node.answer(self.sealed(ask, **changes))
        envelope = Envelope.open(
            content, ANSWER, key=self.machines.keys["a"], federation=self.machines.folder.id, client="a"
        )
        return read_answer(envelope.content, envelope.question, "a")

    @property
    def log(self) -> list[dict[str, Any]]:
        return NodeLog(self.node.folder / "log.jsonl").lines()


@pytest.fixture
def post(make_set: MakeSet, tmp_path: Path) -> Post:
    return Post(tmp_path, make_set(60))


def policy(post: Post, **fields: Any) -> None:
    Policy(**fields).write(post.node.folder / "policy.toml")


def test_nothing_is_answered_that_the_policy_does_not_name(post: Post) -> None:
    post.answer(post.define)
    cases: Any = [
        ({}, post.asked(), "does not allow 'statistics'"),
        ({"allow": ("evaluate",)}, post.asked(), "does not allow 'statistics'"),
        ({"allow": ("statistics",), "least_rows": 41}, post.asked(), "about 41 rows or more"),
        (
            {"allow": ("statistics",)},
            post.asked(rows=Selection("all-but", frozenset(post.data.ids[:1]))),
            "questions about 'all-but' rows",
        ),
        (
            {"allow": ("statistics",), "rows": ("own", "only"), "least_rows": 5},
            post.asked(rows=Selection("only", frozenset(post.data.ids[:4]))),
            "about 5 rows or more",
        ),
        ({"allow": ("statistics",), "backends": ()}, post.define, "does not allow the backend 'embeddings'"),
    ]
    for fields, ask, words in cases:
        policy(post, **fields)
        found = post.answer(ask)
        assert isinstance(found, Missing)
        assert found.reason == "refused"
        assert words in found.why
        line = post.log[-1]
        assert (line["asked"]["kind"], line["answered"]["outcome"]) == (ask.kind, "refused")
        assert line["answered"]["why"] == found.why
    policy(post, allow=("statistics",), least_rows=40)
    assert post.answer(post.asked()).count == 40


def test_code_that_the_policy_does_not_name_is_not_loaded(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    plan: Any = {"backend": "jvp", "plain": {"network": {"name": "py:os:getcwd"}}, "spec": None}
    found = post.answer(Ask("define", {}, plan, "job", 0, "0" * 64))
    assert (found.reason, found.why) == ("refused", "this node's policy does not allow the code py:os:getcwd.")


def test_a_broken_policy_answers_nothing(post: Post) -> None:
    place = post.node.folder / "policy.toml"
    for text, words in [
        ("allow = [", "is not TOML"),
        ('alow = ["statistics"]', "unknown key 'alow'. Known and close: allow"),
        ('allow = "statistics"', "`allow` is a list of texts"),
        ("least_rows = true", "`least_rows` is a whole number"),
        ("least_rows = 0", "is 1 or more"),
        ('rows = ["all"]', "found 'all'"),
    ]:
        place.write_text(text)
        found = post.answer(post.define)
        assert found.reason == "cannot"
        assert words in found.why
    place.unlink()
    assert "without one nothing is answered" in post.answer(post.define).why


def test_a_policy_survives_being_written(tmp_path: Path) -> None:
    for one in (Policy(), OPEN, Policy(('a"b\\c', "x"), 7, ("all-but",), (), ("py:m:f",))):
        one.write(tmp_path / "policy.toml")
        assert Policy.read(tmp_path / "policy.toml") == one


@pytest.mark.parametrize("kind", ["statistics", "gradient"])
def test_what_a_dry_run_prints_is_what_is_then_sent(post: Post, kind: str) -> None:
    arrays = {"params": np.full(post.problem.shape, 0.1)} if kind == "gradient" else {}
    post.answer(post.define)
    ask, seen = post.asked(kind, arrays=arrays), list[Any]()
    before = len(post.log)
    dry = replace(post.node, dry=seen.append)
    refused = Envelope.read(dry.answer(post.sealed(ask)), ANSWER)[0]
    told = read_answer(refused.content, ask.digest, "a")
    assert isinstance(told, Missing)
    assert (told.reason, "dry run" in told.why) == ("refused", True)
    assert [line["answered"]["outcome"] for line in post.log[before:]] == ["refused"]
    sent = post.node.answer(post.sealed(ask))
    assert sent == seen[0].content
    assert post.log[-1]["answered"]["digest"] == seen[0].digest
    assert post.log[-1]["bytes_out"] == len(sent)


def test_the_log_stands_before_the_answer_leaves(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    post.answer(post.define)

    def full(self: NodeLog, body: Any) -> int:
        raise OSError(28, "no space left")

    monkeypatch.setattr(NodeLog, "add", full)
    with pytest.raises(OSError, match="no space"):
        post.node.answer(post.sealed(post.asked()))


def test_the_chain_breaks_where_a_line_was_changed(post: Post) -> None:
    place = post.node.folder / "log.jsonl"
    post.answer(post.define)
    for number in range(1, 5):
        post.answer(post.asked(number=number))
    lines = place.read_text().splitlines(keepends=True)
    assert [one["number"] for one in NodeLog(place).lines()] == [1, 2, 3, 4, 5]
    changed = lines[2].replace('"rows":40', '"rows":41')
    assert changed != lines[2]
    for others, where in [
        ([*lines[:2], changed, *lines[3:]], 3),
        ([*lines[:1], *lines[2:]], 2),
        ([lines[1], lines[0], *lines[2:]], 1),
        ([*lines[:4], lines[3], lines[4]], 5),
        ([*lines[:1], "{}\n"], 2),
        ([*lines[:1], "[" * 5000 + "\n"], 2),
    ]:
        place.write_text("".join(others))
        with pytest.raises(CorruptError, match=f"breaks at line {where}:"):
            NodeLog(place).lines()
        with pytest.raises(CorruptError, match=f"breaks at line {where}:"):
            post.machines.restart("a").answer(post.sealed(post.asked()))
    place.write_text("".join(lines) + '{"half": ')  # killed while it wrote
    post.machines.restart("a").answer(post.sealed(post.asked()))
    assert len(NodeLog(place).lines()) == 6
    place.write_text("".join(lines))
    with pytest.raises(CorruptError, match="is shorter than it was"):
        post.machines.nodes["a"].answer(post.sealed(post.asked()))


def test_two_processes_write_one_chain(post: Post) -> None:
    other = post.machines.restart("a")
    for number in range(3):
        post.node.answer(post.sealed(post.asked(number=number)))
        other.answer(post.sealed(post.asked(number=number)))
    assert len(post.log) == 6


def test_only_the_servers_own_questions_to_this_node_are_answered(post: Post) -> None:
    post.answer(post.define)
    ask, good = post.asked(), post.sealed(post.asked())
    for content, words in [
        (post.sealed(ask, key=new_private_key()), "it is signed by key"),
        (post.sealed(ask, federation="0" * 32), "is of federation 0000"),
        (post.sealed(ask, client="b"), "is client b's"),
        (post.sealed(ask, question="0" * 64), "another one than its envelope says"),
        (post.sealed(ask, number=7), "another one than its envelope says"),
        (post.sealed(ask, kind=ANSWER), "not a question"),
        (good[:-1], "not a message"),
        (b"", "not a message"),
    ]:
        found = Envelope.read(post.node.answer(content), ANSWER)[0]
        told = read_answer(found.content, found.question, "a")
        assert isinstance(told, Missing)
        assert (told.reason, words in told.why) == ("refused", True), told
        assert post.log[-1]["asked"] is None
        assert post.log[-1]["answered"]["outcome"] == "refused"


def test_a_question_about_what_was_never_sent_is_not_guessed(post: Post) -> None:
    found = post.answer(post.asked())
    assert (found.reason, "was not told what is trained" in found.why) == ("cannot", True)
    post.answer(post.define)
    assert post.machines.restart("a").answer(post.sealed(post.asked()))  # it lies in the node's folder
    assert post.log[-1]["answered"]["outcome"] == "answered"


def test_a_node_with_another_spec_says_so(post: Post) -> None:
    plan = {**post.define.plan, "spec": "f" * 64}
    found = post.answer(replace(post.define, plan=plan))
    assert found.reason == "cannot"
    assert "those of the federation have spec ffffffffffff" in found.why


def test_members_are_known_by_their_keys(post: Post, make_set: MakeSet, tmp_path: Path) -> None:
    folder, own = post.machines.folder, post.node.folder
    first = folder.members["a"]
    assert folder.add(Card.read(card_path(own))) == "nothing"
    joined = join(folder.path / "invitation", own, "a", "own", make_set(50), policy=OPEN)
    assert (joined.key, folder.add(joined)) == (first.key, "updated")
    rotated = rotate(own)
    assert folder.add(rotated) == "rotated"
    assert folder.members["a"].key == rotated.key != first.key
    assert post.node.key
    assert post.answer(post.define).count == 40  # signed by the new key, which is known
    with pytest.raises(VerificationError, match="was revoked"):
        folder.add(first)
    thief = join(folder.path / "invitation", tmp_path / "thief", "a", "own", post.data, policy=OPEN)
    with pytest.raises(VerificationError, match="another key, which did not endorse this one"):
        folder.add(thief)
    stolen = (tmp_path / "thief" / "private" / "node.pem").read_bytes()
    forged = replace(thief, replaces=rotated.key, endorsed=thief.signature).signed(stolen)
    with pytest.raises(VerificationError):
        folder.add(forged)
    assert folder.revoke("a").key == rotated.key
    assert "a" not in folder.members
    with pytest.raises(VerificationError, match="was revoked"):
        folder.add(rotated)
    with pytest.raises(NotFoundError, match="no member 'a'"):
        folder.revoke("a")


def test_cards_that_do_not_belong_are_refused_by_a_sentence(post: Post, make_set: MakeSet, tmp_path: Path) -> None:
    folder, invitation = post.machines.folder, post.machines.folder.path / "invitation"

    def card(name: str, rows: EmbeddingSet, where: Path = invitation) -> Card:
        return join(where, tmp_path / f"{name}-node", name, "own", rows, policy=OPEN)

    other = FederationFolder.create(tmp_path / "other")
    spec = replace(post.data.spec, weights="1" * 64)
    for made, error, words in [
        (card("b", post.data, other.path / "invitation"), VerificationError, "for another federation"),
        (card("c", replace(post.data, spec=spec)), MismatchError, "Extract them with the same backbone"),
        (card("d", replace(post.data, class_names=("x", "y", "z"))), MismatchError, "Name them alike"),
    ]:
        with pytest.raises(error, match=words):
            folder.add(made)
    with pytest.raises(InputError, match="no row with a label and an embedding"):
        card("e", replace(post.data, labels=np.full(60, -1)))
    with pytest.raises(InputError, match="1 to 200 printable characters"):
        card("", post.data)
    with pytest.raises(InputError, match="a node of another federation"):
        join(other.path / "invitation", post.node.folder, "a", "own", post.data, policy=OPEN)
    good = card("f", post.data)
    place = tmp_path / "card.json"
    for text in ["{}", "[]", "", "\0", good.text.replace('"rows": 60', '"rows": 61'), good.text.replace('"f"', '"g"')]:
        place.write_text(text)
        with pytest.raises(VerificationError):
            Card.read(place)
    with pytest.raises(NotFoundError, match="There is no card"):
        Card.read(tmp_path / "nothing.json")
    place.write_text(good.text)
    assert Card.read(place) == good


def test_folders_of_other_kinds_and_versions(post: Post, tmp_path: Path) -> None:
    folder = post.machines.folder.path
    with pytest.raises(NotFoundError, match="is not a federation's folder"):
        read_note(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds a federation already"):
        FederationFolder.create(folder)
    with pytest.raises(InputError, match="is not a node's folder"):
        read_node(tmp_path)
    for place, read in [(folder / "federation.json", read_note), (post.node.folder / "node.json", read_node)]:
        note = json.loads(place.read_text())
        place.write_text(json.dumps({**note, "schema": 99}))
        with pytest.raises(InputError, match=r"another version of probekit \(schema 99, here 1\)"):
            read(place.parent)
        place.write_text("{")
        with pytest.raises(CorruptError, match="not readable JSON"):
            read(place.parent)
    (folder / "federation.json").write_text(json.dumps({"schema": 1, "id": 3}))
    with pytest.raises(InputError, match="is not a federation's"):
        read_note(folder)


def test_secrets_are_closed_to_others_and_never_leave(post: Post) -> None:
    folder, own = post.machines.folder.path, post.node.folder
    for secret in (folder / "private" / "server.pem", own / "private" / "node.pem"):
        assert secret.stat().st_mode & 0o077 == 0
        assert secret.parent.stat().st_mode & 0o077 == 0
        public = [
            path for path in [*folder.rglob("*"), *own.rglob("*")] if path.is_file() and path.parent.name != "private"
        ]
        line = secret.read_text().splitlines()[1]
        assert public
        assert not any(line in path.read_text(errors="replace") for path in public)


def test_a_node_opens_from_its_folder_alone(post: Post) -> None:
    found = Node.open(post.node.folder, lambda name: post.data if name == "own" else pytest.fail(name))
    assert found.answer(post.sealed(post.define))


def test_a_federation_that_was_interrupted_is_begun_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path, name: str, hosts: list[str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("probekit.federated.flower.folders.prepare_server", killed)
        with pytest.raises(KeyboardInterrupt):
            init(tmp_path / "f", address="127.0.0.1:9092")
    with pytest.raises(NotFoundError, match="is not a federation's folder"):
        read_note(tmp_path / "f")
    assert init(tmp_path / "f", address="127.0.0.1:9092").transport == "flower"
    assert "NODE/card.json" in (tmp_path / "f" / "invitation" / "README.md").read_text()


def test_files_that_are_not_there_are_named(post: Post, tmp_path: Path) -> None:
    for look in (
        lambda: take_answers(post.machines.folder.path, [tmp_path / "no.answer"]),
        lambda: answer_questions(post.node.folder, store=None, exchange=None, questions=[tmp_path / "no.question"]),
    ):
        with pytest.raises(NotFoundError, match=r"There is no file .*no\.(answer|question)"):
            look()
