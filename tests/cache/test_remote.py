"""Sets that travel: checked when they arrive, and never sent or fetched twice."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from probekit.cache import DiskStore, entry, remote
from probekit.cache.remote import MANIFEST, Remote, export_to, import_from, local_path, shown
from probekit.cache.removal import INCOMING, prune
from probekit.errors import CorruptError, HostileError, InputError, NotFoundError, OfflineError
from probekit.values import EmbeddingSet
from tests.conftest import tree

URL = "memory://bucket/sets/mine"
SMALL = 4000
"""Bytes of a file of rows."""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskStore:
    """A cache with a set in ten files of rows."""
    monkeypatch.setattr(entry, "SHARD_BYTES", SMALL)
    rows = np.random.default_rng(0).normal(size=(200, 25)).astype(np.float32)
    store = DiskStore(tmp_path / "source")
    store.adopt(EmbeddingSet.from_numpy(rows, np.arange(200) % 4), "mine")
    return store


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A place elsewhere, empty."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class Breaking:
    """Lets so many files pass, then nothing."""

    def __init__(self, most: int, work: Callable[..., Any]) -> None:
        self.left, self.work, self.passed = most, work, list[str]()

    def __call__(self, *arguments: Any) -> Any:
        if not self.left:
            raise ConnectionResetError("the line is cut")
        self.left -= 1
        self.passed.append(next(one for one in arguments if isinstance(one, str)))
        return self.work(*arguments)


def test_a_set_goes_and_comes_back(source: DiskStore, store: DiskStore, bucket: Any) -> None:
    done = export_to(source, "mine", URL)
    assert (done.digest, done.there) == (source.sets.resolve("mine"), 0)
    assert done.sent > 10
    assert import_from(store, URL) == "mine"
    assert store.open("mine").digest == done.digest
    assert np.array_equal(store.open("mine").to_numpy(), source.open("mine").to_numpy())
    assert not any((store.root / INCOMING).iterdir())
    assert import_from(store, URL, name="again") == "again"


def test_an_interrupted_export_sends_the_rest(
    source: DiskStore, bucket: Any, monkeypatch: pytest.MonkeyPatch, store: DiskStore
) -> None:
    first = Breaking(7, Remote.send)
    monkeypatch.setattr(Remote, "send", lambda *given: first(*given))
    with pytest.raises(OfflineError, match=r"memory://bucket/sets/mine cannot be reached.*the line is cut"):
        export_to(source, "mine", URL)
    with pytest.raises(NotFoundError, match=f"not all of it: {MANIFEST} is missing"):
        import_from(store, URL)
    rest = Breaking(99, first.work)
    monkeypatch.setattr(Remote, "send", lambda *given: rest(*given))
    done = export_to(source, "mine", URL)
    rows = {path for path in first.passed if path.endswith(".safetensors")}
    assert rows
    assert not rows & set(rest.passed)
    assert done.there >= len(rows)
    import_from(store, URL)
    assert store.open("mine").digest == done.digest


def test_a_file_that_was_cut_short_is_sent_again(source: DiskStore, bucket: Any) -> None:
    export_to(source, "mine", URL)
    victim = next(path for path in bucket.find("/bucket") if path.endswith(".safetensors"))
    whole = bucket.cat(victim)
    bucket.pipe(victim, whole[:100])
    export_to(source, "mine", URL)
    assert bucket.cat(victim) == whole


def test_an_interrupted_import_fetches_the_rest(
    source: DiskStore, store: DiskStore, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_to(source, "mine", URL)
    first = Breaking(6, Remote.fetch)
    monkeypatch.setattr(Remote, "fetch", lambda *given: first(*given))
    with pytest.raises(OfflineError, match="the line is cut"):
        import_from(store, URL)
    assert store.sets.digests() == []
    rest = Breaking(99, first.work)
    monkeypatch.setattr(Remote, "fetch", lambda *given: rest(*given))
    import_from(store, URL)
    assert not set(first.passed) & set(rest.passed)
    assert store.open("mine").digest == source.open("mine").digest


def test_what_waits_for_an_import_goes_with_prune(
    source: DiskStore, store: DiskStore, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_to(source, "mine", URL)
    fetch = Breaking(3, Remote.fetch)
    monkeypatch.setattr(Remote, "fetch", lambda *given: fetch(*given))
    with pytest.raises(OfflineError):
        import_from(store, URL)
    assert list((store.root / INCOMING).rglob("*"))
    prune(store)
    assert not (store.root / INCOMING).exists()


def test_a_changed_file_is_refused(source: DiskStore, store: DiskStore, bucket: Any) -> None:
    export_to(source, "mine", URL)
    victim = next(path for path in bucket.find("/bucket") if path.endswith(".safetensors"))
    data = bytearray(bucket.cat(victim))
    data[-1] ^= 1
    bucket.pipe(victim, bytes(data))
    with pytest.raises(CorruptError, match="is not what was exported"):
        import_from(store, URL)
    bucket.pipe(victim, bytes(data[:-1]))
    with pytest.raises(CorruptError, match="bytes, not"):
        import_from(store, URL)
    assert store.sets.digests() == []


@pytest.mark.parametrize("path", ["../outside", "/etc/x", "a/../../b", ".hidden", "a//b", ""])
def test_a_list_that_leads_elsewhere_is_refused(store: DiskStore, bucket: Any, path: str) -> None:
    listed = {"files": {path: [1, "0" * 64]}}
    bucket.pipe(f"/bucket/sets/mine/{MANIFEST}", json.dumps(listed).encode())
    before = tree(store.root.parent)
    with pytest.raises(HostileError, match="which no export writes"):
        import_from(store, URL)
    assert tree(store.root.parent) == before


@pytest.mark.parametrize("content", [b"{}", b"[]", b"\xff", b'{"files": {"a": [1]}}', b'{"files": {"a": ["x", "y"]}}'])
def test_a_list_that_is_none_is_refused(store: DiskStore, bucket: Any, content: bytes) -> None:
    bucket.pipe(f"/bucket/sets/mine/{MANIFEST}", content)
    with pytest.raises(CorruptError, match=r"is not one (of our files|that was written)"):
        import_from(store, URL)


@pytest.mark.parametrize(("url", "package"), [("sftp://host/x", "paramiko"), ("oss://bucket/x", "ossfs")])
def test_a_missing_package_is_named(store: DiskStore, url: str, package: str) -> None:
    with pytest.raises(NotFoundError, match=rf"needs a package that is not installed here: .*{package}"):
        import_from(store, url)


def test_a_place_that_nobody_knows_is_refused(store: DiskStore) -> None:
    with pytest.raises(InputError, match=r"nope:// is no place that is known .*s3://, gs://, gcs://, abfs://"):
        import_from(store, "nope://x/y")


def test_what_is_secret_in_a_url_is_not_shown() -> None:
    assert shown("s3://KEY:SECRET@bucket/sets?region=x") == "s3://bucket/sets"
    assert shown("hf:owner/name") == "hf:owner/name"


@pytest.mark.parametrize(
    ("text", "path"),
    [("exported", "exported"), ("file:///tmp/x", "/tmp/x"), ("s3://bucket/x", None), ("hf:owner/name", None)],
)
def test_folders_of_this_machine_are_known(text: str, path: str | None) -> None:
    assert local_path(text) == (None if path is None else Path(path))


def test_the_environment_names_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:5000")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert remote._with_endpoint("s3://b/x") == (
        "s3://b/x?scheme=http&endpoint_override=127.0.0.1%3A5000&region=eu-central-1"
    )
    assert remote._with_endpoint("gs://b/x") == "gs://b/x"


def test_a_hub_gets_the_folder_without_locks(source: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.utils._paths import filter_repo_objects

    calls: list[tuple[str, dict[str, Any]]] = []

    class Hub:
        def create_repo(self, **given: Any) -> None:
            calls.append(("create", given))

        def upload_folder(self, *, folder_path: Path, ignore_patterns: list[str], **given: Any) -> None:
            there = [str(path.relative_to(folder_path)) for path in folder_path.rglob("*") if path.is_file()]
            found = filter_repo_objects(there, ignore_patterns=ignore_patterns)
            calls.append(("upload", {**given, "files": set(found)}))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    done = export_to(source, "mine", "hf:owner/name")
    where = {"repo_id": "owner/name", "repo_type": "dataset"}
    assert calls[0] == ("create", {**where, "private": True, "exist_ok": True})
    files = calls[1][1].pop("files")
    assert calls[1] == ("upload", where)
    assert len(files) == done.sent
    assert "probekit-set.json" in files
    assert not any(part.startswith(".") for path in files for part in Path(path).parts)
    with pytest.raises(InputError, match="hf:OWNER/NAME"):
        export_to(source, "mine", "hf:name")


def test_an_offline_hub_is_said_to_be(source: DiskStore) -> None:
    with pytest.raises(OfflineError, match="hf:owner/name cannot be reached"):
        export_to(source, "mine", "hf:owner/name")


SLOWLY = """
    import sys, time
    from probekit.cache import entry, remote
    from probekit.cli.main import run

    def slowly(work):
        return lambda *given: (time.sleep(0.1), work(*given))[1]

    entry.SHARD_BYTES = int(sys.argv[1])
    remote.Remote.send, remote.Remote.fetch = slowly(remote.Remote.send), slowly(remote.Remote.fetch)
    sys.exit(run(sys.argv[2:]))
