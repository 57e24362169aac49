"""`probekit bench`: what it prints and writes."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from probekit import registry
from tests.cli.conftest import Command

EXAMPLE = Path(__file__).parents[2] / "examples" / "06_own_method"
MINE = """
title = "Mine"
methods = ["fedremoval"]
seeds = [0]
data = {set = "digits", backbone = "pixels:8", rows = 300, test_rows = 100}
poison.trigger = "square:size=2"
model = {ridge = 0.001, trainer = "fedavg:rounds=5,local_steps=5"}
published = {source = "Somebody, 2020", values = {fedremoval = [[80.5, 0.25], 3]}}
"""


def test_run_show_and_compare(command: Command, tmp_path: Path) -> None:
    Path("mine.toml").write_text(MINE)
    planned = command("bench", "run", "mine.toml", "--dry-run", "--json")
    assert planned.value["estimate"]["missing"] > 0
    assert not Path("bench").exists()
    done = command("bench", "run", "mine.toml", "--jobs", 1, "--json")
    assert done.code == 0, done.message
    assert not done.value["failed"]
    text = Path("bench/mine/tables.md").read_text()
    assert "80.5 ± 0.25" in text
    assert "Somebody, 2020" in text
    assert "Somebody, 2020" in Path("bench/mine/tables.tex").read_text()
    shown = command("bench", "show", "bench/mine")
    assert "fedremoval" in shown.out
    other = command("bench", "run", "mine.toml", "--only", "fedremoval-line", "--jobs", 1, "--out", "other", "-q")
    assert other.code == 0, other.message
    both = command("bench", "compare", "bench/mine", "other", "--json").value
    assert both["only_first"] == ["mine: fedremoval"]
    assert both["only_second"] == ["mine: fedremoval-line"]
    assert all(one["first"] == one["second"] for one in both["differences"])


def test_bad_input(command: Command) -> None:
    assert command("bench", "run", "digts").code == 3
    assert command("bench", "run", "digits", "--quick", "--full").code == 2
    assert command("bench", "show", "nowhere").code == 3
    Path("mine.toml").write_text(MINE + "\n[tun]\nbudget = 2\n")
    told = command("bench", "run", "mine.toml")
    assert told.code == 2
    assert "An experiment has no key 'tun'. Known and close: tune" in told.message
    Path("broken").mkdir()
    Path("broken/result.json").write_text("{}")
    assert command("bench", "show", "broken").code == 4


def test_tuned_takes_over_what_another_outcome_chose(command: Command) -> None:
    Path("mine.toml").write_text(MINE.replace('"fedremoval"]', '"fedremoval", "sga"]'))
    first = command("bench", "run", "mine.toml", "--jobs", 1, "--tune", 2, "--out", "first", "-q")
    assert first.code == 0, first.message
    outcome = json.loads(Path("first/result.json").read_text())
    [chosen] = [one for one in outcome["lines"] if one["method"] == "sga"]
    chosen["spec"] = "sga:steps=3"  # whatever it chose: another than the default
    Path("first/result.json").write_text(json.dumps(outcome))
    done = command("bench", "run", "mine.toml", "--jobs", 1, "--seeds", 1, "--tuned", "first", "--json")
    assert done.code == 0, done.message
    lines = {one["method"]: one for one in json.loads(Path("bench/mine/result.json").read_text())["lines"]}
    assert lines["sga"]["spec"] == "sga:steps=3"
    assert lines["sga"]["cells"][0]["seed"] == 1
    assert "first" in Path("bench/mine/tables.md").read_text()
    for options, code, text in (
        (["--tuned", "nowhere"], 3, "nowhere"),
        (["--tuned", "first", "--tune", 2], 2, "Leave --tune and --aim out"),
        (["--tuned", "first", "--aim", "blind"], 2, "Leave --tune and --aim out"),
    ):
        told = command("bench", "run", "mine.toml", *options)
        assert (told.code, text in told.message) == (code, True), told.message
    Path("other.toml").write_text(MINE.replace("[0]", "[2]"))
    told = command("bench", "run", "other.toml", "--tuned", "first")
    assert told.code == 2
    assert "first tuned none of other" in told.message


def installed(folder: Path, project: dict[str, Any], modules: dict[str, str]) -> None:
    """A distribution as pip leaves it in a folder."""
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    (notes := folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info").mkdir()
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["probekit.methods"].items()
    (notes / "entry_points.txt").write_text("[probekit.methods]\n" + "".join(f"{a} = {b}\n" for a, b in points))


def test_a_method_of_ones_own_appears_by_its_entry_point_alone(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [name for name in registry.methods.names() if name != "example-pga"]
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    modules = {name: (EXAMPLE / f"{name}.py").read_text() for name in project["tool"]["setuptools"]["py-modules"]}
    installed(tmp_path / "site", project["project"], modules)
    Path("mine.toml").write_text(MINE.replace('methods = ["fedremoval"]', f"without = {others}"))
    before = command("bench", "run", "mine.toml", "--jobs", 1, "--out", "before", "-q")
    assert before.code == 0, before.message
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    done = command("bench", "run", "mine.toml", "--jobs", 1, "-q")
    assert done.code == 0, done.message
    rows = [
        path.read_text().count("\n| example-pga |") for path in (Path("before/tables.md"), Path("bench/mine/tables.md"))
    ]
    assert rows == [0, 1]
    told = json.loads(Path("bench/mine/result.json").read_text())
    assert told["methods"]["example-pga"]["origin"] == "probekit-pga 0.1.0"
    [line] = [one for one in told["lines"] if one["method"] == "example-pga"]
    assert "numbers" in line["cells"][0]


def test_a_broken_plugin_is_named_with_its_distribution(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"probekit.methods": {"broken": "broken_bench_plugin:Method"}}
    project = {"name": "broken-bench-thing", "version": "1.0", "entry-points": points}
    installed(tmp_path / "site", project, {"broken_bench_plugin": "raise RuntimeError('no licence')\n"})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    for asked in ("broken", "all"):
        Path("mine.toml").write_text(MINE.replace('"fedremoval"]', f'"{asked}"]'))
        told = command("bench", "run", "mine.toml", "--dry-run")
        assert told.code == 3
        assert "'broken' of broken-bench-thing cannot be imported: RuntimeError: no licence" in told.message
        assert "Traceback" not in told.message
    without = MINE.replace('methods = ["fedremoval"]', 'without = ["broken"]')
    Path("mine.toml").write_text(without)
    assert command("bench", "run", "mine.toml", "--dry-run").code == 0  # the rest can be run


def test_ls_names_every_experiment(command: Command) -> None:
    found = {one["name"] for one in command("bench", "ls", "--json").value["experiments"]}
    assert "digits" in found
