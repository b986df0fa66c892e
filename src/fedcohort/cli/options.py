"""Shared by several commands: options, completion, files of clients, run folders, the console."""

import inspect
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedcohort._display import COLUMNS
from fedcohort.client_files.clients import ReadClients, read
from fedcohort.client_files.table import Reading
from fedcohort.designs import RECIPES
from fedcohort.errors import InputError

#: Default folder of runs.
RUNS = Path("runs")


def fresh_folder(name: str) -> Path:
    """Return ``runs/NAME``, or the first of ``runs/NAME-2``, ``-3`` ... that does not exist."""
    candidates = (RUNS / (name if k == 1 else f"{name}-{k}") for k in count(1))
    return next(path for path in candidates if not path.exists())


def run_paths(folder: Path) -> list[Path]:
    """Return the run folders in a folder, or the folder itself if it is one."""
    if (folder / "run.json").exists():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/run.json"))


def latest_run(owner: str) -> Path:
    """Return the most recently started run under ``./runs``, for the command ``owner``."""
    begun = {path: _created(path / "run.json") for path in run_paths(RUNS)}
    if not begun:
        raise InputError(
            f"{owner}: needs a run; there is none under ./{RUNS}. Name a run folder, or make one "
            f"with: fedcohort run FILE"
        )
    return max(begun, key=lambda path: (begun[path], path.name))


