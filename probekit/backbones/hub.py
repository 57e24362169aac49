"""What hubs and loaders say when something is missing, put into our own errors."""

from __future__ import annotations

import logging
import pickle
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import errors as hub

from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError
from probekit.protocols import Reference

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
UNREACHED = ("ConnectError", "ConnectTimeout", "ReadTimeout")
"""Of httpx or requests: transformers and huggingface_hub speak one of them, depending on their versions."""

AWAY = (
    "its files are not in the local cache and the hub cannot be reached. Run once with a network (and without "
    "HF_HUB_OFFLINE), or copy the files here and name their folder."
)
CODE = "the file holds more than tensors, and probekit runs no code out of files. Save its state_dict as safetensors."
ANSWERS: tuple[tuple[type[BaseException], type[ProbekitError], str], ...] = (
    (hub.GatedRepoError, NotFoundError, "access is on request. Accept its terms on the hub, then run `hf auth login`."),
    (hub.RevisionNotFoundError, NotFoundError, "the hub has no such revision. Check the spelling."),
    (hub.RepositoryNotFoundError, NotFoundError, "the hub has no such repository. Check the spelling."),
    *((kind, OfflineError, AWAY) for kind in (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)),
    *((kind, OfflineError, AWAY) for kind in (urllib.error.URLError, ConnectionError, TimeoutError)),
    (
        hub.EntryNotFoundError,
        NotFoundError,
        "the repository lacks a file ({0}). Use one that has it, or another prefix.",
    ),
    (hub.HFValidationError, InputError, "{0} Write ORG/NAME, or the path of an existing folder."),
    (pickle.UnpicklingError, InputError, CODE),
)
"""What is raised and said for which cause; the first that fits."""


def translated(error: BaseException, reference: Reference) -> ProbekitError:
    """Our error for what a loader raised while it looked for this backbone: loaders wrap the hub's errors in theirs."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, ProbekitError):
            return cause
        if type(cause).__name__ in UNREACHED:
            return OfflineError(f"Cannot load {reference}: {AWAY}")
        for kind, ours, text in ANSWERS:
            if isinstance(cause, kind):
                return ours(f"Cannot load {reference}: {text.format(_first_line(cause))}")
        cause = cause.__cause__ or cause.__context__
    return InputError(f"Cannot load {reference}: {_first_line(error)[:400]}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def weights_file(text: str, prefix: str) -> Path:
    """The file of weights of this name, which stands in a backbone's name after a prefix."""
    file = Path(text).expanduser()
    if not file.is_file():
        raise NotFoundError(f"There is no weights file {text}. Correct the path after {prefix}/.")
    if file.suffix not in SUFFIXES:
        raise InputError(f"Cannot read weights from {file}: wanted one of {', '.join(SUFFIXES)}.")
    return file


@contextmanager
def translating(reference: Reference) -> Iterator[None]:
    """Turns whatever a loader raises into one of our errors.

    Loaders that call `logging.warning` directly are kept from setting up logging for the whole process.
    """
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    except (ProbekitError, MemoryError):
        raise
    except Exception as error:
        raise translated(error, reference) from error
    finally:
        logging.root.removeHandler(handler)
