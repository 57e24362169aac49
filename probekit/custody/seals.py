"""Values that stand sealed, as H(salt, value): whoever has a candidate cannot try it once the salt is gone."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from probekit.errors import VerificationError
from probekit.values import Json, canonical

KIND = b"probekit.seal.v1"
_SALT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Opening:
    """A value and the salt that it is sealed with."""

    salt: str
    value: Json

    @classmethod
    def of(cls, value: Json) -> Self:
        """An opening with a fresh salt."""
        return cls(secrets.token_hex(32), value)

    @property
    def seal(self) -> dict[str, Json]:
        """What stands in the value's place."""
        text = KIND + bytes.fromhex(self.salt) + canonical(self.value).encode()
        return {"sealed": hashlib.sha256(text).hexdigest()}


Openings = Mapping[str, Opening]
"""By the place in which the value stands sealed."""


def opened(value: Any) -> bool:
    """Whether all of a value can be read: there is no seal in it."""
    if isinstance(value, Mapping):
        return set(value) != {"sealed"} and all(map(opened, value.values()))
    return all(map(opened, value)) if isinstance(value, list | tuple) else True


def openings_text(openings: Openings) -> str:
    """Openings as they are kept."""
    return canonical({place: [one.salt, one.value] for place, one in openings.items()}) + "\n"


def openings_of(said: Any) -> dict[str, Opening]:
    """The openings that plain values say; anything else is refused."""
    if not isinstance(said, Mapping):
        raise VerificationError("Openings by place were wanted. Restore them from a copy.")
    for one in said.values():
        if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], str) or not _SALT.fullmatch(one[0]):
            raise VerificationError("An opening is a salt of 64 hex digits and a value. Restore it from a copy.")
    return {place: Opening(*one) for place, one in said.items()}
