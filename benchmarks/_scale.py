"""What a federation of any size costs: formulas in the sizes of a problem and a few measured constants.

Bytes, memory and disk follow from how answers and runs are written; seconds are of one core. Every formula is of the
code as it is: statistics travel and are kept one by one, in float64, and the server adds them in one process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from _scale_sizes import ANSWER, NUMBER, PACK_ROWS, Setting

ROUNDS, LOCAL_STEPS = 20, 10
ASKED_MORE = 4
"""Questions of FedAvg beside its rounds that carry parameters: gradients at start and end, and two to be kept."""
ASK = 244
"""Bytes of a question without its arrays."""
AUDIT_ROWS = 512
"""Rows of roots that an auditor multiplies out at a time."""
SLOT = 152
"""Bytes of a client's commitment, its name included."""
LISTED = 340
"""Bytes in which a state names a file of statistics: twice, with sha256s."""
BASE = 60 * 2**20
"""Bytes of memory that a command takes by its imports."""
CLIENT_MEMORY = 3_000
"""Bytes of Python objects for a client, arrays aside."""
SOLVING = 4
"""Dense statistics' worth of memory that the closed form takes at once."""
FORGETTING, LOOKING = (6, 14), (12, 25)
"""Square matrices and heads' worth of memory that a removal with its certificate, and an auditor's second look, take
at once."""
AT_HAND = 2**29
"""Bytes of clients' sums that an auditor holds while they are checked and added."""
PUBLISHED = 5e9
"""Operations up to which a certificate also has the paper's own bound, which takes a solve per client."""
CACHE = 9 * 2**20
"""Bytes of a matrix up to which elementwise passes over it take next to no time."""
UPLOADS_HELD = 5
"""Times that FedAvg's server holds every client's parameters: answers, stack, differences and two gradients."""
ROW_PASSES = 8
"""Times that a client of FedAvg goes through its rows beside its local steps."""
COPIES = 2
"""New arrays that FedAvg's server makes of every upload: the stack, and the differences from the start."""
BLOCK = 2 * 2**24
"""Bytes of rows that a client has in float64 at a time, in two lanes."""
DOUBLED_PRODUCTS = 3 * 10
"""Products of a d x d matrix with the head in the auditor's second look: three, of ten slices each."""
INVERSE_STEPS, HEAD_PASSES = 30, 120
"""Solves for the smallest curvature, and elementwise passes over the head."""


@dataclass(frozen=True)
class Machine:
    """Measured constants. Rates are per CPU second of one core: operations, or bytes.

    By whole commands: `start`, the seconds of a command with few clients; `client`, those of Python per client of two
    rows; `label`, those per class; `local`, those of Python per local step; `receive`, bytes of dense statistics that
    are judged, hashed, packed and written; `second`, bytes of dense statistics (beyond the cache) in an auditor's
    second look; `judge`, bytes of those that an auditor reads, judges and adds before.
    By themselves: `gram` (multiplications of a client's statistics), `cholesky`, `eigen`, `product`; `stream` (bytes of
    a matrix times a few columns), `load` (of rows, once through), `read` (of dense statistics from a file), `step` (of
    parameters in a local step), `fresh` (of new memory).
    """

    start: dict[str, float]
    client: dict[str, float]
    label: dict[str, float]
    local: float
    receive: float
    second: float
    judge: float
    gram: float
    cholesky: float
    eigen: float
    product: float
    stream: float
    load: float
    read: float
    step: float
    fresh: float


@dataclass(frozen=True)
class Cost:
    """Of one party: bytes sent and received, seconds, and the bytes of memory and disk."""

    sent: float = 0.0
    received: float = 0.0
    seconds: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    kept: float = 0.0
    """Of a client's memory, what it keeps between questions beside its rows, and the server does not have too."""

    passing: float = 0.0
    """Bytes of disk in temporary files, beside those that stay."""
    mapped: float = 0.0
    """Of the memory, pages of files, which the system takes back when it needs them."""

    @property
    def plain(self) -> dict[str, float]:
        """In plain values."""
        return asdict(self)


