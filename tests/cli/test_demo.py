"""`probekit demo`: the whole story, and the same page the second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probekit.cli.main import run


def test_the_story(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = []
    pages = []
    for _ in range(2):
        assert run(["demo", str(tmp_path / "demo"), "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
        pages.append(Path(documents[-1]["page"]).read_bytes())
    assert documents[0]["heads"] == documents[1]["heads"]
    assert pages[0] == pages[1]
    trained, exact, step, few_rows, retrained = documents[0]["heads"]
    assert trained["backdoor"] > 0.8
    assert max(head["backdoor"] for head in (exact, step, few_rows, retrained)) < 0.02
    assert exact["accuracy"] == retrained["accuracy"] > trained["accuracy"]
    assert exact["distance"] == 0
    # the backdoor is gone, and yet the head is farther off than before
    assert few_rows["distance"] > 5 * trained["distance"]
    assert few_rows["accuracy"] < trained["accuracy"] - 0.1
    for head in (exact, step, few_rows):
        assert head["distance"] <= head["certified"]
    assert [head["verified"] for head in (exact, step, few_rows)] == [0, 7, 7]
    assert [Path(folder).name for folder in documents[0]["runs"]] == [
        "exact",
        "fedremoval",
        "fedremoval-few-rows",
    ]
