"""Runs that several tests look at, trained once and copied."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probekit import Cache, Run
from probekit.runs.verify import VerifyResult, verify_run
from tests.runs.examples import make_run
from tests.runs.forging import Forgery

OPTIONS: dict[str, dict[str, Any]] = {
    "ridge": {"ridge": 0.1},
    "auto": {},
    "logistic": {"head": "logistic", "C": 1.0},
    "network": {"network": "mlp:4", "ridge": 0.1},
}


@dataclass(frozen=True)
class Story:
    """A run from which north was unlearned, as somebody knows it who noted its fingerprint."""

    root: Path
    fingerprint: str
    request: tuple[str, ...] = ("client=north",)

    @property
    def folder(self) -> Path:
        return self.root / "runs" / "a"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def run(self) -> Run:
        return Run(self.folder, cache=self.cache)

    def forgery(self) -> Forgery:
        return Forgery.read(self.folder, self.cache)

    def verify(self, *, noted: bool = True, asked: bool = True, **known: Any) -> VerifyResult:
        if noted:
            known.setdefault("fingerprint", self.fingerprint)
        if asked:
            known.setdefault("forgot", self.request)
        return verify_run(self.folder, cache=Cache(self.cache, during_erasure=True), **known)

    def codes(self) -> tuple[int, int, int]:
        """With the fingerprint and the request, with either alone."""
        return (
            self.verify().exit_code,
            self.verify(asked=False).exit_code,
            self.verify(noted=False).exit_code,
        )


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Story]:
    """The template of each kind of run, made when it is first asked for."""
    made: dict[str, Story] = {}

    def make(kind: str) -> Story:
        if kind not in made:
            root = tmp_path_factory.mktemp(kind)
            run = make_run(root / "runs" / "a", cache=root / "cache", **OPTIONS[kind])
            run.unlearn(client="north")
            made[kind] = Story(root, run.fingerprint)
        return made[kind]

    return make


@pytest.fixture
def story(stories: Callable[[str], Story], tmp_path: Path) -> Callable[[str], Story]:
    """story("ridge"): a copy of a run of this kind with its cache."""

    def copy(kind: str = "ridge") -> Story:
        template = stories(kind)
        root = tmp_path / "story"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(template.root, root)
        return Story(root, template.fingerprint)

    return copy
