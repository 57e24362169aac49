"""A whole network, linearized: trained by five clients, one of them mislabelled, who then has to be forgotten.

Needs no download: scikit-learn's handwritten digits and a perceptron of 64-100-50-10. Takes a few seconds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.datasets import load_digits

import probekit
from probekit.federated.in_process import InProcess
from probekit.federated.methods.cg import FederatedCg
from probekit.models.pretraining import Pretraining
from probekit.unlearning.method import Material

GONE = "0"


def digits() -> tuple[probekit.EmbeddingSet, probekit.EmbeddingSet]:
    """Rows of 64 grey values to train on and to test with."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    spec = probekit.EncodingSpec("digits as they are", "0" * 64, {}, "grey")
    rows, labels = (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int64)
    ids = [f"{row:064x}" for row in order]
    whole = probekit.EmbeddingSet(spec, rows, labels, ids, tuple("0123456789"), source="digits")
    return whole.select(np.arange(1200)), whole.select(np.arange(1200, len(order)))


def main() -> None:
    """Pretrain, linearize, train across clients, forget one, and compare with retraining."""
    train, test = digits()
    partition = probekit.partition(train.labels, "iid", clients=5, server_share=1 / 6, seed=0)
    labels = train.labels.copy()
    labels[partition.clients[GONE]] = 0
    train = replace(train, labels=labels)
    options = probekit.WholeNetwork("mlp", pretraining=Pretraining(epochs=30))
    trained = probekit.train_network(train, partition, ridge=0.1, options=options, method=FederatedCg(tolerance=1e-8))
    size, residual = len(trained.params), trained.solution.residual
    print(f"{size} parameters; trained in {trained.rounds} rounds, residual {residual:.1e}")

    request, material = probekit.UnlearnRequest((GONE,)), Material(train, partition)
    held = {name: rows for name, rows in partition.clients.items() if name != GONE}
    clients = InProcess.of(trained.problem, train, held)
    retrained = probekit.unlearn(trained, request, method="retrain", material=material).trained_after
    print(f"{'':22}{'accuracy':>9}{'distance':>10}{'bound':>9}{'certified':>10}")
    for name in ("fedremoval", "fedremoval-line", "fedremoval-pcg:5", "fedremoval-pcg:40", "retrain"):
        done = probekit.unlearn(trained, request, method=name, material=material)
        head, said = done.trained_after.head, probekit.certify(trained, done, clients=clients, evaluation=test)
        right = np.mean(probekit.predict(head, test) == test.labels)
        away = np.linalg.norm(head.params - retrained.params)
        assert said.agreement is not None
        print(f"{name:22}{right:9.1%}{away:10.2g}{said.bounds.weights:9.2g}{said.agreement.rate:10.1%}")


if __name__ == "__main__":
    main()
