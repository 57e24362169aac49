"""Every field of every file of a run, and bytes of it, replaced by something else.

`verify` answers 0, 6 or 7, whatever it reads; 0 only where nothing is claimed that is not so.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.runs.conftest import Story
from tests.runs.test_verify import FILES

Copy = Callable[[str], Story]
DEFAULT_SAMPLE = 25
"""Mutations of a file in a default run; the slow run has all."""
STRANGE: list[Any] = [
    *(None, True, 0, -1, 1e-300, 1e300, 2**62, 2**70),
    *("", "x", "../x", "\x00", "ü" * 40, [], {}, [1], [[[[[]]]]], {"a": 1}),
]
HARMLESS = ("date", "cost", "method", "poison", "library_name", "probekit", "new")
"""Fields of which nothing is said."""
WEAKER = ("distance", "excess_loss", "residual", "allowance", "certified_rows", "curvature")
"""Fields whose claim may be weaker than it need be."""


def mutated(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The document with one value replaced, one left out, or one added; and where."""
    for value in STRANGE:
        yield path, value
    if isinstance(document, dict):
        yield (*path, "new"), {**document, "new": 1}
        for key, value in document.items():
            yield (*path, key), {name: item for name, item in document.items() if name != key}
            for place, item in mutated(value, (*path, key)):
                yield place, {**document, key: item}
    elif isinstance(document, list):
        yield path, [*document, *document]
        for number, value in enumerate(document[:2]):
            yield (*path, number), document[:number] + document[number + 1 :]
            for place, item in mutated(value, (*path, number)):
                yield place, [*document[:number], item, *document[number + 1 :]]
    elif isinstance(document, int | float) and not isinstance(document, bool):
        for value in (document + 1, document * 2, document / 2, -document):
            yield path, value


def json_mutations(content: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """As probekit writes it, so that only its meaning is another."""
    for place, document in mutated(json.loads(content)):
        text = json.dumps(document).encode()
        yield place, msgspec.json.format(text, indent=1) + b"\n"


def line_mutations(content: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    lines = content.splitlines()
    for number, line in enumerate(lines):
        yield (number,), b"".join(other + b"\n" for other in lines if other != line)
        for place, document in mutated(json.loads(line)):
            text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
            changed = [*lines[:number], text, *lines[number + 1 :]]
            yield (number, *place), b"".join(other + b"\n" for other in changed)


def header_mutations(content: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The header of safetensors, and the tree of a record inside it."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    body = content[8 + size :]
    for place, document in mutated(header):
        yield place, with_header(document, body)
    metadata = header.get("__metadata__", {})
    if "record" in metadata:
        for place, tree in mutated(json.loads(metadata["record"])):
            document = {**header, "__metadata__": {"record": json.dumps(tree)}}
            yield ("record", *place), with_header(document, body)
    for length in (0, 1, size - 1, size + 1, 1 << 62):
        yield ("length",), length.to_bytes(8, "little") + content[8:]


def with_header(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def byte_mutations(content: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    random = np.random.default_rng(0)
    for place in random.integers(0, len(content), 200).tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        yield ("byte", place), bytes(changed)
        yield ("cut", place), content[:place]
    yield ("doubled",), content * 2
    yield ("empty",), b""


def mutations(name: str, content: bytes) -> list[tuple[tuple[Any, ...], bytes]]:
    if name.endswith(".json"):
        special = json_mutations(content)
    elif name.endswith(".jsonl"):
        special = line_mutations(content)
    else:
        special = header_mutations(content)
    return [item for item in (*special, *byte_mutations(content)) if item[1] != content]


def answers(known: Story, name: str, sample: int | None) -> dict[tuple[Any, ...], int]:
    """The exit code of each mutation of a file, by its place."""
    path = known.folder / name
    content = path.read_bytes()
    every = mutations(name, content)
    numbers = np.random.default_rng(1).permutation(len(every))[:sample]
    found = {}
    for number in numbers.tolist():
        place, changed = every[number]
        path.write_bytes(changed)
        found[place] = known.verify().exit_code
    path.write_bytes(content)
    assert known.verify().exit_code == 0
    return found


def check(name: str, found: dict[tuple[Any, ...], int]) -> None:
    assert set(found.values()) <= {0, 6, 7}
    accepted = [place for place, code in found.items() if code == 0]
    if name.endswith(".json"):
        assert {place[-1] for place in accepted if place[0] != "byte"} <= {*HARMLESS, *WEAKER}


@pytest.mark.parametrize("name", FILES)
def test_mutations_of_a_sample(story: Copy, name: str) -> None:
    check(name, answers(story("ridge"), name, DEFAULT_SAMPLE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["auto", "logistic"])
@pytest.mark.parametrize("name", FILES)
def test_all_mutations(story: Copy, kind: str, name: str) -> None:
    check(name, answers(story(kind), name, None))


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".safetensors")])
def test_nothing_is_allocated_beyond_the_bytes(story: Copy, name: str) -> None:
    known = story("ridge")
    path = known.folder / name
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    known.verify()
    for tensor in header.keys() - {"__metadata__"}:
        entry = header[tensor]
        for shape in ([1 << 40], [1 << 20, 1 << 20], [0, 1 << 60], [1 << 62, 4]):
            path.write_bytes(
                with_header({**header, tensor: {**entry, "shape": shape}}, content[8 + size :])
            )
            tracemalloc.start()
            assert known.verify().exit_code == 6
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 50_000_000
