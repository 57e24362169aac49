"""Embeddings that outlast the process: the store on disk, its audit, its cleaning, its transport."""

from probekit.cache.disk import DiskStore
from probekit.cache.memory import MemoryStore
from probekit.files import default_root

__all__ = ["DiskStore", "MemoryStore", "default_root"]
