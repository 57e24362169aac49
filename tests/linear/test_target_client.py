"""What clients with real targets send: roots of few rows, messages, and what no rows could have."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from probekit.errors import InputError
from probekit.linear.plausibility import implausible
from probekit.linear.target_client import arrays_of, client_target_statistics, design_of, fault_of, stats_of
from probekit.linear.targets import TargetDesign, TargetPart, TargetStats, target_statistics

Array = NDArray[np.float64]
DESIGN = TargetDesign(10, 3, targets="labels")


def some(rows: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(7)
    targets = (generator.random((rows, 3)) < 0.5).astype(float)
    targets[generator.random(targets.shape) < 0.3] = np.nan
    return generator.normal(size=(rows, 10)) + 2, targets


@pytest.mark.parametrize("rows", [1, 5, 6, 40])
def test_roots_are_the_sums_and_take_less_room(rows: int) -> None:
    X, Y = some(rows)
    sent, plain = client_target_statistics(X, Y, DESIGN), target_statistics(X, Y, DESIGN)
    rooted = 2 * rows < 13
    assert all(part.is_root for part in sent.parts.values()) == rooted
    assert sum(part.matrix.size for part in sent.parts.values()) <= (14 * rows if rooted else 14 * 14 * 3)
    assert (sent.count, implausible(sent, sent.count), implausible(plain)) == (plain.count, "", "")
    assert np.allclose(sent.by_label().energy, plain.by_label().energy)
    for one, other in zip(sent.by_label().parts.values(), plain.by_label().parts.values(), strict=True):
        assert np.allclose(one.joint, other.joint, atol=1e-12 * np.abs(other.joint).max())
    arrays = arrays_of(sent)
    again = stats_of(DESIGN, arrays)
    assert again.digest == sent.digest
    assert fault_of(arrays, sent.count, 11, 3) == ""


def test_what_no_rows_have_is_found() -> None:
    X, Y = some(40)
    honest = target_statistics(X, Y, DESIGN)
    pattern, part = next(iter(honest.parts.items()))

    def changed(matrix: Array, count: int = part.count, total: int = honest.count) -> str:
        parts = {**honest.parts, pattern: TargetPart(count, matrix)}
        return implausible(TargetStats(DESIGN, parts, total))

    assert implausible(honest, honest.count) == ""
    assert "count 7 rows" in implausible(honest, 7)
    assert "counts other rows" in changed(part.matrix, part.count - 1)
    assert "positive semidefinite" in changed(part.matrix - 2 * np.diag(np.diagonal(part.matrix)))
    lie = np.array(part.matrix)
    lie[-1, -1] += 1
    assert "not 0 or 1" in changed(lie)
    lie = np.array(part.matrix)
    lie[0, 1] += 1
    assert "not symmetric" in changed(lie)
    assert "NaN" in changed(np.where(np.eye(len(lie)), np.nan, lie))
    assert "do not count" in changed(np.array(part.matrix), total=10_000)
    few = client_target_statistics(X[:4], Y[:4], DESIGN)
    name, root = next(iter(few.parts.items()))
    turned = TargetStats(DESIGN, {**few.parts, name: TargetPart(root.count, -root.matrix, is_root=True)}, few.count)
    assert "triangular" in implausible(turned)


def test_messages_that_cannot_be_read_are_named() -> None:
    X, Y = some(40)
    arrays = arrays_of(target_statistics(X, Y, DESIGN))
    count = int(arrays["rows"][0])
    joint = next(name for name in arrays if name.startswith("joint-"))
    pattern = joint.partition("-")[2]
    assert "other rows" in fault_of(arrays, count + 1, 11, 3)
    assert "needs shape" in fault_of(arrays, count, 12, 3)
    assert "nothing else" in fault_of({name: one for name, one in arrays.items() if name != "rows"}, count, 11, 3)
    assert "nothing else" in fault_of({**arrays, "more": np.zeros(1)}, count, 11, 3)
    assert "not symmetric" in fault_of({**arrays, joint: np.triu(arrays[joint])}, count, 11, 3)
    assert "other rows" in fault_of({**arrays, f"count-{pattern}": np.array([-1])}, count, 11, 3)
    with pytest.raises(InputError, match="no statistics of real targets"):
        stats_of(DESIGN, {name: one for name, one in arrays.items() if not name.startswith("count-")})
    assert design_of(vars(DESIGN)) == DESIGN
    assert "targets" not in vars(design_of({"dimension": 3, "classes": 2}))
