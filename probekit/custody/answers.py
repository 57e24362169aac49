"""What a person gets whose rows were erased: the openings of what was asked for in the certificate, and nothing else's.

With it the person shows, to whoever has the bundle, that a request for exactly these samples was certified. It tells
which samples they were, so it is for that person alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from probekit.custody.chain import Anchor
from probekit.custody.seals import Openings, openings_of
from probekit.custody.signatures import check_signature, read_signed, sign
from probekit.custody.slots import read_hex
from probekit.errors import VerificationError
from probekit.values import canonical

KIND = "probekit answer 1"
MOST_BYTES = 2**24
"""The size of an answer that is read at all."""
FIELDS = {"kind", "reference", "certificates", "anchor"}


@dataclass(frozen=True)
class ErasureAnswer:
    """The reference of a request, the openings of what was asked for by the certificate that has it, and a signature.

    certificates: digests of certificates, and of each the openings by place.
    """

    reference: str
    certificates: Mapping[str, Openings]
    anchor: Anchor
    signature: Mapping[str, str] | None = None

    def signed(self, private_key: bytes) -> ErasureAnswer:
        """The answer with a signature over all that it says."""
        return replace(self, signature=sign(self.signed_bytes, private_key))

    def check(self, *, public_key: bytes | None = None) -> Self:
        """Refuse an answer that somebody else signed."""
        if public_key is not None and self.signature is None:
            raise VerificationError("A signed answer was wanted, and this one is not. Ask for one.")
        if self.signature is not None:
            named = read_hex(self.signature.get("key"))
            check_signature(self.signed_bytes, self.signature, named if public_key is None else public_key)
        return self

    @property
    def signed_bytes(self) -> bytes:
        """What a signature covers; it begins with what it is of, so that it fits nothing else."""
        return f"{KIND}\n{canonical(self._content)}".encode()

    @property
    def _content(self) -> dict[str, Any]:
        opened = {
            digest: {place: [one.salt, one.value] for place, one in openings.items()}
            for digest, openings in self.certificates.items()
        }
        return {"kind": KIND, "reference": self.reference, "certificates": opened, "anchor": self.anchor.plain}

    @property
    def text(self) -> str:
        """The one text of an answer."""
        return json.dumps({**self._content, "signature": self.signature}, sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The answer in a file's bytes; one that differs in any byte is refused."""
        plain = read_signed(data, "answer", FIELDS, KIND, most=MOST_BYTES)
        try:
            opened = {digest: openings_of(one) for digest, one in plain["certificates"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise VerificationError(f"This is not an answer: {error}. Take the file as written.") from error
        found = cls(str(plain["reference"]), opened, Anchor.from_plain(plain["anchor"]), plain["signature"])
        if found.text.encode() != data:
            raise VerificationError("The answer was changed after it was written. Take the file as written.")
        return found.check()


def is_answer(data: bytes) -> bool:
    """Whether a file's bytes say that they are an answer."""
    return f'"kind": "{KIND}"'.encode() in data
