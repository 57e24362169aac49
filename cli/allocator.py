"""Keeping freed memory for the next layer instead of giving it back to the system."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LIMIT = 1 << 30


def keep_freed_memory() -> bool:
    """Tell glibc to reuse large blocks; gives whether it listened.

    A network on a CPU frees blocks of tens of megabytes after every layer. By default glibc returns them to the
    kernel, which clears them again for the next layer: for EfficientNet-Lite0 that took longer than the convolutions.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LIMIT)) and bool(mallopt(_TRIM_THRESHOLD, _LIMIT))
