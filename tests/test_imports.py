"""What importing loads, and which way imports point."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fedcohort
from architecture import LAYERS

SOURCE = Path(fedcohort.__file__).parent

#: The catalogue of designs names the baselines, which are made of the designs' parts.
RECIPES = {"designs", "baselines"}
#: Packages whose names are imported on first use, and modules that say what is public.
PACKAGES = ["fedcohort", "fedcohort.baselines", "fedcohort.designs"]
MODULES = ["", ".baselines", ".designs", ".diagnostics", ".similarity", ".testing"]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def room_of(module: str) -> str:
    return module.split(".")[1].removeprefix("_") if "." in module else ""


def imported_by(path: Path) -> set[str]:
    """Return the fedcohort modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {module for module in found if module.split(".")[0] == "fedcohort"}


def upward_imports(path: Path) -> list[str]:
    """Return the modules above a file's own room that it imports."""
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py").removeprefix("_")
    if path.parent == SOURCE and path.stem in ("__init__", "__main__"):
        return []
    own = RECIPES if room in RECIPES else {room}
    # The command line asks the package itself for its version.
    allowed = {"fedcohort"} if room == "cli" else set()
    return [
        f"{path.relative_to(SOURCE)} imports {module}"
        for module in imported_by(path) - allowed
        if LEVEL.get(room_of(module), len(LAYERS)) >= LEVEL[room] and room_of(module) not in own
    ]


def test_imports_point_one_way() -> None:
    assert [line for path in sorted(SOURCE.rglob("*.py")) for line in upward_imports(path)] == []


@pytest.mark.parametrize("room", ["deployment", "flower", "nvflare", "fedbiomed"])
def test_deployments_need_no_simulator(room: str) -> None:
    found = set().union(*(imported_by(path) for path in (SOURCE / room).rglob("*.py")))

    assert {"deployment", "selector"} <= {room_of(module) for module in found}
    assert not {"simulation", "experiments", "report"} & {room_of(module) for module in found}


def test_what_plugins_share_needs_no_framework_and_no_torch() -> None:
    heavy = {"flwr", "nvflare", "fedbiomed", "torch"}

    assert not heavy & loaded_by("import fedcohort.deployment")


def test_every_room_is_in_the_list() -> None:
    rooms = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}

    rooms -= {"__init__", "__main__", "__pycache__", "py.typed"}
    assert {room.removeprefix("_") for room in rooms} == set(LEVEL)


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
        "pyarrow",
        "typer",
        "rich",
        "scipy.cluster",
    }

    assert not heavy & loaded_by("from fedcohort import *")


def test_importing_the_command_line_loads_no_plotting_and_no_torch() -> None:
    heavy = {"torch", "matplotlib", "plotly", "pyarrow"}

    assert not heavy & loaded_by("import fedcohort.cli.app")


@pytest.mark.parametrize("module", MODULES)
def test_all_is_the_public_api(module: str) -> None:
    package = import_module(f"fedcohort{module}")
    public = package.__all__

    assert sorted(set(public)) == sorted(public)
    assert all(hasattr(package, name) for name in public)
    exported = {
        name
        for name in dir(package)
        if not name.startswith("_") and not isinstance(getattr(package, name), type(sys))
    }
    assert exported == {name for name in public if name != "diagnostics"}


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_names_everything_before_anything_is_imported(package: str) -> None:
    program = f"import sys, {package}; print('numpy' in sys.modules, *dir({package}))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout

    is_loaded, *names = said.split()
    assert is_loaded == "False"
    assert set(import_module(package).__all__) <= set(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_star_imports_the_public_names(package: str) -> None:
    found: dict[str, object] = {}

    exec(f"from {package} import *", found)

    assert found.keys() - {"__builtins__"} == set(import_module(package).__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_misspelt_name_is_no_attribute(package: str) -> None:
    with pytest.raises(AttributeError) as error:
        import_module(package).Multinomal  # noqa: B018 - it must raise

    assert str(error.value) == f"module '{package}' has no attribute 'Multinomal'"
    assert error.value.name == "Multinomal"
    with pytest.raises(ImportError, match="cannot import name 'Multinomal'"):
        exec(f"from {package} import Multinomal")


@pytest.mark.parametrize("module", ["", "baselines", "designs"])
def test_no_public_name_is_that_of_a_module(module: str) -> None:
    """Importing the module would put it in the place of the name."""
    modules = {path.stem for path in (SOURCE / module).iterdir()} - {"diagnostics"}

    assert not modules & set(import_module(f"fedcohort.{module}".rstrip(".")).__all__)


def test_documented_packages_need_no_import_of_their_own() -> None:
    program = "import fedcohort; print(fedcohort.designs.MultinomialDesign, fedcohort.errors)"

    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
