"""Let torchvision be imported where its library does not load: a build for CUDA beside CPU torch.

Fed-BioMed imports torchvision everywhere, and a node is a process of its own: put this folder on
PYTHONPATH. The operators then have names, and nothing that could be run; no test runs one.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OPERATORS = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")


class NamesOperators:
    """Finds no module; names torchvision's operators before it is imported."""

    @classmethod
    def find_spec(
        cls, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, so that the other finders go on."""
        if name == "torchvision":
            sys.meta_path.remove(cls)
            spec = PathFinder.find_spec(name)
            if spec is not None and spec.origin is not None:
                name_operators(Path(spec.origin).parent)
        return None


def name_operators(folder: Path) -> None:
    """Name the operators, and their gradients, if the library in ``folder`` does not load."""
    import torch

    load: Any = torch.ops.load_library
    try:
        for library in folder.glob("_C*.so"):
            load(str(library))
    except OSError:
        for operator in OPERATORS:
            torch.library.define(f"torchvision::{operator}", "(Tensor x) -> Tensor")
            torch.library.define(f"torchvision::_{operator}_backward", "(Tensor x) -> Tensor")


sys.meta_path.insert(0, NamesOperators)
