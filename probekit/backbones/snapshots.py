"""Folders of a hub's repositories (`hf:OWNER/NAME[@REVISION]`) on this machine: heads and sets as people share them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probekit.backbones.hub import translating
from probekit.errors import InputError
from probekit.protocols import Reference

NAMED = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
FORM = "hf:OWNER/NAME or hf:OWNER/NAME@REVISION"


def snapshot(text: str, *, kind: str = "model", files: Sequence[str] | None = None) -> Path:
    """The folder of a repository, downloaded where it is not in the hub's own cache.

    text: `hf:OWNER/NAME[@REVISION]`. kind: of the repository, model or dataset. files: left out, all.
    """
    found = NAMED.fullmatch(text)
    if found is None:
        raise InputError(f"A repository of the hub is written {FORM}; found {text!r}.")
    with translating(Reference("hf", found["name"], found["revision"])):
        from huggingface_hub import snapshot_download

        patterns = None if files is None else list(files)
        how: dict[str, Any] = {"revision": found["revision"], "repo_type": kind}
        return Path(snapshot_download(found["name"], allow_patterns=patterns, **how))


@contextmanager
def copied(text: str, *, kind: str = "dataset") -> Iterator[Path]:
    """A repository as plain files for a while: the hub's cache has links, which what is imported must not have."""
    folder = snapshot(text, kind=kind)
    own = folder.parent.parent.resolve()
    for path in folder.rglob("*"):
        if not path.resolve().is_relative_to(own):
            raise InputError(f"{path} leads out of the hub's cache. Nothing was imported; fetch {text} again.")
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place) / "set"))
