"""Heads that leave a run, each entered in its ledger: with the run's noise, where it has any, drawn once per state.

states/NNNN/released/  the head of that state with its noise: asked for again, it is the same
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.certificates.privacy import CAVEATS, release, release_budget
from probekit.custody.accounting import DISCRETE, epsilon_of
from probekit.errors import CorruptError, InputError
from probekit.models.heads import Head
from probekit.models.serving import load_head, refuse_other, save_head
from probekit.runs.folder import OpenRun, RunFolder
from probekit.runs.layout import state_folder
from probekit.runs.ledger import Event
from probekit.runs.noise import EXPORT, VOID, Releases, releases_of
from probekit.runs.result import Result
from probekit.runs.verification import certificate_of
from probekit.values import Json

RELEASED = "released"


@dataclass(frozen=True)
class ExportResult(Result):
    """A head that was written elsewhere: to whom, and, with noise, what all releases of the run cost so far.

    `epsilon` and `delta`: what is guaranteed for all of them together; None: nothing is.
    """

    run: Path
    state: int
    folder: Path
    head: str
    to: str
    mechanism: str | None
    sigma: float | None
    rho: float | None
    spent: float | None
    epsilon: float | None
    delta: float | None
    entry: str
    remarks: tuple[str, ...]


def export(
    run: OpenRun, folder: Path | str, *, state: int | None = None, to: str = "", noise: bool = True
) -> ExportResult:
    """Write a head elsewhere and enter that in the ledger; of a run with noise, the head with its noise.

    state: None: the current one.
    to: who gets it.
    noise: False: as it is; in a run with noise that voids the guarantee, and the ledger says so.
    """
    target, home = Path(folder), run.folder
    if target.resolve().is_relative_to(run.path.resolve()):
        raise InputError(f"{target} is inside the run itself. Choose a folder outside of {run.path}.")
    refuse_other(target)  # before the ledger says that a head left
    with home.lock():
        number = home.state if state is None else state
        head, found = home.head(number), releases_of(home.entries())
        given, rho = head, None
        if found is not None and noise:
            rho = _cost(home, number, found)
            given = _drawn(home, number, head, found)
        # the digest of a head without noise could tell, with candidates for a row, who was in it
        released: dict[str, Json] = {"noise": True, "released": given.digest} if given is not head else {"noise": False}
        home.record(Event(EXPORT, {}, {"state": number, "to": to, "rho": rho, **released}))
        save_head(given, target)
        return _result(home, number, target, given, to=to, rho=rho)


def _result(run: RunFolder, number: int, target: Path, head: Head, *, to: str, rho: float | None) -> ExportResult:
    entries = run.entries()
    found, last = releases_of(entries), entries[-1].digest
    if found is None:
        remarks = ("This head is as the run has it: no noise was fixed for what leaves it.",)
        return ExportResult(run.path, number, target, head.digest, to, *(None,) * 6, last, remarks)
    if found.voided is not None:
        remarks = (VOID.format(found.voided),)
        return ExportResult(run.path, number, target, head.digest, to, *(None,) * 6, last, remarks)
    noise, spent = found.noise, found.spent
    reached = (noise.sigma, rho, spent, epsilon_of(spent, noise.delta), noise.delta)
    return ExportResult(run.path, number, target, head.digest, to, DISCRETE, *reached, last, CAVEATS)


def _cost(run: RunFolder, number: int, found: Releases) -> float | None:
    """The rho of releasing a state, refused where the budget does not allow it; None: the guarantee is void anyway."""
    if found.voided is not None:
        return None
    if number in found.costs:
        return found.costs[number]  # the same bytes again
    file = certificate_of(run, number)
    if file is None:
        return 0.0  # as it was trained: nothing is forgotten in it
    said: Any = file.certificate.privacy
    if said is None:
        raise InputError(
            f"State {number} of {run.path} was made to be never released (`unreleased=True`). Release a later one, or "
            "train again."
        )
    return release_budget(said["bound"], found.noise, parameters=said["parameters"], spent=found.spent).rho


def _drawn(run: RunFolder, number: int, head: Head, found: Releases) -> Head:
    """The head of a state with its noise, drawn when it is first asked for: a second draw would weaken the first."""
    folder, stated = state_folder(run.path, number) / RELEASED, found.digests.get(number)
    if not folder.exists() and stated is None:
        save_head(release(head, found.noise), folder)
    if not folder.exists():
        raise CorruptError(f"{folder} is missing, and noise is drawn once only. Restore it from a copy.")
    noisy = load_head(folder)
    if stated not in (None, noisy.digest):
        raise CorruptError(f"{folder} is not the head that was released before. Restore it from a copy.")
    return noisy
