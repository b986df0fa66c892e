"""What importing loads, and which way imports point."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedcohort

SOURCE = Path(fedcohort.__file__).parent

#: Every room of the house, lowest first; a room imports from those below it, and from itself.
LAYERS = [
    ["version", "errors", "allocation", "subsets"],
    ["extras", "arguments", "streams", "whole_file", "updates"],
    ["population", "cohort", "synthetic"],
    ["plan", "difference", "roster"],
    ["aggregation"],
    ["similarity"],
    ["designs"],
    ["client_records", "failures", "selection_log"],
    ["planner", "saved_selector"],
    ["open_round"],
    ["selector"],
    ["diagnostics"],
    ["simulation", "flower", "testing"],
    ["experiments"],
    ["report"],
    ["cli"],
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported_by(path: Path) -> set[str]:
    """Return the fedcohort modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {module for module in found if module.split(".")[0] == "fedcohort"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=str)
def test_imports_point_one_way(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return
    for module in imported_by(path):
        # The command line asks the package itself for its version.
        allowed = room == "cli" and module == "fedcohort"
        below = LEVEL.get(room_of(module), len(LAYERS)) < LEVEL[room]
        assert allowed or below or room_of(module) == room, f"{path.name} imports {module}"


def test_every_room_is_in_the_list() -> None:
    rooms = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}

    assert rooms - {"__init__", "__main__", "__pycache__", "py.typed"} == set(LEVEL)


def loaded_by(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {
        "torch",
        "matplotlib",
        "plotly",
        "pydantic",
        "pyarrow",
        "typer",
        "rich",
        "scipy.cluster",
    }

    assert not heavy & loaded_by("import fedcohort")


def test_importing_the_command_line_loads_no_plotting_and_no_torch() -> None:
    heavy = {"torch", "matplotlib", "plotly", "pydantic", "pyarrow"}

    assert not heavy & loaded_by("import fedcohort.cli.app")


@pytest.mark.parametrize("module", ["", ".designs", ".diagnostics", ".similarity", ".testing"])
def test_all_is_the_public_api(module: str) -> None:
    package = import_module(f"fedcohort{module}")
    public = package.__all__

    assert sorted(set(public)) == sorted(public)
    assert all(hasattr(package, name) for name in public)
    exported = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert exported == {name for name in public if name != "diagnostics"}
