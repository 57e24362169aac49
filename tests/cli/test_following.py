"""Commands name the next one at their end, and that one can be typed as it stands."""

from __future__ import annotations

import re
import shlex

from tests.cli.conftest import Command


def _named(text: str, word: str = "next") -> list[str]:
    found = re.findall(rf"^{word} +probekit (.*)$", text, re.MULTILINE)
    assert len(found) == 1, text
    return shlex.split(found[0])


def test_from_pictures_to_unlearning_by_what_each_command_says(command: Command, backbone: str, dataset: str) -> None:
    extracted = command("extract", dataset, "-b", backbone, "--name", "tiny")
    probed = command(*_named(extracted.out))
    assert probed.code == 0, probed.message
    trained = command(*_named(probed.out))
    assert trained.code == 0, trained.message
    judged = _named(trained.out)
    assert judged[-1] == "TEST-SET"
    assert command(*judged[:-1], "tiny").code == 0
    forgotten = command(*_named(trained.out, "or"))
    assert forgotten.code == 0, forgotten.message


def test_a_test_set_is_judged_on_and_one_client_cannot_leave(command: Command, backbone: str, dataset: str) -> None:
    command("extract", dataset, "-b", backbone, "--name", "tiny")
    assert "\nor " not in command("train", "tiny", "--clients", "1").out
    found = command("extract", "packaged:digits", "--split", "test", "--limit", "5", "-b", backbone, "--name", "few")
    assert _named(found.out) == ["probe", "TRAINING-SET", "--test", "few"]
