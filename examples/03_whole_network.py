"""A whole network, linearized: trained by five clients, one of them mislabelled, who then has to be forgotten.

Needs no download: scikit-learn's handwritten digits and a perceptron of 64-100-50-10. Takes a few seconds.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from probekit.federated.network import FederatedCg, Pretraining, pretrain, train_network
from probekit.federated.network_clients import holders
from probekit.learning import Partition
from probekit.linear.network import linearize
from probekit.networks import network
from probekit.unlearning.network import NetworkRemoval, NetworkRounds, agreement, distance, retained, retrain

RIDGE = 0.1


def main() -> None:
    """Pretrain, linearize, train across clients, forget one, and compare with retraining."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pictures = (digits.images[order] / 16)[:, None]
    labels = digits.target[order].astype(np.int64)
    train, test = slice(0, 1200), slice(1200, None)
    parts = np.split(np.arange(200, 1200), 5)
    partition = Partition({f"client {i}": rows for i, rows in enumerate(parts)}, np.arange(200), 1200, "example", 0)
    wrong = labels[train].copy()
    wrong[partition.clients["client 0"]] = 0

    fresh = network("mlp", (1, 8, 8), 10)
    pretrained = pretrain(fresh, pictures[:200], labels[:200], options=Pretraining(epochs=30))
    model = linearize(pretrained, dtype=torch.float64)
    held = holders(model, pictures[train], wrong, partition)
    trained = train_network(held, ridge=RIDGE, method=FederatedCg(tolerance=1e-8))
    print(f"{model.size} parameters; trained in {trained.rounds} rounds, residual {trained.solution.residual:.1e}")

    here = retained(trained, ["client 0"], held)
    exact = retrain(here, tolerance=1e-11)
    unseen = model.over(pictures[test])
    print(f"{'':22}{'accuracy':>9}{'distance':>10}{'bound':>9}{'certified':>10}")
    for name, params in (
        ("with client 0", trained.params),
        ("fedremoval", NetworkRemoval().unlearn(here).params),
        ("fedremoval-line", NetworkRemoval(line=True).unlearn(here).params),
        ("fedremoval-pcg:5", NetworkRounds(5).unlearn(here).params),
        ("fedremoval-pcg:40", NetworkRounds(40).unlearn(here).params),
        ("retrained", exact.params),
    ):
        right = np.mean(unseen.outputs(params).argmax(1) == labels[test])
        away = np.linalg.norm(params - exact.params)
        bound = distance(here, params).bound
        sure = agreement(here, params, pictures[test], bound=bound).mean()
        print(f"{name:22}{right:9.1%}{away:10.2g}{bound:9.2g}{sure:10.1%}")


if __name__ == "__main__":
    main()
