"""In what batches a network's rows are taken, and whose passes are kept, so that memory suffices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.jacobian.memory import Prediction, free_memory
from probekit.jacobian.tape import Forward, Tape, Tensors

BATCH_BYTES = {4: 2**24, 8: 2**22}
"""What one batch's pass should take, by the bytes of a number: where products are fastest. In float64 more does not
stay in the processor's caches; in float32 fewer rows do not pay for a convolution's or an attention's own overhead."""
LEAST, MOST = {4: 32, 8: 8}, 4096
KEPT_SHARE = 0.5
"""Of the memory left that kept passes may take; the rest is the caller's, for kernels and factors."""
WORKING = 2
"""How many passes' worth of memory the work on one batch takes besides its own."""
FEWER = "Linearize over fewer rows, in float32, or a subset of the parameters."


@dataclass(frozen=True)
class BatchPlan:
    """Batches of `batch` rows; the passes of the first `kept` of them are kept."""

    batch: int
    kept: int
    prediction: Prediction


def plan_batches(
    forward: Forward,
    params: Tensors,
    inputs: Tensor,
    *,
    outputs: int,
    batch: int | None = None,
    memory: int | None = None,
    keep: bool = True,
) -> BatchPlan:
    """The batches for these inputs within so many bytes (what is free), or a refusal with the numbers."""
    device, size, rows = params[0].device, params[0].element_size(), len(inputs)
    free = free_memory(device) if memory is None else memory
    fixed, per_row = _pass_bytes(forward, params, inputs[:4].to(device))
    own = inputs[:1].numel() * inputs.element_size() * (1 if device.type == "cpu" else 2)
    if batch is None:
        kind = 4 if size <= 4 else 8
        batch = max(LEAST[kind], min(MOST, BATCH_BYTES[kind] // max(per_row, 1)))
        while batch > 1 and WORKING * batch * per_row > free / 4:
            batch //= 2
    batch = min(batch, rows)
    parameters = 4 * sum(one.numel() for one in params) * max(size, 8)
    working = WORKING * (fixed + batch * per_row)
    taken = {"weights and gradients": parameters, "one batch": working, "outputs": 3 * rows * outputs * 8}
    Prediction({**taken, "inputs": rows * own}).require(free, remedy=FEWER)
    room = int(KEPT_SHARE * (free - sum(taken.values())))
    kept = max(0, min(-(-rows // batch), room // max(fixed + batch * per_row, 1))) if keep else 0
    held = min(kept * batch, rows) * per_row + kept * fixed
    return BatchPlan(batch, kept, Prediction({**taken, "kept passes": held}))


def _pass_bytes(forward: Forward, params: Tensors, inputs: Tensor) -> tuple[int, int]:
    """What a kept pass holds: so many bytes whatever its rows, and so many for each; counted on few rows."""
    one = _held(forward, params, inputs[:1])
    if len(inputs) == 1:
        inputs = torch.cat([inputs, inputs])
    per_row = max(0, -(-(_held(forward, params, inputs) - one) // (len(inputs) - 1)))
    return max(0, one - per_row), per_row


def _held(forward: Forward, params: Tensors, inputs: Tensor) -> int:
    """The bytes of every storage that the pass keeps, parameters and inputs aside, and of its outputs."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        tape = Tape(forward, params, inputs)
    known = {one.untyped_storage().data_ptr() for one in (*params, inputs)}
    held = sum(size for place, size in seen.items() if place not in known)
    return held + 2 * tape.outputs.numel() * tape.outputs.element_size()
