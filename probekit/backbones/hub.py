"""What hubs and loaders say when something is missing, put into our own errors."""

from __future__ import annotations

import logging
import pickle
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import errors as hub

from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError
from probekit.protocols import Reference


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it, outermost first: loaders wrap the hub's errors in their own."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def translated(error: BaseException, reference: Reference) -> ProbekitError:
    """Our error for what a loader raised while it looked for this backbone."""
    for cause in _chain(error):
        found = _translated(cause, reference)
        if found is not None:
            return found
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return InputError(f"Cannot load {reference}: {first[:400]}")


def _translated(cause: BaseException, reference: Reference) -> ProbekitError | None:
    if isinstance(cause, ProbekitError):
        return cause
    if isinstance(cause, hub.GatedRepoError):
        return NotFoundError(
            f"Cannot load {reference}: its owner grants access on request. Accept the terms on its hub page, "
            "then run `hf auth login`."
        )
    if isinstance(cause, hub.RepositoryNotFoundError | hub.RevisionNotFoundError):
        what = "revision" if isinstance(cause, hub.RevisionNotFoundError) else "repository"
        return NotFoundError(f"Cannot load {reference}: the hub has no such {what}. Check the spelling.")
    offline = (
        hub.LocalEntryNotFoundError,
        hub.OfflineModeIsEnabled,
        urllib.error.URLError,
        ConnectionError,
        TimeoutError,
    )
    # transformers and huggingface_hub speak httpx or requests, depending on their versions
    if isinstance(cause, offline) or type(cause).__name__ in ("ConnectError", "ConnectTimeout", "ReadTimeout"):
        return OfflineError(
            f"Cannot load {reference}: its files are not in the local cache and the hub cannot be reached. Run once "
            "with a network (and without HF_HUB_OFFLINE), or copy the files here and name their folder."
        )
    if isinstance(cause, hub.EntryNotFoundError):
        return NotFoundError(
            f"Cannot load {reference}: the repository lacks a file that this kind of backbone needs "
            f"({str(cause).splitlines()[0]}). Use a repository that holds it, or another prefix."
        )
    if isinstance(cause, hub.HFValidationError):
        return InputError(f"Cannot load {reference}: {cause} Write ORG/NAME, or the path of an existing folder.")
    if isinstance(cause, pickle.UnpicklingError):
        return InputError(
            f"Cannot load {reference}: the file holds more than tensors, and probekit runs no code out of files. Save "
            "its state_dict as safetensors."
        )
    return None


@contextmanager
def translating(reference: Reference) -> Iterator[None]:
    """Turns whatever a loader raises into one of our errors."""
    try:
        yield
    except ProbekitError:
        raise
    except MemoryError:
        raise
    except Exception as error:
        raise translated(error, reference) from error


@contextmanager
def unlogged() -> Iterator[None]:
    """Keeps loaders that call `logging.warning` directly from setting up logging for the whole process."""
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
