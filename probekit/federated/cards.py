"""Who a node is, on one signed page that travels to the operator: its name, its public keys, what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from probekit.custody.signatures import check_signature, raw_public_key, read_signed, sign
from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.files import read_limited
from probekit.models.problem import class_count
from probekit.values import EmbeddingSet, EncodingSpec, Json, canonical, target_kind

KIND = "probekit member 1"
MOST_BYTES = 2**24
LONGEST_NAME = 200


@dataclass(frozen=True)
class Card:
    """A node as it presents itself.

    federation: the id of the one it joins. key: its raw public key, in hex. flower: the public key that it shows to
    Flower, as text; empty where it goes by files. spec, dimension, classes, rows: of
    the set that it answers from. targets: the kind of several labels or real targets; empty where rows have classes.
    replaces: the key that this one takes the place of, in hex; `endorsed` is that key's signature over this card.
    """

    federation: str
    name: str
    key: str
    flower: str
    spec: Mapping[str, Json]
    dimension: int
    classes: tuple[str, ...]
    rows: int
    targets: str = ""
    replaces: str = ""
    endorsed: Mapping[str, str] | None = None
    signature: Mapping[str, str] | None = None

    @classmethod
    def of(cls, federation: str, name: str, rows: EmbeddingSet, count: int, key: bytes, flower: str = "") -> Self:
        """The card of a node with this private key (PEM), which answers from so many of these rows."""
        if not name or len(name) > LONGEST_NAME or any(ord(one) < 32 for one in name):
            raise InputError(f"A node's name has 1 to {LONGEST_NAME} printable characters; found {name[:40]!r}.")
        public = raw_public_key(key, private=True).hex()
        spec: Any = asdict(rows.spec)
        classes = rows.class_names or tuple(map(str, range(class_count(rows))))
        kind = "" if rows.targets is None else target_kind(rows.targets)
        return cls(federation, name, public, flower, spec, rows.dimension, classes, count, kind).signed(key)

    def replacing(self, old_key: bytes, key: bytes) -> Self:
        """The card with a new private key, endorsed by the old one."""
        old, new = (raw_public_key(one, private=True).hex() for one in (old_key, key))
        plain = replace(self, key=new, replaces=old, endorsed=None, signature=None)
        return replace(plain, endorsed=sign(plain._said("endorsement"), old_key)).signed(key)

    def signed(self, key: bytes) -> Self:
        """With the signature of its own private key."""
        plain = replace(self, signature=None)
        return replace(plain, signature=sign(plain._said("card"), key))

    def check(self) -> Self:
        """Refuse a card that its own key did not sign, or that an old key did not endorse where it names one."""
        if self.signature is None:
            raise VerificationError(f"The card of {self.name} is not signed. Take the card as the node wrote it.")
        check_signature(self._said("card"), self.signature, bytes.fromhex(self.key))
        if self.replaces:
            check_signature(self._said("endorsement"), self.endorsed or {}, bytes.fromhex(self.replaces))
        return self

    def _said(self, what: str) -> bytes:
        left_out = {"signature"} | ({"endorsed"} if what == "endorsement" else set())
        said = {name: value for name, value in self._plain.items() if name not in left_out}
        return f"{KIND} {what}\n{canonical(said)}".encode()

    @property
    def _plain(self) -> dict[str, Any]:
        return {**asdict(self), "classes": list(self.classes), "kind": KIND}

    @property
    def text(self) -> str:
        """The one text of a card."""
        return json.dumps(self._plain, sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @property
    def encoding(self) -> EncodingSpec:
        """What determined its embeddings."""
        given: Any = dict(self.spec)
        return EncodingSpec(**given)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The card in a file, its signatures checked."""
        if not path.is_file():
            raise NotFoundError(f"There is no card {path}. A node writes one with `probekit federate node join`.")
        names = {one.name for one in fields(cls)} - {"signature"}
        try:
            data = read_limited(path, MOST_BYTES)
        except ValueError as error:
            raise VerificationError(f"{path} is not a card: {error}. Take the card as the node wrote it.") from error
        plain = dict(read_signed(data, "card", names | {"kind"}, KIND, most=MOST_BYTES))
        del plain["kind"]
        try:
            texts = [plain[name] for name in ("federation", "name", "key", "flower", "targets", "replaces")]
            numbers = [plain["rows"], plain["dimension"]]
            if {type(one) for one in texts} != {str} or {type(one) for one in numbers} != {int}:
                raise ValueError("texts and numbers are in each other's place")
            if any(type(one) is not str for one in plain["classes"]):
                raise ValueError("class names are texts")
            found = cls(**{**plain, "classes": tuple(plain["classes"])})
            _ = found.encoding.digest, bytes.fromhex(found.key)
        except (ValueError, TypeError, KeyError) as error:
            raise VerificationError(f"{path} is not a card: {error}. Take the card as the node wrote it.") from error
        return found.check()
