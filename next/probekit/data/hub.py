"""The hub, asked once with a short timeout, and what went wrong there in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError

NETWORK_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp")
HUB_SECONDS = 5.0
GATED = (
    "{source} is gated: its owner grants access. Ask for it on the hub's page of it, then set "
    "HF_TOKEN or run `hf auth login`."
)
NO_REVISION = "{source}: the hub has no such revision. Check what stands after @."
NO_DATASET = (
    "The hub has no dataset {source}, or it is private. Check the spelling, or set HF_TOKEN."
)
OFFLINE = (
    "{source} is not on this machine, and the hub cannot be reached (HF_HUB_OFFLINE may be set). "
    "Load it once where there is a network, or give a local path."
)


@contextmanager
def loading(source: str) -> Iterator[None]:
    """No progress bars of `datasets`, and its errors as ours."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    except Exception as error:
        raise _translate(source, error) from error
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextmanager
def reachable(name: str, revision: str | None) -> Iterator[None]:
    """Ask the hub once, with a short timeout, before `datasets` does so with many retries.

    Where it cannot be reached, what was downloaded before is read, and nothing is tried again.
    """
    import datasets.config
    from huggingface_hub import HfApi, constants

    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    try:
        if not any(before):
            try:
                HfApi().dataset_info(name, revision=revision, timeout=HUB_SECONDS)
            except Exception as error:
                if not _is_network_error(error):
                    raise
                datasets.config.HF_HUB_OFFLINE = True
                constants.HF_HUB_OFFLINE = True
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _is_network_error(error: BaseException) -> bool:
    package = type(error).__module__.partition(".")[0]
    offline = type(error).__name__ in ("OfflineModeIsEnabled", "LocalEntryNotFoundError")
    return (
        isinstance(error, ConnectionError | TimeoutError) or offline or package in NETWORK_PACKAGES
    )


def _translate(source: str, error: Exception) -> Exception:
    """Our error for one of the libraries'; a mistake of a program as it is."""
    import datasets

    if isinstance(error, ProbekitError):
        return error
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    kinds = {type(link).__name__ for link in chain}
    text = " ".join(str(error.__cause__ or error).split())
    is_offline = any(_is_network_error(link) for link in chain) or "HfHubHTTPError" in kinds
    is_known = isinstance(
        error, (datasets.exceptions.DatasetsError, ValueError, OSError, RuntimeError)
    )
    is_unknown = "BuilderConfig" in text or "Unknown split" in text
    cases: tuple[tuple[object, type[ProbekitError], str], ...] = (
        ("GatedRepoError" in kinds or "gated dataset" in text, NotFoundError, GATED),
        ("RevisionNotFoundError" in kinds, NotFoundError, NO_REVISION),
        (kinds & {"RepositoryNotFoundError", "DatasetNotFoundError"}, NotFoundError, NO_DATASET),
        (is_offline, OfflineError, OFFLINE),
        (is_unknown, NotFoundError, "{source}: {text}"),
        (is_known, InputError, "{source} cannot be read as a dataset: {text}"),
    )
    for applies, kind, message in cases:
        if applies:
            return kind(message.format(source=source, text=text))
    return error
