"""A torch module whose weights are one column: moving parameters, then buffers, trained by a plain loop of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from probekit.errors import InputError
from probekit.jacobian.inspection import first_line
from probekit.jacobian.linearize import tensor_of
from probekit.models.fitting import FitPlan
from probekit.models.optimiser import Optimiser
from probekit.values import Array, Indices

CHUNK, LEAST_CHUNK, CHUNK_BYTES = 4096, 16, 2**28
"""The most rows that pass through a network at once, the fewest, and the bytes that their pass may keep."""
DRAWS_STREAM = 24
"""What a layer draws by itself, as dropout does, in one client's round."""


def buffers_of(module: nn.Module) -> tuple[str, ...]:
    """The names of buffers that are averaged: kept ones of numbers that are not whole; counters are no averages."""
    kept = module.state_dict().keys()
    return tuple(name for name, one in module.named_buffers() if name in kept and one.is_floating_point())


def rows_at_once(module: nn.Module, shape: tuple[int, ...], precision: str) -> int:
    """How many rows pass at once: told by what a pass of two keeps, so that it is the same on every machine."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = torch.zeros((2, *shape), dtype=getattr(torch, precision))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept: Tensor = module.requires_grad_(True)(inputs)  # held until the storages are counted
    known = {one.untyped_storage().data_ptr() for one in (*module.parameters(), *module.buffers())}
    each = sum(size for place, size in seen.items() if place not in known) + kept.numel() * kept.element_size()
    return max(LEAST_CHUNK, min(CHUNK, CHUNK_BYTES // max(1, each // 2)))


class FlatModule:
    """A module that may be changed, with its moving parameters (and their gradient) in one flat tensor each.

    `chunk`: how many rows pass through it at once.
    """

    def __init__(self, module: nn.Module, moving: tuple[str, ...], loss: str, chunk: int = CHUNK) -> None:
        self.module, self.loss, self.chunk = module, loss, chunk
        own = dict(module.named_parameters())
        parameters = [own[name] for name in moving]
        sizes = [one.numel() for one in parameters]
        self.weights = torch.cat([one.detach().reshape(-1) for one in parameters])
        self.gradient = torch.zeros_like(self.weights)
        flat = zip(parameters, torch.split(self.weights, sizes), torch.split(self.gradient, sizes), strict=True)
        for one, weights, gradient in flat:
            one.data, one.grad = weights.view(one.shape), gradient.view(one.shape)
            one.requires_grad_(True)
        known = dict(module.named_buffers())
        self.buffers = [known[name] for name in buffers_of(module)]

    @property
    def column(self) -> Array:
        """All weights, (p, 1), in float64."""
        whole = torch.cat([self.weights.detach(), *(one.detach().reshape(-1) for one in self.buffers)])
        return whole.double().numpy().reshape(-1, 1)

    def put(self, column: Array) -> None:
        """Take over these weights."""
        flat, place = tensor_of(np.ascontiguousarray(column)).reshape(-1), len(self.weights)
        self.weights.copy_(flat[:place])
        for one in self.buffers:
            one.copy_(flat[place : place + one.numel()].view(one.shape))
            place += one.numel()

    def scores(self, rows: Tensor) -> Tensor:
        """The outputs for some rows."""
        found: Tensor = self.module(rows.to(self.weights.dtype) if rows.is_floating_point() else rows)
        return found

    def mean_loss(self, rows: Tensor, wanted: Tensor, *, bounded: bool = False) -> Tensor:
        """Of labels, or of one target for each class."""
        scores = self.scores(rows)
        if bounded:
            shares = functional.softmax(scores, dim=1)
            hit = shares.gather(1, wanted[:, None])[:, 0] if wanted.dim() == 1 else (shares * wanted).sum(1)
            return -torch.log1p(-hit / 2).mean()
        if self.loss == "squared":
            targets = functional.one_hot(wanted, scores.shape[1]) if wanted.dim() == 1 else wanted
            return (scores - targets.to(scores)).square().sum() / (2 * len(rows))
        return functional.cross_entropy(scores, wanted if wanted.dim() == 1 else wanted.to(scores))

    def mean_gradient(self, rows: Tensor, wanted: Tensor, *, bounded: bool = False) -> float:
        """Put the gradient of the mean loss of some rows into `gradient`; gives that loss."""
        self.gradient.zero_()
        total = 0.0
        for some, targets in zip(torch.split(rows, self.chunk), torch.split(wanted, self.chunk), strict=True):
            loss = self.mean_loss(some, targets, bounded=bounded) * (len(some) / len(rows))
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total


class FlatSteps:
    """An optimiser's steps on one flat tensor, with the state of one round."""

    def __init__(self, optimiser: Optimiser, weights: Tensor, rate: float) -> None:
        self.optimiser, self.weights, self.rate, self.steps = optimiser, weights, rate, 0
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)

    def take(self, direction: Tensor) -> None:
        """One step against this direction."""
        how = self.optimiser
        self.steps += 1
        if how.name == "sgd":
            self.weights.sub_(direction, alpha=self.rate)
            return
        if how.name == "momentum":
            self.first.mul_(how.momentum).add_(direction)
            self.weights.sub_(self.first, alpha=self.rate)
            return
        fading, fading_square = how.betas
        self.first.mul_(fading).add_(direction, alpha=1 - fading)
        self.second.mul_(fading_square).addcmul_(direction, direction, value=1 - fading_square)
        size = (self.second / (1 - fading_square**self.steps)).sqrt_().add_(how.epsilon)
        self.weights.addcdiv_(self.first, size, value=-self.rate / (1 - fading**self.steps))


