"""What hubs raise becomes one of our errors, however deep a loader has wrapped it."""

from __future__ import annotations

import logging
import pickle
import urllib.error
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from huggingface_hub import constants, errors

from probekit.backbones import hub
from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError
from probekit.registry import Name

NAME = Name("hf", "org/name", "v9")


def response_error(kind: Any) -> Exception:
    response = httpx.Response(404, request=httpx.Request("GET", "https://hub.example"))
    error: Exception = kind("no", response=response)
    return error


CAUSES: list[tuple[Exception, type[ProbekitError]]] = [
    (response_error(errors.RepositoryNotFoundError), NotFoundError),
    (response_error(errors.RevisionNotFoundError), NotFoundError),
    (response_error(errors.GatedRepoError), NotFoundError),
    (response_error(errors.RemoteEntryNotFoundError), NotFoundError),
    (errors.LocalEntryNotFoundError("no"), OfflineError),
    (errors.OfflineModeIsEnabled("no"), OfflineError),
    (urllib.error.URLError("no route"), OfflineError),
    (httpx.ConnectError("no route"), OfflineError),
    (httpx.ReadTimeout("slow"), OfflineError),
    (pickle.UnpicklingError("code"), InputError),
    (InputError("ours"), InputError),
]


def raise_wrapped(cause: Exception) -> None:
    """Raise a cause as loaders do: inside an error of their own."""
    try:
        raise cause
    except Exception as error:
        raise RuntimeError("a loader's own words") from error


def raise_plain(cause: Exception) -> None:
    raise cause


@pytest.mark.parametrize("raise_cause", [raise_plain, raise_wrapped])
@pytest.mark.parametrize(("cause", "expected"), CAUSES)
def test_causes_are_found_behind_what_loaders_make_of_them(
    cause: Exception, expected: type[ProbekitError], raise_cause: Callable[[Exception], None]
) -> None:
    with pytest.raises(expected) as caught, hub.hub_errors(NAME):
        raise_cause(cause)
    assert type(caught.value) is expected
    assert caught.value.exit_code == (2 if expected is InputError else 3)
    assert "\n" not in str(caught.value)


def test_other_errors_keep_their_first_line() -> None:
    with pytest.raises(InputError, match=r"size mismatch$"), hub.hub_errors(NAME):
        raise RuntimeError("size mismatch\nand more")


def test_loaders_that_log_do_not_set_up_logging() -> None:
    handlers = list(logging.root.handlers)
    logging.root.handlers[:] = []
    try:
        with hub.hub_errors(NAME):
            logging.warning("open_clip uses the root logger")
        assert logging.root.handlers == []
    finally:
        logging.root.handlers[:] = handlers


@pytest.mark.parametrize("reachable", [True, False])
def test_loaders_do_not_retry_where_the_hub_is_not_there(
    reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Session:
        def head(self, url: str, *, timeout: float) -> None:
            if not reachable:
                raise httpx.ConnectError("no route")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "get_session", Session)
    with hub.one_request():
        assert constants.HF_HUB_OFFLINE is not reachable
    assert constants.HF_HUB_OFFLINE is False


def test_an_unreachable_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    class Unreachable:
        def head(self, url: str, *, timeout: float) -> None:
            requests.append(timeout)
            raise httpx.ConnectError("no route")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "get_session", Unreachable)
    with pytest.raises(OfflineError), hub.hub_errors(NAME):
        hub.fetch_snapshot("org/name", "v9")
    assert requests == [hub.TIMEOUT]


@pytest.mark.parametrize(
    ("files", "fetched"),
    [
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["model-00001-of-00002.safetensors"], ["model-00001-of-00002.safetensors"]),
        (["pytorch_model.bin", "adapter.safetensors"], ["pytorch_model.bin"]),
    ],
)
def test_safetensors_are_fetched_where_there_are_any(
    files: list[str], fetched: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def download(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert (repository, revision) == ("org/name", "v9")
        for file in [*files, "config.json"]:
            if any(fnmatch(file, pattern) for pattern in allow_patterns):
                (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert hub.fetch_snapshot("org/name", "v9") == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", *fetched]


def test_a_weights_file_must_exist_and_hold_tensors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        hub.weights_file(str(tmp_path / "absent.pt"), "timm:vit")
    (tmp_path / "weights.onnx").touch()
    with pytest.raises(NotFoundError):
        hub.weights_file(str(tmp_path / "weights.onnx"), "timm:vit")
    (tmp_path / "weights.pt").touch()
    assert hub.weights_file(str(tmp_path / "weights.pt"), "timm:vit") == tmp_path / "weights.pt"
