"""Federated training of whole networks as plain loops of torch: autograd and torch.optim.

Of probekit they take the rows of each batch, which it draws, and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from probekit.embeddings import EmbeddingSet
from probekit.federated.federation import Federation, InProcess
from probekit.federated.local import Adam, LocalPlan, Sgd
from probekit.networks.network import Network
from probekit.objective import CrossEntropy, Squares
from tests.networks.modules import CLASSES, Pooled, Residual, model_of, samples_of
from tests.oracles import Array

SIZES = {"a": 13, "b": 18, "c": 14}
RIDGE = 0.05


def mlp() -> nn.Module:
    hidden = (nn.Linear(9, 5), nn.LeakyReLU(0.01), nn.Linear(5, 4), nn.LeakyReLU(0.01))
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(4, CLASSES))


def cnn() -> nn.Module:
    """The paper's, for pictures of 16 x 16."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16, 256), nn.LeakyReLU(0.01)),
        *(nn.Linear(256, 128), nn.LeakyReLU(0.01), nn.Linear(128, CLASSES)),
    )


def layer() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES))


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "mlp:5-4": mlp,
    "cnn": cnn,
    "pooled": lambda: Pooled(CLASSES),
    "residual": lambda: Residual(CLASSES),
    "linear": layer,
}


class Linearized(nn.Module):
    """f(x; w_p) + J (w - w_p), with the J of every sample written out."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weight.detach().clone() for weight in base.parameters())
        self.start = parameters_to_vector(base.parameters()).detach()
        self.hidden = (base,)  # whose parameters are not trained
        self.expansions: dict[bytes, tuple[Tensor, Tensor]] = {}

    def forward(self, samples: Tensor) -> Tensor:
        moved = parameters_to_vector(self.weights) - self.start
        scores, jacobians = zip(*(self.expansion(sample) for sample in samples), strict=True)
        return torch.stack(scores) + torch.stack(jacobians) @ moved

    def expansion(self, sample: Tensor) -> tuple[Tensor, Tensor]:
        """f(x; w_p) and J of a sample."""
        key = sample.numpy().tobytes()
        if key not in self.expansions:
            weights = list(self.hidden[0].parameters())
            scores = self.hidden[0](sample[None])[0]
            rows = [torch.autograd.grad(score, weights, retain_graph=True) for score in scores]
            jacobian = torch.stack([parameters_to_vector(row) for row in rows])
            self.expansions[key] = (scores.detach(), jacobian)
        return self.expansions[key]

    def __deepcopy__(self, memo: object) -> Linearized:
        twin = Linearized(self.hidden[0])
        twin.expansions = self.expansions
        return twin


class Adapted(nn.Module):
    """A network of which an adapter is trained: what it adds to flat weights that are frozen."""

    def __init__(
        self,
        module: nn.Module,
        base: Tensor,
        adapter: Iterable[Tensor],
        added: Callable[[list[nn.Parameter]], Tensor],
    ) -> None:
        super().__init__()
        self.adapter = nn.ParameterList(adapter)
        self.hidden = (module, base)
        self.added = added

    @property
    def weights(self) -> Tensor:
        return self.hidden[1] + self.added(list(self.adapter))

    def forward(self, samples: Tensor) -> Tensor:
        module = self.hidden[0]
        names, like = zip(*module.named_parameters(), strict=True)
        parts = self.weights.split([weight.numel() for weight in like])
        shaped = [part.view_as(weight) for part, weight in zip(parts, like, strict=True)]
        scores: Tensor = functional_call(module, dict(zip(names, shaped, strict=True)), (samples,))
        return scores


def flat_weights(module: nn.Module) -> Tensor:
    if isinstance(module, Adapted):
        return module.weights
    return parameters_to_vector(module.parameters())


@dataclass(frozen=True, eq=False)
class Loops:
    """A network in float64, its clients' samples and labels, and how it is trained."""

    module: nn.Module
    clients: Mapping[str, tuple[Tensor, Tensor]]
    plan: LocalPlan
    center: Tensor
    squares: bool
    ridge: float
    uniform: bool = False

    @property
    def start(self) -> Tensor:
        return parameters_to_vector(self.module.parameters()).detach()

    def loss(self, module: nn.Module, samples: Tensor, labels: Tensor) -> Tensor:
        """The mean over rows, penalty included."""
        scores = module(samples)
        penalty = self.ridge / 2 * (flat_weights(module) - self.center).square().sum()
        if self.squares:
            targets = nn.functional.one_hot(labels, scores.shape[1])
            return (scores - targets).square().sum() / 2 / len(labels) + penalty
        return nn.functional.cross_entropy(scores, labels) + penalty

    def local(
        self,
        start: Tensor,
        client: str,
        number: int,
        *,
        climb: bool = False,
        clip: float | None = None,
        radius: float | None = None,
    ) -> Tensor:
        """A client's parameters after its steps in a round."""
        module = copy.deepcopy(self.module)
        vector_to_parameters(start.clone(), module.parameters())
        optimizer = torch_optimizer(module.parameters(), self.plan, climb=climb)
        samples, labels = self.clients[client]
        plan = replace(self.plan, round=number)
        for batch in plan.batches(len(labels), client):
            rows = slice(None) if batch is None else torch.from_numpy(batch)
            optimizer.zero_grad()
            self.loss(module, samples[rows], labels[rows]).backward()
            if clip is not None:
                slopes = [weight.grad for weight in module.parameters()]
                length = parameters_to_vector(slopes).norm()
                for slope in slopes:
                    slope *= min(1.0, clip / float(length))
            optimizer.step()
            if radius is not None:
                moved = parameters_to_vector(module.parameters()).detach() - start
                if moved.norm() > radius:
                    moved *= radius / moved.norm()
                    vector_to_parameters(start + moved, module.parameters())
        return parameters_to_vector(module.parameters()).detach()

    def locals(self, start: Tensor, clients: Iterable[str], number: int) -> dict[str, Tensor]:
        return {client: self.local(start, client, number) for client in clients}

    def shares(self, clients: Collection[str]) -> dict[str, float]:
        """p_c: n_c / n of these clients, or 1 / C."""
        sizes = {name: 1 if self.uniform else len(self.clients[name][1]) for name in clients}
        return {name: size / sum(sizes.values()) for name, size in sizes.items()}

    def mean(self, models: Mapping[str, Tensor]) -> Tensor:
        shares = self.shares(models)
        return torch.stack([shares[name] * model for name, model in models.items()]).sum(dim=0)

    def rounds(self, start: Tensor, clients: Collection[str], numbers: Iterable[int]) -> Tensor:
        """FedAvg of these clients in the rounds of these numbers."""
        for number in numbers:
            start = self.mean(self.locals(start, clients, number))
        return start


