"""Which machine and which versions a run had."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fedcohort._version import __version__

PACKAGES = ("numpy", "scipy", "torch", "pyarrow", "pydantic", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    found = {"python": platform.python_version(), "fedcohort": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine(device: str) -> dict[str, str]:
    """Return what the machine is; ``device`` is what trains."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "device": device,
    }
    if device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
