"""Experiment files: what is read of them, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probekit.bench.experiment import Experiment
from probekit.bench.reading import experiment_of, names, narrowed, read
from probekit.bench.rows import some_rows
from probekit.errors import InputError, NotFoundError, ProbekitError

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"metrcs": []}, "An experiment has no key 'metrcs'. Known and close: metrics"),
    "part's key": ({"data": {"rws": 3}}, "has no key 'rws'. Known and close: rows"),
    "setting's key": ({"settings": [{"name": "a", "modl": {}}]}, "has no key 'modl'. Known and close: model"),
    "type": ({"clients": {"number": "five"}}, "number is a whole number; found 'five'."),
    "list": ({"methods": "all"}, "methods is a list; found 'all'."),
    "table": ({"data": 3}, "data is a table; found 3."),
    "method": ({"methods": ["exakt"]}, "There is no unlearning method 'exakt'. Known and close: exact"),
    "method's option": ({"methods": ["fedremoval-pcg:runds=3"]}, "has no option 'runds=3'"),
    "trainer": ({"model": {"trainer": "fedavrg"}}, "There is no training method 'fedavrg'"),
    "partition": ({"clients": {"partition": "dirichle:1"}}, "There is no partition scheme 'dirichle:1'"),
    "trigger": ({"poison": {"trigger": "sqare:size=3"}}, "sqare"),
    "request": ({"request": {"what": "clint"}}, "request.what is one of client, samples, class; found 'clint'."),
    "metric": ({"metrics": ["utilty"]}, "found 'utilty'. Known and close: utility"),
    "kind": ({"model": {"kind": "hed"}}, "found 'hed'. Known and close: head"),
    "aim": ({"tune": {"aim": "orakel"}}, "tune.aim is one of oracle, blind; found 'orakel'."),
    "budget": ({"tune": {"budget": 0}}, "it is 1 or more; found 0."),
    "ridge": ({"model": {"ridge": -1}}, "A ridge is 0 or more; found -1"),
    "seeds": ({"seeds": []}, "at least one; found []."),
    "sweep": ({"sweep": {"kez": "a", "values": [1]}}, "sweep has a key and a list of values; found kez, values."),
    "swept key": ({"sweep": {"key": "clients.numbr", "values": [5]}}, "has no key 'numbr'"),
    "one client": ({"clients": {"number": 1}}, "clients.number must be 2 or more"),
    "no settings": ({"settings": []}, "has no settings"),
    "the same name": ({"settings": [{"name": "a"}, {"name": "a"}]}, "are called 'a'"),
    "no source": ({"published": {"values": {"exact": [1, 2]}}}, "published.values need published.source"),
    "cached": ({"data": {"cached": "mine"}}, "give both"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_told_in_one_sentence(mistake: str) -> None:
    content, told = WRONG[mistake]
    with pytest.raises(ProbekitError) as caught:
        experiment_of({"name": "mine", **content})
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no experiment 'digts'"):
        read("digts")
    with pytest.raises(NotFoundError, match="There is no experiment file"):
        read(str(tmp_path / "no.toml"))
    (tmp_path / "bad.toml").write_text("seeds = [")
    with pytest.raises(InputError, match="is not TOML"):
        read(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize("scale", ["usual", "quick", "full"])
def test_every_experiment_of_the_package_can_be_read(scale: str) -> None:
    for name in names():
        found = read(name, scale=scale)
        assert found.title
        assert found.name == name
        assert all(found.methods_of(setting) for setting in found.settings)


def test_settings_sweeps_and_scales() -> None:
    content = {
        "name": "mine",
        "clients": {"number": 5},
        "settings": [{"name": "a"}, {"name": "b", "data": {"rows": 100}, "quick": {"data": {"rows": 10}}}],
        "sweep": {"key": "model.ridge", "values": [0.1, 1]},
        "quick": {"seeds": [7], "tune": {"budget": 2}},
    }
    usual, quick = experiment_of(content), experiment_of(content, scale="quick")
    assert [one.name for one in usual.settings] == ["a ridge=0.1", "a ridge=1", "b ridge=0.1", "b ridge=1"]
    assert [one.model.ridge for one in usual.settings] == [0.1, 1.0, 0.1, 1.0]
    assert [one.data.rows for one in usual.settings] == [None, None, 100, 100]
    assert [one.x for one in usual.settings] == [0.1, 1.0, 0.1, 1.0]
    assert (quick.seeds, quick.tune.budget, quick.settings[2].data.rows) == ((7,), 2, 10)
    assert usual.seeds == (0, 1, 2)


def test_narrowing_keeps_the_baselines() -> None:
    whole = experiment_of({"name": "mine", "settings": [{"name": "a"}, {"name": "b"}]})
    some = narrowed(whole, ["b", "fedremoval-line"])
    assert [one.name for one in some.settings] == ["b"]
    asked = some.methods_of(some.settings[0])
    assert "fedremoval-line" in asked
    assert "fedremoval-pcg" not in asked
    assert {"exact", "retrain", "retrain-fedavg"} <= set(asked)
    with pytest.raises(NotFoundError, match="no setting or method 'c'"):
        narrowed(whole, ["c"])
    assert isinstance(some, Experiment)


@pytest.mark.parametrize("scale", ["usual", "quick", "full"])
def test_settings_of_other_experiments_are_taken_as_they_are(scale: str) -> None:
    paper, networks, probes = (read(name, scale=scale) for name in ("paper", "networks", "probes"))
    others = {one.name: one for one in (*networks.settings, *probes.settings)}
    assert len(paper.settings) == 8
    assert all(others[one.name] == one for one in paper.settings)
    with pytest.raises(InputError, match=r"networks has no setting 'mnits' to include. .*mnist"):
        experiment_of({"name": "mine", "include": {"networks": ["mnits"]}})
    with pytest.raises(InputError, match="include is a table of experiments"):
        experiment_of({"name": "mine", "include": ["networks"]})
    with pytest.raises(InputError, match="paper includes others itself"):
        experiment_of({"name": "mine", "include": {"paper": ["mnist"]}})


def test_a_share_of_one_is_all_rows() -> None:
    assert some_rows(7, 1.0, 0).tolist() == list(range(7))
    assert some_rows(7, 7, 0).tolist() == list(range(7))
    assert len(some_rows(10, 0.2, 0)) == 2
    assert len(some_rows(10, 3, 0)) == 3
    with pytest.raises(InputError, match="8 rows were asked for of 7"):
        some_rows(7, 8, 0)
    whole = {one.data.rows for one in read("networks", scale="full").settings}
    assert whole == {1.0}
