"""Clients as tasks on Ray: rows lie in its object store, one task answers for many small clients.

Ray runs whatever is sent to it. On one machine it is bound to loopback; a cluster demands a token.
"""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import secrets
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from probekit.errors import Failure, InputError, NotFoundError, OfflineError
from probekit.federated.client import Holding, Limits, LocalData
from probekit.federated.federation import Ask, Outcome, answered, single_thread
from probekit.federated.queries import Arrays, Query, answer_bytes
from probekit.linear.stats import SufficientStats
from probekit.objective import Model

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Where this is "0" Ray takes 127.0.0.1 for its address, and listens there alone."""
TOKEN = "RAY_AUTH_TOKEN"
MOST_CLIENTS = 2048
MOST_ROWS = 1 << 14
MOST_BYTES = 1 << 26
"""Of one task; a client with more rows or a larger answer has a task of its own."""
AHEAD = 2
"""Tasks beyond one a processor whose answers wait to be read."""
RETRIES = 3
REACH_SECONDS = 10.0

T = TypeVar("T")
Start = Callable[[Sequence[Ask]], Any]


@dataclass(frozen=True, eq=False)
class RayTransport:
    """Clients in the object store of the Ray that this process has joined (`cluster`).

    shards: references to the data of many clients each, neighbors by name together.
    timeout: seconds until a task is late.
    """

    shards: tuple[Any, ...]
    shard_of: Mapping[str, int]
    holdings: Mapping[str, Holding]
    limits: Limits = field(default_factory=Limits)
    timeout: float = 600.0

    @classmethod
    def of(cls, data: Mapping[str, LocalData]) -> Self:
        import ray

        holdings = {name: Holding.of(data[name]) for name in sorted(data)}
        shards: list[Any] = []
        shard_of: dict[str, int] = {}
        for names in grouped(holdings, lambda name: holdings[name].count, MOST_ROWS):
            shard_of |= dict.fromkeys(names, len(shards))
            shards.append(ray.put({name: _in_memory(data[name]) for name in names}))
        return cls(tuple(shards), shard_of, holdings)

    def describe(self) -> Mapping[str, Holding]:
        return self.holdings

    def carries(self, model: Model, ask: Ask) -> bool:
        return True

    def exchange(self, model: Model, asks: Iterable[Ask]) -> Iterator[Outcome]:
        """A few tasks run ahead of what is read."""
        import ray

        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_answers)
        shared = ray.put((model, self.limits))

        def start(batch: Sequence[Ask]) -> Any:
            shard = self.shards[self.shard_of[batch[0].client]]
            return task.remote([(ask.client, ask.query) for ask in batch], shared, shard)

        tasks = ((batch, start(batch)) for batch in self._batches(asks))
        processors = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        running = deque(islice(tasks, processors + AHEAD))
        while running:
            batch, reference = running.popleft()
            outcomes = self._outcomes(batch, reference, start)
            running.extend(islice(tasks, 1))
            yield from zip(batch, outcomes, strict=True)

    def _batches(self, asks: Iterable[Ask]) -> Iterator[list[Ask]]:
        for _, group in groupby(asks, key=lambda ask: self.shard_of[ask.client]):
            yield from grouped(group, lambda ask: answer_bytes(ask.shapes), MOST_BYTES)

    def _outcomes(
        self, batch: Sequence[Ask], reference: Any, start: Start
    ) -> list[Arrays | Failure]:
        """What a task answered; where it failed, each client is asked alone, to know whose fault.

        Arrays are copied: those in the object store end with Ray.
        """
        import ray
        from ray.exceptions import RayError

        try:
            return _copied(ray.get(reference, timeout=self.timeout))
        except RayError:
            ray.cancel(reference, force=True)
        alone = [start([ask]) for ask in batch]
        late = alone
        ready: list[Any] = alone
        while late and ready:  # each has as long as this after another one
            ready, late = ray.wait(late, timeout=self.timeout)
        for reference in late:
            ray.cancel(reference, force=True)
        outcomes: list[Arrays | Failure] = []
        too_late = set(late)
        for reference in alone:
            if reference in too_late:
                outcomes.append(Failure("late", f"no answer in {self.timeout:g} s"))
                continue
            try:
                outcomes += _copied(ray.get(reference))
            except RayError as error:
                outcomes.append(Failure("gone", str(error).partition("\n")[0]))
        return outcomes


def _answers(
    asks: Sequence[tuple[str, Query]], shared: tuple[Model, Limits], shard: Mapping[str, LocalData]
) -> list[Arrays | Failure]:
    """What a task does; in one thread, as everywhere."""
    model, limits = shared
    outcomes: list[Arrays | Failure] = []
    with single_thread():
        for name, query in asks:
            try:
                outcomes.append(answered(query, name, model, shard[name], limits))
            except Exception as error:  # a query of a plugin must not end the others' task
                outcomes.append(Failure("refused", f"{query} does not fit its rows: {error!r}"))
    return outcomes


def _copied(outcomes: list[Arrays | Failure]) -> list[Arrays | Failure]:
    return [
        outcome
        if isinstance(outcome, Failure)
        else {name: np.array(array) for name, array in outcome.items()}
        for outcome in outcomes
    ]


def _in_memory(data: LocalData) -> LocalData:
    """Rows may be read from files that workers do not have."""
    if isinstance(data, SufficientStats):
        return data
    return replace(data, rows=np.ascontiguousarray(data.rows), columns={}, skipped=())


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Neighbors together, MOST_CLIENTS of them and this size at most; a larger one is alone."""
    group: list[T] = []
    total = 0
    for item in items:
        if group and (len(group) == MOST_CLIENTS or total + size(item) > limit):
            yield group
            group = []
            total = 0
        group.append(item)
        total += size(item)
    if group:
        yield group


