"""``fedcohort doctor``: show installed packages, the training device and data sets."""

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

from fedcohort._display import plain_table
from fedcohort._version import __version__
from fedcohort.cli.options import AsJson, plain_console

#: A requirement in the package's metadata: name, oldest accepted release, extra.
REQUIREMENT = re.compile(
    r"^([A-Za-z0-9._-]+)(?:.*?>=([\d.]+))?[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?"
)
#: Extras that combine others or are for developers only.
OTHERS = ("all", "dev")
#: Extras that are best installed in an environment of their own.
APART = ("nvflare", "fedbiomed")
#: Purpose of the packages of each extra.
PURPOSES = {
    None: "everything",
    "sim": "the simulator and experiments",
    "report": "figures and the page",
    "flower": "federations on Flower",
    "nvflare": "jobs on NVIDIA FLARE",
    "fedbiomed": "experiments on Fed-BioMed",
    "scale": "trees of vectors, for thousands of clients",
    "dp": "epsilon of noise on the aggregate",
    "ray": "experiments on a Ray cluster",
}
#: Packages for ``--tracker``. No extra installs them; the user chooses one.
TRACKER_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}


@dataclass(frozen=True, slots=True)
class Package:
    """A package that fedcohort can use.

    Attributes
    ----------
    extra
        The extra that installs it; None if fedcohort always needs it.
    version
        The installed version; None if it is missing.
    needed
        The oldest accepted release; None if any is accepted.
    """

    name: str
    extra: str | None
    version: str | None
    needed: str | None

    @property
    def problem(self) -> str | None:
        """Describe what is wrong with the package; None if nothing is."""
        if self.version is None:
            return "missing"
        if self.needed is not None and _numbers(self.version) < _numbers(self.needed):
            return f"too old: needs {self.needed}"
        return None


def doctor(as_json: AsJson = False) -> None:
    """Show installed packages, the training device and the data sets."""
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
    extras = dict.fromkeys(each.extra for each in packages if each.problem and each.extra)
    if missing := ",".join(str(extra) for extra in extras if extra not in APART):
        console.print(f"\nwhat is missing comes with: pip install 'fedcohort[{missing}]'")
    trackers = [f"{name} {own}" for name, own in found["trackers"].items() if own]
    console.print(f"\ntrackers: {', '.join(trackers) or 'none'}")
    console.print(f"device: {found['device']}")
    if "data_folder" in found:
        console.print(f"data folder: {found['data_folder']}", soft_wrap=True)
        for name, is_there in found["data_sets"].items():
            console.print(f"  {name}: {'there' if is_there else 'is downloaded when it is needed'}")


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
    """Return the leading numbers of a release. They are enough to compare releases."""
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
    """Return the data folder and its data sets; empty if the simulator is not installed."""
    try:
        from fedcohort.simulation.data.datasets import FILES, data_folder, is_present
    except (ImportError, OSError):
        return {}
    folder = data_folder()
    there = {name: is_present(name, folder) for name in FILES}
    return {"data_folder": str(folder), "data_sets": there}
