"""`probekit summarize`, and what `train`, `unlearn` and `verify` say of its files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probekit.arrays import hex_id
from probekit.cache import Cache
from probekit.cli.main import run
from probekit.federated.transports.files import StatisticsFile
from probekit.runs.run import Run
from tests.runs.examples import CLASSES, embeddings, rows_of

PAGE = Path(__file__).parents[2] / "docs" / "statistics-files.md"
ROWS = embeddings(400)
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Call:
    """A command in a folder of its own, where the sets north, south and east are cached."""
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south", "east"):
        Cache().save(name, ROWS.take(rows_of(ROWS, name)))

    def command(*arguments: str) -> tuple[int, str]:
        code = run(list(arguments))
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return command


def test_from_sets_to_a_run_that_forgets(call: Call) -> None:
    for name in ("north", "south"):
        code, printed = call("summarize", name, "-o", f"{name}.safetensors")
        assert (code, printed.count("next: probekit train")) == (0, 1)
    files = ("north.safetensors", "south.safetensors")
    assert call("train", *files, "--run", "R", "--dry-run")[0] == 0
    assert call("train", *files, "--run", "R")[0] == 0
    assert Run("R").newest.rows.counts() == {"north": 99, "south": 106}
    shutil.rmtree(Cache().root)  # nobody is asked, and no row is looked for
    assert call("summarize", "east", "-o", "east.safetensors")[0] == 3
    assert call("unlearn", "R", "--client", "south", "--dry-run")[0] == 0
    code, printed = call("unlearn", "R", "--client", "south", "--json")
    assert (code, json.loads(printed)["rows_forgotten"]) == (0, 106)
    code, printed = call("verify", "R", "--forgot", "client=south")
    assert code == 7
    assert "believed" in printed


def test_a_newer_file_without_a_sample_replaces_the_older(call: Call, tmp_path: Path) -> None:
    assert call("summarize", "north", "-o", "north.safetensors")[0] == 0
    assert call("summarize", "south", "-o", "south.safetensors")[0] == 0
    assert call("train", "north.safetensors", "south.safetensors", "--run", "R")[0] == 0
    ids = [hex_id(ROWS.ids[row]) for row in rows_of(ROWS, "north")[:3]]
    Path("ids").write_text(f"{ids[0]}\n{ids[1][:12]}\n")
    less = ("summarize", "north", "-o", "north.safetensors", "--without", "@ids")
    assert call(*less, "--without", ids[2], "--client", "north")[0] == 0
    assert call("train", "north.safetensors", "--run", "R", "--add")[0] == 0
    assert Run("R").newest.rows.counts()["north"] == 96
    assert call(*less, "--without", "0" * 64)[0] == 2


@pytest.mark.parametrize("names", ["cat,dog,owl,fox", "names.txt"])
def test_class_names_are_given_between_commas_or_in_a_file(call: Call, names: str) -> None:
    Path("names.txt").write_text("cat\ndog\nowl\n\nfox\n")
    code, _ = call("summarize", "north", "-o", "a.safetensors", "--classes", names)
    assert code == 0
    assert StatisticsFile.read(Path("a.safetensors")).outputs == (*CLASSES, "fox")


def test_few_rows_are_refused_unless_asked_for(call: Call) -> None:
    few = ROWS.take(np.concatenate([np.flatnonzero(ROWS.labels == k)[:2] for k in range(3)]))
    Cache().save("few", few)
    asked = ("summarize", "few", "-o", "few.safetensors")
    assert call(*asked)[0] == 2
    assert call(*asked, "--min-rows", "1")[0] == 2
    assert not Path("few.safetensors").exists()
    code, printed = call(*asked, "--min-rows", "1", "--min-class-rows", "2")
    assert code == 0
    assert "rotation" in printed


def test_bad_files_are_refused_by_name(call: Call) -> None:
    assert call("summarize", "north", "-o", "north.safetensors")[0] == 0
    assert call("summarize", "south", "-o", "south.safetensors")[0] == 0
    content = Path("south.safetensors").read_bytes()
    Path("south.safetensors").write_bytes(content[:-9] + b"\x01" + content[-8:])
    for files in (("north.safetensors", "south.safetensors"), ("south.safetensors",)):
        code, printed = call("train", *files, "--run", "R")
        assert code == 4
        assert "south.safetensors" in printed
    assert call("train", "north.safetensors", "none.safetensors", "--run", "R")[0] == 3
    assert call("train", "north.safetensors", "north", "--run", "R")[0] == 3
    for flag in (("--test", "south"), ("-b", "pixels"), ("--limit", "9"), ("--clients", "2")):
        assert call("train", "north.safetensors", "--run", "R", *flag)[0] == 2
    assert not Path("R").exists()


@pytest.mark.parametrize("tool", ["ssh-keygen", "openssl"])
def test_the_page_signs_and_encrypts(call: Call, tmp_path: Path, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    assert call("summarize", "north", "-o", "north.safetensors")[0] == 0
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (script,) = (block for block in blocks if block.startswith(tool))
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, capture_output=True)
    if tool == "openssl":
        sent = Path("north.safetensors").read_bytes()
        assert Path("received.safetensors").read_bytes() == sent
        assert sent[100:200] not in Path("north.cms").read_bytes()
        return
    Path("north.safetensors").write_bytes(b"something else")
    check = next(line for line in script.splitlines() if "-Y verify" in line)
    assert subprocess.run(check, shell=True, cwd=tmp_path, capture_output=True).returncode
