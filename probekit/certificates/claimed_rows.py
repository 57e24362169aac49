"""The certified rows of an evaluation set, counted by the verifier's own route."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from probekit.certificates.agreement import Agreement
from probekit.certificates.second_look import SecondLook
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, Finding
from probekit.linear.design import Design
from probekit.linear.statistics import row_blocks
from probekit.models.heads import Head
from probekit.values import EmbeddingSet

BLOCK = 4096


def judge_rows(said: Agreement, look: SecondLook, head: Head, rows: EmbeddingSet, design: Design) -> Finding:
    """Whether so many rows keep their class, and scores are off by no more than is claimed."""
    same = other = 0
    least, most = [np.zeros(0)], [np.zeros(0)]
    for columns, classes in _columns(head, rows, design, look):
        kept, lost, low, high = look.rows(columns, classes)
        same, other = same + int(kept.sum()), other + int(lost.sum())
        least.append(low)
        most.append(high)
    low, high = np.concatenate(least), np.concatenate(most)
    counts = [said.certified, said.plain, *([] if said.curved is None else [said.curved])]
    claimed = f"{said.certified} of {said.rows}"
    found = f"{same} to {len(rows) - other} of {len(rows)}"
    false = max(counts) > len(rows) - other
    proven = max(counts) <= same
    if len(low):
        for claim, measure in ((said.median_bound, np.median), (said.largest_bound, np.max)):
            false = false or bool(measure(low) > claim)
            proven = proven and bool(measure(high) <= claim)
    verdict = FALSE if false else PROVEN if proven else INTACT
    return Finding(
        "agreement", verdict, claimed, found, "numbers that rounding spoils less" if verdict == INTACT else ""
    )


def kept_and_lost(look: SecondLook, head: Head, rows: EmbeddingSet, design: Design) -> tuple[int, int]:
    """How many rows certainly keep their class at the minimum, and how many certainly do not."""
    kept = lost = 0
    for columns, classes in _columns(head, rows, design, look):
        same, other, _, _ = look.rows(columns, classes)
        kept, lost = kept + int(same.sum()), lost + int(other.sum())
    return kept, lost


def _columns(
    head: Head, rows: EmbeddingSet, design: Design, look: SecondLook
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Rows as the loss sees them, and the class that the head gives each."""
    plain = Design(design.dimension, design.classes, view=design.view)
    for _, block in row_blocks(rows.embeddings, plain, chunk_rows=BLOCK):
        seen = np.array(block, dtype=np.float64)
        classes = np.argmax(seen @ head.params[:-1] + head.params[-1], axis=1)
        if look.loss.bias:
            yield np.hstack([seen, np.ones((len(seen), 1))]), classes
        elif look.loss.centre is not None:
            yield seen - np.ldexp(look.loss.centre, look.loss.half), classes
        else:
            yield seen, classes
