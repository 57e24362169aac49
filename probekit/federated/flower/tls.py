"""Certificates of a federation and keys of its nodes: made once, renewed without new keys, errors in one sentence."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

AUTHORITY_DAYS, SERVER_DAYS = 3650, 397
LOOPBACK = ("localhost", "127.0.0.1", "::1")

_FAULTS = {
    10: "has expired. Whoever runs the server renews it: probekit federate renew FOLDER",
    9: "is not valid yet. Set the clock of this machine or of the server's",
    62: "is for other names. Whoever runs the server adds this one: probekit federate renew FOLDER --host NAME",
    64: "is for other names. Whoever runs the server adds this one: probekit federate renew FOLDER --host NAME",
}


def new_key() -> bytes:
    """A private key for a certificate, in PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return _private(ec.generate_private_key(ec.SECP256R1()))


def new_node_key() -> bytes:
    """A node's private key as flwr wants it (OpenSSH)."""
    from cryptography.hazmat.primitives import serialization as text
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(text.Encoding.PEM, text.PrivateFormat.OpenSSH, text.NoEncryption())


def public_node_key(private: bytes) -> str:
    """The public half of a node's key, one line that may travel."""
    from cryptography.hazmat.primitives import serialization as text

    public = text.load_ssh_private_key(private, None).public_key()
    return public.public_bytes(text.Encoding.OpenSSH, text.PublicFormat.OpenSSH).decode()


def registered_key(public: str) -> bytes:
    """A node's public key as a SuperLink keeps it, in PEM."""
    from cryptography.hazmat.primitives import serialization as text

    key = text.load_ssh_public_key(public.encode())
    return key.public_bytes(text.Encoding.PEM, text.PublicFormat.SubjectPublicKeyInfo)


def new_authority(key: bytes, name: str, *, days: int = AUTHORITY_DAYS) -> bytes:
    """A certificate, signed by itself, for the key of a federation's CA."""
    return _certificate(key, key, name, name, days=days)


def new_certificate(
    key: bytes, authority_key: bytes, authority: bytes, hosts: Sequence[str], *, days: int = SERVER_DAYS
) -> bytes:
    """A server's certificate for these hosts and for this machine, signed by the CA; renewing is the same again."""
    return _certificate(key, authority_key, "probekit federation server", authority, hosts=hosts, days=days)


def expiry(certificate: bytes) -> datetime:
    """Until when a certificate is valid."""
    found: datetime = _read(certificate).not_valid_after_utc
    return found


def hosts_of(certificate: bytes) -> list[str]:
    """The hosts that a certificate is for."""
    from cryptography import x509

    names = _read(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(one.value) for one in names]


def fault(error: BaseException | None, address: str) -> str | None:
    """What is wrong with a server's certificate, in one sentence, if that is why a connection failed."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = _FAULTS.get(
                error.verify_code, "was not issued by this federation's CA (ca.crt). Copy the server's invitation again"
            )
            return f"The certificate of {address} {why}."
        error = error.__cause__ or error.__context__
    return None


def _certificate(
    key: bytes, signer: bytes, subject: str, issuer: bytes | str, *, days: int, hosts: Sequence[str] | None = None
) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as text
    from cryptography.x509.oid import NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])

    own: Any = text.load_pem_private_key(key, None)
    signing: Any = text.load_pem_private_key(signer, None)
    now = datetime.now(UTC)
    is_authority = hosts is None
    made = (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer) if isinstance(issuer, str) else _read(issuer).subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1) if days > 0 else now + timedelta(days=days - 1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if hosts is not None:
        names = [_host(one) for one in dict.fromkeys((*hosts, *LOOPBACK))]
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return made.sign(signing, hashes.SHA256()).public_bytes(text.Encoding.PEM)


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as text

    made: bytes = key.private_bytes(text.Encoding.PEM, text.PrivateFormat.PKCS8, text.NoEncryption())
    return made


def _read(certificate: bytes) -> Any:
    from cryptography import x509

    return x509.load_pem_x509_certificate(certificate)
