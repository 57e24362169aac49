"""Every snippet of the pages runs, every id in them is understood, and pages stay short."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from probekit.registry import BACKBONES, Name

HERE = Path(__file__).parents[1]
PAGES = [HERE / "README.md", *sorted((HERE / "docs").glob("*.md"))]
EXAMPLES = sorted((HERE / "examples").glob("*.py"))
SNIPPET = re.compile(
    r"(<!-- (?P<mark>\w+) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```", re.DOTALL
)
SETUP = ("make ", "pip ", "git ", "cd ")


def snippets(page: Path, language: str) -> list[str]:
    """The runnable snippets of a page; those marked `hub` need a network."""
    return [
        match["code"]
        for match in SNIPPET.finditer(page.read_text())
        if match["language"] == language and match["mark"] != "hub"
    ]


SHELL = [PAGES[0], *(pytest.param(page, marks=pytest.mark.slow) for page in PAGES[1:])]


@pytest.mark.parametrize("page", SHELL, ids=[page.name for page in PAGES])
def test_shell_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    for code in snippets(page, "bash"):
        lines = [line for line in code.splitlines() if not line.startswith(SETUP)]
        script = "set -e\n" + "\n".join(lines)
        subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, code in enumerate(snippets(page, "python")):
        script = tmp_path / f"snippet{number}.py"  # functions are identified by their source
        script.write_text(code)
        runpy.run_path(str(script), run_name="snippet")


def test_rows_are_passed_on_to_a_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The snippet runs with a stand-in: no tracker is a dependency."""
    logged: list[dict[str, float]] = []
    tracker = SimpleNamespace(
        init=lambda project: logged.append({project: 0.0}), log=logged.append, finish=tmp_path.touch
    )
    monkeypatch.setitem(sys.modules, "trackio", tracker)
    page = (HERE / "docs" / "probe.md").read_text()
    (code,) = (match["code"] for match in SNIPPET.finditer(page) if "trackio" in match["code"])
    script = tmp_path / "snippet.py"
    script.write_text(code)
    runpy.run_path(str(script))
    started, *rows = logged
    assert list(started) == ["digits"]
    assert len(rows) == 4
    assert rows[0]["pixels:8 ridge/low"] < rows[0]["pixels:8 ridge/value"]
    assert next(iter(rows[-1])).startswith("pixels:8 random vectors")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_run(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")


def test_backbone_ids_are_understood() -> None:
    table = (HERE / "docs" / "backbones.md").read_text().split("## Views")[0]
    ids = [text for row in table.splitlines() if row.startswith("| ")
           for text in re.findall(r"`([^`#]\S+)`", row)]  # fmt: skip
    assert len(ids) >= 20
    for text in ids:
        name = Name.parse(text)
        assert name.scheme in BACKBONES.names(), text
        assert str(name) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_reference_is_what_the_code_gives() -> None:
    script = runpy.run_path(str(HERE / "docs" / "reference.py"))
    assert script["PAGE"].read_text() == script["reference"](), "run `python docs/reference.py`"
