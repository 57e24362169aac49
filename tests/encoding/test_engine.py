"""Extraction on Ray: the set of one process, also if an actor dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probekit.cache import DiskStore
from probekit.encoding import engine
from probekit.encoding.cluster import Cluster
from probekit.encoding.engine import Encoder, ExtractRequest, ShardReport, extract_on
from probekit.encoding.extract import extract
from probekit.encoding.options import ExtractProgress
from probekit.errors import InputError
from tests.clusters import Death
from tests.conftest import pairs, tree

SETTINGS = {"dtype": "float32", "window": None, "on_error": "raise", "batch_size": 4}


@pytest.fixture
def request_(tmp_path: Path) -> ExtractRequest:
    """Pictures in a folder, and a backbone."""
    for number, (picture, label) in enumerate(pairs(120)):
        folder = tmp_path / "photos" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number}.png")
    return ExtractRequest("py:tests.conftest:PixelBackbone", f"folder:{tmp_path / 'photos'}", settings=SETTINGS)


def alone(request: ExtractRequest, root: Path) -> DiskStore:
    """A cache with the set of one process."""
    store = DiskStore(root)
    data = request.data()
    made = extract(request.encoder(data), data, store=store, **request.options)
    store.sets.give_name("data", made.digest)
    return store


def mortal(death: Death) -> type[Encoder]:
    """Encoders of which one dies before its third batch."""

    class Mortal(Encoder):
        def shard(self, number: int, shards: int) -> ShardReport:
            real, before = type(self.encoder).encode, self.encoder.encoded  # type: ignore[attr-defined]

            def encode(batch: Any) -> Any:
                if self.encoder.encoded - before >= 8:  # type: ignore[attr-defined]
                    death.meet()
                return real(self.encoder, batch)

            self.encoder.encode = encode  # type: ignore[method-assign]
            return super().shard(number, shards)

    return Mortal


def test_a_killed_actor_is_replaced_and_the_set_is_the_same(
    request_: ExtractRequest,
    store: DiskStore,
    tmp_path: Path,
    ray_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[ExtractProgress] = []
    given: Any = {"store": store, "progress": seen.append, "note": lambda text: None}
    death = Death(tmp_path / "died")
    monkeypatch.setattr(engine, "Encoder", mortal(death))
    found = extract_on("ray", request_, "data", **given)
    assert death.came
    wanted = alone(request_, tmp_path / "alone")
    assert found.digest == wanted.sets.resolve("data")
    assert tree(store.root) == tree(wanted.root)
    assert seen[-1].rows == seen[-1].total == 120


def test_what_goes_wrong_there_is_said_here(request_: ExtractRequest, store: DiskStore, ray_cluster: Cluster) -> None:
    folder = Path(request_.dataset.removeprefix("folder:"))
    (folder / "0" / "bad.png").write_bytes(b"no picture")
    given: Any = {"store": store, "progress": lambda now: None, "note": lambda text: None}
    with pytest.raises(InputError, match=r"bad\.png.*cannot be encoded"):
        extract_on("ray", request_, "data", **given)
