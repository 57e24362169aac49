"""Lets torchvision be imported beside a CPU build of torch. Import it before anything imports torchvision.

On Linux, the torchvision of PyPI is linked against CUDA libraries. Beside a CPU torch its compiled operators
cannot be loaded, and `import torchvision` dies of a fake that it registers for an operator that is not there
("operator torchvision::nms does not exist"). open_clip, timm and the image processors of transformers import
torchvision, but only for its transforms, which are pure Python: declaring the two operators is enough.
Where torchvision is healthy, or not installed, nothing happens.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def loadable(folder: Path) -> bool:
    """Whether the compiled operators of the torchvision in this folder can be loaded."""
    for library in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError:
            return False
        return True
    return False


def declare() -> bool:
    """Declare what torchvision will miss; True if that was needed."""
    spec = find_spec("torchvision")
    if sys.platform != "linux" or "torchvision" in sys.modules or spec is None or spec.origin is None:
        return False
    if hasattr(torch.ops.torchvision, "nms") or loadable(Path(spec.origin).parent):
        return False
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", SCHEMA)
    return True


declare()