def closed_form(at: Setting, on: Machine) -> dict[str, Cost]:
    """One round of statistics, added and solved; the server keeps them."""
    block = min(BLOCK, NUMBER * at.rows * at.dimension)
    client = Cost(
        sent=at.answer,
        received=ASK,
        seconds=on.client["train"] / 2 + _statistics(at, on),
        memory=BASE + 4 * at.rows * at.dimension + at.held + block,
        disk=4 * at.rows * at.dimension,
        kept=at.held if at.spilled else 0,
    )
    each = at.held / on.read if at.rooted else at.dense / on.receive + _factoring(at, on)
    after = _summing(at, on) + at.tree.sums * at.dense / on.receive + solving(at, on)
    held = at.clients * (CLIENT_MEMORY + (0 if at.spilled else at.held))
    server = Cost(
        sent=at.clients * ASK,
        received=at.clients * at.answer,
        seconds=on.start["train"] + at.clients * (on.client["train"] / 2 + each) + after,
        memory=BASE + held + (at.tree.sums + 1 + SOLVING) * at.dense,
        disk=_state(at) + at.clients * at.leaf + at.tree.sums * at.packed + 8 * at.clients * (at.rows + 2),
        passing=at.clients * at.answer if at.spilled else 0,
    )
    return {"client": client, "server": server}


