"""The map of ``docs/explanation/architecture.md``: the rooms of the package, and three walks.

``python tools/docs/architecture.py`` draws the picture and writes the lists again; tests compare
both with the package.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedcohort"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PICTURE = PAGE.parent / "figures" / "rooms.svg"
#: A list on the page, between two comments.
SECTION = re.compile(r"(<!-- map: ([\w-]+) -->\n\n).*?(\n\n<!-- map: end -->)", re.DOTALL)
#: The rooms, lowest first. A room imports from lower rooms and from itself. Names are without the
#: leading underscore that marks a private module.
LAYERS = [
    ["version", "errors", "colours"],
    ["arguments", "display", "updates"],
    ["lazy", "fields", "whole_file"],
    ["archive", "lock"],
    ["streams", "optimizers", "figures"],
    ["population", "cohort", "synthetic"],
    ["plan"],
    ["similarity"],
    ["memory", "client_files"],
    ["designs", "baselines"],
    ["selector"],
    ["diagnostics"],
    ["comparison", "participation"],
    ["simulation", "deployment", "testing"],
    ["experiments", "flower", "nvflare", "fedbiomed"],
    ["report"],
    ["studies"],
    ["cli"],
]
#: The experiment of the walk through a run and its report.
EXPERIMENT = """\
rounds = 4
seeds = [0]
cohort_size = 4

[data]
dataset = "digits"
partition = "one-class"
clients_per_class = 2
train_size = 30
test_size = 8

[model]
name = "mlp"

[training]
steps = 3
batch_size = 6
lr = 0.1

[server]
oracle_every = 2

[[design]]
recipe = "multinomial"

