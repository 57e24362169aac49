"""Checking a certificate with evidence of one's own: each claim is proven, not proven, or false.

Nothing here uses the arithmetic that made the certificate (`bounds`, `certify`, `agreement`): `second` and
`second_look` go another way from the same rows or sums. Sums, and answers of clients, are taken as they are given:
that they are of the retained rows is a claim of its own, which the rows prove.
"""

from __future__ import annotations

import numpy as np

from probekit.certificates.bench import Bench as Bench
from probekit.certificates.budgets import check_privacy
from probekit.certificates.certificate import (
    CHECKERS,
    GRADIENT,
    SCALAR,
    SERVER,
    STATISTICS,
    Certificate,
    required_statements,
    signed_bytes,
)
from probekit.certificates.evidence import Evidence as Evidence
from probekit.certificates.verdicts import (
    FALSE,
    INTACT,
    PROVEN,
    Finding,
    stated,
    unproven,
)
from probekit.custody.petitions import OPERATOR
from probekit.custody.seals import opened
from probekit.custody.signatures import check_signature
from probekit.errors import ProbekitError, VerificationError
from probekit.unlearning.request import UnlearnRequest


def verify(certificate: Certificate, evidence: Evidence) -> tuple[Finding, ...]:
    """What the evidence says of each claim of a certificate."""
    with np.errstate(all="ignore"):
        found = [*_read(certificate), *_signed(certificate, evidence), *check_privacy(certificate, evidence.head)]
        if any(one.verdict == FALSE for one in found if one.name == "request"):
            return tuple(found)
        return (*found, *Bench(certificate, evidence).findings())


def _read(certificate: Certificate) -> list[Finding]:
    """What a certificate must say to be one: a request that does not contradict it, and its caveats."""
    try:
        said = certificate.request
        asked = UnlearnRequest.from_plain(said) if opened(said) else None
    except (ProbekitError, KeyError, TypeError, ValueError) as error:
        return [Finding("request", FALSE, "a request", str(error))]
    still = [name for name in (asked.clients if asked else ()) if name in certificate.retained]
    found = [] if asked is None else _asked(asked)
    if still:
        found.append(Finding("retained", FALSE, "without the forgotten", f"client {still[0]}"))
    if certificate.format < 2:
        old = "format 1 was written before bounds counted the bias and before claims were checked singly"
        found.append(Finding("format", INTACT, "1", old, "a certificate of format 2: unlearn again"))
    missing = [one for one in required_statements(certificate) if one not in certificate.statements]
    found.append(stated("statements", not missing, "assumptions and caveats", missing[0] if missing else "all there"))
    said_by, least = certificate.checkable_by, _least_checker(certificate)
    found.append(stated("checkable-by", said_by in CHECKERS[CHECKERS.index(least) :], said_by, f"at least {least}"))
    found += [
        unproven(str(one.get("kind")).replace("_", "-"), "sealed", "the opening, unless it was erased")
        if "sealed" in one
        else unproven(str(one.get("kind")), "unknown kind of claim", "a newer probekit")
        for one in certificate.unknown
    ]
    return found


def _least_checker(certificate: Certificate) -> str:
    """What it takes at least to check such claims: a residual needs a gradient, and sums where they gave it."""
    curvature, bounds = certificate.curvature, certificate.bounds
    if certificate.residual is None:
        return SERVER if bounds.loss_change is None else SCALAR
    summed = "statistics" in certificate.after or (curvature is not None and curvature.source == "statistics")
    return STATISTICS if summed else GRADIENT


def _asked(request: UnlearnRequest) -> list[Finding]:
    """Whether those who are said to have asked, and signed, did."""
    found = []
    for one in (each for each in request.asked if each.signature is not None or each.by != OPERATOR):
        try:
            found.append(Finding("asked", PROVEN, one.words, f"signed by key {one.check().signature_key[:16]}"))
        except VerificationError as error:
            found.append(Finding("asked", FALSE, one.words, str(error)))
    return found


def _signed(certificate: Certificate, evidence: Evidence) -> list[Finding]:
    """A signature is checked against the key it names; whose key that is only the verifier can know."""
    signature = evidence.signature
    if signature is None:
        return [Finding("signature", FALSE, "signed", "no signature")] if evidence.public_key is not None else []
    named = str(signature.get("key"))
    try:
        trusted = bytes.fromhex(named) if evidence.public_key is None else evidence.public_key
        check_signature(signed_bytes(certificate), signature, trusted)
    except (VerificationError, ValueError) as error:
        return [Finding("signature", FALSE, named[:16], str(error))]
    if evidence.public_key is None:
        return [Finding("signature", INTACT, named[:16], "whole, signer unknown", "the signer's public key, from him")]
    return [Finding("signature", PROVEN, named[:16], "signed by the key given")]
