"""Files of the Hugging Face hub, and what loaders raise put into our errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, get_session, snapshot_download

from probekit.data.hub import hub_error
from probekit.errors import InputError, NotFoundError, ProbekitError
from probekit.registry import Name

HUB = "hf-hub:"
FOLDER = "local-dir:"
"""How open_clip and timm spell a repository of the hub, and a folder."""
RANDOM = "random"
RANDOM_SEED = 0
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
TIMEOUT = 10.0
"""Seconds that the hub has to answer the first request; there is no second one."""


def translate(error: BaseException, name: Name | str) -> ProbekitError:
    """Our error for what a loader raised; of other people's the first line."""
    line = str(error).strip().partition("\n")[0][:400] or type(error).__name__
    title = f"Cannot load {name}"
    return hub_error(error, title) or InputError(f"{title}: {line}")


@contextmanager
def hub_errors(name: Name) -> Iterator[None]:
    """Raise our errors for whatever a loader raises.

    A loader that calls `logging.warning` cannot set up logging for the whole process meanwhile.
    """
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    except (ProbekitError, MemoryError, ImportError):
        raise
    except Exception as error:
        raise translate(error, name) from error
    finally:
        logging.root.removeHandler(handler)


@contextmanager
def one_request() -> Iterator[None]:
    """Ask once whether the hub is there; if not, loaders take their files from the local cache.

    They would retry for a minute, for each file. huggingface_hub has no other switch for that.
    """
    offline = constants.HF_HUB_OFFLINE
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception:  # of whichever library it uses
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def fetch_snapshot(
    repository: str,
    revision: str | None,
    *,
    stem: str = "model",
    torch_stem: str = "pytorch_model",
    subfolders: bool = False,
) -> Path:
    """The folder of a hub repository's configuration and weights; its name is the commit.

    Safetensors where there are any. Where the hub cannot be reached, the local cache must have the
    revision already.
    """
    with one_request():
        for file in (f"{stem}{{}}.safetensors", f"{torch_stem}{{}}.bin"):
            weights = [file.format(""), file.format("-*")]
            if subfolders:
                weights += [f"*/{pattern}" for pattern in weights]
            patterns = ["*.json", "*.txt", "*.model", *weights]  # vocabularies, too
            folder = snapshot_download(repository, revision=revision, allow_patterns=patterns)
            if any(True for pattern in weights for _ in Path(folder).glob(pattern)):
                break
    return Path(folder)


def library_folder(
    text: str, *, stem: str = "model", torch_stem: str = "pytorch_model"
) -> Path | None:
    """The folder of `hf-hub:ORG/NAME[@REVISION]` or `local-dir:FOLDER`; None for other names."""
    if text.startswith(HUB):
        repository, _, revision = text.removeprefix(HUB).partition("@")
        return fetch_snapshot(repository, revision or None, stem=stem, torch_stem=torch_stem)
    if text.startswith(FOLDER):
        return Path(text.removeprefix(FOLDER)).expanduser()
    return None


def weights_file(path: str, prefix: str) -> Path:
    """The file of weights that stands in a backbone's name after a prefix."""
    file = Path(path).expanduser()
    if not file.is_file() or file.suffix not in SUFFIXES:
        raise NotFoundError(
            f"{path} is no file of weights ({', '.join(SUFFIXES)}). Correct the path after "
            f"{prefix}, or save the model's state_dict."
        )
    return file
