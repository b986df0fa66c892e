"""The blocks of a page of documentation, run as a reader would run them.

All blocks of a page run in its order, in one new folder, and share one Python namespace:

================================  ================================================================
a fence with                      what is done with it
================================  ================================================================
``title="name"``                  written to the file of that name, for the blocks below
``python`` (or ``pycon``), >>>    run as doctests
``python``, no prompt             executed
``toml``, no title                read: it must be TOML
``console``                       every ``$ command`` is run; the lines below it are its output
``sh``, in a terminal of its own  started, if that is the title, and ended when the page ends
``sh``, ``py``                    not run; the title says why, as ``title="not run: needs a GPU"``
``text``, ``csv`` and others      only shown
================================  ================================================================

Output is compared up to white space, the length of rules and times at the ends of lines (304 us),
and ``...`` stands for anything: paths, versions. What a command writes to standard error is not
shown, unless it fails: a command may fail only where the page shows its sentence. A line ``^C`` in
the output stops the command there, when all that stands above the line has been printed. Ports of
this machine that are taken are replaced by free ones, in the whole page. ``fedcohort`` runs in this
process where the command has nothing for a shell: starting PyTorch takes longer than most commands.
"""

import doctest
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedcohort.cli.app import main
from flower_programs import QUIET, Terminals, free_port, with_free_ports

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<rest>[^\n`]*)\n(?P<text>.*?)^(?P=indent)``` *$",
    flags=re.MULTILINE | re.DOTALL,
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: Languages that are for reading alone, if their title says why.
NOT_RUN = ("sh", "py")
#: The title of a command that stays while the page goes on.
TERMINAL = "in a terminal of its own"
INTERRUPT = "^C\n"
#: A time at the end of a line, as in the last column of a comparison.
ANY_TIME = r"[0-9.]+ (?:us|ms|s)"
TIME = re.compile(rf"\b{ANY_TIME} *$", flags=re.MULTILINE)
#: ``fedcohort`` and its arguments, with nothing that only a shell understands.
PLAIN = re.compile(r"fedcohort (?:\\\n|[^\\\n|&;<>$*?~(){}`])+")
#: In a page, pip looks whether everything is there, installs nothing, and says nothing.
LOOKING = {
    "PIP_DRY_RUN": "1",
    "PIP_NO_INDEX": "1",
    "PIP_QUIET": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
#: Where ``flwr run`` starts a SuperLink for simulations.
LOCAL_PORT = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title, and the text between the fences."""

    language: str
    title: str
    text: str
    line: int

    @property
    def is_doctest(self) -> bool:
        return (
            self.language in ("python", "pycon") and re.search("^>>> ", self.text, re.M) is not None
        )

    @property
    def runs(self) -> bool:
        """Whether something is done with the block."""
        return self.language in ("python", "pycon", "toml", "console") or self.title == TERMINAL


@dataclass(frozen=True)
class Command:
    """A command, and what the page says that it prints."""

    text: str
    output: str


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in its order."""
    found = []
    for match in FENCE.finditer(page):
        title = re.search(r'title="([^"]*)"', match["rest"])
        indent = match["indent"]
        text = re.sub(f"^{indent}", "", match["text"], flags=re.MULTILINE)
        line = page.count("\n", 0, match.start()) + 2
        found.append(Block(match["language"], title[1] if title else "", text, line))
    return found


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block.

    A backslash at a line's end continues a command, and so does ``<<END`` up to a line ``END``.
    """
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if parts[0].strip() or len(parts) < 2:
        raise ValueError(f"line {block.line}: a console block must begin with a $ command")
    return [_split(part) for part in parts[1:]]


def _split(part: str) -> Command:
    """Divide a command from its output."""
    end = r".*?^END" if "<<END\n" in part else r"(?:[^\n]*\\\n)*[^\n]*"
    match = re.match(rf"({end})(?:\n|\Z)(.*)", part, re.DOTALL | re.MULTILINE)
    if match is None:
        raise ValueError(f"a command has no end: {part}")
    return Command(match[1], match[2])


def run_page(page: Path, folder: Path) -> None:
    """Run all blocks of a page in a folder, which is the current one; raise where one fails."""
    with _importable(folder):
        _run_blocks(page, folder)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the files of a folder be imported as in a prompt there, and forget them afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


def _run_blocks(page: Path, folder: Path) -> None:
    more = {**LOOKING, "HOME": str(folder), LOCAL_PORT: str(free_port())}
    blocks = blocks_of(with_free_ports(page.read_text(encoding="utf-8")))
    with Terminals(folder, {**reader_environment(folder), **more}) as terminals:
        _run_in_order(blocks, page, folder, terminals, more)


def _run_in_order(
    blocks: Sequence[Block],
    page: Path,
    folder: Path,
    terminals: Terminals,
    more: Mapping[str, str],
) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks:
        where = f"{page.name}, line {block.line}"
        if block.title == TERMINAL:
            terminals.open(block.text)
        elif block.title and block.language not in NOT_RUN:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.is_doctest:
            _run_doctest(block, names, str(page))
        elif block.language == "python":
            exec(compile(block.text, where, "exec"), names)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "console":
            for command in commands_of(block):
                run_command(command, folder, where=where, more=more)


def _run_doctest(block: Block, names: dict[str, Any], page: str) -> None:
    examples = doctest.DocTestParser().get_doctest(block.text, names, page, page, block.line - 1)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    result = runner.run(examples, out=said.append, clear_globs=False)
    names.update(examples.globs)
    assert result.failed == 0, "".join(said)


def run_command(
    command: Command, folder: Path, *, where: str = "", more: Mapping[str, str] | None = None
) -> None:
    """Run a command in a folder, and compare what it prints."""
    environment = {**reader_environment(folder), **(more or {})}
    if INTERRUPT in command.output:
        printed = _interrupted(command, folder, environment)
        _compare(command, command.output.replace(INTERRUPT, ""), printed, where)
        return
    result = _result_of(command.text, folder, environment)
    shows_error = re.search(r"^\w+: ", command.output, re.M) is not None
    assert result.returncode == 0 or shows_error, (
        f"{where}: {command.text}\n{result.stdout}{result.stderr}"
    )
    printed = result.stdout + (result.stderr if result.returncode else "")
    _compare(command, command.output, printed, where)


def _result_of(
    command: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in this process if it is plain."""
    if PLAIN.fullmatch(command) and Path.cwd() == folder:
        return _result_here(shlex.split(command.replace("\\\n", "")), environment)
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )


def _result_here(
    command: list[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Call the command line; its outputs look like files."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        for name, replacement in {"argv": command, "stdout": out, "stderr": err}.items():
            patch.setattr(sys, name, replacement)
        code = main(command[1:])
    for stream in (out, err):
        stream.seek(0)
    return subprocess.CompletedProcess(command, code, out.read(), err.read())


def _compare(command: Command, shown: str, printed: str, where: str) -> None:
    assert is_shown(shown, printed), (
        f"{where}: {command.text}\nthe page shows\n{shown}\nprinted was\n{printed}"
    )


def is_shown(shown: str, printed: str) -> bool:
    """Compare up to white space, rules and times; ``...`` stands for anything, nothing included."""
    shown, printed = (re.sub("─+", "─", text) for text in (shown, printed))
    shown = TIME.sub("\0", shown)
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in shown.split("...")]
    pattern = r"\s*" + r".*?".join(pieces) + r"\s*"
    pattern = pattern.replace(re.escape("\0"), ANY_TIME)
    return re.fullmatch(pattern, printed, flags=re.DOTALL) is not None


def _interrupted(command: Command, folder: Path, environment: Mapping[str, str]) -> str:
    """Press Ctrl-C when all that the page shows before it was printed; return all output."""
    before = command.output.partition(INTERRUPT)[0]
    printed, pressed = "", False
    with subprocess.Popen(
        command.text,
        shell=True,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            if not pressed and is_shown(before, printed):
                os.killpg(process.pid, signal.SIGINT)
                pressed = True
    assert pressed, f"{command.text}: ended before Ctrl-C:\n{printed}"
    return printed


def reader_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a reader who has installed everything, and downloaded nothing."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # a make within a make says where it is
    own = {name: value for name, value in os.environ.items() if name not in outer}
    return {
        **own,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "FLWR_HOME": str(folder / ".flwr"),
        **QUIET,
    }
