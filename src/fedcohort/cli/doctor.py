"""``fedcohort doctor``: what is installed, which device trains, which data sets are there."""

import json
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from fedcohort.cli.plain_console import plain_console
from fedcohort.version import __version__

#: A requirement as the package's metadata has it: a name, and the extra that brings it.
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*(?:;.*extra == ['\"]([\w-]+)['\"])?")
#: Extras that bring others together, or that only developers need.
OTHERS = ("all", "dev")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that fedcohort can use: the extra that brings it, None for what it always needs."""

    name: str
    extra: str | None
    version: str | None


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Say what is installed, which device trains, and which data sets are there."""
    packages = list(_packages())
    found = {
        "fedcohort": __version__,
        "python": platform.python_version(),
        "packages": [asdict(package) for package in packages],
        "device": _device(),
        **_data(),
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = plain_console()
    console.print(f"fedcohort {__version__}, Python {platform.python_version()}\n")
    console.print(_table(packages))
    console.print(f"\ndevice: {found['device']}")
    if "data_folder" in found:
        console.print(f"data folder: {found['data_folder']}", soft_wrap=True)
        for name, there in found["data_sets"].items():
            console.print(f"  {name}: {'there' if there else 'is downloaded when it is needed'}")


def _packages() -> Iterator[Package]:
    seen: set[tuple[str, str | None]] = set()
    for requirement in requires("fedcohort") or []:
        match = REQUIREMENT.match(requirement)
        if match is None or match[2] in OTHERS or (match[1], match[2]) in seen:
            continue
        seen.add((match[1], match[2]))
        try:
            own = version(match[1])
        except PackageNotFoundError:
            own = None
        yield Package(match[1], match[2], own)


def _table(packages: list[Package]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in ("package", "version", "for"):
        table.add_column(heading)
    for package in packages:
        missing = f"missing: pip install 'fedcohort[{package.extra}]'"
        purpose = "everything" if package.extra is None else f"the extra {package.extra}"
        table.add_row(package.name, package.version or missing, purpose)
    return table


def _device() -> str:
    if find_spec("torch") is None:
        return "none (PyTorch is not installed)"
    import torch

    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    return f"cpu ({torch.get_num_threads()} threads)"


def _data() -> dict[str, Any]:
    if find_spec("torch") is None:
        return {}
    from fedcohort.simulation.data_folder import data_folder
    from fedcohort.simulation.datasets import FILES, is_present

    folder = data_folder()
    return {
        "data_folder": str(folder),
        "data_sets": {name: is_present(name, folder) for name in FILES},
    }
