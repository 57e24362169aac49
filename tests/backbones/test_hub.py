"""What hubs raise becomes one of our errors, however deep a loader has wrapped it."""

import logging
import pickle
import urllib.error
from typing import Any

import httpx2 as httpx
import pytest
from huggingface_hub import errors

from probekit.backbones import hub
from probekit.errors import InputError, NotFoundError, OfflineError
from probekit.protocols import Reference

REFERENCE = Reference("hf", "org/name")


def answered(kind: Any) -> Exception:
    response = httpx.Response(404, request=httpx.Request("GET", "https://hub.example"))
    error: Exception = kind("no", response=response)
    return error


def wrapped(cause: Exception) -> None:
    """Raise a cause as loaders do: inside an error of their own."""
    if isinstance(cause, RuntimeError):
        raise cause
    try:
        raise cause
    except Exception as error:
        raise RuntimeError("a loader's own words") from error


@pytest.mark.parametrize(
    ("cause", "wanted", "words"),
    [
        (answered(errors.RepositoryNotFoundError), NotFoundError, "no such repository"),
        (answered(errors.RevisionNotFoundError), NotFoundError, "no such revision"),
        (answered(errors.GatedRepoError), NotFoundError, "hf auth login"),
        (answered(errors.RemoteEntryNotFoundError), NotFoundError, "lacks a file"),
        (errors.LocalEntryNotFoundError("no"), OfflineError, "cannot be reached"),
        (errors.OfflineModeIsEnabled("no"), OfflineError, "HF_HUB_OFFLINE"),
        (urllib.error.URLError("no route"), OfflineError, "cannot be reached"),
        (httpx.ConnectError("no route"), OfflineError, "cannot be reached"),
        (pickle.UnpicklingError("code"), InputError, "safetensors"),
        (InputError("ours"), InputError, "^ours$"),
        (RuntimeError("size mismatch\nand more"), InputError, "size mismatch$"),
    ],
)
def test_causes_are_found_behind_what_loaders_make_of_them(
    cause: Exception, wanted: type[Exception], words: str
) -> None:
    with pytest.raises(wanted, match=words) as caught, hub.translating(REFERENCE):
        wrapped(cause)
    assert type(caught.value) is wanted


def test_loaders_that_log_do_not_set_up_logging() -> None:
    before = list(logging.root.handlers)
    kept, logging.root.handlers[:] = before, []
    try:
        with hub.translating(REFERENCE):
            logging.warning("open_clip speaks through the root logger")
        assert logging.root.handlers == []
    finally:
        logging.root.handlers[:] = kept
