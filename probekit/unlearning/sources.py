"""Who answers in a removal: clients from what was kept of them, online or from cached rows, and the server itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probekit.errors import InputError, MismatchError
from probekit.federated.federation import Federation, Nobody
from probekit.federated.in_process import InProcess, KeptGradients
from probekit.federated.server_share import drawn_from_clients, server_rows, sources
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
        stay = set(left) - removal.changed
        same = {name: one for name, one in before.statistics.items() if name in stay}
        holdings = {name: problem.hold_statistics(one) for name, one in {**same, **removal.arriving}.items()}
        return [InProcess(problem, holdings, local=True)]
    if before.gradients is not None and not removal.request.by_row and not removal.request.added:
        extra = problem.penalty(before.mean_ridge(before.rows)) * before.params
        own = {name: before.gradients.aggregate[name] - extra for name in left}
        return [KeptGradients(problem, before.params, own, {name: before.counts[name] for name in left})]
    return []


def remaining_server(removal: Removal) -> ServerSet | None:
    """The server's own rows after the request; its statistics are made anew where one was forgotten or left.

    None: there are none, or it cannot be told which of them are to leave.
    """
    server, material, request = removal.before.server, removal.material, removal.request
    partition, embeddings = material.partition, material.embeddings
    if server is None or partition is None:
        return server
    follows, leaves = drawn_from_clients(partition), bool(request.clients or request.added)
    if embeddings is None or removal.held is None:
        return None if follows and leaves else server
    if not request.by_row and not (follows and leaves):
        return server
    rows, anew = server_rows(embeddings, partition, removal.left), follows and leaves
    if request.by_row:
        rest = removal.rest
        embeddings, rows, anew = rest.embeddings, rest.partition.server, anew or rest.server_changed
    if not len(rows):
        return None
    anew = anew and server.statistics is not None
    return ServerSet(removal.problem.hold(embeddings, rows).statistics if anew else server.statistics, rows)


def pretrained_on(removal: Removal) -> str:
    """Why nothing takes these clients out of a network: it was pretrained on rows of theirs; empty where it was not."""
    partition, embeddings = removal.material.partition, removal.material.embeddings
    if not removal.problem.knows_server or partition is None or embeddings is None:
        return ""
    known = sorted({*removal.request.clients} & {*sources(embeddings, partition).values()})
    if not known:
        return ""
    return (
        f"The server's share holds rows of client {known[0]}, and the network was pretrained on them: its weights w_p "
        "would still know them. Train again without that client, or with weights of your own (`network_weights`)."
    )


def server_holding(removal: Removal) -> Any:
    """What the server holds itself: from its statistics or, where a problem has none, from its rows."""
    found, material = removal.server_set, removal.material
    if found is not None and found.statistics is not None:
        return removal.problem.hold_statistics(found.statistics)
    if found is not None and material.server is not None:
        return removal.problem.hold(material.server, found.rows, share=0.5, name="the server")
    if found is None or material.embeddings is None or material.partition is None:
        raise InputError(f"The server's curvature needs {REMEDIES['server', 'rows']}.")
    rows = server_rows(material.embeddings, material.partition, removal.left)
    embeddings = material.embeddings
    if removal.request.by_row:
        embeddings, rows = removal.rest.embeddings, found.rows
    return removal.problem.hold(embeddings, rows, share=0.5, name="the server")
