"""docs/scale.md from what benchmarks/scale.py measured: the same file gives the same page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from textwrap import fill
from typing import Any

from _scale import Cost, Machine, audit, closed_form, fedavg, removal
from _scale_fit import Measured, machine_of, measured_of, points_of, predicted
from _scale_sizes import Setting
from _scale_text import REMEDIES, TEMPLATE

CLIENTS = tuple(10**power for power in range(2, 7))
SHOWN = (100, 10_000, 1_000_000)
KINDS = (
    (2, 512, 10),
    (2, 4_096, 10),
    (100, 512, 1_000),
    (100, 4_096, 20_000),
    (5_000, 512, 10),
    (5_000, 4_096, 1_000),
    (5_000, 4_096, 20_000),
)
"""Rows of a client, dimension and classes."""
AT = ("clients", "rows each", "d", "classes")
TOLD = 2
"""How many of the limits that break are named."""
DAY = 86_400.0
LIMITS = {
    ("client", "upload"): 100e6,
    ("client", "memory"): 4e9,
    ("client", "time"): 3_600.0,
    ("server", "memory"): 64e9,
    ("server", "disk"): 4e12,
    ("server", "time"): DAY,
    ("auditor", "memory"): 64e9,
    ("auditor", "time"): DAY,
}
FIELDS = {"upload": "sent", "memory": "memory", "time": "seconds", "disk": "disk"}


@dataclass(frozen=True)
class Broken:
    """What is over its limit, and how many times."""

    party: str
    what: str
    need: float
    times: float


def page(kept: Mapping[str, Any]) -> str:
    """The page."""
    found = measured_of(kept)
    on = machine_of(found, kept["kernels"])
    points = [*_points(found, on)]
    ratios = [float(cell) for line in points for cell in line[-4:] if cell]
    server, rounds = _server(on)
    limits, remedies = _limits(on)
    per_client = {name: 1e3 * value for name, value in on.client.items()}
    text = TEMPLATE.format(
        **{name: getattr(on, name) / 1e9 for name in ("product", "cholesky")},
        **{name: getattr(on, name) / 1e6 for name in ("receive", "read")},
        **per_client,
        gram=2 * on.gram / 1e9,
        local=1e3 * on.local,
        start=on.start["train"],
        worst=100 * (max(max(one, 1 / one) for one in ratios) - 1),
        points=_table((*AT, "command", "sent", "CPU", "memory", "disk"), [line[:-4] for line in points]),
        client=_client(on),
        server=server,
        rounds=rounds,
        auditor=_auditor(on),
        limits=limits,
        factoring=_seconds(4_097.0**3 / 3 / on.cholesky),
        spectrum=_seconds(4_097.0**3 / on.eigen),
        remedies=remedies,
    )
    return "\n\n".join(map(_wrapped, text.rstrip().split("\n\n"))) + "\n"


def _wrapped(block: str) -> str:
    """A paragraph or a list in lines of one width; tables and titles as they are."""
    if block.startswith(("|", "#")):
        return block
    items = [f"- {item}" for item in block[2:].split("\n- ")] if block.startswith("- ") else [block]
    indent = "  " if block.startswith("- ") else ""
    return "\n".join(fill(" ".join(item.split()), 120, subsequent_indent=indent) for item in items)


def breaks(costs: Mapping[str, Cost]) -> list[Broken]:
    """All that is over its limit, worst first; who audits is there where something was kept to audit."""
    found = []
    for (party, what), limit in LIMITS.items():
        if party in costs:
            one = costs[party]
            need = float(getattr(one, FIELDS[what])) + {"disk": one.passing, "memory": -one.mapped}.get(what, 0.0)
            found += [Broken(party, what, need, need / limit)] if need > limit else []
    return sorted(found, key=lambda one: -one.times)


def ways(at: Setting, on: Machine) -> dict[str, dict[str, Cost]]:
    """The closed form with its auditor, and FedAvg."""
    return {"closed form": {**closed_form(at, on), "auditor": audit(at, on)["run"]}, "FedAvg": fedavg(at, on)}


def _points(found: Measured, on: Machine) -> Iterable[list[str]]:
    """Lines of the table, with the bare ratios after them."""
    for at, command, one in points_of(found):
        model, line, ratios = predicted(at, on)[command], [], list[str]()
        for what in ("sent", "seconds", "memory", "disk"):
            measured, ours = getattr(one, what), getattr(model, what)
            ratios.append(f"{ours / measured:.2f}" if measured else "")
            text = _seconds(measured) if what == "seconds" else _bytes(measured)
            line.append(f"{text} ({ratios[-1]})" if measured else "")
        yield [*_numbers(at.clients, at.rows, at.dimension, at.classes), command, *line, *ratios]


def _client(on: Machine) -> str:
    lines = []
    for rows, dimension, classes in product((2, 100, 5_000), (512, 4_096), (10, 1_000, 20_000)):
        at = Setting(100, rows, dimension, classes)
        own, rounds = closed_form(at, on)["client"], fedavg(at, on)["client"]
        costs = (own.sent, own.seconds, own.memory, rounds.sent, rounds.seconds, rounds.memory)
        lines.append([*_numbers(rows, dimension, classes), *_cells("bsbbsb", costs)])
    return _table((*AT[1:], "sends", "CPU", "memory", "FedAvg: sends", "CPU", "memory"), lines)


def _settings() -> Iterable[tuple[Setting, list[str]]]:
    """What the tables of server and auditor are of, with the cells that each line begins with."""
    for kind, clients in product(KINDS, SHOWN):
        if clients * kind[0] >= kind[2]:  # every class needs a row
            yield Setting(clients, *kind), _numbers(clients, *kind)


def _server(on: Machine) -> tuple[str, str]:
    closed, rounds = [], []
    for at, begin in _settings():
        first, gone, other = closed_form(at, on)["server"], removal(at, on)["server"], fedavg(at, on)["server"]
        costs = (first.received, first.seconds, first.memory, first.disk, gone.seconds, gone.memory, gone.disk)
        closed.append([*begin, *_cells("bsbbsbb", costs)])
        rounds.append([*begin, *_cells("bsbb", (other.received, other.seconds, other.memory, other.disk))])
    heads = (*AT, "receives", "CPU", "memory", "disk")
    return _table((*heads, "removal: CPU", "memory", "disk"), closed), _table(heads, rounds)


def _auditor(on: Machine) -> str:
    lines = []
    for at, begin in _settings():
        found = audit(at, on)
        costs = [value for one in (found["run"], found["bundle"]) for value in (one.disk, one.seconds, one.memory)]
        lines.append([*begin, *_cells("bsbbsb", costs)])
    return _table((*AT, "run: disk", "CPU", "memory", "bundle: disk", "CPU", "memory"), lines)


def _limits(on: Machine) -> tuple[str, str]:
    """The table, and what to do about all that is broken in it."""
    lines, seen = [], set()
    for kind in KINDS:
        cells = []
        for way in ("closed form", "FedAvg"):
            fits, broken = _first(kind, on, way)
            cells += [f"{fits:,}" if fits else "fewer than 100", _said(broken)]
            at = Setting(CLIENTS[-1], *kind)
            seen |= {(one.party, one.what) for one in (*broken, *breaks(ways(at, on)[way]))}
        lines.append([*_numbers(*kind), *cells])
    table = _table((*AT[1:], "closed form: clients", "then", "FedAvg: clients", "then"), lines)
    return table, "\n".join(f"- {key[0].capitalize()}, {key[1]}: {REMEDIES[key]}" for key in LIMITS if key in seen)


def _first(kind: tuple[int, int, int], on: Machine, way: str) -> tuple[int, list[Broken]]:
    """The most clients that stay within all limits, and what is broken at the next size."""
    fits = 0
    for clients in CLIENTS:
        if clients * kind[0] < kind[2]:
            continue
        at = Setting(clients, *kind)
        broken = breaks(ways(at, on)[way])
        if broken:
            return fits, broken
        fits = clients
    return fits, []


def _said(broken: Sequence[Broken]) -> str:
    """The worst, in words."""
    texts = []
    for one in broken[:TOLD]:
        need = _seconds(one.need) if one.what == "time" else _bytes(one.need)
        texts.append(f"{one.party}'s {one.what}: {need}")
    return "; ".join(texts)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows])


def _numbers(*values: int) -> list[str]:
    return [f"{value:,}" for value in values]


def _cells(kinds: str, values: Iterable[float]) -> list[str]:
    return [_seconds(value) if kind == "s" else _bytes(value) for kind, value in zip(kinds, values, strict=True)]


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5:
            return f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} PB"


def _seconds(value: float) -> str:
    for limit, size, unit in ((0.1, 1e-3, "ms"), (120, 1, "s"), (7_200, 60, "min"), (2 * DAY, 3_600, "h")):
        if value < limit:
            return f"{_short(value / size)} {unit}"
    return f"{_short(value / DAY)} days"


def _short(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.095 else f"{value:.2g}"
