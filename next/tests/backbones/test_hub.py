"""What hubs raise becomes one of our errors, however deep a loader has wrapped it."""

from __future__ import annotations

import logging
import pickle
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest
from huggingface_hub import errors

from probekit.backbones import hub
from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError
from probekit.registry import Name

NAME = Name("hf", "org/name", "v9")


def response_error(kind: Any) -> Exception:
    response = httpx.Response(404, request=httpx.Request("GET", "https://hub.example"))
    error: Exception = kind("no", response=response)
    return error


CAUSES: list[tuple[Exception, type[Exception], str]] = [
    (response_error(errors.RepositoryNotFoundError), NotFoundError, "repository"),
    (response_error(errors.RevisionNotFoundError), NotFoundError, "revision"),
    (response_error(errors.GatedRepoError), NotFoundError, "hf auth login"),
    (response_error(errors.RemoteEntryNotFoundError), NotFoundError, "file"),
    (errors.LocalEntryNotFoundError("no"), OfflineError, "reached"),
    (errors.OfflineModeIsEnabled("no"), OfflineError, "HF_HUB_OFFLINE"),
    (urllib.error.URLError("no route"), OfflineError, "reached"),
    (httpx.ConnectError("no route"), OfflineError, "reached"),
    (httpx.ReadTimeout("slow"), OfflineError, "reached"),
    (pickle.UnpicklingError("code"), InputError, "safetensors"),
    (InputError("ours"), InputError, "^ours$"),
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
@pytest.mark.parametrize(("cause", "expected", "word"), CAUSES)
def test_causes_are_found_behind_what_loaders_make_of_them(
    cause: Exception,
    expected: type[Exception],
    word: str,
    raise_cause: Callable[[Exception], None],
) -> None:
    with pytest.raises(expected, match=word) as caught, hub.hub_errors(NAME):
        raise_cause(cause)
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    if str(cause) != "ours":
        assert "hf:org/name@v9" in str(caught.value)


def test_other_errors_keep_their_first_line() -> None:
    with pytest.raises(InputError, match=r"size mismatch$"), hub.hub_errors(NAME):
        raise RuntimeError("size mismatch\nand more")


def test_errors_of_ours_have_the_exit_codes_of_the_shell() -> None:
    codes = {}
    for cause, _, _ in CAUSES:
        error = hub.translate(cause, NAME)
        assert isinstance(error, ProbekitError)
        codes[type(error)] = error.exit_code
    assert codes == {NotFoundError: 3, OfflineError: 3, InputError: 2}


def test_loaders_that_log_do_not_set_up_logging() -> None:
    handlers = list(logging.root.handlers)
    logging.root.handlers[:] = []
    try:
        with hub.hub_errors(NAME):
            logging.warning("open_clip uses the root logger")
        assert logging.root.handlers == []
    finally:
        logging.root.handlers[:] = handlers


def test_an_unreachable_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    class Unreachable:
        def model_info(self, *arguments: object, timeout: float, **options: object) -> None:
            requests.append(timeout)
            raise httpx.ConnectError("no route")

    monkeypatch.setattr(hub, "HfApi", Unreachable)
    start = time.monotonic()
    with pytest.raises(OfflineError, match="org/name@v9"), hub.hub_errors(NAME):
        hub.fetch_snapshot("org/name", "v9")
    assert requests == [hub.TIMEOUT]
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], "model.safetensors"),
        (["config.json", "model-00001-of-00002.safetensors"], "model-*.safetensors"),
        (["config.json", "pytorch_model.bin", "adapter.safetensors"], "pytorch_model.bin"),
    ],
)
def test_safetensors_are_fetched_where_there_are_any(
    files: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetched: dict[str, Any] = {}
    siblings = [SimpleNamespace(rfilename=file) for file in files]

    class Hub:
        def model_info(self, *arguments: object, **options: object) -> Any:
            return SimpleNamespace(sha="c" * 40, siblings=siblings)

    def download(repository: str, **options: Any) -> str:
        fetched.update(options, repository=repository)
        return str(tmp_path / options["revision"])

    monkeypatch.setattr(hub, "HfApi", Hub)
    monkeypatch.setattr(hub, "snapshot_download", download)
    assert hub.fetch_snapshot("org/name", "v9") == tmp_path / ("c" * 40)
    assert fetched["repository"] == "org/name"
    assert expected in fetched["allow_patterns"]
    assert "*.json" in fetched["allow_patterns"]
    suffixes = {Path(pattern).suffix for pattern in fetched["allow_patterns"]}
    assert suffixes == {".json", Path(expected).suffix}


def test_a_weights_file_must_exist_and_hold_tensors(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"absent\.pt"):
        hub.weights_file(str(tmp_path / "absent.pt"), "timm:vit")
    (tmp_path / "weights.onnx").touch()
    with pytest.raises(NotFoundError, match=r"weights\.onnx.*\.safetensors"):
        hub.weights_file(str(tmp_path / "weights.onnx"), "timm:vit")
    (tmp_path / "weights.pt").touch()
    assert hub.weights_file(str(tmp_path / "weights.pt"), "timm:vit") == tmp_path / "weights.pt"
