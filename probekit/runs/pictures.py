"""Pictures as rows: a data set's pixels in the cache, for backends that train on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probekit.cache import DiskStore
from probekit.errors import InputError, NotFoundError
from probekit.runs.options import TrainOptions


def pictures(
    name: str, options: TrainOptions, store: DiskStore, *, note: Callable[[str], None] | None = None
) -> tuple[str, TrainOptions]:
    """A set of the cache in place of a data set: its pixels, extracted where they are not there yet."""
    names, known = store.sets.names(), store.sets.digests()
    if name in names or any(one.startswith(name) for one in known):
        if options.split is not None:
            raise InputError(
                f"`split` is of a data set, and {name} is a set of the cache, of one split already. Leave "
                "it out, or name the data set."
            )
        return name, options
    if ":" not in name:
        raise NotFoundError(
            f"There is no set {name!r} in {store.root}, and a data set is written SCHEME:NAME. "
            "`probekit cache ls` shows the sets; packaged:mnist, say, is a data set."
        )
    from probekit.datasets import dataset
    from probekit.encoding.extract import extract, set_name

    data = dataset(name, split=options.split)
    backbone = _pixels_for(data)
    made = set_name(name, options.split, backbone.replace(":", "-"))
    if made not in names and note is not None:
        note(f"Reading the pictures of {name} as {backbone} into the cache, as {made}.")
    store.sets.give_name(made, extract(backbone, data, store=store).digest)
    return made, replace(options, split=None)


def _pixels_for(data: Any) -> str:
    """The pixels of pictures of this size and colour; what is not a square is squashed into one of its height."""
    if data.kind != "image":
        raise InputError(f"{data.name} holds no pictures. Extract it with a backbone first, and name the set.")
    first = next(iter(data), None)
    if first is None:
        raise InputError(f"{data.name} is empty. Give a data set with pictures in it.")
    picture = first.content()
    size, grey = picture.size, picture.mode in ("L", "1", "I", "I;16", "F")
    return f"pixels:{size[1]}" + ("" if grey else "#rgb")
