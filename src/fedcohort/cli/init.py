"""``fedcohort init``: write an experiment to change, or change a Flower app to use fedcohort."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from difflib import unified_diff
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fedcohort._arguments import listed
from fedcohort._whole_file import make_folder, reason_of, write_whole
from fedcohort.cli.options import argument, option
from fedcohort.errors import InputError

#: The files of the experiment, in the folder ``starter``.
FILES = ("experiment.toml", "my_data.py", "my_model.py")
#: What the metrics of a client's training call its number of samples.
EXAMPLES = "num-examples"
#: Added to a client, between the parts of the app's own that count its samples.
CLIENT_IMPORT = "from fedcohort.flower import register_size_query"
REGISTER = "register_size_query({app}, num_examples)"
SERVER_IMPORTS = (
    "from fedcohort import SizeClustered",
    "from fedcohort.flower import CohortStrategy",
)
WRAP = "{name} = CohortStrategy({name}, SizeClustered(cohort_size={cohort_size}), seed=0)"


def init(
    folder: Annotated[
        Path | None,
        argument("[DIR]", "The folder. Default: experiment; with --flower the current folder."),
    ] = None,
    flower: Annotated[
        bool, typer.Option("--flower", help="Change the app that flwr new made in DIR.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="With --flower: show the changes, and write nothing.")
    ] = False,
    cohort_size: Annotated[
        int, option("--cohort-size -m", "M", "With --flower: draws in a round.", default=True)
    ] = 5,
) -> None:
    """Write an experiment with data and a model to change.

    It runs in seconds, as it is. With --flower, change a Flower app instead: clients report how
    many samples they have, and the strategy draws them by size. The changes are shown.
    """
    if flower:
        _change_app(folder or Path(), cohort_size, write=not diff)
    elif diff:
        raise InputError("init: --diff needs --flower. Add it, or leave --diff out.")
    else:
        _write_experiment(folder or Path("experiment"))


def _write_experiment(folder: Path) -> None:
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise InputError(
            f"init: {folder} has {listed(there)} already. Choose another folder: fedcohort init DIR"
        )
    make_folder(folder)
    for name in FILES:
        write_whole(folder / name, (files(__package__) / "starter" / name).read_bytes())
        print(folder / name)
    file = folder / FILES[0]
    print(f"\nChange them as you like. Then:\n  fedcohort run {file}\n  fedcohort report")


def _change_app(folder: Path, cohort_size: int, *, write: bool) -> None:
    """Change both programs of an app, and show the changes."""
    if cohort_size < 1:
        raise InputError(f"init: --cohort-size must be at least 1; got {cohort_size}.")
    client, server = _programs(folder)
    changes = {
        client: with_size_query(client, _read(client)),
        server: with_cohort_strategy(server, _read(server), cohort_size),
    }
    for path, text in changes.items():
        before, after = (each.splitlines(keepends=True) for each in (_read(path), text))
        print("".join(unified_diff(before, after, str(path), str(path), n=1)), end="")
    if not write:
        return
    for path, text in changes.items():
        write_whole(path, text.encode())
    print(
        f"\nChanged {client} and {server}. SizeClustered can be any other design.\n"
        f"Install fedcohort where the SuperLink runs, and the app as before:\n  flwr run {folder}"
    )


def _programs(folder: Path) -> tuple[Path, Path]:
    """Return the files of the client app and the server app, which ``pyproject.toml`` names."""
    path = folder / "pyproject.toml"
    text = _read(path)
    try:
        content = tomllib.loads(text)
        components = content["tool"]["flwr"]["app"]["components"]
        modules = [str(components[name]).partition(":")[0] for name in ("clientapp", "serverapp")]
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"init: {path} must name a clientapp and a serverapp under [tool.flwr.app.components], "
            f"as flwr new writes it ({type(error).__name__}: {error}). Name the app's folder."
        ) from error
    client, server = (folder / f"{module.replace('.', '/')}.py" for module in modules)
    return client, server


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"init: {path}: cannot be read ({reason}). Check the path.") from error


def with_size_query(path: Path, text: str) -> str:
    """Return a client app that reports how many samples it has, counted as its training does."""
    tree = _parsed(path, text, CLIENT_IMPORT)
    made = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and _called(node.value) == "ClientApp"
    ]
    trains = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(map(_is_train, node.decorator_list))
    ]
    if not made or not trains:
        raise InputError(
            f"init: {path}: needs app = ClientApp() and a function under @app.train(), as apps of "
            f"Flower 1.41 have. Change it by hand: see the page about Flower."
        )
    app = ast.unparse(made[0].targets[0])
    counting = _counting_lines(path, text, trains[0])
    added = ["", "", *counting, "", "", REGISTER.format(app=app)]
    imports = _last_import(tree, "flwr.clientapp")
    return _with_lines(text, {imports: [CLIENT_IMPORT], made[0].end_lineno or 0: added})


def with_cohort_strategy(path: Path, text: str, cohort_size: int) -> str:
    """Return a server app whose strategy draws clients by size."""
    tree = _parsed(path, text, *SERVER_IMPORTS)
    started = {
        node.func.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "start"
        and isinstance(node.func.value, ast.Name)
    }
    made = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in started
    ]
    if not made:
        raise InputError(
            f"init: {path}: needs a strategy in a variable, and a call of its start(), as apps of "
            f"Flower 1.41 have. Change it by hand: see the page about Flower."
        )
    last = max(made, key=lambda node: node.lineno)
    _refuse_weightless(path, _called(last.value))
    wrap = WRAP.format(name=ast.unparse(last.targets[0]), cohort_size=cohort_size)
    imports = _last_import(tree, "flwr.serverapp.strategy")
    lines = {imports: list(SERVER_IMPORTS), last.end_lineno or 0: [" " * last.col_offset + wrap]}
    return _with_lines(text, lines)


def _refuse_weightless(path: Path, strategy: str) -> None:
    """Refuse a strategy that CohortStrategy would refuse when the app starts."""
    try:
        from fedcohort.flower.inner_strategy import WEIGHTLESS
    except ImportError:  # flwr is not installed here
        return
    if strategy in {each.__name__ for each in WEIGHTLESS}:
        raise InputError(
            f"init: {path}: {strategy} ignores the weights that make an aggregate unbiased. Change "
            f"it to FedAvg, or one that inherits its average, such as FedAdam. Then call it again."
        )


def _parsed(path: Path, text: str, *imports: str) -> ast.Module:
    """Parse a program; refuse one that has these imports already."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"init: {path}: is not a Python program ({error}). Fix it.") from error
    if any(each in text for each in imports):
        raise InputError(f"init: {path}: uses fedcohort already. There is nothing to change.")
    return tree


