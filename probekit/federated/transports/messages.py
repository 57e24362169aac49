"""Queries and answers as bytes: what any transport between processes carries."""

from __future__ import annotations

from dataclasses import dataclass

from probekit.errors import Failure, InputError, ProbekitError, WireError
from probekit.federated.client import Limits, LocalData, client_data
from probekit.federated.queries import Arrays, Query, Shapes, answer_bytes
from probekit.objective import Model
from probekit.records import dump, parse, record, record_names

MAX_QUESTION = 1 << 30
HEADER_ROOM = 1 << 16


@record("question")
@dataclass(frozen=True, eq=False)
class Question:
    """A query and the model that it is about: all that a client needs beside its rows."""

    model: Model
    query: Query


@record("reply")
@dataclass(frozen=True, eq=False)
class Reply:
    """A client's arrays, or why there are none."""

    arrays: Arrays
    refusal: str = ""


def respond(data: bytes, name: str, rows: LocalData, limits: Limits | None = None) -> bytes:
    """A client: from the bytes of a question to those of its reply, whatever the question."""
    limits = limits or Limits()
    try:
        question = parse(data, Question, max_bytes=MAX_QUESTION)
        _check_allowed(question.query, limits.allowed)
        client = client_data(name, question.model, rows, limits)
        return dump(Reply(question.query.answer(client)))
    except ProbekitError as error:
        return dump(Reply({}, str(error)))
    except Exception as error:  # a question that does not fit the rows must not end the client
        return dump(Reply({}, f"The question does not fit client {name}: {error!r}."))


def read_reply(data: bytes, shapes: Shapes) -> Arrays | Failure:
    """A reply's arrays; nothing larger than was asked for is read."""
    limit = HEADER_ROOM + answer_bytes(shapes)
    try:
        reply = parse(data, Reply, max_bytes=limit)
    except WireError as error:
        return Failure("garbage", str(error))
    if reply.refusal:
        return Failure("refused", reply.refusal)
    return reply.arrays


def _check_allowed(query: Query, allowed: frozenset[str] | None) -> None:
    if allowed is None:
        return
    refused = record_names(query).difference(allowed)
    if refused:
        raise InputError(
            f"This client answers {', '.join(sorted(allowed))}; found {min(refused)}. "
            "Ask its owner to allow it."
        )
