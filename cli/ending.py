"""How a command ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def end(code: int) -> NoReturn:
    """End as Python does, but leave memory to the system: to take it apart took a tenth of a small command's time."""
    if threading.active_count() == 1:
        atexit._run_exitfuncs()
        with suppress(OSError, AttributeError):  # Python says more of an output that is closed
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)