class PlanArrays:
    """A plan's points and scales as flat tensors of what moves; parameters are counted from `origin`."""

    def __init__(self, plan: FitPlan, arrays: Mapping[str, Array], origin: Array, like: Tensor) -> None:
        self.plan, start = plan, arrays["params"]

        def flat(values: Array) -> Tensor:
            return tensor_of(values[: len(like), 0].copy()).to(like)

        self.origin = flat(origin)
        self.centre, self.away, self.anchor = (
            flat(arrays.get(name, start) + origin) for name in ("centre", "away", "anchor")
        )
        self.importance, self.mask = (flat(arrays[name]) if name in arrays else None for name in ("importance", "mask"))

    def direct(self, gradient: Tensor, weights: Tensor) -> Tensor:
        """The direction to step against, made of the gradient in its place."""
        plan = self.plan
        if plan.ridge:
            gradient.add_(weights - self.origin, alpha=plan.ridge)
        gradient.mul_(plan.sign)
        if self.importance is not None:
            gradient.addcmul_(self.importance, weights - self.anchor)
        if self.mask is not None:
            gradient.mul_(self.mask)
        if plan.clip is not None:
            gradient.mul_(min(1.0, plan.clip / max(float(gradient.norm()), np.finfo(np.float64).tiny)))
        return gradient

    def ends(self, weights: Tensor) -> bool:
        """Keep the weights in the ball; whether they are far enough to stop."""
        plan = self.plan
        if plan.ball is not None and (far := float((weights - self.centre).norm())) > plan.ball:
            weights.copy_(self.centre + (weights - self.centre) * (plan.ball / far))
        return plan.stop is not None and float((weights - self.away).norm()) > plan.stop


def trained(
    model: FlatModule,
    plan: FitPlan,
    arrays: Mapping[str, Array],
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    origin: Array,
    draws: int,
) -> Array:
    """The parameters after a plan's steps from "params", each a batch of rows and what they are trained to.

    Parameters are counted from `origin`. Distances (`ball`, `stop`) are those of what moves, buffers aside.
    """
    start, weights = arrays["params"], model.weights
    model.put(start + origin)
    points, steps = PlanArrays(plan, arrays, origin, weights), FlatSteps(plan.optimiser, weights, plan.rate)
    model.module.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draws)
        for rows, wanted in batches:
            try:
                loss = model.mean_gradient(rows, wanted, bounded=plan.loss == "bounded")
            except ValueError as error:  # batch norm cannot normalise a single row
                why = f"Local training cannot take a batch of {len(rows)} rows: {first_line(error)}"
                raise InputError(f"{why} Choose another batch_size, or drop_last.") from error
            if not math.isfinite(loss):
                weights.fill_(math.nan)  # whoever asked says what that means
                break
            steps.take(points.direct(model.gradient, weights))
            if points.ends(weights):
                break
    found, moving = np.asarray(model.column - origin), len(weights)
    if "mask" in arrays:  # a buffer has no gradient to be masked
        found[moving:] = np.where(arrays["mask"][moving:] == 0, start[moving:], found[moving:])
    return found


def batch_rows(batches: Indices, count: int) -> Iterator[Indices]:
    """The rows of each step; without batches, all."""
    for some in batches:
        yield some[some >= 0] if some.size else np.arange(count)


def seed_of(generator: Any) -> int:
    """A seed for torch."""
    return int(generator.integers(2**62))
