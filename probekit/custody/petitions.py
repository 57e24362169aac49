"""Who asked for something, and the proof of it: a client by its key, or the operator.

A client that has a receipt and the private key to its leaf asks by a signed petition: to leave this run, out of this
slot. Whoever reads it later needs the client's public key, and trusts nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from probekit.custody.receipts import Receipt
from probekit.custody.signatures import check_signature, raw_public_key, sign
from probekit.custody.slots import NONE, WIDTH, read_hex
from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.files import parsed, read_limited
from probekit.values import Json, canonical

KIND = "probekit petition 1"
OPERATOR = "operator"
MOST_BYTES = 2**14
"""The size of a petition that is read at all."""
AS_WRITTEN = "Take the petition as written."


@dataclass(frozen=True)
class Petition:
    """Who asked (`by`: a public key in hex, or the operator), what was said, and the signature over that."""

    by: str = OPERATOR
    said: Mapping[str, Json] = field(default_factory=dict)
    signature: Mapping[str, str] | None = None

    @classmethod
    def of_client(cls, receipt: Receipt, private_key: bytes) -> Self:
        """A client asks to leave the run of its receipt."""
        key = raw_public_key(private_key, private=True)
        if receipt.leaf.key not in (NONE, key):
            raise InputError("The receipt's leaf has another public key than yours. Sign with the key that you gave.")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        said: dict[str, Json] = {
            "run": receipt.leaf.run.hex(),
            "slot": receipt.leaf.slot,
            "time": now,
            "wanted": "erase",
        }
        return cls(key.hex(), said).signed(private_key)

    def signed(self, private_key: bytes) -> Self:
        """The petition with a signature over all that it says."""
        return type(self)(self.by, self.said, sign(self.signed_bytes, private_key))

    def check(self) -> Self:
        """Refuse a petition of a client that the client's key did not sign."""
        if self.by != OPERATOR and self.signature is None:
            raise VerificationError(f"A client's petition is signed by the client; this one is not. {AS_WRITTEN}")
        if self.signature is not None:
            named = read_hex(self.signature.get("key") if self.by == OPERATOR else self.by, WIDTH)
            check_signature(self.signed_bytes, self.signature, named)
        return self

    @property
    def signed_bytes(self) -> bytes:
        """What a signature covers; it begins with what it is of, so that it fits nothing else."""
        return f"{KIND}\n{canonical({'by': self.by, 'said': self.said})}".encode()

    @property
    def plain(self) -> list[Json]:
        """As a request has it."""
        return [self.by, dict(self.said), None if self.signature is None else dict(self.signature)]

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """The petition that plain values say; anything else is refused."""
        by, said, signature = plain
        texts = signature is None or (
            isinstance(signature, dict) and all(type(one) is str for one in signature.values())
        )
        if not isinstance(by, str) or not isinstance(said, dict) or not texts:
            raise ValueError("a petition says by whom, what, and has a signature or none")
        return cls(by, said, signature)

    @property
    def text(self) -> str:
        """The one text of a petition."""
        content: dict[str, Json] = {"kind": KIND, "by": self.by, "said": self.said, "signature": self.signature}
        return json.dumps(content, sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """The petition in a file, its signature checked."""
        if not path.is_file():
            raise NotFoundError(f"There is no petition {path}. A client makes one with `probekit petition`.")
        try:
            plain = parsed(read_limited(path, MOST_BYTES))
            if not isinstance(plain, dict) or plain.pop("kind", None) != KIND:
                raise ValueError(f"something of kind {KIND!r} was wanted")
            return cls.from_plain([plain["by"], plain["said"], plain["signature"]]).check()
        except (ValueError, KeyError, TypeError) as error:
            raise VerificationError(f"{path} is not a petition: {error}. {AS_WRITTEN}") from error

    @property
    def signature_key(self) -> str:
        """The public key that the signature names; nothing where there is none."""
        return "" if self.signature is None else str(self.signature.get("key"))

    @property
    def words(self) -> str:
        """Who asked, in words."""
        if self.by == OPERATOR:
            return "the operator"
        return f"a client, by its key {self.by[:16]}"
