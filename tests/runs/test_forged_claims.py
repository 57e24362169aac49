"""Every claim of a certificate, forged alone by somebody who owns every file and computes every digest anew: false.

The forged certificate stands in its run, its openings are sealed afresh and the ledger's chain names it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certificate import SERVER, Certificate, certificate_text, read_certificate, signed_bytes
from probekit.certificates.sealing import sealed
from probekit.custody.accounting import ReleaseNoise
from probekit.custody.signatures import new_private_key, public_key_of, raw_public_key, sign
from probekit.runs.asking import petition
from probekit.runs.folder import RunFolder
from probekit.runs.openings import certificate_openings, write_openings
from probekit.runs.verification import VerifyResult
from tests.runs.test_story import certificate, moved, rewrite, whole
from tests.shelves import shelve
from tests.verdicts import false

KEY = new_private_key()
OPTIONS: dict[str, Any] = {"clients": 4, "server_share": 0.2, "ridge": 0.01}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "statistics": ({}, {"method": "fedremoval-line", "test": "test"}),
    "release": ({"release": 1e-3}, {}),
    "objective": ({"objective_noise": 2.0}, {}),
    "signed": ({"client_keys": {"2": raw_public_key(KEY, private=True)}}, {"key": KEY}),
}
"""How runs are trained, and client 2 forgotten, whose certificates together make every claim."""
NOT_ITS_OWN = {
    "anchor": "given by who verifies",
    "current": "said of the run: a certificate says nothing of later states",
}


@dataclass(frozen=True)
class Home:
    """The runs, and their cache."""

    path: Path

    def verify(self, kind: str, **more: Any) -> VerifyResult:
        store = DiskStore(self.path / "cache")
        run = Run.open(self.path / kind, store=store)
        return run.verify(certificate(run.path), rows=True, test="test", **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("made")
    store = DiskStore(home / "cache")
    put = shelve.__wrapped__(store)  # type: ignore[attr-defined]
    put("rows", rows=160)
    put("test", rows=40, seed=5)
    for name, (training, removal) in KINDS.items():
        run = Run.train(home / name, "rows", store=store, **OPTIONS, **training)
        asked = []
        if name == "signed":
            run.prove("2", home / "two.json")
            asked = [petition(home / "two.json", home / "petition.json", key=KEY)]
        run.unlearn("2", asked=asked, **removal)
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Home:
    """A copy of all that, to be forged."""
    shutil.copytree(made, tmp_path / "home")
    return Home(tmp_path / "home")


Change = Callable[[Certificate], Certificate]


def forge(run: Path, change: Change, details: Mapping[str, Any] | None = None, *, signed: bool = False) -> None:
    """Another certificate for state 2, which the ledger names."""
    forged = sealed(change(replace(whole(run), openings={})))
    signature = sign(signed_bytes(forged), KEY) if signed else None
    certificate(run).write_text(certificate_text(forged, signature=signature))
    write_openings(certificate_openings(run, 2), forged.openings)
    entries = RunFolder.open(run).entries()
    [number] = [one.number for one in entries if one.details.get("certificate")]
    more = {"certificate": forged.digest, "request": dict(forged.request), **(details or {})}
    rewrite(run, number, lambda fields: {**fields, "details": {**fields["details"], **more}})


def forging(change: Change) -> Callable[[Path], None]:
    return lambda run: forge(run, change)


def bounds(**changes: Any) -> Change:
    return lambda one: replace(one, bounds=replace(one.bounds, **changes))


def part(name: str, **changes: Any) -> Change:
    """A claim of several numbers with some of them changed."""
    return lambda one: replace(one, **{name: replace(getattr(one, name), **changes)})


def privacy(**changes: Any) -> Change:
    return lambda one: replace(one, privacy={**(one.privacy or {}), **changes})


def other_digest(place: str, name: str) -> Change:
    def changed(one: Certificate) -> Certificate:
        more: dict[str, Any] = {place: {**getattr(one, place), name: "0" * 64}}
        return replace(one, **more)

    return changed


def larger_release(one: Certificate) -> Certificate:
    """Noise of another sigma than the ledger fixed; every number of the claim fits it."""
    said, noise = dict(one.privacy or {}), ReleaseNoise.of(1.0)
    parameters, bound = int(str(said["parameters"])), float(str(said["bound"]))
    fitting = {"rho": noise.cost(bound, parameters), "largest_bound": noise.largest_bound(parameters)}
    return replace(one, privacy={**said, **noise.plain, **fitting})


def another_transition(run: Path) -> None:
    path = run / "transitions" / "0002.json"
    plain = json.loads(path.read_text())
    plain["changes"][0]["old"] = "0" * 64
    path.write_text(json.dumps(plain))


def another_petition(one: Certificate) -> Certificate:
    request: Any = json.loads(json.dumps(one.request))
    request["asked"][0][1]["forged"] = "more than the client signed"
    return replace(one, request=request)


def another_design(one: Certificate) -> Certificate:
    """A loss without the intercept that the head has."""
    said: Any = one.objective
    return replace(one, objective={**said, "design": {**said["design"], "intercept": "none"}})


def another_signature(run: Path) -> None:
    said, _ = read_certificate(certificate(run).read_text())
    certificate(run).write_text(certificate_text(said, signature=sign(b"something else", KEY)))


FORGERIES: dict[str, list[tuple[str, Callable[[Path], None]]]] = {
    "request": [
        ("statistics", lambda run: forge(run, lambda one: replace(one, request={**one.request, "clients": ["1"]})))
    ],
    "asked": [("signed", lambda run: forge(run, another_petition, signed=True))],
    "partition": [("statistics", moved)],
    "method": [("statistics", lambda run: forge(run, lambda one: replace(one, method="exact")))],
    "transition": [("statistics", another_transition)],
    "signature": [("signed", another_signature)],
    "statements": [
        ("statistics", lambda run: forge(run, lambda one: replace(one, assumptions=one.assumptions[1:]))),
        ("statistics", lambda run: forge(run, lambda one: replace(one, caveats=one.caveats[:-1]))),
        ("objective", lambda run: forge(run, lambda one: replace(one, assumptions=one.assumptions[:-1]))),
    ],
    "checkable-by": [("statistics", lambda run: forge(run, lambda one: replace(one, checkable_by=SERVER)))],
    "head": [("statistics", forging(other_digest("after", "head")))],
    "before": [("statistics", forging(other_digest("before", "head")))],
    "statistics": [("statistics", forging(other_digest("after", "statistics")))],
    "retained": [
        ("statistics", lambda run: forge(run, lambda one: replace(one, retained={**one.retained, "0": 5}))),
        ("statistics", lambda run: forge(run, lambda one: replace(one, retained={**one.retained, "2": 5}))),
    ],
    "objective": [
        ("statistics", forging(another_design)),
        ("statistics", forging(lambda one: replace(one, objective={**one.objective, "view": "centre"}))),
    ],
    "residual": [
        ("statistics", forging(part("residual", norm=0.0, rounding=0.0))),
        ("statistics", forging(part("residual", by_class=(0.0,) * 3, rounding_by_class=(0.0,) * 3))),
    ],
    "curvature": [("statistics", forging(part("curvature", value=100.0)))],
    "weights": [("statistics", forging(bounds(weights=1e-12)))],
    "excess-loss": [("statistics", forging(bounds(excess_loss=1e-12)))],
    "outputs": [("statistics", forging(bounds(outputs=1e-12)))],
    "loss-change": [("statistics", forging(bounds(loss_change=-1.0)))],
    "agreement": [
        ("statistics", forging(part("agreement", certified=41))),
        ("statistics", forging(part("agreement", median_bound=1e-12))),
        ("statistics", forging(part("agreement", largest_bound=1e-12))),
        ("statistics", forging(part("agreement", rows=39))),
    ],
    "privacy": [
        ("release", forging(privacy(epsilon=1e-3))),
        ("release", forging(privacy(delta=1e-30))),
        ("release", forging(privacy(rho=0.0))),
        ("release", forging(privacy(bound=0.0))),
        ("release", forging(privacy(largest_bound=1.0))),
        ("release", forging(privacy(parameters=1))),
        ("release", forging(privacy(caveats=[]))),
        ("objective", forging(privacy(epsilon=1e-6))),
    ],
    "release": [("release", forging(larger_release))],
    "linear-term": [
        (
            "objective",
            lambda run: forge(run, lambda one: replace(one, objective={**one.objective, "objective_sigma": 9.0})),
        )
    ],
}
ALSO = {
    "request": {"transition", "retained"},  # the slot that was emptied, the clients who stay are not the request's
    "retained": {"request"},
    "linear-term": {"privacy"},  # which names the same sigma
    "privacy": {"release"},  # the ledger names the same epsilon and delta
    "partition": {"retained", "statistics"},
    "objective": {"statistics", "residual", "weights", "excess-loss", "curvature", "loss-change", "outputs"},
    "curvature": {"weights"},
}
"""What contradicts a forgery besides the claim that was forged."""
CASES = [(claim, number) for claim, forgeries in FORGERIES.items() for number in range(len(forgeries))]


def test_every_claim_there_is_has_its_forgery(home: Home) -> None:
    """C5: and where all evidence is given, every one is proven."""
    claims = set()
    for kind in KINDS:
        anchors = [one.digest for one in RunFolder.open(home.path / kind).entries()]
        found = home.verify(kind, anchors=anchors, public_key=public_key_of(KEY) if kind == "signed" else None)
        assert [one for one in found.findings if one.verdict != "proven" and one.name not in MORE_ROWS] == []
        claims |= {one.name for one in found.findings}
    assert claims - set(NOT_ITS_OWN) == set(FORGERIES)


MORE_ROWS = {"retained"}
"""What a certificate without names leaves open, whatever is given."""


@pytest.mark.parametrize(("claim", "number"), CASES)
def test_a_claim_forged_alone_is_false(home: Home, claim: str, number: int) -> None:
    """C5: whatever else fits, the claim that was forged is named."""
    kind, attack = FORGERIES[claim][number]
    assert false(home.verify(kind)) == set()
    attack(home.path / kind)
    found = false(home.verify(kind))
    assert claim in found
    assert found <= {claim, *ALSO.get(claim, set())}