"""


def slowly(cache: Path, *arguments: object) -> subprocess.Popen[str]:
    """A command that takes a while for every file."""
    line = [sys.executable, "-c", textwrap.dedent(SLOWLY), str(SMALL), *map(str, arguments), "--json"]
    environ = {**os.environ, "PROBEKIT_CACHE": str(cache)}
    return subprocess.Popen(line, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_after(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Kill a command as soon as it has come that far."""
    while not reached():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def _listens(port: int) -> bool:
    with socket.socket() as line:
        return not line.connect_ex(("127.0.0.1", port))


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server: moto's, in an environment of its own."""
    place = tmp_path_factory.mktemp("moto")
    subprocess.run([sys.executable, "-m", "venv", place / "own"], check=True, capture_output=True)
    plain = {name: value for name, value in os.environ.items() if name not in ("PIP_CONSTRAINT", "PYTHONPATH")}
    install: list[Any] = [place / "own" / "bin" / "pip", "install", "-q", "--retries", "10", "moto[server]"]
    try:
        done = subprocess.run(install, env=plain, capture_output=True, text=True, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        pytest.skip("moto cannot be installed here: the registry takes too long")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")] or ["?"]
        pytest.skip(f"moto cannot be installed here: {said[-1]}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(
            [place / "own" / "bin" / "moto_server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 60
        while not _listens(port) and time.monotonic() < until:
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_a_real_bucket_interrupted_and_continued(
    source: DiskStore, store: DiskStore, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_ENDPOINT_URL": s3, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(name, value)
    url = "s3://travels/sets/mine"
    away = Remote.at(url)
    away.system.fs.__class__(  # a bucket is made by its owner, not by us
        allow_bucket_creation=True, endpoint_override=s3, access_key="k", secret_key="s", region="us-east-1"
    ).create_dir("travels")

    def there() -> dict[str, Any]:
        found = away.system.find("travels", detail=True)
        return {path: said["mtime"] for path, said in found.items() if path.endswith(".safetensors")}

    kill_after(slowly(source.root, "cache", "export", "mine", url), lambda: len(there()) >= 3)
    before = there()
    assert len(before) < 10
    with pytest.raises(NotFoundError, match="not all of it"):
        import_from(store, url)
    said, error = (again := slowly(source.root, "cache", "export", "mine", url)).communicate(timeout=120)
    assert again.returncode == 0, error
    assert json.loads(said)["were_there"] >= 3
    assert {path: there()[path] for path in before} == before

    incoming = store.root / INCOMING
    bring = slowly(store.root, "cache", "import", url)
    kill_after(bring, lambda: len(list(incoming.rglob("*.safetensors"))) >= 3)
    kept = {path: path.stat().st_ino for path in incoming.rglob("*.safetensors")}
    again = slowly(store.root, "cache", "import", url)
    seen: dict[Path, int] = {}
    while again.poll() is None:
        for path in kept:
            if path.exists():
                seen[path] = path.stat().st_ino
        time.sleep(0.02)
    assert again.returncode == 0, again.communicate()
    again.communicate()
    assert seen == kept
    assert store.open("mine").digest == source.open("mine").digest
    assert np.array_equal(store.open("mine").to_numpy(), source.open("mine").to_numpy())
