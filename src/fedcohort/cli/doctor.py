"""``fedcohort doctor``: what is installed, which device trains, which data sets are there."""

import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedcohort._version import __version__
from fedcohort.cli.options import AsJson, plain_console, plain_table

#: A requirement as the package's metadata has it: a name, the oldest release that will do, and
#: the extra that brings it.
REQUIREMENT = re.compile(
    r"^([A-Za-z0-9._-]+)(?:.*?>=([\d.]+))?[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?"
)
#: Extras that bring others together, or that only developers need.
OTHERS = ("all", "dev")
#: What packages are for, by the extra that brings them.
PURPOSES = {
    None: "everything",
    "sim": "the simulator and experiments",
    "report": "figures and the page",
    "flower": "federations on Flower",
    "scale": "trees of vectors, for thousands of clients",
}
#: What ``--tracker`` can ask for: the user's own choice, in no extra.
TRACKER_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that fedcohort can use.

    Attributes
    ----------
    extra
        The extra that brings it, None for what fedcohort always needs.
    version
        What is installed, None where it is missing.
    needed
        The oldest release that will do, None where any does.
    """

    name: str
    extra: str | None
    version: str | None
    needed: str | None

    @property
    def problem(self) -> str | None:
        """What is wrong with it, None where nothing is."""
        if self.version is None:
            return "missing"
        if self.needed is not None and _numbers(self.version) < _numbers(self.needed):
            return f"too old: needs {self.needed}"
        return None


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what trains, and which data sets are there."""
    packages = list(_packages())
    found = {
        "fedcohort": __version__,
        "folder": str(Path(__file__).parents[1]),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages": [asdict(package) for package in packages],
        "trackers": {name: _version(own) for name, own in TRACKER_PACKAGES.items()},
        "device": _device(),
        **_data(),
    }
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _print(plain_console(), found, packages)


def _print(console: Console, found: dict[str, Any], packages: list[Package]) -> None:
    console.print(f"fedcohort {__version__}, Python {found['python']}, {found['platform']}")
    console.print(f"installed in {found['folder']}\n", soft_wrap=True)
    console.print(_table(packages))
    lacking = dict.fromkeys(each.extra for each in packages if each.problem and each.extra)
    if lacking:
        extras = ",".join(str(extra) for extra in lacking)
        console.print(f"\nwhat is missing comes with: pip install 'fedcohort[{extras}]'")
    there = [f"{name} {own}" for name, own in found["trackers"].items() if own]
    console.print(f"\ntrackers: {', '.join(there) or 'none'}")
    console.print(f"device: {found['device']}")
    if "data_folder" in found:
        console.print(f"data folder: {found['data_folder']}", soft_wrap=True)
        for name, there_too in found["data_sets"].items():
            console.print(
                f"  {name}: {'there' if there_too else 'is downloaded when it is needed'}"
            )


def _packages() -> Iterator[Package]:
    try:
        lines = requires("fedcohort") or []
    except PackageNotFoundError:  # a checkout that was never installed
        return
    seen: set[tuple[str, str | None]] = set()
    for requirement in lines:
        match = REQUIREMENT.match(requirement)
        if match is None or match[3] in OTHERS or (match[1], match[3]) in seen:
            continue
        seen.add((match[1], match[3]))
        yield Package(match[1], match[3], _version(match[1]), match[2])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(release: str) -> list[int]:
    """Return a release's leading numbers, which order releases well enough."""
    found = re.match(r"\d+(?:\.\d+)*", release)
    return [int(part) for part in found[0].split(".")] if found else []


def _table(packages: list[Package]) -> Table:
    table = plain_table("package", "version", "extra", "for", left=("version", "extra", "for"))
    for package in packages:
        state = ", ".join(filter(None, (package.version, package.problem)))
        purpose = PURPOSES.get(package.extra, "")
        table.add_row(package.name, state, package.extra or "", purpose)
    return table


def _device() -> str:
    if find_spec("torch") is None:
        return "none (PyTorch is not installed)"
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"none (PyTorch cannot be loaded: {str(error).partition(chr(10))[0]})"
    if torch.cuda.is_available():
        fused = "with" if find_spec("triton") else "without"
        return f"cuda ({torch.cuda.get_device_name()}, {fused} Triton)"
    return f"cpu ({torch.get_num_threads()} threads)"


def _data() -> dict[str, Any]:
    """Return where data sets lie; nothing where there is no simulator to use them."""
    try:
        from fedcohort.simulation.data.datasets import FILES, data_folder, is_present
    except (ImportError, OSError):
        return {}
    folder = data_folder()
    there = {name: is_present(name, folder) for name in FILES}
    return {"data_folder": str(folder), "data_sets": there}
