"""A run in Python alone: train across clients, forget one, prove it, judge it, report it, remove what is left of it.

Needs no command line and no download: scikit-learn's digits as they are, 64 numbers each. The folder is the argument.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import probekit
from probekit.cache import DiskStore

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/python-only")
store = DiskStore(folder / "cache")

# Sets of the cache: rows, labels, and an id for every sample. `probekit.extract` makes them from pictures.
digits = load_digits()
spec = probekit.EncodingSpec("digits as they are", "0" * 64, {}, "grey")
rows, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
whole = probekit.EmbeddingSet(spec, rows, labels, [f"{row:064x}" for row in range(len(rows))], tuple("0123456789"))
store.save(spec, whole.ids, rows)
for name, part in (("digits-train", np.arange(1200)), ("digits-test", np.arange(1200, len(rows)))):
    store.sets.give_name(name, store.seal(whole.select(part)).digest)

# Train: five clients, a tenth of the rows with the server, one round of statistics.
options = probekit.TrainOptions(clients=5, partition="dirichlet:0.5", server_share=0.1, ridge=0.01)
run = probekit.Run.train(folder / "run", "digits-train", options, store=store, force=True)
print(run, "accuracy", f"{run.evaluate('digits-test').results[0].accuracy.value:.2%}")

# Forget client 3: look first, then do it on a copy and on the run itself.
plan = run.plan("3")
print("plan:", plan.method, "-", plan.why)
copy = run.fork(folder / "copy", force=True)
done = run.unlearn("3", test="digits-test")
agreed = done.certificate.agreement
print(
    "certified distance to retraining:", f"{done.certificate.bounds.weights:.2g};", agreed and agreed.certified, "rows"
)

# Anybody with the retained clients' statistics, or their rows, can check that.
proof = run.verify(rows=True, test="digits-test")
print("proven:", *(one.name for one in proof.findings if one.verdict == "proven"))

# Judge, report, and remove from the run and from the cache what was derived from client 3. The copy still knows those
# rows and loses them: without `yes` it would be named, and nothing would be erased.
print("accuracy", f"{run.evaluate('digits-test').results[0].accuracy.value:.2%}")
run.report(["digits-test"]).write(folder / "report")
removed = run.purge(rows=True, yes=True)
print("removed:", len(removed.removed), "files and", removed.cache and removed.cache.rows, "rows")
print("the copy still has state", copy.state, "and", [one.path.name for one in probekit.Run.list(folder)])
