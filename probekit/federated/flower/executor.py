"""The process that answers for a SuperNode: it takes the bytes out of each message and never loads the app beside them.

`python -m probekit.federated.flower.executor NODE PORT`
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from probekit.federated.flower import private
from probekit.federated.flower.folders import SECRET
from probekit.federated.node import Node, read_node
from probekit.values import canonical

RECORD, ITEM, SCHEMA = "probekit", "content", "probekit.v1"
SMALL = 2**20
IDLE = 0.2
HEARTBEAT = 10.0
WAITING = 16
"""How many messages may be on their way at once."""


def packed(content: bytes) -> Any:
    """Bytes as the content of a Flower message; few as one object, for each is a request of its own, more in pieces."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(content) <= SMALL:
        return RecordDict({RECORD: ConfigRecord({ITEM: content, "schema": SCHEMA})})
    return RecordDict({RECORD: ArrayRecord({ITEM: Array("uint8", (len(content),), SCHEMA, content)})})


def unpacked(content: Any) -> bytes:
    """The bytes in the content of a Flower message; ValueError where it is not one of ours."""
    try:
        record = content[RECORD]
        found = record[ITEM]
        schema, data = (record["schema"], found) if isinstance(found, bytes) else (found.stype, found.data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("this is not a message of probekit") from error
    if schema != SCHEMA:
        raise ValueError(f"a message of {SCHEMA} was wanted; found {schema!r}")
    return bytes(data)


def reply(message: Any, answer: Callable[[bytes], bytes]) -> Any:
    """The reply to a message: the answer's bytes, or Flower's error for one that is not ours."""
    from flwr.app import Error, Message

    try:
        return Message(packed(answer(unpacked(message.content))), reply_to=message)
    except Exception as error:  # whatever a message holds, the process goes on
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return Message(Error(code=2, reason="this node answers signed questions of probekit only"), reply_to=message)


@contextmanager
def heartbeat(holder: Any) -> Iterator[None]:
    """Keep a task alive while its work goes on."""
    stop = threading.Event()
    request = private.flwr("SendTaskHeartbeatRequest")()

    def beat() -> None:
        while not stop.is_set():
            with suppress(Exception):  # the other side is away, or gave the task up: whoever calls next will see
                holder.SendTaskHeartbeat(request)
            stop.wait(HEARTBEAT)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def serve(address: str, secret: bytes, answer: Callable[[bytes], bytes], *, until: threading.Event) -> None:
    """Answer the messages that reach a SuperNode on this machine, one after the other."""
    import httpx

    one_at_a_time, most = threading.Lock(), threading.Semaphore(WAITING)

    def answered(content: bytes) -> bytes:
        with one_at_a_time:
            return answer(content)

    def work(token: str) -> None:
        try:
            _answer(address, token, answered)
        except Exception as error:  # its run ended, the SuperNode gave it up: there is nobody to tell
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            most.release()

    with private.tasks(address, None, secret, "flwr-clientapp") as oldest:
        while not until.is_set():
            most.acquire()
            found = None
            try:
                found = oldest()
            except httpx.HTTPError as error:  # the SuperNode starts or ends
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                time.sleep(1)
            if found is None:
                most.release()
                until.wait(IDLE)
                continue
            # a task whose run was killed waits for its message for hours; others must not wait with it
            threading.Thread(target=work, args=(found[1],), daemon=True).start()


def _answer(address: str, token: str, answer: Callable[[bytes], bytes]) -> None:
    with private.holder(address, None, token, "flwr-clientapp") as holder, heartbeat(holder):
        message, context, *_ = private.flwr("pull_task_input")(holder)
        private.flwr("push_message")(holder, reply(message, answer), context)
        private.flwr("push_task_output")(holder, context, "completed", "")


def open_node(folder: Path, **more: Any) -> Node:
    """The node in a folder, which answers from a set in the cache that the folder names."""
    from probekit.cache import DiskStore

    return Node.open(folder, DiskStore(read_node(folder)["cache"] or None).open, **more)


def main(folder: str, port: str, *dry_run: str) -> None:
    """Answer for the node in a folder until the process is ended; dry_run: the file that says what would be sent."""
    node = open_node(Path(folder), dry=partial(_note, Path(dry_run[0])) if dry_run else None)
    secret = (Path(folder) / "private" / SECRET).read_bytes()
    serve(f"127.0.0.1:{port}", secret, node.answer, until=threading.Event())


def _note(place: Path, found: Any) -> None:
    """Say what would be sent."""
    said = {"kind": found.ask.kind, "rows": found.rows, "bytes": len(found.content), "digest": found.digest}
    with place.open("a") as lines:
        print(canonical(said), file=lines, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
