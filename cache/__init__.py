"""The cache of embeddings on disk.

cache.json, CACHEDIR.TAG, .lock
memo                                 which file holds which sample
sets/NAME.json                       what a set is, its source as it was asked for
columns/SHA256.safetensors           the set's ids, labels or targets, weights and columns
encodings/DIGEST/                    the rows of one encoding, by the ids of their samples
    encoding.json, canary*.json
    shards/SHA256.safetensors        rows in the order of the sets that brought them
    pieces/SHA256.safetensors        rows of an extraction that is not finished
    .work-*                          locks of extractions
damaged/                             what `cache verify --repair` set aside
"""

from probekit.cache.entry import Entry
from probekit.cache.memo import Memo
from probekit.cache.rows import IdIndex
from probekit.cache.store import Cache

__all__ = ["Cache", "Entry", "IdIndex", "Memo"]
