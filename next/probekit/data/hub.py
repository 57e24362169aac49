"""The hub, asked once with a short timeout, and what went wrong there in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError

NETWORK_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp")
OFFLINE_ERRORS = ("OfflineModeIsEnabled", "LocalEntryNotFoundError", "HfHubHTTPError")
HUB_SECONDS = 5.0


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
    kind = type(error)
    return (
        isinstance(error, ConnectionError | TimeoutError)
        or kind.__module__.partition(".")[0] in NETWORK_PACKAGES
        or kind.__name__ in OFFLINE_ERRORS
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
    if "GatedRepoError" in kinds or "gated dataset" in text:
        return NotFoundError(
            f"{source} is gated: its owner grants access. Ask for it on the hub's page of it, then "
            "set HF_TOKEN or run `hf auth login`."
        )
    if "RevisionNotFoundError" in kinds:
        return NotFoundError(f"{source}: no such revision. Check what stands after @.")
    if kinds & {"RepositoryNotFoundError", "DatasetNotFoundError"}:
        return NotFoundError(
            f"The hub has no dataset {source}, or it is private. Check the spelling, or set "
            "HF_TOKEN."
        )
    if any(map(_is_network_error, chain)):
        return OfflineError(
            f"{source} is not on this machine, and the hub cannot be reached (HF_HUB_OFFLINE may "
            "be set). Load it once where there is a network, or give a local path."
        )
    if "BuilderConfig" in text or "Unknown split" in text:
        return NotFoundError(f"{source}: {text}")
    if isinstance(error, datasets.exceptions.DatasetsError | ValueError | OSError | RuntimeError):
        return InputError(f"{source} cannot be read as a dataset: {text}")
    return error
