"""Ed25519 signatures (the extra `sign`): who vouches for a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from probekit.errors import InputError, NotFoundError, VerificationError
from probekit.files import parsed

ALGORITHM = "ed25519"
RAW_BYTES = 32


def sign(content: bytes, private_key: bytes, *, password: bytes | None = None) -> dict[str, str]:
    """The signature of some bytes by a private key (PEM, or the 32 raw bytes)."""
    key = _key("private", private_key, password)
    public = key.public_key().public_bytes_raw()
    return {"algorithm": ALGORITHM, "key": public.hex(), "value": key.sign(content).hex()}


def check_signature(content: bytes, signature: Mapping[str, str], public_key: bytes) -> None:
    """Refuse a signature that this public key (PEM, or the 32 raw bytes) did not make of these bytes."""
    if signature.get("algorithm") != ALGORITHM:
        raise VerificationError(
            f"An {ALGORITHM} signature was wanted; found {signature.get('algorithm')!r}. Sign it again."
        )
    key = _key("public", public_key)
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(bytes.fromhex(signature["value"]), content)
    except (InvalidSignature, ValueError, KeyError, TypeError) as error:
        raise VerificationError(
            f"The signature is not of key {key.public_bytes_raw().hex()[:16]} over this certificate. It was "
            "changed, or somebody else signed it."
        ) from error


def new_private_key() -> bytes:
    """A fresh private key in PEM, not encrypted."""
    from cryptography.hazmat.primitives import serialization as text

    make = _keys().Ed25519PrivateKey.generate()
    found: bytes = make.private_bytes(text.Encoding.PEM, text.PrivateFormat.PKCS8, text.NoEncryption())
    return found


def public_key_of(private_key: bytes, *, password: bytes | None = None) -> bytes:
    """The public key, in PEM, that belongs to a private one."""
    from cryptography.hazmat.primitives import serialization as text

    public = _key("private", private_key, password).public_key()
    found: bytes = public.public_bytes(text.Encoding.PEM, text.PublicFormat.SubjectPublicKeyInfo)
    return found


def raw_public_key(key: bytes, *, private: bool = False) -> bytes:
    """The 32 bytes of a public key, from the public key or from the private one that it belongs to."""
    found = _key("private", key, None).public_key() if private else _key("public", key)
    raw: bytes = found.public_bytes_raw()
    return raw


def _keys() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise NotFoundError('Signatures need the extra "sign": pip install "probekit[sign]".') from error
    return ed25519


def _key(kind: str, key: bytes, *password: bytes | None) -> Any:
    """A key, "private" or "public", from PEM or from its 32 raw bytes."""
    wanted = getattr(_keys(), f"Ed25519{kind.title()}Key")
    from cryptography.hazmat.primitives import serialization as text

    raw, pem = getattr(wanted, f"from_{kind}_bytes"), getattr(text, f"load_pem_{kind}_key")
    try:
        found = raw(key) if len(key) == RAW_BYTES else pem(key, *password)
    except (ValueError, TypeError) as error:
        raise InputError(f"The {kind} key cannot be read ({error}). Give an Ed25519 key in PEM.") from error
    if not isinstance(found, wanted):
        raise InputError(f"An Ed25519 key was wanted; found {type(found).__name__}. Make one for Ed25519.")
    return found


def read_signed(data: bytes, noun: str, fields: Set[str], kind: str, *, most: int) -> Mapping[str, Any]:
    """The plain values of a paper with these fields and perhaps a signature; anything else is refused."""
    if len(data) > most:
        raise VerificationError(f"This is larger than any {noun} ({most} bytes). Take the file as written.")
    try:
        plain = parsed(data)
        if not isinstance(plain, Mapping) or set(plain) != {*fields, "signature"} or plain["kind"] != kind:
            raise ValueError(f"something of kind {kind!r} was wanted")
        signature = plain["signature"]
        if signature is not None and {type(one) for one in signature.values()} != {str}:
            raise ValueError("its signature is none")
    except (ValueError, AttributeError) as error:
        what = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
        raise VerificationError(f"This is not {what}: {error}. Take the file as written.") from error
    return plain
