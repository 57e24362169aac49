"""The plain probe against what people use today, on the same vectors in one run.

- `ridge`: from cached embeddings to a head and its numbers (50,000 x 512, 100 classes, 10,000 test rows), against
  scikit-learn's RidgeClassifierCV over as many ridges plus the same numbers, and against one LogisticRegression fit;
- `import`: `probekit import` of 200,000 x 512 numbers in .npy, against a process that hashes, writes and syncs them;
- `groups`: leave-one-patient-out over 45 ridges, 2,000 patients of 10 rows, against refitting (20 of them measured);
- `calibration`: expected calibration error on Fashion-MNIST's test rows at the temperature of left-out scores,
  against the temperature fitted on those test rows themselves. The data set is installed first.

Give the names of parts to run only these.
"""

from __future__ import annotations

import statistics as averages
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _measure import finish, race, report, seconds
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.metrics import confusion_matrix, top_k_accuracy_score

import probekit
from probekit.cache import DiskStore
from probekit.datasets.installed import install
from probekit.evaluation import metrics
from probekit.linear.design import Design
from probekit.linear.groups import leave_groups_out, left_out_scores
from probekit.linear.path import decompose
from probekit.linear.ridge import fit
from probekit.linear.statistics import statistics
from probekit.linear.temperature import best_temperature
from probekit.models.heads import head_of
from probekit.models.serving import scores
from probekit.values import EmbeddingSet

CLASSES, DIMENSION = 100, 512
TRAIN, TEST = 50_000, 10_000
IMPORTED = 200_000
PATIENTS, EACH, REFITTED = 2_000, 10, 20
BINS = 15
PROBEKIT = str(Path(sys.executable).with_name("probekit"))
COPY = """
import hashlib, os, sys
import numpy as np
rows = np.load(sys.argv[1])
hashlib.sha256(rows).hexdigest()
with open(sys.argv[2], "wb") as file:
    file.write(rows)
    file.flush()
    os.fsync(file.fileno())
"""


def clusters(rows: int, *, seed: int, dimension: int = DIMENSION, classes: int = CLASSES) -> tuple[Any, Any]:
    """Rows around one centre per class, as an encoder gives them: a common offset, float32."""
    centres = np.random.default_rng(0).standard_normal((classes, dimension), dtype=np.float32) * np.float32(0.12)
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    noise = generator.standard_normal((rows, dimension), dtype=np.float32)
    return noise + centres[labels] + np.float32(0.5), labels


def by_ridge() -> None:
    """Choose, fit and judge."""
    rows, labels = clusters(TRAIN, seed=1)
    test, truth = clusters(TEST, seed=2)
    with tempfile.TemporaryDirectory(prefix="probekit-probe-") as name:
        store = DiskStore(Path(name))
        store.adopt(EmbeddingSet.from_numpy(rows, labels), "train")
        store.adopt(EmbeddingSet.from_numpy(test, truth), "test")
        grid = decompose(statistics(rows, labels, Design(DIMENSION, CLASSES, "raw", "free"))).grid()
        found: dict[str, Any] = {}

        def ours() -> None:
            found["ours"] = probekit.probe(store.open("train"), test=store.open("test"))

        def ridges() -> None:
            model = RidgeClassifierCV(alphas=grid * TRAIN).fit(rows, labels)
            guessed = model.decision_function(test)
            found["ridge"] = float(np.mean(guessed.argmax(axis=1) == truth))
            top_k_accuracy_score(truth, guessed, k=5, labels=np.arange(CLASSES))
            confusion_matrix(truth, guessed.argmax(axis=1))
            metrics.calibration(guessed, truth)

        def logistic() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = LogisticRegression().fit(rows, labels)
            found["logistic"] = model.score(test, truth)

        own, theirs = race(ours, ridges, repeats=3)
        alone = seconds(logistic)
    told = {"unit": "seconds", "ridges": len(grid)}
    accuracies = [round(found["ours"].accuracy.value, 4), round(found["ridge"], 4)]
    report("probe, times faster than RidgeClassifierCV and metrics", theirs, own, bar=10, accuracy=accuracies, **told)
    accuracies = [accuracies[0], round(found["logistic"], 4)]
    report("probe, times faster than one LogisticRegression", alone, own, bar=3, accuracy=accuracies, **told)


