"""Pretraining a network on the server's rows: where its weights w_p come from, which it is linearized around."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from probekit.errors import InputError, SolverError
from probekit.jacobian.inspection import first_line
from probekit.jacobian.linearize import Inputs, tensor_of
from probekit.protocols import Look, Progress
from probekit.values import Indices


@dataclass(frozen=True)
class Pretraining:
    """Cross-entropy and Adam on the server's rows."""

    epochs: int = 50
    batch_size: int = 32
    rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch_size) < 1 or not self.rate > 0:
            raise InputError(f"Pretraining needs epochs, a batch size and a rate above 0; found {self}.")


PRETRAINING = Pretraining()


def pretrain(
    module: nn.Module, inputs: Inputs, labels: Indices, options: Pretraining = PRETRAINING, progress: Look | None = None
) -> nn.Module:
    """A trained copy of the module, in eval mode: its weights are w_p."""
    own = copy.deepcopy(module).train()
    first = next(own.parameters())
    rows = (tensor_of(inputs) if isinstance(inputs, np.ndarray) else inputs).to(first.device)
    rows = rows.to(first.dtype) if rows.is_floating_point() else rows
    aims = tensor_of(labels).to(first.device)
    if len(rows) != len(aims) or not len(rows):
        raise InputError(f"Pretraining needs one label per row and a row; found {len(aims)} and {len(rows)}.")
    adam = torch.optim.Adam(own.parameters(), lr=options.rate)
    order = np.random.default_rng(options.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        for epoch in range(options.epochs):
            total = 0.0
            numbers = tensor_of(order.permutation(len(rows)))
            for some in torch.split(numbers, options.batch_size):
                adam.zero_grad()
                try:
                    scores = own(rows[some])
                except ValueError as error:  # batch norm cannot normalise a single row
                    why = f"Pretraining cannot take a batch of {len(some)} rows: {first_line(error)}"
                    raise InputError(f"{why} Choose another batch size.") from error
                loss = nn.functional.cross_entropy(scores, aims[some])
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
                total += float(loss.detach()) * len(some)
            if not np.isfinite(total):
                raise SolverError(f"Pretraining diverged in epoch {epoch + 1}. Lower the rate {options.rate}.")
            if progress is not None:
                progress(Progress(epoch + 1, options.epochs, total / len(rows)))
    return own.eval()
