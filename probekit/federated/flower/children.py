"""Processes of ours: quiet ones that end with their parent, with flwr's telemetry, updates and installs off."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
PATIENCE = 15.0
"""Seconds that a process gets to end in order."""

_DIE_WITH_PARENT = 1
"""Linux's PR_SET_PDEATHSIG."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a child: ours, flwr's own home, and nothing looked up or installed."""
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1", **more}


def start(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process that writes to a log and is told to end when the thread that started it does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=variables,
            start_new_session=True,  # Ctrl-C is for the parent, which ends its children in order
            preexec_fn=partial(_begin, os.getpid()),
        )


def _begin(parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def stop(*children: subprocess.Popen[bytes], seconds: float = PATIENCE) -> None:
    """End processes in order; kill those that do not."""
    for one in children:
        if one.poll() is None:
            one.terminate()
    until = time.monotonic() + seconds
    for one in children:
        with suppress(subprocess.TimeoutExpired):
            one.wait(max(0.1, until - time.monotonic()))
        if one.poll() is None:
            one.kill()
            one.wait()


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package."""
    return [sys.executable, "-m", f"probekit.federated.flower.{module}", *arguments]
