"""Certificates and keys: a handshake accepts what it should, and says in one sentence why it refuses the rest."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from probekit.federated.flower import folders, tls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server's folder with its certificates."""
    folders.prepare_server(tmp_path / "server", "trial", ["probes.example", "10.1.2.3"])
    return tmp_path / "server"


def handshake(folder: Path, name: str, *, authority: Path | None = None) -> None:
    """Shake hands, as a node does, with a server of this folder that it calls so."""
    kept = folder / "private"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(kept / "server.crt", kept / "server.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cafile=authority or folder / "invitation" / "ca.crt")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=name), server.wrap_bio(there, back, server_side=True)]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


def refusal(folder: Path, name: str = "probes.example", *, authority: Path | None = None) -> str | None:
    """What a node would say of the server's certificate."""
    with pytest.raises(ssl.SSLError) as caught:
        handshake(folder, name, authority=authority)
    try:
        raise RuntimeError("a connection failed") from caught.value
    except RuntimeError as error:
        return tls.fault(error, "probes.example:443")


@pytest.mark.parametrize("name", ["probes.example", "10.1.2.3", "127.0.0.1", "localhost"])
def test_a_server_is_believed_by_each_of_its_names(folder: Path, name: str) -> None:
    handshake(folder, name)


def test_another_name_another_authority_and_an_expired_certificate_are_one_sentence_each(
    folder: Path, tmp_path: Path
) -> None:
    folders.prepare_server(tmp_path / "other", "trial", [])
    assert "is for other names" in str(refusal(folder, "wrong.example"))
    other = tmp_path / "other" / "invitation" / "ca.crt"
    assert "was not issued by this federation's CA" in str(refusal(folder, authority=other))
    folders.renew(folder, days=-1)
    assert "has expired" in str(refusal(folder))
    assert tls.fault(RuntimeError("no certificate at all"), "probes.example:443") is None


def test_a_renewed_certificate_needs_no_new_key_and_no_new_file_on_a_node(folder: Path) -> None:
    kept = folder / "private"
    before = {name: (kept / name).read_bytes() for name in ("ca.key", "ca.crt", "server.key", "secret", "server.crt")}
    folders.renew(folder, ["second.example"])
    after = {name: (kept / name).read_bytes() for name in before}
    assert [name for name in before if before[name] != after[name]] == ["server.crt"]
    for name in ("probes.example", "second.example"):
        handshake(folder, name)
    left = tls.expiry(after["server.crt"]) - datetime.now(UTC)
    assert timedelta(days=tls.SERVER_DAYS - 1) < left <= timedelta(days=tls.SERVER_DAYS)


def test_private_halves_are_closed_to_others_and_stay(folder: Path, tmp_path: Path) -> None:
    node = tmp_path / "node"
    public = folders.prepare_node(node)
    assert public.startswith("ecdsa-sha2-nistp384 ")
    assert "\n" not in public
    assert folders.prepare_node(node) == public
    secret = [folder / "private" / name for name in ("ca.key", "server.key", "secret")]
    secret += [node / "private" / name for name in (folders.NODE_KEY, folders.SECRET)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert {stat.S_IMODE((one / "private").stat().st_mode) for one in (folder, node)} == {0o700}
    assert [path.name for path in (folder / "invitation").iterdir()] == ["ca.crt"]
