"""What the Hugging Face hub and the libraries that download from it raise, as our errors."""

from __future__ import annotations

import re

from probekit.errors import InputError, NotFoundError, OfflineError, ProbekitError

GATED = "it is gated. Ask for access on its page of the hub, then set HF_TOKEN or `hf auth login`."
REVISION = "the hub has no such revision. Check what stands after @."
ABSENT = (
    "the hub has no such repository, or it is private. Check the spelling, or set HF_TOKEN "
    "(`hf auth login`)."
)
NO_FILE = "the repository lacks a file ({text}). Use one that has it, or another scheme."
UNREACHABLE = (
    "it is not on this machine, and the hub cannot be reached (HF_HUB_OFFLINE may be set). Load it "
    "once where there is a network, or copy its files here and give their path."
)
CODE = "the file holds more than tensors, and no code is run. Save its state_dict as safetensors."
NETWORK = (
    r"(httpx|httpcore|requests|urllib|aiohttp)\w*\.|Connection\w*Error|TimeoutError"
    "|OfflineModeIsEnabled|LocalEntryNotFoundError|HfHubHTTPError"
)
REASONS: dict[str, tuple[type[ProbekitError], str]] = {
    "GatedRepoError|gated dataset": (NotFoundError, GATED),
    "RevisionNotFoundError": (NotFoundError, REVISION),
    "RepositoryNotFoundError|DatasetNotFoundError": (NotFoundError, ABSENT),
    "RemoteEntryNotFoundError": (NotFoundError, NO_FILE),
    NETWORK: (OfflineError, UNREACHABLE),
    "UnpicklingError": (InputError, CODE),
    "BuilderConfig|Unknown split": (NotFoundError, "{text}"),
}
"""By the kind of an error or its text: libraries use httpx, httpx2 or requests, by their versions.

The first that fits an error, or one that led to it, counts.
"""


def hub_error(error: BaseException, title: str) -> ProbekitError | None:
    """Our error for one that a library wraps in its own; None where it is none of the hub's."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ProbekitError):
            return cause
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for pattern, (kind, reason) in REASONS.items():
        for cause in causes:
            text = " ".join(str(cause).split())
            if re.search(pattern, f"{type(cause).__module__}.{type(cause).__name__} {text}"):
                return kind(f"{title}: {reason.format(text=text)}")
    return None
