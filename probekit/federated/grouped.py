"""Whole groups (patients, users, videos) dealt to clients and to the server: no group is in two places."""

from __future__ import annotations

import numpy as np

from probekit.errors import InputError
from probekit.values import Indices


def deal_groups(
    labels: Indices,
    groups: Indices | None,
    clients: int,
    *,
    share: float,
    server: np.random.Generator,
    deal: np.random.Generator,
) -> tuple[Indices, Indices]:
    """The client number of every row (-1: the server's), and the server's rows.

    The server takes groups in random order while they fit its share and leave the clients a row of every class. The
    others go, in random order, each to the client that has the fewest rows then.
    """
    if groups is None:
        raise InputError(
            "The scheme groups needs to know what belongs together, and this set does not say. Extract or import it "
            "again with `group`: nothing is encoded anew."
        )
    if not 0 <= share < 1:
        raise InputError(f"The server's share must lie in [0, 1) and leave the clients rows; found {share}.")
    parts = _parts(groups)
    kept, wanted = [], round(share * len(labels))
    left = np.bincount(labels)
    taken: list[Indices] = []
    for number in server.permutation(len(parts)):
        own = np.bincount(labels[parts[number]], minlength=len(left))
        fits = len(parts[number]) + sum(map(len, taken)) <= wanted and (left[own > 0] > own[own > 0]).all()
        if fits:
            taken.append(parts[number])
            left = left - own
        else:
            kept.append(number)
    if share and not taken:
        raise InputError(f"A server share of {share} has no room for a group: it is {wanted} rows. Give a larger one.")
    if len(kept) < clients:
        raise InputError(f"Each client needs a group: {clients} clients were asked for, {len(kept)} groups are left.")
    owner, sizes = np.full(len(labels), -1, np.int64), np.zeros(clients, np.int64)
    for number in deal.permutation(np.sort(kept)):
        smallest = int(np.argmin(sizes))
        owner[parts[number]] = smallest
        sizes[smallest] += len(parts[number])
    return owner, np.flatnonzero(owner < 0)


def _parts(groups: Indices) -> list[Indices]:
    """The rows of every group, in the order of their first rows: no draw follows the groups' numbers."""
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    rows = np.split(np.argsort(unit, kind="stable"), np.cumsum(np.bincount(unit))[:-1])
    return [rows[place].astype(np.int64) for place in np.argsort(first)]