def by_import() -> None:
    """Bring vectors in, sealed."""
    rows, labels = clusters(IMPORTED, seed=3)
    with tempfile.TemporaryDirectory(prefix="probekit-probe-") as name:
        place = Path(name)
        np.save(place / "vectors.npy", rows)
        np.save(place / "labels.npy", labels)
        (place / "copy.py").write_text(COPY)
        numbers = iter(range(100))

        def ours() -> None:
            cache = str(place / f"cache-{next(numbers)}")
            given = ["--labels", str(place / "labels.npy"), "--cache", cache, "--json"]
            _done([PROBEKIT, "import", str(place / "vectors.npy"), *given])

        def theirs() -> None:
            copy = place / f"copy-{next(numbers)}"
            _done([sys.executable, str(place / "copy.py"), str(place / "vectors.npy"), str(copy)])
            copy.unlink()

        own, plain = race(ours, theirs, repeats=3, choose=min)
    megabytes = rows.nbytes // 10**6
    report("import, over hashing, writing and syncing", own, plain, bar=4, better="lower", megabytes=megabytes)


def _done(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def by_groups() -> None:
    """Leave every patient out."""
    rows, labels = clusters(PATIENTS * EACH, seed=4)
    patients = np.repeat(np.arange(PATIENTS), EACH)
    design = Design(DIMENSION, CLASSES, "raw", "free")
    whole = statistics(rows, labels, design)
    grid = decompose(whole).grid()
    found: dict[str, Any] = {}

    def ours() -> None:
        path = decompose(statistics(rows, labels, design))
        found["ours"] = leave_groups_out(path, rows, labels, groups=patients, ridges=grid)

    def refit(patient: int) -> float:
        """The squared error of one patient at one ridge in the middle; all 45 are fitted."""
        others = patients != patient
        sums = statistics(rows[others], labels[others], design)
        heads = [head_of(fit(sums, float(ridge))) for ridge in grid]
        left = np.stack([scores(head, rows[~others]) for head in heads])
        return float(np.square(left - np.eye(CLASSES)[labels[~others]]).sum(axis=(1, 2))[len(grid) // 2])

    own = averages.median(seconds(ours) for _ in range(3))
    theirs = seconds(lambda: [refit(patient) for patient in range(REFITTED)]) / REFITTED * PATIENTS
    apart = _apart(partial(refit, 0), rows, labels, patients, design, grid)
    told = {"unit": "seconds", "patients": PATIENTS, "ridges": len(grid), "measured": REFITTED, "apart": apart}
    report("leave-one-patient-out, times faster than refitting", theirs, own, bar=100, **told)


def _apart(refitted: Callable[[], float], rows: Any, labels: Any, patients: Any, design: Design, grid: Any) -> float:
    """How far the closed form is from refitting for the first patient, of its squared error."""
    path, middle = decompose(statistics(rows, labels, design)), len(grid) // 2
    left = left_out_scores(path, rows, labels, ridge=float(grid[middle]), groups=patients)[patients == 0]
    closed = float(np.square(left - np.eye(CLASSES)[labels[patients == 0]]).sum())
    truth = refitted()
    return abs(closed - truth) / truth


def by_calibration() -> None:
    """Chances that are as good as their best."""
    folder = install("fashion-mnist", DiskStore().root)
    pixels = {
        split: (
            np.load(folder / f"{split}-images.npy").reshape(-1, 784).astype(np.float32) / np.float32(255),
            np.load(folder / f"{split}-labels.npy").astype(np.int64),
        )
        for split in ("train", "test")
    }
    test, truth = pixels["test"]
    for count in (4_000, 20_000):
        some = np.random.default_rng(0).permutation(len(pixels["train"][0]))[:count]
        found = probekit.probe(tuple(one[some] for one in pixels["train"]), test=(test, truth))
        guessed = scores(found.head, test)
        best = best_temperature(guessed, truth)
        ours, theirs = (
            metrics.calibration(guessed, truth, bins=BINS, temperature=one).error for one in (found.temperature, best)
        )
        told = {"rows": count, "temperatures": [round(found.temperature, 4), round(best, 4)], "bins": BINS}
        report(
            "calibration error, over a temperature fitted on the test rows",
            ours,
            theirs,
            bar=1.2,
            better="lower",
            **told,
        )


PARTS = {"ridge": by_ridge, "import": by_import, "groups": by_groups, "calibration": by_calibration}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
    finish()
