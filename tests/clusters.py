"""What ends a worker of a cluster in the midst of its work, once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Death:
    """Takes the first process that meets it, wherever that runs, and no other."""

    mark: Path

    def meet(self) -> None:
        """End this process as a machine that fails would, unless another was taken before."""
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    @property
    def came(self) -> bool:
        """Whether it took one."""
        return self.mark.exists()
