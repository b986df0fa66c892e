"""Every command of the README runs, and prints what the README shows.

``python tests/test_readme.py`` (or ``make readme``) runs the commands and writes what they print
into the README. The tests compare it: times are masked, and so are the numbers of a training,
whose last digits depend on the processor.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcohort
from documented_blocks import Block, Command, blocks_of, commands_of, reader_environment
from requirement_closure import PROJECT, ROOT

README = ROOT / "README.md"
LONGEST = 120
#: A command that trains takes a minute, and its numbers vary.
TRAINS = "make demo"
TIME = re.compile(r"\b[\d.]+ (?:ns|us|ms|s|min)(?![\w%])")
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?: \(\d/\d\))?|\bnever\b")


def console_blocks() -> list[Block]:
    return [block for block in blocks_of(README.read_text()) if block.language == "console"]


def commands() -> list[Command]:
    return [command for block in console_blocks() for command in commands_of(block)]


def output_of(command: str, folder: Path) -> str:
    """Run a command in a copy of the project and return what it prints, without trailing blanks."""
    for entry in ROOT.iterdir():  # commands leave files
        if entry.name not in (".git", "runs"):
            (folder / entry.name).symlink_to(entry)
    result = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=reader_environment(folder),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.strip("\n").splitlines())


def is_installed() -> bool:
    """Whether ``make demo`` would install nothing."""
    asked = subprocess.run(["make", "--question", ".venv/.demo"], cwd=ROOT, capture_output=True)
    return asked.returncode == 0


def masked(output: str, *, trained: bool) -> str:
    """Replace what varies, and the white space that depends on its width.

    >>> masked("size  0.886  1.11 ms", trained=False)
    'size 0.886 TIME'
    >>> masked("size  148 (4/5)  0.604 ± 0.018", trained=True)
    'size # # ± #'
    """
    output = TIME.sub("TIME", re.sub("─+", "─", output))
    return " ".join((NUMBER.sub("#", output) if trained else output).split())


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=pytest.mark.slow if each.text == TRAINS else ())
        for each in commands()
    ],
    ids=lambda command: command.text,
)
def test_a_command_prints_what_the_readme_shows(command: Command, tmp_path: Path) -> None:
    trained = command.text == TRAINS
    if trained and not is_installed():
        pytest.skip("make demo would first install a virtual environment")

    printed = output_of(command.text, tmp_path)

    assert masked(printed, trained=trained) == masked(command.output, trained=trained)


def test_the_numbers_of_the_demo_are_those_that_the_text_names() -> None:
    (demo,) = (command.output for command in commands() if command.text == TRAINS)
    rows = {line.split()[0]: line for line in demo.splitlines() if line.strip()}

    for design, accuracy in re.findall(r"`([\w-]+)` reaches (\d+(?:\.\d+)?) %", README.read_text()):
        assert f"{accuracy} ±" in rows[design]


#: The rows of the README's results: run folder, panel, and the designs in its columns.
RESULTS = [
    ("figure1", "figure1", ("multinomial", "similarity")),
    ("figure2", "alpha = 0.01", ("multinomial", "similarity")),
    (
        "beyond/cifar10",
        "beyond-cifar10",
        ("multinomial", "multinomial + difference", "full participation"),
    ),
    (
        "cross-device",
        "cross-device-cifar10",
        ("multinomial, Adam", "difference rank 32, Adam"),
    ),
    ("regression-mnist", "1000 clients", ("Adam", "Adam regression (classes)")),
    ("regression", "regression-roles", ("Adam", "Adam regression")),
    ("roles", "roles", ("multinomial", "tournament")),
]


@pytest.mark.slow
def test_the_results_are_those_of_the_run_folders() -> None:
    results = pytest.importorskip("fedcohort.experiments.results", reason="reads run folders")
    shown = [line for line in README.read_text().splitlines() if " seeds |" in line]

    assert len(shown) == len(RESULTS)
    for line, (folder, name, designs) in zip(shown, RESULTS, strict=True):
        found = results.read_results(ROOT / "results" / folder)
        panels = {panel.label: panel for panel in found.folder.experiment.panels}
        summary = results.summarise(found, panels[name])
        shown_cells = line.split("|")[2:]
        for design, cell in zip(designs, shown_cells, strict=False):
            own = next(each for each in summary.designs if each.label == design)
            loss = f"{own.final_loss.mean():.3f} ± {own.final_loss.std(ddof=1):.3f}"
            text = cell.replace("**", "").strip()
            assert text.startswith(f"{100 * own.final_accuracy.mean():.1f} %, {loss}")
        assert f"{len(summary.seeds)} seeds" in line


def test_the_two_commands_come_first() -> None:
    (first, *_) = re.findall(r"^```.*?^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)

    assert re.findall(r"^make \w+", first, flags=re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/index.md", "docs/how-to/install.md", "docs/tutorial/first-comparison.md"],
)
def test_the_first_way_to_install_works_in_a_clone(page: str) -> None:
    """fedcohort is not published: its name alone means nothing to pip."""
    found = re.findall(r"pip install '?([\w.\[\],]+)", (ROOT / page).read_text())

    assert found[0].startswith(".")


def test_the_server_loop_runs() -> None:
    (block,) = (block for block in blocks_of(README.read_text()) if block.language == "python")
    names: dict[str, Any] = {
        "Selector": fedcohort.Selector,
        "SizeClustered": fedcohort.SizeClustered,
        "sizes": dict.fromkeys("abcdefghijkl", 5),
        "train": lambda model, client: np.ones(3),
        "model": np.zeros(3),
    }
    with tempfile.TemporaryDirectory() as folder:
        exec(block.text.replace('"state"', repr(f"{folder}/state")), names)

    assert len(block.text.splitlines()) == 6
    assert np.allclose(names["model"], 100)


def test_the_readme_is_short_and_shows_the_two_commands_whole() -> None:
    text = README.read_text()

    assert len(text.splitlines()) <= LONGEST
    assert [command.text.split(" examples")[0] for command in commands()] == [
        "fedcohort compare",
        TRAINS,
    ]
    assert all("..." not in command.output for command in commands())


def test_links_lead_to_files_and_headings() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#([\w-]+))?\)", README.read_text())

    assert len(links) > 15
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w-]+", "-", each.lower()).strip("-") for each in headings}


def test_the_badges_are_true() -> None:
    badges = re.findall(
        r"https://img\.shields\.io/badge/(\w+)-([^-]+(?:--[^-]+)*)-", README.read_text()
    )
    said = [line.split(" :: ") for line in PROJECT["classifiers"]]
    pythons = [line[-1] for line in said if line[1] == "Python" and "." in line[-1]]

    assert dict(badges) == {
        "python": "%20%7C%20".join(pythons),
        "licence": PROJECT["license"].replace("-", "--"),
    }


def refresh() -> None:
    """Run the commands of the README, and put what they print into it."""
    if not is_installed():
        sys.exit("test_readme: needs the virtual environment. Run: make test")
    text = README.read_text()
    for command in commands():
        with tempfile.TemporaryDirectory() as folder:
            printed = output_of(command.text, Path(folder))
        shown = f"$ {command.text}\n{command.output}"
        assert text.count(shown) == 1
        text = text.replace(shown, f"$ {command.text}\n{printed}")
    README.write_text(text)


if __name__ == "__main__":
    refresh()
