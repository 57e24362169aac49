"""The prose of docs/scale.md."""

from __future__ import annotations

REMEDIES = {
    ("client", "upload"): (
        "Of the triangle: fewer columns (a backbone or view of smaller dimension; a random projection before training "
        "is not built), or `--method cg`, which sends d x k numbers a round and never a d x d matrix. Of the moments "
        "of many classes: they travel in full even where a client has few classes; sending its own classes only is "
        "not built."
    ),
    ("client", "memory"): "Fewer columns, or `--method cg`: a client then holds its rows and a few heads.",
    ("client", "time"): "The closed form, where that is FedAvg's; else fewer rows a client, or fewer columns.",
    ("server", "memory"): (
        "Of the closed form these are partial sums, one for about 4 d rows: `--keep nothing` adds answers as they "
        "arrive and keeps some sums only (a removal then asks the clients again), and `--federation ray` adds them "
        "on a cluster. Of FedAvg it is every upload of a round at once: the closed form, or fewer clients a round "
        "(`--participation`). Sums in files instead of memory while training, and a tree of servers, are not built."
    ),
    ("server", "disk"): (
        "`--keep nothing`: the head alone stays, and a removal asks the retained clients once more. Statistics in "
        "float32, or one leaf for a group of clients that leave together, are not built."
    ),
    ("server", "time"): (
        "`--federation ray` computes and adds statistics on a cluster; judging, hashing and writing what is kept "
        "stays with one process. `--keep nothing` leaves that out."
    ),
    ("auditor", "memory"): (
        "A bundle with sums, as below. With few clients: fewer columns or classes, the second look takes some tens of "
        "heads and d x d matrices."
    ),
    ("auditor", "time"): (
        "A bundle with sums (`probekit bundle RUN --with-sums AUDITOR`): its check does not grow with the clients. It "
        "shows that the head is the minimum of those sums, and not whose sums they are."
    ),
}


TEMPLATE = """# How far it scales

Bytes, seconds, memory and disk of client, server and auditor, from a hundred clients to a million. This page is
written by `benchmarks/scale.py`: the first table was measured, every other one is computed by the cost model in
`benchmarks/_scale.py`, whose constants were measured on the same machine.

Seconds are CPU seconds of one core with one BLAS thread, on two shared cores of a virtual machine. What the network
takes is not among them: divide the bytes by what your line carries. Clients have equally many rows, of classes that
are equally frequent.

## The model against whole commands

Measured: `probekit train`, `unlearn` and `verify` as a user runs them, all clients in one process; in brackets the
model's number over it. The one that is farthest off is so by {worst:.0f} %; beyond 30 % the script ends with 1, and a
test holds bytes, disk and memory to that on three other points. How often the code goes through a matrix or holds one
was counted, and settled with these points in view.

{points}

Constants of this machine: a product of matrices {product:.0f} Gflop/s, Cholesky {cholesky:.0f}, statistics {gram:.0f};
statistics judged, hashed and written {receive:.0f} MB/s, read {read:.0f} MB/s; Python per client {train:.2f} ms to
train, {unlearn:.3f} ms when another is unlearned, {verify:.2f} ms to verify; per local step of FedAvg {local:.2f} ms; a
command of few clients {start:.1f} s.

## What travels and what is kept

With m = d + 1 columns, k classes and n rows of c classes, in numbers of 8 bytes:

- A client sends m (m + 1) / 2 + m k + k numbers or, where 2 n < d + c, the root of its rows: n (m + c) + k.
- The server keeps that on disk, of the client's own classes only, and a partial sum for about every 4 m to 8 m rows.
  From 4,096 clients on their statistics lie in a temporary file while they are added, not in memory.
- A removal reads one bucket of clients and one sum per level above it, and asks nobody.
- FedAvg sends m k numbers 24 times each way: 20 rounds, two residuals, two gradients to forget by.

## A client

Computed: the closed form, once, and 20 rounds of FedAvg of 10 local steps beside it, which receives as much as it
sends. A removal by kept statistics costs clients nothing.

{client}

## The server

Computed: training in closed form and keeping what exact removal needs; then one client removed, with its certificate.
The last column is what the new state adds to the disk.

{server}

Twenty rounds of FedAvg of the same clients, gradients kept:

{rounds}

## An auditor

Computed: `probekit verify` of the removal with the whole run, every client's statistics read, judged and added by a
second route; and of a bundle that encloses their sums. Most of the memory of the first are pages of the run's
files, which the system takes back when it needs them.

{auditor}

## What breaks first

Computed, for 10^2, 10^3, 10^4, 10^5 and 10^6 clients: the most that stay within an upload of 100 MB, 4 GB of memory and
an hour for a client; 64 GB, 4 TB of disk and a day of one core for the server; 64 GB (pages of files aside) and a day
for an auditor who has the run. Then what is over its limit at the next size, the worst first.

{limits}

Factoring is never first: it takes d^3 / 3 operations, {factoring} at d = 4,096, and the spectrum {spectrum}. But every
client that sends a triangle has it judged by a factorisation, in training and by the auditor.

What to do then, and where with a million clients further limits are reached:

{remedies}

Back to [federating](federate.md), or to [the benchmarks](benchmarks.md).
"""