def _counting_lines(path: Path, text: str, train: ast.FunctionDef) -> list[str]:
    """Return a function that counts a client's samples, made of statements of its training."""
    counted = [
        value
        for node in ast.walk(train)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == EXAMPLES
    ]
    context = train.args.args[1].arg if len(train.args.args) > 1 else "context"
    needed = _names(counted[0]) if counted else set()
    kept: list[ast.stmt] = []
    for node in reversed(train.body):
        if isinstance(node, ast.Assign) and needed & set(_stored(node)):
            needed = (needed - set(_stored(node))) | _names(node.value)
            kept.insert(0, node)
    message = {each.arg for each in train.args.args} - {context}
    if not counted or needed & message:
        raise InputError(
            f"init: {path}: the metrics of {train.name} must hold {EXAMPLES!r}, counted without "
            f"the server's message. Change it by hand: see the page about Flower."
        )
    own = [ast.get_source_segment(text, node, padded=False) or "" for node in kept]
    body = [f"    {line}" for each in own for line in _shifted(each, train.body[0].col_offset)]
    result = " ".join((ast.get_source_segment(text, counted[0]) or "").split())
    note = ": Context" if re.search(r"\bContext\b", text) else ""
    return [f"def num_examples({context}{note}) -> int:", *body, f"    return {result}"]


def _shifted(statement: str, by: int) -> Iterator[str]:
    """Yield the lines of a statement without the indent of its block."""
    first, *rest = statement.splitlines()
    yield first
    yield from (line[by:] if line[:by].isspace() else line for line in rest)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _stored(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        for each in ast.walk(target):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                yield each.id


def _called(node: ast.AST) -> str:
    """Return the name of what is called; empty if nothing is."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _is_train(decorator: ast.AST) -> bool:
    return _called(decorator) == "train"


def _last_import(tree: ast.Module, module: str) -> int:
    """Return the line after which to import: the module's import, or the last one of all."""
    imports = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    own = [each for each in imports if isinstance(each, ast.ImportFrom) and each.module == module]
    return max((each.end_lineno or 0 for each in own or imports), default=0)


def _with_lines(text: str, added: dict[int, list[str]]) -> str:
    """Insert lines after the lines with these numbers."""
    lines = text.splitlines()
    for number in sorted(added, reverse=True):
        lines[number:number] = added[number]
    return "\n".join([*lines, ""])
