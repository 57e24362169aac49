"""What a purge leaves of an earlier certificate says that it was given, and nothing to try a candidate on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probekit import Run
from probekit.cache import DiskStore
from probekit.certificates.certificate import read_certificate
from probekit.certificates.stripping import read_stripped, stripped_text
from probekit.errors import InputError, VerificationError
from tests.shelves import Shelve, shelve

__all__ = ["shelve"]


@pytest.fixture
def run(shelve: Shelve, tmp_path: Path, store: DiskStore) -> Run:
    """A run that forgot two clients, one after the other."""
    shelve("rows", rows=80)
    made = Run.train(tmp_path / "run", "rows", clients=4, ridge=0.01, store=store)
    made.unlearn("1")
    made.unlearn("2")
    return made


def test_an_earlier_certificate_keeps_its_digest_and_loses_what_later_ones_forget(run: Run) -> None:
    """C16, C19: kept for good, without the digest and the numbers of a head that knew client 2."""
    path, current = (run.path / "states" / f"{state:04d}" / "certificate.json" for state in (2, 3))
    text, last = path.read_text(), current.read_text()
    whole, _ = read_certificate(text)
    run.purge()
    left = path.read_text()
    assert current.read_text() == last
    found = read_stripped(left)
    assert found is not None
    assert (found.method, found.retained_numbers) == (whole.method, whole.retained_numbers)
    assert json.loads(left)["digest"] == whole.digest == run.folder.entries()[1].details["certificate"]
    numbers = [one["value"] for one in whole.stored["claims"] if "value" in one]
    secrets = [*whole.after.values(), whole.before["sealed"], *map(str, numbers)]
    assert len(secrets) > 4
    assert [one for one in secrets if one in left] == []  # without the seal of `before` its digest cannot be tried
    again = run.unlearn("1")
    assert (again.already_done, again.digest, again.plain["head"]) == (True, whole.digest, None)


def test_what_is_left_proves_nothing(run: Run, tmp_path: Path) -> None:
    path = run.path / "states" / "0002" / "certificate.json"
    run.purge()
    with pytest.raises(InputError, match=r"proves nothing any more.*handed out before"):
        run.verify(path)
    with pytest.raises(InputError, match="proves nothing any more"):
        run.bundle(tmp_path / "bundle.zip", states=[2])
    with pytest.raises(VerificationError, match="not a certificate"):
        read_certificate(path.read_text())
    assert run.verify().intact


def test_only_what_was_written_is_read(run: Run) -> None:
    certificate, signature = read_certificate((run.path / "states" / "0003" / "certificate.json").read_text())
    text = stripped_text(certificate, signature)
    assert read_stripped(text) is not None
    assert read_stripped("[]") is None
    assert read_stripped("{") is None
    assert read_stripped('{"certificate": {}}') is None
    for broken in ('{"stripped": {}}', '{"stripped": 7}', '{"stripped": []}'):
        with pytest.raises(VerificationError, match="not what a purge left"):
            read_stripped(broken)