def _created(head: Path) -> str:
    try:
        content = json.loads(head.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(content.get("created", "")) if isinstance(content, dict) else ""


Offer = Callable[[str], list[str]]


def one_of(choices: Iterable[str]) -> Offer:
    """Complete one of these words."""
    words = list(choices)
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def some_of(choices: Iterable[str]) -> Offer:
    """Complete the last item of a comma-separated list. Offer each word once."""
    words = list(choices)
    return lambda incomplete: _next_of(words, incomplete)


#: Completion for options that take one design, and for options that take several.
a_design, some_designs = one_of(RECIPES), some_of(RECIPES)


def a_run_folder(incomplete: str) -> list[str]:
    """Complete a run under ``./runs``. If none matches, complete any folder."""
    fitting = [str(path) for path in run_paths(RUNS) if str(path).startswith(incomplete)]
    if fitting:
        return fitting
    typed = Path(incomplete)
    parent, start = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    try:
        folders = [path for path in parent.iterdir() if path.is_dir()]
    except OSError:
        return []
    return sorted(str(path) for path in folders if path.name.startswith(start))


def designs_of_file(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the designs of the given experiment file, by label or recipe."""
    designs = _content(context).get("design")
    tables = designs if isinstance(designs, list) else []
    tables = [each for each in tables if isinstance(each, dict)]
    names = [str(each.get("label", each.get("recipe", ""))) for each in tables]
    words = [name for name in dict.fromkeys(names) if name and " " not in name]
    return _next_of(words, incomplete)


def keys_of_file(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the keys of the given experiment file, as ``training.lr=``."""
    return [f"{key}=" for key in _keys(_content(context)) if key.startswith(incomplete)]


def _next_of(words: list[str], incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [before + comma + w for w in words if w.startswith(last) and w not in given]


def _content(context: typer.Context) -> dict[str, Any]:
    """Read the file without checks. Return an empty table if it cannot be read."""
    # While an option has no value yet, click does not assign the arguments before it.
    typed = [context.params.get("file"), *context.args]
    try:
        return tomllib.loads(Path(next(filter(None, typed))).read_text(encoding="utf-8"))
    except (StopIteration, OSError, ValueError):
        return {}


def _keys(table: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values that are not lists of tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{before}{key}.")
        elif not (isinstance(value, list) and value and isinstance(value[0], dict)):
            yield before + key


def plain_console() -> Console:
    """Return a console of at least ``COLUMNS``, without markup, emoji or highlighting."""
    width = max(COLUMNS, shutil.get_terminal_size((COLUMNS, 24)).columns)
    return Console(markup=False, emoji=False, highlight=False, width=width)


def option(
    names: str,
    value: str,
    text: str,
    *,
    complete: Callable[..., list[str]] | None = None,
    group: str | None = None,
    default: bool = False,
    least: int | None = None,
    most: int | None = None,
) -> Any:
    """Return an option with these names, separated by spaces.

    With ``default``, the help shows the default. ``least`` and ``most`` limit a number.
    """
    return typer.Option(
        *names.split(),
        metavar=value,
        show_default=default,
        help=text,
        autocompletion=complete,
        rich_help_panel=group,
        min=least,
        max=most,
    )


def argument(
    value: str,
    text: str,
    complete: Callable[..., list[str]] | None = None,
    *,
    default: bool = False,
) -> Any:
    """Return an argument. With ``default``, the help shows the default; else ``text`` names it."""
    return typer.Argument(metavar=value, show_default=default, help=text, autocompletion=complete)


SIZES_HELP = (
    "CSV, JSON or Excel file of client sizes, optional ids and groups; - is standard input."
)
Sizes = Annotated[str, argument("FILE", SIZES_HELP)]


#: The options of :class:`Reading`: type, placeholder, help.
READING: dict[str, tuple[Any, str, str]] = {
    "size_column": (
        str,
        "NAME",
        "Column of sizes. Default: size, count, n, or the number of samples, examples, records, "
        "rows, instances, observations or data points, as n_samples, num_samples, samples, "
        "sample_count or sample_size; else of patients or cases; else the only column of whole "
        "numbers, or of percentages.",
    ),
    "id_column": (
        str,
        "NAME",
        "Column of ids. Default: the first of id, client, name, hospital, site, centre, "
        "institution, node, device, user, clinic; also as client_id or client_name; else the first "
        "column with a different name for each client.",
    ),
    "group_column": (
        str,
        "NAME",
        "Column of groups. Default: the first of group, stratum, region, cluster.",
    ),
    "thousands": (
        str,
        "MARK",
        "Thousands mark of the sizes: a point, a comma, an apostrophe or a space. Default: all of "
        "them, but the point only if it cannot be a decimal mark.",
    ),
    "sheet": (
        str,
        "NAME",
        "Sheet of an Excel file, or its number from 1. Default: the only one with sizes.",
    ),
    "header_row": (
        int,
        "N",
        "Line or row that names the columns, from 1. Default: found by looking.",
    ),
}


def reads_clients(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :class:`Reading`; it gets them as ``reading``."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "reading"]
    more = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, _reading_option(name, value, text)],
        )
        for name, (kind, value, text) in READING.items()
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        settings = {name: given.pop(name) for name in READING}
        command(**given, reading=Reading(**settings, on_command_line=True))

    del call.__wrapped__  # typer would read its signature
    vars(call)["__signature__"] = signature.replace(parameters=[*own, *more])
    call.__annotations__ = {each.name: each.annotation for each in (*own, *more)}
    return call


def _reading_option(name: str, value: str, text: str) -> Any:
    return option(f"--{name.replace('_', '-')}", value, text, group="How the file is read")


def read_clients(path: str, reading: Reading) -> ReadClients:
    """Read clients from a file, and print the notes on it to standard error."""
    found = read(path, reading)
    for note in (*found.notes, *found.row_notes):
        print(note, file=sys.stderr)
    return found


CohortSize = Annotated[int, option("--cohort-size -m", "M", "Draws in a round.")]
SEED_HELP = "Seed of the order of equal clients and of draws."
Seed = Annotated[int, option("--seed", "N", SEED_HELP, default=True, least=0)]
Plot = Annotated[
    Path | None, option("--plot", "FILE", "Also draw a figure: a .png, .svg or .pdf file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunDir = Annotated[Path, argument("DIR", "A run folder.", a_run_folder)]