@contextmanager
def cluster(address: str = "") -> Iterator[None]:
    """Join the Ray at HOST:PORT, or start one of this machine alone; left or ended afterwards.

    One that this process has joined already is used as it is.
    """
    imported = sys.modules.get("ray")
    if imported is not None and imported.is_initialized():
        yield
        return
    settings = SETTINGS
    if address:
        check_address(address)
    else:
        settings = {**SETTINGS, LOOPBACK: "0"}
        os.environ.setdefault(TOKEN, secrets.token_hex(32))
    if imported is not None and any(os.environ.get(name) != settings[name] for name in settings):
        listed = " ".join(f"{name}={value}" for name, value in settings.items())
        raise InputError(
            "Ray reads its settings when it is imported; it was imported before them. Set "
            f"{listed} before, or join Ray yourself (ray.init)."
        )
    os.environ.update(settings)
    try:
        import ray
    except ImportError as error:
        raise NotFoundError(
            "Ray is not installed. Install it: pip install 'probekit-heads[ray]'."
        ) from error
    options: dict[str, Any] = {"address": address}
    if not address:
        options = {"address": "local", "include_dashboard": False}
    try:
        with _files_left_open():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise OfflineError(
            f"Ray must be running at {address or 'home'}; found {reason}."
        ) from error
    try:
        yield
    finally:
        with _files_left_open():
            ray.shutdown()


@contextmanager
def _files_left_open() -> Iterator[None]:
    """Ray leaves files to the garbage collector when it starts and ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def check_address(address: str) -> None:
    """Refuse a cluster elsewhere without a token, and at once one that nobody answers for."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(
            f"Ray is ray or ray:HOST:PORT; found {address!r}. Write ray:10.0.0.1:6379."
        )
    token_file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if not _is_here(host) and not os.environ.get(TOKEN) and not token_file.is_file():
        raise InputError(
            f"Whoever reaches a Ray cluster runs code on it; found no token for {address}. Start "
            f"it with RAY_AUTH_MODE=token, and set {TOKEN} or RAY_AUTH_TOKEN_PATH here."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise OfflineError(
            f"Ray must be running at {address}; found {error}. Start it there, or pass ray alone."
        ) from error


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
