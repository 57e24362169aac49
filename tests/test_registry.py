"""Names that people type."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit import registry
from probekit.errors import InputError, NotFoundError
from probekit.registry import METHODS, TRAINERS, Name, Registry, configured, import_object, nearest
from probekit.unlearning.methods.ascent import GradientAscent
from probekit.unlearning.methods.federaser import FedEraser
from probekit.unlearning.methods.fedremoval import (
    AdamSteps,
    ConjugateGradient,
    FedRemoval,
    FedRemovalPcg,
    SgdSteps,
)
from probekit.unlearning.methods.rounds import Rounds

words = st.text("abcXYZ019-_./", min_size=1, max_size=20)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[metadata.EntryPoint]:
    """The entry points that are installed; add to it before asking a registry."""
    points: list[metadata.EntryPoint] = []
    registry._entry_points.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    return points


@given(
    st.sampled_from(["hf", "timm", "open_clip", "packaged"]),
    words,
    words | st.none(),
    st.booleans(),
)
def test_names_come_back(scheme: str, name: str, view: str | None, revised: bool) -> None:
    revision = "v1" if revised and scheme == "hf" else None
    parsed = Name(scheme, name, revision, view)
    assert Name.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pixels", Name("pixels")),
        ("pixels:16#rgb", Name("pixels", "16", None, "rgb")),
        ("hf:org/name@abc#layer:-2.cls", Name("hf", "org/name", "abc", "layer:-2.cls")),
        ("hf:./a@b/model@v2", Name("hf", "./a@b/model", "v2")),
        ("open_clip:ViT-B-32/tag", Name("open_clip", "ViT-B-32/tag")),
        ("timm:vit@home", Name("timm", "vit@home")),
        ("py:module:factory", Name("py", "module:factory")),
    ],
)
def test_parts_of_names(text: str, expected: Name) -> None:
    assert Name.parse(f" {text} ") == expected


@pytest.mark.parametrize("text", ["", "  ", "#cls", ":name"])
def test_a_name_without_a_scheme_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Name.parse(text)
    assert repr(text) in str(caught.value)


def test_unknown_names_suggest_near_ones(plugins: list[metadata.EntryPoint]) -> None:
    with pytest.raises(NotFoundError) as caught:
        registry.BACKBONES.get("open-clip")
    assert "open_clip" in str(caught.value)
    assert caught.value.exit_code == 3


def test_suggestions_are_near_and_few() -> None:
    assert "digits" in nearest("digitz", ["digits", "mnist"])
    many = [f"name{number:02}" for number in range(50)]
    assert sum(name in nearest("qqqq", many) for name in many) == registry.LISTED
    assert nearest("a", [])


def test_a_plugin_cannot_take_a_built_in_name(plugins: list[metadata.EntryPoint]) -> None:
    plugins += [metadata.EntryPoint(name, "pathlib:PurePath", "g") for name in ("ours", "theirs")]
    things = Registry("g", "thing", {"ours": "pathlib:Path"})
    assert things.names() == ["ours", "theirs"]
    assert things.get("ours") is Path
    assert things.get("theirs") is PurePath


@pytest.mark.parametrize("target", ["no.such.module:Thing", "pathlib:NoSuchThing"])
def test_a_broken_plugin_is_named(plugins: list[metadata.EntryPoint], target: str) -> None:
    plugins.append(metadata.EntryPoint("theirs", target, "g"))
    with pytest.raises(NotFoundError) as caught:
        Registry("g", "thing", {}).get("theirs")
    assert "theirs" in str(caught.value)


@pytest.mark.parametrize("kind", [registry.BACKBONES, registry.DATASETS, METHODS, TRAINERS])
def test_built_in_names_lead_somewhere(kind: Registry) -> None:
    assert all(callable(kind.get(name)) for name in kind.built_in)


def test_the_working_directory_is_searched_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    (tmp_path / "my_own_thing.py").write_text("def factory():\n    return 7\n")
    assert import_object("py:my_own_thing:factory")() == 7
    assert import_object("json:dumps") is json.dumps
    assert sys.path[-1] == str(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        import_object("py:my_own_thing:factry")
    assert "factory" in str(caught.value)


@pytest.mark.parametrize("text", ["py:", "py:module", "py::x", "py:module:"])
def test_incomplete_python_names_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        import_object(text)


def test_a_missing_module_is_not_found() -> None:
    with pytest.raises(NotFoundError) as caught:
        import_object("py:no_such_module_here:x")
    assert "no_such_module_here" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fedremoval", FedRemoval()),
        ("fedremoval:cg", FedRemoval(ConjugateGradient())),
        ("fedremoval:solver=sgd,steps=7,rate=0.5", FedRemoval(SgdSteps(steps=7, rate=0.5))),
        ("fedremoval:adam,weight-decay=1e-2", FedRemoval(AdamSteps(weight_decay=0.01))),
        ("fedremoval-pcg:3", FedRemovalPcg(rounds=3)),
        ("rounds:distance=1e-4,rounds=9", Rounds(1e-4, 9)),
        ("sga:5,max_norm=none,rate-scale=1", GradientAscent(5, 1.0, None)),
        ("federaser:lengths=mean", FedEraser(lengths="mean")),
    ],
)
def test_methods_are_configured_by_text(text: str, expected: object) -> None:
    assert configured(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("exact:1", "fedremoval-pcg:many", "fedremoval:rounds=3", "rounds:depth=2", "rounds:1,2"),
        *("federaser:lengths=none", "cf:none", "py:probekit.errors:InputError"),
    ],
)
def test_options_that_a_method_has_not_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        configured(text)


@pytest.mark.parametrize("text", ["fedremovel", "fedremoval:newton"])
def test_unknown_methods_and_solvers_are_not_found(text: str) -> None:
    with pytest.raises(NotFoundError):
        configured(text)
