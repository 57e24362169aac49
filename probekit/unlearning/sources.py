"""Who answers in a removal: clients from what was kept of them, online or from cached rows, and the server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probekit.errors import InputError, MismatchError
from probekit.federated.federation import Federation, Nobody
from probekit.federated.in_process import InProcess, KeptGradients
from probekit.federated.trained import ServerSet
from probekit.unlearning.method import REMEDIES

if TYPE_CHECKING:
    from probekit.unlearning.removal import Removal


def online_clients(removal: Removal) -> Federation:
    """The retained clients themselves: those given, else from their cached rows."""
    material, left = removal.material, removal.left
    if material.clients is not None:
        if set(material.clients.clients) != set(left):
            raise MismatchError(
                f"The clients that answer are {', '.join(sorted(material.clients.clients))}; those retained are "
                f"{', '.join(sorted(left))}. Ask the retained ones."
            )
        return material.clients
    embeddings, held = material.embeddings, removal.held
    if embeddings is None or held is None or material.server_only:
        return Nobody()
    if removal.request.by_row:
        embeddings, held = removal.rest.embeddings, removal.rest.partition.clients
    rows = {name: own for name, own in held.items() if len(own)}
    return InProcess.of(removal.problem, embeddings, rows) if rows else Nobody()


def kept_clients(removal: Removal) -> list[Federation]:
    """The retained clients by what the server kept; clients that are given answer instead of their statistics."""
    before, problem, left = removal.before, removal.problem, removal.left
    if before.statistics is not None and removal.material.clients is None:
        same = {name: one for name, one in before.statistics.items() if name in left and name not in removal.changed}
        holdings = {name: problem.hold_statistics(one) for name, one in {**same, **removal.arriving}.items()}
        return [InProcess(problem, holdings, local=True)]
    if before.gradients is not None and not removal.request.by_row and not removal.request.added:
        extra = problem.penalty(before.mean_ridge(before.rows)) * before.params
        own = {name: before.gradients.aggregate[name] - extra for name in left}
        return [KeptGradients(problem, before.params, own, {name: before.counts[name] for name in left})]
    return []


def remaining_server(removal: Removal) -> ServerSet | None:
    """The server's own rows after the request, with statistics made anew where one of them was forgotten."""
    server = removal.before.server
    if server is None or not removal.request.by_row or removal.held is None:
        return server
    rest = removal.rest
    rows = rest.partition.server
    if not len(rows):
        return None
    anew = rest.server_changed and server.statistics is not None
    return ServerSet(removal.problem.hold(rest.embeddings, rows).statistics if anew else server.statistics, rows)


def server_holding(removal: Removal) -> Any:
    """What the server holds itself: from its statistics or, where a problem has none, from its rows."""
    found, material = removal.server_set, removal.material
    if found is not None and found.statistics is not None:
        return removal.problem.hold_statistics(found.statistics)
    if found is None or material.embeddings is None or material.partition is None:
        raise InputError(f"The server's curvature needs {REMEDIES['server', 'rows']}.")
    embeddings, rows = material.embeddings, material.partition.server
    if removal.request.by_row:
        embeddings, rows = removal.rest.embeddings, found.rows
    return removal.problem.hold(embeddings, rows, share=0.5, name="the server")
