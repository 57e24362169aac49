"""One file that a stranger checks: a zip archive of a few parts with known names, read with distrust.

manifest.json            what it is, the sha256 of every other part, and a signature over that
statement.txt            in plain words: what is stated, what is shown, and what is not
ledger.json              the ledger's chain, other people's entries by digest only
transitions.json         which slots changed from state to state
certificate-0002.json    what is certified of a state, one for each
head/, sums.safetensors  the head, and the sums that it is the minimum of, where they were handed out

Everything but head and sums takes at most a megabyte.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from probekit.custody.signatures import check_signature, sign
from probekit.custody.slots import read_hex
from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.files import parsed
from probekit.values import Json, canonical

KIND = "probekit bundle 1"
MANIFEST, STATEMENT, LEDGER, TRANSITIONS = "manifest.json", "statement.txt", "ledger.json", "transitions.json"
CONFIG, WEIGHTS, SUMS = "head/config.json", "head/model.safetensors", "sums.safetensors"
LARGE = (CONFIG, WEIGHTS, SUMS)
"""Parts that are stored as they are, so that none is larger than the archive."""
CERTIFICATE = re.compile(r"certificate-\d{4,8}\.json")
MOST_BYTES = 1_000_000
"""The size of an archive, head and sums aside."""
MOST_UNPACKED = 2**25
LARGEST = 2**32 - 1
MOST_PARTS = 80
MOST_DIRECTORY = 2**16
_END = struct.Struct("<4s4H2LH")
_TIME = (1980, 1, 1, 0, 0, 0)
"""The same content has the same bytes, whenever it is packed."""
_UNREADABLE = (RuntimeError, EOFError, OSError, struct.error, zipfile.BadZipFile, zlib.error)
"""What zip archives that nobody wrote make of their reader; the first of them also covers what is not implemented."""
AS_WRITTEN = "Take the bundle as written."


@dataclass(frozen=True)
class Archive:
    """What a manifest says, the parts by name, and who signed the manifest."""

    about: Mapping[str, Json]
    parts: Mapping[str, bytes]
    signature: Mapping[str, str] | None = None

    @property
    def manifest(self) -> dict[str, Json]:
        """All that a signature covers: what it is about, and the digest of every part."""
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.parts.items())}
        return {**self.about, "kind": KIND, "parts": digests}

    @property
    def signed_bytes(self) -> bytes:
        """What a signature is of; it begins with its kind, so that it fits nothing else."""
        return f"{KIND}\n{canonical(self.manifest)}".encode()

    def signed(self, private_key: bytes) -> Archive:
        """The archive with a signature over its manifest."""
        return Archive(self.about, self.parts, sign(self.signed_bytes, private_key))

    def check_signature(self, public_key: bytes | None = None) -> None:
        """Refuse a signature that the key (none given: the one that it names) did not make."""
        if self.signature is None:
            raise VerificationError("The bundle is not signed.")
        named = read_hex(self.signature.get("key"))
        check_signature(self.signed_bytes, self.signature, named if public_key is None else public_key)

    @property
    def data(self) -> bytes:
        """The archive as a file; more than fits into one is refused."""
        text = canonical({"manifest": self.manifest, "signature": self.signature}) + "\n"
        packed, target = 0, io.BytesIO()
        with zipfile.ZipFile(target, "w") as made:
            for name, data in ((MANIFEST, text.encode()), *sorted(self.parts.items())):
                info = zipfile.ZipInfo(name, _TIME)
                info.compress_type = zipfile.ZIP_STORED if name in LARGE else zipfile.ZIP_DEFLATED
                info.external_attr = 0o100644 << 16
                made.writestr(info, data)
                packed += 0 if name in LARGE else info.compress_size + 2 * len(name) + 100
        if packed > MOST_BYTES:
            raise InputError(f"A bundle takes at most {MOST_BYTES} bytes; found {packed}. Put fewer requests into one.")
        return target.getvalue()

    @classmethod
    def read(cls, path: Path) -> Self:
        """The archive in a file, whole: no part more, less or changed; anything else is refused."""
        if not path.is_file():
            raise NotFoundError(f"There is no bundle {path}. `probekit erase` and `probekit bundle` write one.")
        try:
            parts = _parts(path)
            manifest = parsed(parts.pop(MANIFEST))
            about, signature = dict(manifest["manifest"]), manifest["signature"]
            kind, digests = about.pop("kind"), about.pop("parts")
            if kind != KIND or set(manifest) != {"manifest", "signature"}:
                raise ValueError(f"something of kind {KIND!r} was wanted")
            if signature is not None and {type(one) for one in signature.values()} != {str}:
                raise ValueError("its signature is none")
        except (ValueError, KeyError, TypeError, AttributeError, *_UNREADABLE) as error:
            raise VerificationError(f"{path} is not a bundle: {error}. {AS_WRITTEN}") from error
        found = cls(about, parts, signature)
        if found.manifest["parts"] != digests:
            raise VerificationError(f"Parts of {path} were changed, added or taken away. {AS_WRITTEN}")
        return found

    def json(self, name: str) -> Any:
        """What a part says, in plain values."""
        try:
            return parsed(self.parts[name])
        except KeyError:
            raise VerificationError(f"The bundle has no {name}. {AS_WRITTEN}") from None
        except (ValueError, RecursionError) as error:
            raise VerificationError(f"{name} of the bundle cannot be read: {error}. {AS_WRITTEN}") from error


def is_archive(path: Path) -> bool:
    """Whether a file begins as an archive does."""
    if not path.is_file():
        return False
    with path.open("rb") as handle:
        return handle.read(4) == b"PK\x03\x04"


def _parts(path: Path) -> dict[str, bytes]:
    """Every part in memory; names that are not known, links, folders, duplicates and bombs are refused."""
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it is larger than any bundle ({LARGEST} bytes)")
    _refuse_directory(path)
    found: dict[str, bytes] = {}
    room = MOST_UNPACKED
    with zipfile.ZipFile(path) as opened:
        small = path.stat().st_size - sum(one.compress_size for one in opened.infolist() if one.filename in LARGE)
        if small > MOST_BYTES:
            raise ValueError(f"without head and sums it takes {small} bytes, more than {MOST_BYTES}")
        for one in opened.infolist():
            name = one.orig_filename  # as written: `filename` is cut at a null byte
            if name not in (MANIFEST, STATEMENT, LEDGER, TRANSITIONS, *LARGE) and not CERTIFICATE.fullmatch(name):
                raise ValueError(f"a part {name!r:.80} that no bundle has")
            if name in found or one.flag_bits & 1 or one.external_attr >> 28 not in (0, 8):
                raise ValueError(f"the part {name} is there twice, encrypted, a link or a folder")
            kind, limit = (zipfile.ZIP_STORED, one.compress_size) if name in LARGE else (zipfile.ZIP_DEFLATED, room)
            if one.compress_type != kind:
                raise ValueError(f"the part {name} is packed in another way than bundles are")
            try:
                with opened.open(one) as handle:
                    found[name] = handle.read(limit + 1)
            except _UNREADABLE as error:
                raise ValueError(f"the part {name} cannot be read ({error})") from error
            if len(found[name]) > limit:
                raise ValueError("its parts take more room than any bundle's")
            room -= 0 if name in LARGE else len(found[name])
    return found


def _refuse_directory(path: Path) -> None:
    """Refuse a table of contents that is too long to be read, before it is."""
    with path.open("rb") as handle:
        handle.seek(max(0, path.stat().st_size - _END.size))
        end = handle.read()
    if len(end) != _END.size:
        raise ValueError("it is cut short")
    mark, *_, here, parts, size, _, comment = _END.unpack(end)
    if mark != b"PK\x05\x06" or comment or here != parts or parts > MOST_PARTS or size > MOST_DIRECTORY:
        raise ValueError("its table of contents is not one that was written, or it is cut short")
