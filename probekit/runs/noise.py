"""The noise on heads that leave a run, as its ledger has it: fixed before training, and counted with every release.

While a run is being trained, the entry that fixes its noise stands beside it, in .NAME.noise; its ledger begins so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probekit.certificates.certificate import Certificate
from probekit.certificates.verdicts import FALSE, INTACT, PROVEN, Finding, unproven
from probekit.custody.accounting import DISCRETE, ReleaseNoise
from probekit.errors import CacheError, InputError, VerificationError
from probekit.files import new_file, storing
from probekit.runs import ledger
from probekit.runs.folder import RunFolder
from probekit.runs.layout import NOTE, lock_of, noise_path
from probekit.runs.ledger import Event, LedgerEntry
from probekit.runs.options import TrainOptions

NOISE, EXPORT = "noise", "export"
CHOSEN_RIDGE = "The ridge is chosen from all clients' rows, and no noise covers it: give the ridge as a number."
UNRELEASED = "The noise does not cover this removal, as was asked for: this state is never released."
VOID = "A head left this run without noise (ledger entry {}), so that nothing it releases has a guarantee any more."


@dataclass(frozen=True)
class Releases:
    """What a ledger says of a run's noise: its mechanism, the rho of every released state, what voids it."""

    noise: ReleaseNoise
    fixed: LedgerEntry
    costs: Mapping[int, float]
    digests: Mapping[int, str]
    voided: int | None

    @property
    def spent(self) -> float:
        """The rho of all releases."""
        return sum(self.costs.values())


def releases_of(entries: Sequence[LedgerEntry]) -> Releases | None:
    """The noise that the first entry fixed, and what was released since; None: the run was trained without."""
    if entries[0].action != NOISE:
        return None
    fixed, costs, digests, voided = entries[0], dict[int, float](), dict[int, str](), None
    for entry in entries:
        said: Any = entry.details
        if entry.action == EXPORT and said.get("noise") is True:
            state, rho = said.get("state"), said.get("rho") or 0.0
            if not isinstance(state, int) or not isinstance(rho, float) or not rho >= 0:
                raise VerificationError(f"Ledger entry {entry.number} is no release: {said}. {ledger.DISTRUST}")
            costs[state], digests[state] = max(rho, costs.get(state, 0.0)), str(said.get("released"))
        elif entry.action == EXPORT and voided is None:
            voided = entry.number
    noise: Any = fixed.details.get("noise")
    return Releases(ReleaseNoise.from_plain(noise), fixed, costs, digests, voided)


def fix_noise(
    path: Path, options: TrainOptions, *, force: bool, note: Callable[[str], None] | None
) -> LedgerEntry | None:
    """Begin the ledger of a run with its noise, before anything is fitted; after a kill the entry is still there.

    It says nothing of the rows: what stays in a ledger must not give anybody away.
    """
    noise, place = options.noise, noise_path(path)
    if force and (path / NOTE).is_file():
        _refuse_released(path)
    if noise is None:
        return None
    event = Event(NOISE, {}, {"noise": noise.plain, "budget": noise.budget})
    with storing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with lock_of(path):
        entry = ledger.first(place) if place.exists() and not force else None
        if entry is None:
            entry = ledger.follow(None, event, {"state": 0})
            with new_file(place) as handle:
                handle.write(entry.line)
        elif entry.details != event.details:
            raise InputError(
                f"The noise of {path} was fixed at {entry.time}, before a training that did not finish, with another "
                "sigma, epsilon or delta. Give the same again; or `force=True` to begin anew, or another folder."
            )
    if note is not None:
        note(f"Fixed before fitting: {in_words(noise)}. Ledger entry {entry.digest}: noted elsewhere, it is an anchor.")
        if options.number is None:
            note(CHOSEN_RIDGE)
    return entry


def _refuse_released(path: Path) -> None:
    """Refuse to replace a run that released heads: its ledger alone says what they cost."""
    with suppress(CacheError, VerificationError):  # what is damaged may be replaced
        found = releases_of(RunFolder.open(path).entries())
        if found is not None and found.digests:
            raise InputError(
                f"{path} released heads of states {sorted(found.digests)} with noise: trained again, it would draw "
                "fresh noise and forget what they cost. Choose another folder."
            )


def in_words(noise: ReleaseNoise) -> str:
    """The mechanism and its budget in a line."""
    return (
        f"{DISCRETE} noise of sigma {noise.sigma:g} on a grid of {noise.grid:.3g}, epsilon {noise.epsilon:g}, delta "
        f"{noise.delta:g} (rho {noise.budget:.3g}) for all releases"
    )


def covered(run: RunFolder, certificate: Certificate, *, parameters: int, unreleased: bool) -> Certificate:
    """The certificate with what this run's noise guarantees; a removal too large for what is left of it is refused."""
    found = releases_of(run.entries())
    if found is None and unreleased:
        raise InputError(f"{run.path} was trained without noise on its releases. Leave `unreleased` out.")
    if found is None:
        return certificate
    if unreleased or found.voided is not None:
        why = UNRELEASED if unreleased else VOID.format(found.voided)
        return replace(certificate, warnings=(*certificate.warnings, why))
    bound = certificate.bounds.weights
    if bound is None:
        raise InputError(
            f"(epsilon, delta) needs a certified distance, and there is none. {certificate.bounds.why} Another method "
            "may have one; or give `unreleased=True`: the state is then never released."
        )
    from probekit.certificates.privacy import release_budget

    budget = release_budget(bound, found.noise, parameters=parameters, spent=found.spent)
    return replace(certificate, privacy=budget.plain)


def refuse_copies(run: RunFolder) -> None:
    """Refuse to copy a run whose releases are counted: two copies would count each their own."""
    if releases_of(run.entries()) is not None:
        raise InputError(
            f"{run.path} releases its heads with noise, and copies of it would spend its budget twice. Train another."
        )


def release_finding(
    entries: Sequence[LedgerEntry] | None, certificate: Certificate, anchored: Sequence[int] = ()
) -> list[Finding]:
    """Whether the ledger fixed the noise of a certificate before training, and has not overspent it; None: no run."""
    said: Any = certificate.privacy
    if not isinstance(said, Mapping) or said.get("mechanism") != DISCRETE:
        return []
    claimed = f"sigma {said.get('sigma')}, fixed before training"
    if entries is None:
        return [unproven("release", claimed, "the run, whose ledger says so and counts its releases")]
    try:
        found = releases_of(entries)
    except VerificationError as error:
        return [Finding("release", FALSE, claimed, str(error))]
    if found is None:
        return [Finding("release", FALSE, claimed, "the ledger fixed no noise before training")]
    if any(said.get(name) != value for name, value in found.noise.plain.items()):
        return [Finding("release", FALSE, claimed, f"the ledger fixed {in_words(found.noise)}")]
    spent = f"rho {found.spent:.3g} of {found.noise.budget:.3g} spent on states {sorted(found.costs)}"
    states = [one.state for one in entries if one.details.get("certificate") == certificate.digest]
    own = said.get("rho")
    cheap = [one for one in states if one in found.costs and not (isinstance(own, float) and own <= found.costs[one])]
    if cheap or not found.spent <= found.noise.budget:
        return [Finding("release", FALSE, claimed, spent)]
    if found.voided is not None:
        return [Finding("release", INTACT, claimed, VOID.format(found.voided), "a run that nothing left without noise")]
    if found.fixed.number in anchored:
        return [Finding("release", PROVEN, claimed, spent)]
    return [Finding("release", INTACT, claimed, spent, "an anchor noted before training, which `train` prints")]
