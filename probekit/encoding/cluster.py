"""A Ray cluster: one that runs already, or one of this machine that is started here and ended again."""

from __future__ import annotations

import gc
import ipaddress
import os
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from probekit.errors import InputError, NotFoundError, OfflineError

NAME = "ray"
MODE = "RAY_AUTH_MODE"
TOKEN, TOKEN_FILE, USUAL_FILE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token"
FIXED = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Nothing is told to anybody; and what Ray will do in future it does now, without a warning."""
PATIENCE = 10.0
"""Seconds in which a cluster must be reached."""
RETRIES = 3
"""How often what a killed worker did is done again."""


@dataclass(eq=False)
class Cluster:
    """Ray while it is entered. address: HOST:PORT of one that runs, `auto`, or empty: on this machine, for now.

    A Ray that this process has joined already is used as it is, and left running.
    """

    address: str = ""
    ray: Any = field(default=None, init=False, repr=False)
    own: bool = field(default=False, init=False)

    @classmethod
    def named(cls, text: str) -> Self:
        """The cluster of `ray` or `ray:HOST:PORT`."""
        name, colon, address = text.partition(":")
        if name != NAME or (colon and not address):
            raise InputError(f"Ray is written {NAME} or {NAME}:HOST:PORT; found {text!r}.")
        return cls(address)

    def __enter__(self) -> Self:
        if self.address and not _is_here(self.address) and not _has_token():
            raise InputError(
                f"{self.address} is not on this machine, and there is no token for it: whoever reaches such a cluster "
                f"runs code on it. Start it with {MODE}=token, and give its token in {TOKEN} or {TOKEN_FILE}."
            )
        os.environ.update(FIXED)
        ray = sys.modules.get(NAME)
        if ray is None or not ray.is_initialized():
            if not self.address or _has_token():
                if ray is not None and os.environ.get(MODE) != "token":
                    raise InputError(f"Ray was imported without {MODE}=token, which it reads only then. Set it before.")
                os.environ[MODE] = "token"
            ray = imported()
            self._join(ray)
            self.own = True
        self.ray = ray
        return self

    def __exit__(self, *_: object) -> None:
        if self.own:
            self.own = False
            with _careless():
                self.ray.shutdown()

    @property
    def cpus(self) -> int:
        """The processors that tasks can have."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    @property
    def gpus(self) -> int:
        """The graphics processors of all machines."""
        return int(self.ray.cluster_resources().get("GPU", 0))

    def _join(self, ray: Any) -> None:
        given: dict[str, Any] = {"address": self.address}
        if self.address:
            self._look(*_host(self.address))
        else:
            if not _has_token():
                os.environ[TOKEN] = secrets.token_hex(32)  # Ray listens on all interfaces
            given = {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            with _careless():
                ray.init(log_to_driver=False, logging_level="ERROR", **given)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise OfflineError(f"There is no Ray for us {where}: {str(error).splitlines()[0]}") from error

    def _look(self, host: str, port: str) -> None:
        """Refuse at once where nobody listens: Ray itself tries for minutes."""
        if not port.isdecimal():
            return
        try:
            socket.create_connection((host, int(port)), PATIENCE).close()
        except OSError as error:
            raise OfflineError(
                f"There is no Ray at {self.address}: {error}. Start it, or correct the address."
            ) from error


@contextmanager
def _careless() -> Iterator[None]:
    """Files that Ray leaves open when it starts and ends are closed without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()


def imported() -> Any:
    """Ray, which is not installed with the rest."""
    try:
        import ray
    except ImportError as error:
        raise NotFoundError("Ray is not installed. Install it with `pip install 'probekit[ray]'`.") from error
    return ray


def _has_token() -> bool:
    named = os.environ.get(TOKEN_FILE)
    return bool(os.environ.get(TOKEN)) or Path(named or USUAL_FILE).expanduser().is_file()


def _host(address: str) -> tuple[str, str]:
    """Host and port, which may be missing."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host.strip("[]"), port) if host else (port, "")


def _is_here(address: str) -> bool:
    """Whether an address is this machine's own and nobody else's."""
    host, _ = _host(address)
    if host in ("auto", "local", "localhost"):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
