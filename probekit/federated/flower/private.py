"""Everything of flwr that is not its public API, in one place: where each name stands, and the few calls made of them.

`python -m probekit.federated.flower.private superlink|supernode ...` is flwr's own command with these arguments.
"""

from __future__ import annotations

import os
import signal
import ssl
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from probekit.errors import NotFoundError

PLACES = {
    "AcquireTaskRequest": "flwr.proto.runtime_pb2",
    "ControlHttpClient": "flwr.supercore.control",
    "Fab": "flwr.supercore.fab",
    "HttpGrid": "flwr.superlink.grid",
    "ListNodesRequest": "flwr.proto.control_pb2",
    "PullAppMessagesRequest": "flwr.proto.runtime_pb2",
    "PullTaskInputRequest": "flwr.proto.runtime_pb2",
    "RegisterNodeRequest": "flwr.proto.control_pb2",
    "RuntimeHttpClient": "flwr.supercore.runtime",
    "RuntimeTokenHttpInterceptor": "flwr.supercore.interceptors",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
    "SendTaskHeartbeatRequest": "flwr.proto.runtime_pb2",
    "SQLITE_PRAGMAS": "flwr.supercore.sql_mixin",
    "StartRunRequest": "flwr.proto.control_pb2",
    "SuperExecAuthHttpInterceptor": "flwr.supercore.interceptors",
    "TaskIdentity": "flwr.supercore.task_identity",
    "UnregisterNodeRequest": "flwr.proto.control_pb2",
    "build_fab_from_disk": "flwr.cli.build",
    "fab_to_proto": "flwr.common.serde",
    "flower_superlink": "flwr.superlink.cli.flower_superlink",
    "flower_supernode": "flwr.supernode.cli.flower_supernode",
    "pull_task_input": "flwr.supernode.runtime.run_clientapp",
    "push_message": "flwr.supernode.runtime.run_clientapp",
    "push_task_output": "flwr.supernode.runtime.run_clientapp",
    "run_from_proto": "flwr.common.serde",
    "_pull_and_store_message": "flwr.supernode.start_client_internal",
}
"""The module of each name; a test holds that all are there, since flwr may move them with any version."""

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
FLEET = (
    *("register-node", "activate-node", "deactivate-node", "unregister-node", "send-node-heartbeat", "pull-messages"),
    *("push-messages", "get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
)
"""What a SuperNode asks of a SuperLink: the calls under /v1/fleet/."""
PATIENCE = 10.0
"""Seconds for which a call is repeated when the other side stumbles."""
BUSY, BRIEF = 60.0, 0.3
"""For how many seconds after a message a SuperNode looks often for the next, and how long it sleeps between."""


def flwr(name: str) -> Any:
    """One name of flwr."""
    try:
        return getattr(import_module(PLACES[name]), name)
    except (ImportError, AttributeError) as error:
        raise NotFoundError(
            f'Flower 1.41 was wanted, with {name}; found none ({error}). Install it: pip install "probekit[flower]".'
        ) from error


def client(kind: str, address: str, authority: bytes | None, *interceptors: Any) -> Any:
    """A client of a runtime ("RuntimeHttpClient") or of a SuperLink's control calls, never through an HTTP proxy.

    authority: the CA in PEM; None: plain HTTP, on this machine only.
    """
    import httpx

    made = flwr(kind)(f"{'https' if authority else 'http'}://{address}", interceptors=interceptors)
    made.close()
    verify: Any = True
    if authority:
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        verify.load_verify_locations(cadata=authority.decode())
    made._client = httpx.Client(verify=verify, timeout=30.0, trust_env=False)
    return made


@contextmanager
def tasks(address: str, authority: bytes | None, secret: bytes, kind: str) -> Iterator[Callable[[], Any]]:
    """What gives the oldest waiting task of a kind and its token, or None; it needs the secret."""
    version = flwr("RuntimeVersionHttpInterceptor")(component_name="SuperExec")
    signed = flwr("SuperExecAuthHttpInterceptor")(master_secret=secret, protected_methods=[ACQUIRE])
    request = flwr("AcquireTaskRequest")(supported_task_types=[kind])
    with client("RuntimeHttpClient", address, authority, version, signed) as asking:

        def oldest() -> tuple[Any, str] | None:
            found = asking.AcquireTask(request)
            return (found.task, found.token) if found.HasField("task") and found.token else None

        yield oldest


class Patient:
    """Repeats a call for a while when the other side stumbles: a message half sent would keep its node waiting."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def invoke(self, call: Callable[[], Any]) -> Any:
        """The result of a call."""
        import httpx

        until = time.monotonic() + self._seconds
        while True:
            try:
                return call()
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                mine = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
                if mine or time.monotonic() > until:
                    raise
                time.sleep(0.5)


def holder(address: str, authority: bytes | None, token: str, component: str) -> Any:
    """A runtime client that speaks for one task."""
    version = flwr("RuntimeVersionHttpInterceptor")(component_name=component)
    made = client("RuntimeHttpClient", address, authority, version, flwr("RuntimeTokenHttpInterceptor")(token=token))
    made._retry_invoker = Patient(PATIENCE)
    return made


def fab(app: Path) -> Any:
    """A Flower app's folder as the bundle that a run starts with."""
    with warnings.catch_warnings():  # of a package that flwr uses in an old way
        warnings.simplefilter("ignore", DeprecationWarning)
        content = flwr("build_fab_from_disk")(app)
    return flwr("fab_to_proto")(flwr("Fab")(sha256(content).hexdigest(), content, {}))


def poll_faster() -> None:
    """Let a SuperNode sleep less for a minute after a message; idle, it sleeps 3 s, which its code fixes."""
    module, pull, last = import_module(PLACES["_pull_and_store_message"]), flwr("_pull_and_store_message"), -BUSY

    def noticed(**arguments: Any) -> Any:
        nonlocal last
        found = pull(**arguments)
        if found is not None:
            last = time.monotonic()
        return found

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, BRIEF) if time.monotonic() < last + BUSY else seconds)

    vars(module).update(_pull_and_store_message=noticed, time=SimpleNamespace(sleep=sleep))


def wait_for_database() -> None:
    """Let a SuperLink wait for its database as long as large answers take to be written; 5 s were too few."""
    module = import_module(PLACES["SQLITE_PRAGMAS"])
    vars(module)["SQLITE_PRAGMAS"] = (*flwr("SQLITE_PRAGMAS"), ("busy_timeout", 25_000))


def _end_in_order(ended: threading.ExceptHookArgs) -> None:
    """End a SuperNode of which a thread ended: without its heartbeat it would be taken for lost, and not know."""
    threading.__excepthook__(ended)
    os.kill(os.getpid(), signal.SIGTERM)


def main(command: str, *arguments: str) -> None:
    """flwr's own command."""
    if command == "supernode":
        poll_faster()
        threading.excepthook = _end_in_order
    if command == "superlink":
        wait_for_database()
    sys.argv = [f"flower-{command}", *arguments]
    flwr(f"flower_{command}")()
    if command == "supernode":  # its connection is lost, and the thread of its own server would live on for nothing
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
