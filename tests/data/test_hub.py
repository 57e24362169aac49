"""Names of the hub, and its errors in one sentence each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import datasets
import httpx2 as httpx
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from probekit.data import DataOptions, read_dataset
from probekit.errors import InputError, NotFoundError, OfflineError

ROWS = datasets.Dataset.from_dict({"text": ["x", "y"], "label": ["b", "a"]})


class Hub:
    """Stands for the hub: what is asked, and what is answered or raised."""

    def __init__(self) -> None:
        self.loaded: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.asked: list[tuple[str, str | None]] = []
        self.info_error: Exception | None = None
        self.load_error: Exception | None = None
        self.offline_while_loading: bool | None = None

    def dataset_info(self, _: HfApi, name: str, *, revision: str | None, timeout: float) -> Any:
        assert timeout <= 10
        self.asked.append((name, revision))
        if self.info_error:
            raise self.info_error
        return SimpleNamespace()

    def load_dataset(self, *arguments: Any, **options: Any) -> Any:
        self.loaded.append((arguments, options))
        self.offline_while_loading = constants.HF_HUB_OFFLINE
        if self.load_error:
            raise self.load_error
        if options.get("split"):
            return ROWS
        return datasets.DatasetDict({"train": ROWS, "test": ROWS})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        HfApi, "dataset_info", lambda api, name, **options: hub.dataset_info(api, name, **options)
    )
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    return hub


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid/x"))


@pytest.mark.parametrize(
    ("name", "path", "config", "revision"),
    [
        ("mnist", "mnist", None, None),
        ("org/name", "org/name", None, None),
        ("org/name:config", "org/name", "config", None),
        ("org/name@v1.0", "org/name", None, "v1.0"),
        ("org/name:config-2@main", "org/name", "config-2", "main"),
        ("org/name@refs/convert/parquet", "org/name", None, "refs/convert/parquet"),
    ],
)
def test_names_are_taken_apart(
    hub: Hub, name: str, path: str, config: str | None, revision: str | None
) -> None:
    splits = read_dataset(f"hf:{name}")
    ((arguments, options),) = hub.loaded
    assert (arguments, options["name"], options["revision"]) == ((path,), config, revision)
    assert hub.asked == [(path, revision)]
    assert list(splits.by_name) == ["train", "test"]
    assert hub.offline_while_loading is False


def test_a_slice_is_cut_by_the_library(hub: Hub) -> None:
    splits = read_dataset("hf:org/name", DataOptions(split="train[:2]"))
    assert hub.loaded[0][1]["split"] == "train[:2]"
    assert list(splits.by_name) == ["train[:2]"]
    assert splits.choose("train[:2]")[0] == "train[:2]"


@pytest.mark.parametrize(
    ("error", "kind", "mentioned"),
    [
        (RepositoryNotFoundError("no", response=response(404)), NotFoundError, "org/name"),
        (RevisionNotFoundError("no", response=response(404)), NotFoundError, "revision"),
        (GatedRepoError("no", response=response(403)), NotFoundError, "gated"),
    ],
)
def test_what_the_hub_refuses_is_said(
    hub: Hub, error: Exception, kind: type[Exception], mentioned: str
) -> None:
    hub.info_error = error
    with pytest.raises(kind, match=mentioned) as caught:
        read_dataset("hf:org/name@v1")
    assert type(caught.value) is kind
    assert hub.loaded == []


def test_an_unreachable_hub_is_asked_once_and_local_copies_are_read(hub: Hub) -> None:
    hub.info_error = httpx.ConnectTimeout("slow")
    splits = read_dataset("hf:org/name")
    assert len(splits.by_name) == 2
    assert hub.offline_while_loading is True
    assert constants.HF_HUB_OFFLINE is datasets.config.HF_HUB_OFFLINE is False


def test_an_unreachable_hub_without_a_copy_is_offline(hub: Hub) -> None:
    hub.info_error = httpx.ConnectError("no route")
    hub.load_error = ConnectionError("not cached")
    with pytest.raises(OfflineError, match="hf:org/name"):
        read_dataset("hf:org/name")


def test_offline_mode_is_honored(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OfflineError) as caught:
        read_dataset("hf:org/name")
    assert caught.value.exit_code == 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (datasets.exceptions.DatasetNotFoundError("no such thing"), NotFoundError),
        (datasets.exceptions.DatasetNotFoundError("'x' is a gated dataset"), NotFoundError),
        (ValueError("BuilderConfig 'x' not found. Available: ['a']"), NotFoundError),
        (ValueError("Config name is missing. Pick one among: ['a']"), InputError),
        (ValueError('Unknown split "x". Should be one of [...].'), NotFoundError),
        (ValueError("odd"), InputError),
        (OSError("unreadable"), InputError),
    ],
)
def test_errors_of_the_library_are_ours(hub: Hub, error: Exception, kind: type[Exception]) -> None:
    hub.load_error = error
    with pytest.raises(kind) as caught:
        read_dataset("hf:org/name")
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error
    assert "gated" not in str(error) or "HF_TOKEN" in str(caught.value)


def test_a_mistake_of_a_program_stays_what_it_is(hub: Hub) -> None:
    hub.load_error = AttributeError("a mistake")
    with pytest.raises(AttributeError, match="a mistake"):
        read_dataset("hf:org/name")


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", ":config", "/nowhere/x", "./x"])
def test_what_cannot_be_a_name_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        read_dataset(f"hf:{name}")