def torch_optimizer(
    weights: Iterable[nn.Parameter], plan: LocalPlan, *, climb: bool
) -> torch.optim.Optimizer:
    options = plan.optimizer
    if isinstance(options, Adam):
        decay = options.weight_decay
        return torch.optim.Adam(weights, plan.rate, weight_decay=decay, maximize=climb)
    assert isinstance(options, Sgd)
    return torch.optim.SGD(weights, plan.rate, momentum=options.momentum, maximize=climb)


@dataclass(frozen=True, eq=False)
class Problem:
    """A network with three clients: for probekit, and as loops."""

    model: Network
    rows: Mapping[str, EmbeddingSet] = field(repr=False)
    loops: Loops

    @property
    def asked(self) -> Federation:
        return Federation.of(InProcess(self.rows), self.model)


def make_problem(
    network: str,
    *,
    linearize: bool,
    plan: LocalPlan,
    squares: bool | None = None,
    center: str = "wp",
    uniform: bool = False,
) -> Problem:
    """squares: of linearized networks, where nothing else is said; others have cross-entropy."""
    squares = linearize if squares is None else squares
    loss = Squares() if squares else CrossEntropy()
    model = model_of(network, linearize=linearize, loss=loss, center=center)
    rows = samples_of(model, sum(SIZES.values()))
    parts = np.split(np.arange(len(rows)), np.cumsum(list(SIZES.values()))[:-1])
    clients = {name: rows.take(part) for name, part in zip(SIZES, parts, strict=True)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = MODULES[network]().double().eval()
    start = parameters_to_vector(module.parameters()).detach()
    loops = Loops(
        Linearized(module) if linearize else module,
        {name: tensors(part, model.sample_shape) for name, part in clients.items()},
        plan,
        start if linearize and center == "wp" else torch.zeros_like(start),
        squares,
        RIDGE,
        uniform,
    )
    return Problem(model, clients, loops)


def tensors(rows: EmbeddingSet, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    samples = torch.from_numpy(rows.to_numpy().astype(np.float64)).view(-1, *shape)
    return samples, torch.from_numpy(np.array(rows.labels))


def as_head(params: Array) -> Array:
    """A linear layer's weights (k, d) and bias (k) as (d + 1, k)."""
    return np.vstack([params[:-CLASSES].reshape(CLASSES, -1).T, params[-CLASSES:]])
