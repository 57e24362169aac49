"""Embeddings that outlast the process: the store on disk, its audit, its cleaning, its transport."""

from probekit.cache.disk import DiskStore
from probekit.cache.location import default_root
from probekit.memory import MemoryStore

__all__ = ["DiskStore", "MemoryStore", "default_root"]
