"""Signed questions and answers: what passes a border names its federation, its client and its question, and is signed.

An envelope is a message of `message`: a note (what it is, which federation, which client, and more), the content as
bytes, and an Ed25519 signature over both that begins with what it is of, so that it fits nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from probekit.custody.signatures import check_signature, sign
from probekit.errors import CorruptError, VerificationError
from probekit.federated.message import decode, encode
from probekit.values import Json, canonical

QUESTION, ANSWER = "probekit question 1", "probekit answer 1"
FIELDS = frozenset({"kind", "federation", "client", "question", "number", "remembers"})
CONTENT = "content"


@dataclass(frozen=True)
class Envelope:
    """A question to a client or its answer.

    kind: which of the two; federation: its id; client: who is asked or answers; question: the question's digest.
    number: of the question in its job. remembers: the number of the last accepted answer that left something in the
    client's memory (in an answer: its own number where it did); 0: there is none.
    """

    kind: str
    federation: str
    client: str
    question: str
    number: int
    remembers: int
    content: bytes

    @property
    def _note(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in sorted(FIELDS)}

    def sealed(self, private_key: bytes) -> bytes:
        """The envelope as bytes, signed. The same key and content give the same bytes."""
        signature: Any = sign(_signed(self._note, self.content), private_key)
        return encode({**self._note, "signature": signature}, {CONTENT: np.frombuffer(self.content, np.uint8)})

    @classmethod
    def read(cls, data: bytes, kind: str) -> tuple[Self, Mapping[str, str]]:
        """What bytes say, and a signature that nobody has checked yet; anything but such an envelope is refused."""
        note, arrays, _ = decode(data)
        signature = note.pop("signature", None)
        texts = isinstance(signature, dict) and all(type(one) is str for one in signature.values())
        numbers = all(type(note.get(name)) is int for name in ("number", "remembers"))
        named = all(type(note.get(name)) is str for name in FIELDS - {"number", "remembers"})
        if set(note) != FIELDS or set(arrays) != {CONTENT} or note["kind"] != kind or not (texts and numbers and named):
            raise CorruptError(f"This is not a {kind.split()[1]} as probekit signs them. Take the file as written.")
        return cls(**note, content=arrays[CONTENT].tobytes()), signature

    @classmethod
    def open(cls, data: bytes, kind: str, *, key: bytes, federation: str, client: str) -> Self:
        """The envelope in bytes, if this key signed it, in this federation, for this client."""
        found, signature = cls.read(data, kind)
        found.check(signature, key)
        what = kind.split()[1]
        if found.federation != federation:
            raise VerificationError(f"This {what} is of federation {found.federation[:16]}, not {federation[:16]}.")
        if found.client != client:
            raise VerificationError(f"This {what} is client {found.client}'s, not client {client}'s.")
        return found

    def check(self, signature: Mapping[str, str], key: bytes) -> None:
        """Refuse a signature that is not this key's over all of it."""
        try:
            check_signature(_signed(self._note, self.content), signature, key)
        except VerificationError:
            signer, what = str(signature.get("key"))[:16], self.kind.split()[1]
            altered = "it was altered on its way" if signer == key.hex()[:16] else f"it is signed by key {signer}"
            raise VerificationError(
                f"This {what} is not signed by key {key.hex()[:16]}: {altered}. Take it as it was written."
            ) from None


def _signed(note: Mapping[str, Json], content: bytes) -> bytes:
    return f"{note['kind']}\n{canonical(dict(note))}\n{hashlib.sha256(content).hexdigest()}".encode()