[[design]]
recipe = "similarity"
"""
#: The picture's measures, in pixels: as wide as a phone.
WIDTH, ROW, GAP = 360, 30, 4


def is_folder(room: str) -> bool:
    """Return whether a room is a folder, not a single file."""
    return (SOURCE / room / "__init__.py").is_file()


def picture() -> str:
    """Return the rooms as an SVG picture, the highest first."""
    height = ROW * len(LAYERS) + GAP
    rows = [_row(rooms, GAP + ROW * place) for place, rooms in enumerate(reversed(LAYERS))]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n' + "".join(rows) + "</svg>\n"
    )


def _row(rooms: list[str], top: int) -> str:
    width = (WIDTH - GAP) // len(rooms)
    return "".join(
        _box(room, GAP + width * place, top, width - GAP) for place, room in enumerate(rooms)
    )


def _box(room: str, left: int, top: int, width: int) -> str:
    fill, ink, name = (
        ("#00695c", "white", f"{room}/") if is_folder(room) else ("#e6e6e6", "black", room)
    )
    return (
        f'<rect x="{left}" y="{top}" width="{width}" height="{ROW - GAP}" rx="4" fill="{fill}"/>'
        f'<text x="{left + width // 2}" y="{top + 17}" text-anchor="middle" fill="{ink}">'
        f"{name}</text>\n"
    )


def summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def rooms() -> str:
    """Return a list of the folders, the highest first, with a line for each."""
    folders = [room for layer in reversed(LAYERS) for room in layer if is_folder(room)]
    lines = [f"* `{room}/`: {summary(SOURCE / room / '__init__.py')}" for room in folders]
    return "\n".join(lines)


def compare() -> Callable[[], object]:
    """Return the walk from a file of sizes to the table."""
    from fedcohort.cli.app import main

    sizes = str(ROOT / "examples" / "sizes.csv")
    return lambda: main(["compare", sizes, "--cohort-size", "10"])


def similarity_round() -> Callable[[], object]:
    """Return the walk through the third round of a simulation, when updates are remembered."""
    from fedcohort import SimilarityClustered
    from fedcohort.simulation import (
        LocalTraining,
        Options,
        Run,
        Simulation,
        load_dataset,
        mlp,
        one_class_shards,
    )

    digits = load_dataset("digits")
    data = one_class_shards(digits, seed=0, clients_per_class=3, train_size=30, test_size=8)
    simulation = Simulation(
        [Run(SimilarityClustered(4), data)],
        lambda: mlp(64, 8),
        LocalTraining(steps=3, batch_size=6, lr=0.1),
        Options(device="cpu"),
    )
    simulation.run(2)
    return lambda: simulation.run(1)


def run_and_report() -> Callable[[], object]:
    """Return the walk from an experiment file to its report."""
    from fedcohort.cli.app import main

    folder = Path(tempfile.mkdtemp())
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT, encoding="utf-8")

    def walk() -> None:
        main(["run", str(file), "--out", str(folder / "run"), "--device", "cpu"])
        main(["report", str(folder / "run")])
        shutil.rmtree(folder)

    return walk


#: The walks of the page: a call that prepares the walk and returns it.
WALKS: dict[str, Callable[[], Callable[[], object]]] = {
    "compare": compare,
    "similarity-round": similarity_round,
    "run-report": run_and_report,
}
#: The files of a walk to read; the others are only named. A walk that is not here lists all.
TO_READ = {
    "similarity-round": {
        "simulation/round_loop.py",
        "simulation/live_run.py",
        "selector/selector.py",
        "selector/planner.py",
        "selector/open_round.py",
        "designs/similarity_clustered.py",
        "similarity/trees.py",
        "plan.py",
        "cohort.py",
        "simulation/engine/local_training.py",
    },
    "run-report": {
        "cli/run.py",
        "experiments/settings.py",
        "experiments/experiment_file.py",
        "experiments/run_folder.py",
        "experiments/units.py",
        "experiments/runner.py",
        "simulation/runs.py",
        "simulation/round_loop.py",
        "simulation/live_run.py",
        "simulation/history.py",
        "experiments/results.py",
        "cli/report.py",
        "report/page.py",
        "report/page_data.py",
        "report/answer.py",
    },
}


def entered(walk: Callable[[], object]) -> list[str]:
    """Return the files of the package that a call enters, in the order of entry."""
    found: dict[str, None] = {}
    folder = f"{SOURCE}/"

    def note(frame: FrameType, event: str, argument: object) -> None:
        # Bodies of modules and classes run when they are imported: they are not part of a walk.
        code = frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(folder):
            found[code.co_filename.removeprefix(folder)] = None

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


def walked(name: str) -> list[str]:
    """Return the files of a walk, taken in a process of its own: caches hide files."""
    command = [sys.executable, __file__, name]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return result.stdout.partition(f"{name}:\n")[2].split()


def section(name: str) -> str:
    """Return a list of the page as it should be: the rooms, or a walk."""
    return rooms() if name == "rooms" else _walk(walked(name), TO_READ.get(name))


def _walk(files: list[str], to_read: set[str] | None) -> str:
    """Return a line for each file to read, None for all, and the names of the others."""
    lines = [f"`{each}`: {summary(SOURCE / each)}" for each in files if each in (to_read or files)]
    found = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))
    others = [f"* `{each}`" for each in files if each not in (to_read or files)]
    return f"{found}\n\nAlso entered:\n\n" + "\n".join(others) if others else found


def shown() -> dict[str, str]:
    """Return the lists that the page shows, by name."""
    found = SECTION.finditer(PAGE.read_text(encoding="utf-8"))
    return {part[2]: part[0].removeprefix(part[1]).removesuffix(part[3]) for part in found}


def write() -> None:
    """Draw the picture and write the lists of the page."""
    PICTURE.write_text(picture(), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        SECTION.sub(lambda part: part[1] + section(part[2]) + part[3], text), encoding="utf-8"
    )


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write()
    else:
        files = entered(WALKS[sys.argv[1]]())
        sys.stdout.write("\n".join([f"{sys.argv[1]}:", *files, ""]))
