"""A user's own designs, data sets, models and device files, named in an experiment file.

Code is named as ``module:name`` or ``file.py:name``; objects of a study in Python as
``objects.pickle:name``. A data set can also be a file that ``FederatedData.save`` wrote. Files are
in the folder of the experiment file or below it, and may import their neighbours. The run folder
keeps copies of all.
"""

from __future__ import annotations

import ast
import pickle
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import wraps
from hashlib import sha256
from importlib import import_module, invalidate_caches
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from fedcohort._whole_file import write_whole
from fedcohort.designs import RECIPES, Recipe, make_recipe, recipe_of
from fedcohort.errors import DataError, ExperimentError, FedcohortError
from fedcohort.simulation import Dataset, FederatedData, load_dataset
from fedcohort.simulation.data.datasets import data_folder
from fedcohort.simulation.engine.models import ModelSource

if TYPE_CHECKING:
    from fedcohort.experiments.settings import DesignEntry, Experiment, Panel

#: Endings of files: samples that ``FederatedData.save`` wrote, and pickled objects of a study.
SAMPLES, OBJECTS = ".data", ".pickle"


def check_parts(experiment: Experiment, folder: Path) -> None:
    """Refuse parts that cannot be made, before a run begins; ``folder`` holds the files."""
    for panel in experiment.panels:
        for entry in panel.design:
            own_recipe(entry, entry.draws(panel), folder)
        for what, name in _functions(panel):
            own_function(what, name, folder)
    part_files(experiment, folder)


def part_files(experiment: Experiment, folder: Path) -> list[tuple[Path, Path]]:
    """Return the files that a run keeps, each with its place in the run folder."""
    named = set()
    for panel in experiment.panels:
        code = [("design", entry.recipe) for entry in panel.design]
        named |= {(what, name.rpartition(":")[0]) for what, name in [*code, *_functions(panel)]}
        if file := getattr(panel.devices, "file", None):
            named.add(("device", file))
        if panel.data.dataset.endswith(SAMPLES):
            named.add(("data set", panel.data.dataset))
    files = set()
    for what, file in named:
        if what == "device" or file.endswith((".py", SAMPLES, OBJECTS)):
            path, place = own_file(what, folder, file), _kept(what) / file
            files.add((path, place))
        if file.endswith(".py"):
            near = (each for found in _sibling_files(path).values() for each in found)
            files |= {(each, place.parent / each.relative_to(path.parent)) for each in near}
    return sorted(files)