def removal(at: Setting, on: Machine) -> dict[str, Cost]:
    """One client forgotten from what was kept; nobody is asked. Disk is what a new state adds."""
    tree, share = at.tree, at.tree.bucket / at.clients
    bucket = tree.bucket * at.held / on.read + share * _summing(at, on)
    path = tree.depth * at.dense / on.read
    again = solving(at, on) + 2 * _factoring(at, on) + 2 * _solve(at) / on.product
    if at.clients * at.columns**2 * (at.columns + 6 * at.classes) <= PUBLISHED:
        again += at.clients * _judging(at, on)
    pack = min(at.clients, PACK_ROWS // at.rows) * at.leaf if at.rooted else 0
    total = at.packed if tree.depth > 0 and tree.bucket > 1 else 0
    server = Cost(
        seconds=on.start["unlearn"] + _python(at, on, "unlearn") + bucket + path + again,
        memory=BASE + at.clients * CLIENT_MEMORY + _arrays(at, *FORGETTING) + tree.bucket * at.leaf,
        disk=_state(at) + pack + total,
    )
    return {"client": Cost(), "server": server}


def audit(at: Setting, on: Machine) -> dict[str, Cost]:
    """`verify` of a removal: by the run, whose statistics are added again, and by a bundle that encloses their sums."""
    retained = at.clients - 1
    each = at.held / on.read if at.rooted else _judging(at, on)
    blocks = at.clients * at.rows / AUDIT_ROWS * at.dense / on.read if at.rooted else 0.0
    look = on.start["verify"] + looking(at, on) + max(0, at.dense - CACHE) / on.second
    sums, second = 2 * at.dense + at.parameters, BASE + _arrays(at, *LOOKING)
    kept = closed_form(at, on)["server"].disk + removal(at, on)["server"].disk
    held = 0 if at.rooted else min(AT_HAND, retained * at.dense)
    run = Cost(
        received=kept,
        seconds=look + _python(at, on, "verify") + retained * each + blocks + _summing(at, on),
        memory=second + held + at.clients * (CLIENT_MEMORY + at.leaf),
        mapped=at.clients * at.leaf,
        disk=kept,
    )
    alone = look + at.classes * on.label["verify"]
    enclosed = Cost(received=sums, seconds=alone, memory=second + sums, disk=sums)
    return {"run": run, "bundle": enclosed}


def fedavg(at: Setting, on: Machine) -> dict[str, Cost]:
    """Twenty rounds of ten full-batch steps; gradients are kept, as by default."""
    asked, curved = ROUNDS + ASKED_MORE, 2 * at.rows > at.columns
    kept, block = at.dense if curved else 0, min(BLOCK, NUMBER * at.rows * at.dimension)
    work = _solve(at) / on.product + NUMBER * at.columns**2 / on.stream if curved else _rowwise(at) / on.product
    steps = ROUNDS * LOCAL_STEPS * (on.local + work + at.parameters / on.step)
    passes = ROW_PASSES if curved else ROUNDS * LOCAL_STEPS + ROW_PASSES
    reading = passes * 4 * at.rows * at.dimension / on.load + ASKED_MORE * _rowwise(at) / on.product
    client = Cost(
        sent=asked * (ANSWER + at.parameters),
        received=asked * (ASK + at.parameters),
        seconds=steps + reading + asked * at.parameters / on.fresh + (_statistics(at, on) if curved else 0.0),
        memory=BASE + 4 * at.rows * at.dimension + 4 * at.parameters + kept + 3 * block,
        disk=4 * at.rows * at.dimension,
        kept=kept,
    )
    server = Cost(
        sent=at.clients * client.received,
        received=at.clients * client.sent,
        seconds=on.start["train"] + at.clients * (on.client["train"] + asked * COPIES * at.parameters / on.fresh),
        memory=BASE + at.clients * (CLIENT_MEMORY + UPLOADS_HELD * at.parameters),
        disk=_state(at) + at.clients * (2 * at.parameters + 8 * (at.rows + 2) + 40),
    )
    return {"client": client, "server": server}


def together(at: Setting, parties: dict[str, Cost]) -> Cost:
    """What a command takes that has all clients and the server in one process: its imports are there once."""
    client, server = parties["client"], parties["server"]
    held = at.clients * (client.disk + client.kept) + client.memory - BASE - client.disk - client.kept
    seconds = server.seconds + at.clients * client.seconds
    return Cost(server.received, server.sent, seconds, server.memory + held, server.disk)


def solving(at: Setting, on: Machine) -> float:
    """Seconds of the closed form itself: a factorisation, the spectrum for its condition, the head, its residual."""
    return float(at.columns) ** 3 / on.eigen + _factoring(at, on) + 2 * _solve(at) / on.product


def looking(at: Setting, on: Machine) -> float:
    """Seconds of an auditor's factorisations, products and passes over the head."""
    products = DOUBLED_PRODUCTS * _solve(at) / on.product
    passes = HEAD_PASSES * at.parameters / on.step
    return 2 * _factoring(at, on) + products + passes + INVERSE_STEPS * 2 * NUMBER * at.columns**2 / on.stream


def _statistics(at: Setting, on: Machine) -> float:
    """Seconds of a client's; a root is factored at about a third of Cholesky's rate."""
    if at.rooted:
        return 2 * at.rows * at.root / (on.cholesky / 3)
    return at.rows * (float(at.columns) ** 2 / on.gram + 4 * at.dimension / on.load)


def _python(at: Setting, on: Machine, command: str) -> float:
    """Seconds that grow with clients and classes alone."""
    return at.clients * on.client[command] + at.classes * on.label[command]


def _arrays(at: Setting, squares: float, heads: float) -> float:
    """Bytes of so many d x d matrices and heads."""
    return squares * NUMBER * at.columns**2 + heads * at.parameters


def _judging(at: Setting, on: Machine) -> float:
    """Seconds in which sums of a client are read and looked at, with a factorisation."""
    return at.dense / on.judge + _factoring(at, on)


def _factoring(at: Setting, on: Machine) -> float:
    return float(at.columns) ** 3 / 3 / on.cholesky


def _summing(at: Setting, on: Machine) -> float:
    """Seconds in which all roots are multiplied out: half a Gram, which is symmetric, and dense moments."""
    work = float(at.columns) * (at.columns + 2 * at.classes)
    return at.clients * at.rows * work / on.product if at.rooted else 0.0


def _rowwise(at: Setting) -> float:
    """Operations of a gradient from a client's rows."""
    return 4.0 * at.rows * at.columns * at.classes


def _solve(at: Setting) -> float:
    """Operations of one product of a d x d matrix with the head."""
    return 2.0 * at.columns**2 * at.classes


def _state(at: Setting) -> float:
    """Bytes of a state beside its statistics: head, solution, commitments and what it says of its files."""
    return 2 * at.parameters + at.clients * SLOT + LISTED * (at.packs + at.tree.sums) + 10_000
