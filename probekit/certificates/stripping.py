"""What stays of a certificate once those forgotten later are purged.

The certificate of a state names, by digests and by numbers that anybody can compute again, a head that was made with
all who were forgotten after it: whoever has candidates for a row could try them. So a purge leaves of earlier
certificates what was asked for (sealed), the method, the counts, the digest and the signature. The digest is of seals,
too, which go: nobody can fill in the rest and try. A copy that was handed out before is still known by its digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from probekit.certificates.certificate import Bounds, Certificate
from probekit.errors import VerificationError
from probekit.files import parsed

WHY = (
    "A purge erased what this certificate claimed, since it could give those away who were forgotten later. A copy "
    "that was handed out before can still be held against the ledger."
)
KEPT = ("format", "method", "request", "objective", "checkable_by")


def stripped_text(certificate: Certificate, signature: Mapping[str, str] | None) -> str:
    """The text that takes a certificate's place."""
    said, (clients, rows) = certificate.stored, certificate.retained_numbers
    kept = {**{name: said[name] for name in KEPT}, "retained": {"clients": clients, "rows": rows}}
    found = {"stripped": kept, "digest": certificate.digest, "signature": signature}
    return json.dumps(found, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_stripped(text: str) -> Certificate | None:
    """What a stripped certificate still says; None: the text is none."""
    try:
        said: Any = parsed(text.encode())
    except ValueError:
        return None
    if not isinstance(said, dict) or "stripped" not in said:
        return None
    nothing: dict[str, Any] = {"before": {}, "after": {}, "retained": {}, "bounds": Bounds(why=WHY)}
    try:
        kept = said["stripped"]
        return Certificate(**nothing, **{name: kept[name] for name in KEPT}, counted=kept["retained"])
    except (KeyError, TypeError) as error:
        raise VerificationError(f"This is not what a purge left of a certificate: {error}.") from error