@contextmanager
def own_errors(
    owner: str,
    done: str,
    way_out: str = "Fix it.",
    passing: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Turn what the user's code raises into one sentence, except for ``passing``."""
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise ExperimentError(
            f"{owner}: cannot be {done} ({type(error).__name__}: {error}). {way_out}"
        ) from error


def _functions(panel: Panel) -> Iterator[tuple[str, str]]:
    """Yield the user's own functions that a panel names, and what they make."""
    for what, name in (("data set", panel.data.dataset), ("model", panel.model.name)):
        if ":" in name:
            yield what, name


def own_file(what: str, folder: Path, path: str) -> Path:
    """Return a file beside the experiment, or its copy in the run folder."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ExperimentError(
            f"{what} file {path}: must lie beside or below the experiment file, which names it "
            f"from there. Copy it."
        )
    for found in (folder / path, folder / _kept(what) / path):
        if found.is_file():
            return found
    raise ExperimentError(f"{what} file {path}: is not in {folder.resolve()}. Put it there.")


def _kept(what: str) -> Path:
    """Return the part of a run folder that keeps copies of such files."""
    return Path("devices" if what == "device" else "code")


def own_recipe(entry: DesignEntry, cohort_size: int, folder: Path) -> Recipe:
    """Make the recipe of an entry; ``folder`` holds the user's own files."""
    if entry.recipe.rpartition(":")[0].endswith(OBJECTS):
        given = _own_object("design", entry.recipe, folder)
        if isinstance(given, Recipe):
            return given
    kind = recipe_kind(entry, folder)
    with own_errors(f"design {entry.recipe!r}", "made", passing=(FedcohortError,)):
        return recipe_of(kind, cohort_size, entry.hyperparameters)


def recipe_kind(entry: DesignEntry, folder: Path) -> type[Recipe]:
    """Return the class that an entry names."""
    path, colon, name = entry.recipe.rpartition(":")
    if not colon:
        make_recipe(entry.recipe, 1, {})  # refuses unknown names
        return RECIPES[entry.recipe]
    kind = _own_object("design", entry.recipe, folder)
    is_recipe = isinstance(kind, type) and issubclass(kind, Recipe)
    if not is_recipe or not is_dataclass(kind) or isabstract(kind):
        raise ExperimentError(
            f"design {entry.recipe!r}: {name} must be a frozen dataclass derived from "
            f"fedcohort.Recipe; {path} has {_shown(kind)}."
        )
    if not isinstance(getattr(kind, "name", None), str):
        raise ExperimentError(
            f"design {entry.recipe!r}: {name} needs a name: ClassVar[str]; got none. Give it one."
        )
    return cast(type[Recipe], kind)


def load_data(name: str, folder: Path) -> Dataset | FederatedData:
    """Load a data set of the library, read a file of samples, or call the user's own function.

    The function gets the data folder (``FEDCOHORT_DATA``, or the user's cache).
    """
    if name.endswith(SAMPLES):
        return FederatedData.load(own_file("data set", folder, name))
    if ":" not in name:
        return load_dataset(name)
    load = own_function("data set", name, folder)
    try:
        with own_errors(f"data set {name!r}", "loaded", passing=(DataError,)):
            found = load(data_folder())
    except DataError as error:
        raise ExperimentError(f"data set {name!r}: {error}") from error
    if not isinstance(found, (Dataset, FederatedData)):
        raise ExperimentError(
            f"data set {name!r}: must be a fedcohort.simulation.Dataset or FederatedData; the "
            f"function returned {type(found).__name__}. Return FederatedData.from_arrays(...)."
        )
    return found


def own_function(what: str, name: str, folder: Path) -> Any:
    """Return the function that ``name`` names."""
    found = _own_object(what, name, folder)
    if not callable(found):
        path, _, own = name.rpartition(":")
        raise ExperimentError(
            f"{what} {name!r}: {own} must be a function; {path} has {_shown(found)}."
        )
    file = name.rpartition(":")[0]
    if not file.endswith(".py"):
        return found
    home = own_file(what, folder, file).resolve()

    @wraps(found)
    def call(*args: Any, **options: Any) -> Any:
        with _importable_siblings(home):  # it may import only now
            return found(*args, **options)

    return call


def _own_object(what: str, name: str, folder: Path) -> Any:
    """Return what ``name`` names, or None; ``what`` is for messages."""
    path, _, own = name.rpartition(":")
    if path.endswith(OBJECTS):
        return read_objects(own_file(what, folder, path)).get(own)
    module = _file(what, folder, path) if path.endswith(".py") else _module(what, path)
    return getattr(module, own, None)


def write_objects(path: Path, objects: Mapping[str, object]) -> None:
    """Pickle objects, with the code of those that were defined outside of installed packages.

    The same objects give the same bytes, also in another process, so that folders can be merged.
    """
    import cloudpickle

    homes = {each for found in objects.values() if (each := _own_module(found)) is not None}
    for module in homes:
        cloudpickle.register_pickle_by_value(module)
    try:
        content = cloudpickle.dumps(dict(objects))
    finally:
        for module in homes:
            cloudpickle.unregister_pickle_by_value(module)
    write_whole(path, _without_chance(content))


def read_objects(path: Path) -> dict[str, Any]:
    """Read what :func:`write_objects` wrote. Every call makes new objects."""
    way_out = "Run it where the modules that the objects need can be imported."
    with own_errors(str(path), "read", way_out):
        return cast(dict[str, Any], pickle.loads(path.read_bytes()))


def _own_module(value: Any) -> ModuleType | None:
    """Return the module that defines an object's code, unless it is installed."""
    value = value.source if isinstance(value, GivenModel) else value
    name = getattr(value, "__module__", None) or type(value).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or name == "__main__":  # cloudpickle does this by itself
        return None
    installed = [sysconfig.get_path(key) for key in ("stdlib", "platlib", "purelib")]
    is_own = name.partition(".")[0] != "fedcohort"
    return module if is_own and not any(Path(file).is_relative_to(p) for p in installed) else None


def _without_chance(content: bytes) -> bytes:
    """Replace the random ids that cloudpickle gives to classes by ids of the content."""
    from cloudpickle import cloudpickle

    known = getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})
    ids = [each.encode() for each in known.values() if isinstance(each, str)]
    own = sorted((each for each in ids if each in content), key=content.index)
    for place, each in enumerate(own):
        content = content.replace(each, b"%032d" % place)
    for place in range(len(own)):
        fresh = sha256(content + b"%d" % place).hexdigest()[:32].encode()
        content = content.replace(b"%032d" % place, fresh)
    return content


