"""The server: trains a head, or takes a client out of the one that is in the folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from probekit.certificates.certificate import certify
from probekit.errors import MissingClients
from probekit.federated.federation import Federation
from probekit.federated.state import KeptStatistics, State
from probekit.federated.transports.flower import Description, FlowerTransport
from probekit.federated.transports.kept import KeptFirst
from probekit.heads import Head
from probekit.records import dump, parse
from probekit.registry import configured
from probekit.runs.options import TrainOptions
from probekit.runs.run import single_thread
from probekit.unlearning.removal import Removal, Request, unlearn

MAX_STATE = 1 << 32
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder = Path(str(config["run"]))
    nodes = FlowerTransport.connect(
        grid,
        nodes=int(str(config["nodes"])),
        at_least=int(str(config["at-least"])) or None,
        timeout=float(str(config["timeout"])),
    )
    for name, reason in nodes.missing.items():
        print(f"without {name}: {reason}")
    with single_thread():
        if config["forget"]:
            state, retained = forgotten(
                folder, nodes, str(config["forget"]), str(config["removal"])
            )
        else:
            ridge = str(config["ridge"])
            options = TrainOptions(
                ridge=ridge if ridge == "auto" else float(ridge),
                method=str(config["method"]) or None,
            )
            state, retained = trained(nodes, options, at_least=int(str(config["at-least"])))
        certificate = certify(state, retained)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kept.safetensors").write_bytes(dump(state))
    head_of(state, nodes.description).save(folder / "head.safetensors")
    print("clients:", ", ".join(state.clients))
    print("\n".join(certificate.statements))


def trained(
    nodes: FlowerTransport, options: TrainOptions, *, at_least: int
) -> tuple[State, Federation]:
    """The state, and those who answered; all must where `at_least` is 0."""
    about = nodes.description
    federation = Federation.of(nodes, options.linear_model(about.width, len(about.outputs)))
    while True:
        try:
            return options.trainer().train(federation, ridge=options.setting()), federation
        except MissingClients as missing:
            for name, reason in missing.reasons.items():
                print(f"without {name}: {reason}")
            left = len(federation.clients) - len(missing.reasons)
            if not 0 < at_least <= left:
                raise
            federation = federation.without(missing.reasons)


def forgotten(
    folder: Path, nodes: FlowerTransport, client: str, method: str
) -> tuple[State, Federation]:
    """Who has kept statistics need not be online."""
    state = parse((folder / "kept.safetensors").read_bytes(), State, max_bytes=MAX_STATE)
    kept = state.get(KeptStatistics)
    transport = nodes if kept is None else KeptFirst(kept.parts, nodes)
    federation = Federation.of(transport, state.model).only(state.clients)
    removal = Removal.of(state, Request(clients=frozenset({client})), federation)
    return unlearn(configured(method), removal), federation.without({client})


def head_of(state: State, about: Description) -> Head:
    return Head(
        weights=np.ascontiguousarray(state.params[:-1]),
        intercept=np.ascontiguousarray(state.params[-1]),
        names=about.outputs,
        task="classes",
        normalize=about.normalize,
        encoding=about.read_encoding(),
        fit={"head": "ridge", "ridge": state.ridge},
        dataset="a Flower federation",
    )
