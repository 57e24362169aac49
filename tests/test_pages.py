"""README and docs/ work as printed: every command and snippet is run, every link leads somewhere."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from probekit.cli import main
from probekit.runs.run import Run
from tests.pages import (
    CONTRIBUTING,
    DOWNLOAD,
    ELSEWHERE,
    OFFLINE,
    OWN_TESTS,
    PAGES,
    ROOT,
    SLOW,
    anchors,
    blocks,
    links,
    play,
)

MOST_LINES = 200
MODULE = """
import numpy as np

class Encoder:
    name, kind, view, fingerprint = "means", "image", "mean", "1" * 64
    preprocessing = {"colour": "L"}

    def preprocess(self, picture):
        return np.asarray(picture.convert("L").resize((4, 4)), np.float32).ravel()

    def encode(self, batch):
        return np.stack([np.asarray(one) for one in batch])

def make_encoder(*arguments, **options):
    return Encoder()
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of: photos, vectors, labels, scans, an encoder of one's own."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 6)):
        for number, name in enumerate(("cats", "dogs", "owls")):
            place = tmp_path / "photos" / split / name
            place.mkdir(parents=True)
            for row in range(count):
                pixels = generator.integers(0, 90, (12, 12, 3), dtype=np.uint8)
                pixels[..., number] += 120
                Image.fromarray(pixels).save(place / f"{row}.png")
    labels = np.arange(300) % 3
    vectors = generator.standard_normal((300, 16)).astype(np.float32) + 2 * np.eye(16, dtype=np.float32)[labels]
    np.savez(tmp_path / "vectors.npz", embeddings=vectors, labels=labels)
    files = [f"{row:03}.jpg" for row in range(300)]
    pq.write_table(pa.table({"embedding": list(vectors), "file": files}), tmp_path / "embeddings.parquet")
    lines = [f"{file},{('cat', 'dog', 'owl')[label]}" for file, label in zip(files, labels, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,species", *reversed(lines)]) + "\n")
    scans = generator.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    people = np.array([str(row // 3) for row in range(60)])
    np.savez(tmp_path / "scans.npz", images=scans, labels=np.arange(60) % 2, patient=people)
    (tmp_path / "mypackage.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


PLAYED = [page for page in PAGES if page.name not in OWN_TESTS]


@pytest.mark.parametrize("page", PLAYED, ids=lambda page: page.stem)
def test_a_page_works_as_printed(page: Path, desk: Path) -> None:
    if "openssl" in page.read_text() and shutil.which("openssl") is None:
        pytest.skip("the page makes keys with openssl")
    play([one for one in blocks(page) if one.kind in ("bash", "python") and one.mark in ("", DOWNLOAD)], desk)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PLAYED if any(one.mark == SLOW for one in blocks(page))], ids=lambda page: page.stem
)
def test_a_page_works_as_printed_with_what_takes_long(page: Path, desk: Path) -> None:
    if "dataset get" in page.read_text() and main.run(["dataset", "get", "fashion-mnist"]) == OFFLINE:
        pytest.skip("Fashion-MNIST cannot be fetched here")
    play([one for one in blocks(page) if one.kind in ("bash", "python") and one.mark in ("", SLOW)], desk)
    for folder in sorted((desk / "runs").glob("fashion*")):  # the numbers of its table are these runs'
        accuracy = Run.open(folder).evaluate("fashion-pixels-test").results[0].accuracy
        told = [100 * (value or 0.0) for value in (accuracy.value, accuracy.low, accuracy.high)]
        assert "{:.2f} % ({:.2f} to {:.2f})".format(*told) in page.read_text(), folder.name


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.stem)
def test_every_block_says_what_it_is_and_who_runs_it(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in ("bash", "python", "text"), block
        if block.mark.startswith(ELSEWHERE):
            file = ROOT / block.mark.removeprefix(ELSEWHERE)
            named = set(re.findall(r"examples/(\w+)\.py|make (\w+)", block.text))
            assert all(any(part and part in file.read_text() for part in parts) for parts in named), block
        else:
            assert block.mark in ("", SLOW, DOWNLOAD, "demo"), block
    assert page.read_text().count("\n```") + page.read_text().startswith("```") == 2 * len(blocks(page))


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        assert "://" not in target, f"{target}: the pages point to files of this tree"
        file, _, anchor = target.partition("#")
        place = (page.parent / file).resolve() if file else page
        if place.is_relative_to(ROOT / "docs" / "api") or place.name == "options.md":
            place = ROOT / "docs" / "site" / "mkdocs.yml"  # made when the site is built, which checks it
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES


def test_every_page_is_linked_from_readme_or_from_a_page() -> None:
    named = {Path(target.partition("#")[0]).name for page in PAGES for target in links(page)}
    assert {page.name for page in PAGES[1:]} <= named