class GivenModel:
    """A model given as an object: a module, or a function without arguments that makes one."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source

    def __call__(self, dataset: Dataset) -> Any:
        """Return the module, or a new one."""
        return self.source if isinstance(self.source, nn.Module) else self.source()


def _shown(found: object) -> str:
    return "none of that name" if found is None else repr(found)


def _module(what: str, name: str) -> ModuleType:
    way_out = "Install it, or name its file as my_file.py:my_name."
    with own_errors(f"{what} {name!r}", "imported", way_out):
        return import_module(name)


def _file(what: str, folder: Path, name: str) -> ModuleType:
    """Import a file by its path, once."""
    path = own_file(what, folder, name).resolve()
    module_name = f"fedcohort_own_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"{what} file {path}: is not a Python file. Rename it.")
    module = module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        with own_errors(f"{what} file {path}", "imported"), _importable_siblings(path):
            spec.loader.exec_module(module)
    except ExperimentError:
        del sys.modules[module_name]
        raise
    return module


#: Imported sibling modules, by folder.
_LOADED: dict[Path, dict[str, ModuleType]] = {}


@contextmanager
def _importable_siblings(path: Path) -> Iterator[None]:
    """Allow a file to import modules of its own folder, without leaving bytecode there.

    Afterwards ``sys.modules`` is as before: another folder may have other modules of these names.
    """
    names, folder = set(_sibling_files(path)), path.parent
    loaded, others = _LOADED.setdefault(folder, {}), _taken_out(names)
    keep_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules.update(loaded)
    sys.path.insert(0, str(folder))
    invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))
        sys.dont_write_bytecode = keep_none
        loaded.update(_taken_out(names))
        sys.modules.update(others)


def _taken_out(names: set[str]) -> dict[str, ModuleType]:
    """Remove modules and their submodules from ``sys.modules``, and return them."""
    found = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}


def _sibling_files(path: Path) -> dict[str, list[Path]]:
    """Return the files of the sibling modules a file imports, directly or indirectly."""
    found: dict[str, list[Path]] = {}
    left = [path]
    while left:
        for name in _imported(left.pop()) - found.keys():
            module, package = path.parent / f"{name}.py", path.parent / name
            files = [module] if module.is_file() else []
            if (package / "__init__.py").is_file():  # it comes before a module
                files = sorted(package.rglob("*.py"))
            if files:
                found[name] = files
                left += files
    return found


def _imported(path: Path) -> set[str]:
    """Return the modules that a file imports, without those of its own package."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):  # importing it says why
        return set()
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [
        node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
    ]
    return {name.partition(".")[0] for name in names}


def place_in(folder: Path, error: BaseException) -> str | None:
    """Return the innermost line below ``folder`` that raised, as ``file.py, line 3``, or None."""
    home, found = folder.resolve(), None
    for frame, line in walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if path.is_absolute() and path.is_relative_to(home):
            found = f"{path.relative_to(home)}, line {line}"
    return found
