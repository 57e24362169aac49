"""The network that retraining gives, made once for each set of retained rows and kept in the run's folder."""

from __future__ import annotations

import hashlib

from probekit.errors import CorruptError
from probekit.federated.trained import Trained
from probekit.models.heads import NetworkHead
from probekit.models.serving import load_head, save_head
from probekit.runs.folder import RunFolder
from probekit.runs.purging import REFERENCES
from probekit.unlearning.method import Material
from probekit.unlearning.network_retrain import fit_anew
from probekit.unlearning.remainder import moved_head, remaining_rows
from probekit.values import EmbeddingSet, Partition, canonical


def retrained_network(run: RunFolder, trained: Trained, embeddings: EmbeddingSet, partition: Partition) -> NetworkHead:
    """The minimum of the loss of exactly the rows of a state's clients; computed where it is not kept yet."""
    assert isinstance(trained.head, NetworkHead)
    folder = run.path / REFERENCES / _key(trained, trained.head, embeddings, partition)
    if folder.exists():
        found = load_head(folder)
        if not isinstance(found, NetworkHead) or found.network.digest != trained.head.network.digest:
            raise CorruptError(f"{folder} holds another network than this run's. Remove it: it will be made anew.")
        return found
    anew = fit_anew(trained, remaining_rows(trained, None, Material(embeddings, partition)))
    made = moved_head(trained, anew.params, method="retrain", rows=sum(anew.counts.values()))
    assert isinstance(made, NetworkHead)
    folder.parent.mkdir(exist_ok=True)
    save_head(made, folder)
    return made


def _key(trained: Trained, head: NetworkHead, embeddings: EmbeddingSet, partition: Partition) -> str:
    """A name for the retained rows, their labels and the loss."""
    hasher = hashlib.sha256(canonical([head.network.digest, head.centre, trained.ridge]).encode())
    for name in sorted(trained.counts):
        rows = partition.clients[name].tolist()
        held = [[embeddings.ids[row], int(embeddings.labels[row])] for row in rows]
        hasher.update(canonical([name, held]).encode())
    return hasher.hexdigest()[:16]
