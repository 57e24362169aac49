"""A client's receipt: its leaf opened, the way to the root of a state, and how far the ledger was then.

With it a former client shows that its own leaf was there, and checks later that it was emptied. It proves nothing
about rows that stand in another slot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from probekit.custody.chain import Anchor
from probekit.custody.signatures import check_signature, read_signed, sign
from probekit.custody.slots import ClientLeaf, SlotRoot, climb, name_digest, read_hex
from probekit.custody.transitions import SlotHistory, Transition, follow
from probekit.errors import VerificationError
from probekit.values import canonical

KIND = "probekit receipt 1"
MOST_BYTES = 2**16
"""The size of a receipt that is read at all."""
FIELDS = {"kind", "leaf", "root", "siblings", "anchor"}


@dataclass(frozen=True)
class Receipt:
    """A leaf in the clear with its salt, the siblings up to a root, the ledger's tip then, and who signed all that."""

    leaf: ClientLeaf
    root: SlotRoot
    siblings: bytes
    anchor: Anchor
    signature: Mapping[str, str] | None = None

    def check(self, *, name: str | None = None, public_key: bytes | None = None) -> Self:
        """Refuse a receipt whose leaf is not under its root, that is another client's, or that somebody else signed."""
        if self.leaf.run != self.root.run:
            raise VerificationError("The leaf is of one run and the root of another. Take the receipt as written.")
        if climb(self.leaf.digest, self.leaf.slot, self.siblings, slots=self.root.slots) != self.root.top:
            raise VerificationError(
                f"This leaf is not in slot {self.leaf.slot} under root {self.root.digest[:16]}: a salt, a number or a "
                "sibling is another's. Take the receipt as written."
            )
        if name is not None and name_digest(name) != self.leaf.name:
            raise VerificationError(f"This receipt is not of client {name}. Ask for your own: `probekit prove`.")
        if public_key is not None and self.signature is None:
            raise VerificationError("A signed receipt was wanted, and this one is not. Ask for one (`--key`).")
        if self.signature is not None:
            named = read_hex(self.signature.get("key"))
            check_signature(self.signed_bytes, self.signature, named if public_key is None else public_key)
        return self

    def signed(self, private_key: bytes) -> Receipt:
        """The receipt with a signature over all that it says."""
        return replace(self, signature=sign(self.signed_bytes, private_key))

    @property
    def signed_bytes(self) -> bytes:
        """What a signature covers; it begins with what it is of, so that it fits nothing else."""
        return f"{KIND}\n{canonical(self._content)}".encode()

    @property
    def _content(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "leaf": self.leaf.plain,
            "root": self.root.plain,
            "siblings": self.siblings.hex(),
            "anchor": self.anchor.plain,
        }

    @property
    def text(self) -> str:
        """The one text of a receipt."""
        return json.dumps({**self._content, "signature": self.signature}, sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The receipt in a file's bytes, its leaf under its root; one that differs in any byte is refused."""
        plain = read_signed(data, "receipt", FIELDS, KIND, most=MOST_BYTES)
        leaf, root = ClientLeaf.from_plain(plain["leaf"]), SlotRoot.from_plain(plain["root"])
        found = cls(leaf, root, read_hex(plain["siblings"]), Anchor.from_plain(plain["anchor"]), plain["signature"])
        if found.text.encode() != data:
            raise VerificationError("The receipt was changed after it was written. Take the file as written.")
        return found.check()

    def history(self, transitions: Sequence[Transition]) -> SlotHistory:
        """What became of the leaf, by every transition since the receipt's state, in order."""
        return follow(self.leaf.slot, self.leaf.digest, self.root, transitions)
