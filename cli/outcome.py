"""What is said of a finished training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probekit.cli.output import facts, section, size

if TYPE_CHECKING:
    from probekit.federated.trained import Trained
    from probekit.runs.training import TrainResult

SHOWN_CLIENTS = 20


def described(outcome: TrainResult) -> dict[str, Any]:
    """A finished run in plain values."""
    from probekit.runs.head_training import told

    trained, run = outcome.trained, outcome.run
    traffic = trained.total_traffic
    return {
        "run": str(run.path),
        "state": run.state,
        "set": run.inputs["name"],
        "backbone": outcome.embeddings.spec.backbone,
        "method": trained.method,
        "kind": _kind(trained),
        "rows": len(outcome.embeddings),
        "left out": outcome.left_out,
        "dimension": trained.head.dimension,
        "parameters": trained.params.size,
        "classes": len(trained.head.classes),
        "partition": {"scheme": outcome.partition.scheme, "seed": outcome.partition.seed},
        "clients": dict(trained.counts),
        "server rows": len(outcome.partition.server),
        "ridge": trained.ridge,
        "scaling": trained.scaling,
        "ridge chosen": told(outcome.choice) if outcome.choice else None,
        "solver": trained.solution.method,
        "note": trained.solution.note,
        "residual": trained.solution.residual,
        "condition number": outcome.condition,
        "effective dimension": outcome.effective_dimension,
        "rounds": trained.rounds,
        "learning rate": trained.learning_rate,
        "loss": [trained.losses[0], trained.losses[-1]] if trained.losses else None,
        "bytes up": traffic.up,
        "bytes down": traffic.down,
        "traffic": {purpose: vars(sent) for purpose, sent in trained.traffic.items()},
        "history bytes": trained.history.size if trained.history else 0,
        "seconds": outcome.timings,
        "can unlearn": {name: vars(able) for name, able in _abilities(outcome).items()},
        "head": trained.head.digest,
    }


def _kind(trained: Trained) -> str:
    from probekit.models.heads import NetworkHead

    if not isinstance(trained.head, NetworkHead):
        return "head"
    return f"network {trained.head.network.name}, linearized ({trained.params.size} parameters)"


def _abilities(outcome: TrainResult) -> dict[str, Any]:
    """What can be unlearned by which method; a logistic head only by training again."""
    from probekit.federated.trained import Ability
    from probekit.linear.logistic import NO_EXACT_UNLEARNING

    found = outcome.trained.can_unlearn()
    if outcome.trained.method != "logistic":
        return found
    return {name: able if name == "retrain" else Ability(False, NO_EXACT_UNLEARNING) for name, able in found.items()}


def show(console: Any, value: dict[str, Any]) -> None:
    counts = list(value["clients"].values())
    spread = f", {min(counts)} to {max(counts)} rows each" if len(counts) > 1 else ""
    seen = {
        "run": value["run"],
        "trained": f"{value['method']} {value['kind']}, {value['dimension']} numbers to {value['classes']} classes, on "
        f"{sum(counts)} rows of {value['set']} ({value['backbone']})",
        "clients": f"{len(counts)} by {value['partition']['scheme']}{spread}; the server has {value['server rows']}",
        "ridge": _ridge_line(value),
        "solved": f"{value['solver']}, relative residual {value['residual']:.2g}{_rounds_line(value)}",
    }
    if value["effective dimension"] is not None:
        condition = value["condition number"]
        seen["system"] = f"effective dimension {value['effective dimension']:.1f}, condition number " + (
            f"{condition:.3g}" if condition is not None else "unbounded"
        )
    if value["note"]:
        seen["note"] = value["note"]
    history = f"; the history takes {size(value['history bytes'])}" if value["history bytes"] else ""
    seen["sent"] = f"{size(value['bytes up'])} up, {size(value['bytes down'])} down{history}"
    seen["time"] = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in value["seconds"].items())
    facts(console, seen)
    if len(counts) > 1:
        rows = sorted(value["clients"].items(), key=lambda item: -item[1])[:SHOWN_CLIENTS]
        more = f" (the largest {SHOWN_CLIENTS})" if len(counts) > SHOWN_CLIENTS else ""
        section(console, f"rows per client{more}", ("client", "rows"), rows)
    able = [("yes" if one["possible"] else "no", name, one["why"]) for name, one in value["can unlearn"].items()]
    section(console, "what can be unlearned from this", ("", "method", "why"), able)


def _ridge_line(value: dict[str, Any]) -> str:
    chosen = value["ridge chosen"]
    line = f"{value['ridge']:.4g} ({value['scaling']} scaling)"
    if chosen is None:
        return line
    edge = "; it is the first or last of them, try others by hand" if chosen["at_edge"] else ""
    wrong = f", {chosen['wrong_share']:.1%} wrong" if chosen["wrong_share"] is not None else ""
    return (
        f"{line}, by {chosen['by']} over {chosen['candidates']} from {chosen['from']:.2g} to {chosen['to']:.2g}"
        f"{wrong}{edge}; all clients' rows had a say in it"
    )


def _rounds_line(value: dict[str, Any]) -> str:
    if value["loss"] is None:
        return ""
    rate = "" if value["learning rate"] is None else f" at learning rate {value['learning rate']:.4g}"
    first, last = value["loss"]
    return f"; {value['rounds']} rounds{rate}, loss " + (
        f"{first:.4g} to {last:.4g}" if first != last else f"{last:.4g}"
    )
