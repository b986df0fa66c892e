"""Selection among a thousand to a million clients: record updates, rebuild the tree, draw.

Run ``python benchmarks/scale.py [--json] [--largest N]``: 4 to 6 minutes. Every cell runs
alone, on one thread, in a process of its own. The server keeps sketches of 64 numbers; a round's m
updates of a million parameters come one at a time, and none is kept. The tree is the whole of
``TournamentDesign(tree="auto")``. A peak is the most memory that the process held during the step;
the whole peak includes Python and the generation of the federation.

Beside the draw stands what numpy needs for m draws by importance (the faster of ``choice`` and
``multinomial``), beside the bisecting tree Ward's on all pairs (``tree="exact"``, scipy), in time
and in V, on three generated federations of unbalanced sizes.

At the largest number of clients a whole selector is measured: making it, rounds of 100 draws with
updates of 100,000 parameters, and its checkpoint. For similarity everyone has been heard of before,
and every draw builds the bisecting tree anew.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedcohort import Multinomial, Population, Recipe, Selector, SimilarityClustered, SizeClustered
from fedcohort.designs import MultinomialDesign, TournamentDesign
from fedcohort.memory import UpdateMemory
from fedcohort.synthetic import clustered_updates, dirichlet_updates, unbalanced_sizes
from measurement import cell_or, in_own_process, machine, peak_megabytes, start_new_peak

CLIENTS = (10**3, 10**4, 10**5, 10**6)
COHORTS = (100, 1000)
#: Numbers kept of an update, and parameters of the model.
SKETCH = 64
DIMENSION = 10**6
TREES, DRAWS = 5, 21
#: The bisecting tree against Ward's: clients, the cohort, and federations of each kind.
WARD_CLIENTS, WARD_COHORT, WARD_SEEDS = 10**4, 100, 5
#: A selector's draws, the parameters of its model, and the rounds that are timed.
SELECTOR_COHORT, SELECTOR_DIMENSION, SELECTOR_ROUNDS = 100, 10**5, 5
SELECTORS: dict[str, Recipe] = {
    "size": SizeClustered(SELECTOR_COHORT),
    "multinomial": Multinomial(SELECTOR_COHORT),
    "similarity": SimilarityClustered(SELECTOR_COHORT, tree="bisecting"),
}
FEDERATIONS: dict[str, Callable[[int, int], np.ndarray]] = {
    "clusters": lambda n, seed: clustered_updates(n, seed=seed),
    "Dir(0.1)": lambda n, seed: dirichlet_updates(n, alpha=0.1, seed=seed),
    "Dir(10)": lambda n, seed: dirichlet_updates(n, alpha=10.0, seed=seed),
}


def all_seconds(work: Callable[[], object], times: int) -> list[float]:
    """Return how long ``work`` takes, each time."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def median_seconds(work: Callable[[], object], times: int) -> float:
    """Return the median time of ``work``."""
    return float(np.median(all_seconds(work, times)))


class TreeKinds(logging.Handler):
    """Hears which kind of tree was built: "TournamentDesign: bisecting tree of 10000 clients"."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Take the kind out of the message."""
        words = record.getMessage().split()
        if words[2:4] == ["tree", "of"]:
            self.heard.add(words[1])


def selection_cell(n: int, m: int) -> dict[str, Any]:
    """Measure the three steps of one round."""
    rng, kinds = np.random.default_rng(0), TreeKinds()
    log = logging.getLogger("fedcohort")
    log.addHandler(kinds)
    log.setLevel(logging.INFO)
    population = Population(unbalanced_sizes(n, seed=0))
    memory = filled_memory(n)
    peaks = {"start": start_new_peak()}
    record = recorded_seconds(memory, rng.permutation(n)[:m], rng)
    peaks["record"] = start_new_peak()

    def build() -> TournamentDesign:
        return TournamentDesign(population, m, memory.updates, tree="auto", rng=rng)

    design = build()
    peaks["tree"] = start_new_peak()
    trees = all_seconds(build, TREES)
    start_new_peak()
    draw = median_seconds(lambda: design.draw(rng), DRAWS)
    peaks["draw"] = peak_megabytes()
    importance = population.importance
    choice = median_seconds(lambda: rng.choice(n, m, p=importance), DRAWS)
    multinomial = median_seconds(lambda: rng.multinomial(m, importance), DRAWS)
    return {
        "kind": " and ".join(sorted(kinds.heard)),
        "record_s": record,
        "tree_s": float(np.median(trees)),
        "tree_fastest_s": min(trees),
        "draw_ms": 1e3 * draw,
        "numpy_choice_ms": 1e3 * choice,
        "numpy_multinomial_ms": 1e3 * multinomial,
        "draw_over_numpy": draw / min(choice, multinomial),
        "peak_mb": max(peaks.values()),
        **{f"peak_{step}_mb": peak for step, peak in peaks.items()},
    }


def filled_memory(n: int, dimension: int = DIMENSION) -> UpdateMemory:
    """Return the memory of a server that has heard of everyone before."""
    head = {"dimension": dimension, "sketch": SKETCH, "seed": 0}
    return UpdateMemory.of_state(
        {
            "head": np.array(json.dumps(head)),
            "updates": clustered_updates(n, seed=0, dimension=SKETCH),
            "last_seen": np.zeros(n, dtype=np.int64),
        }
    )


def recorded_seconds(memory: UpdateMemory, clients: np.ndarray, rng: np.random.Generator) -> float:
    """Return how long it takes to record one update of each, without their making."""
    total = 0.0
    for client in clients:
        update = rng.standard_normal(DIMENSION, dtype=np.float32)
        start = time.perf_counter()
        memory.record([client], [update], round_=1)
        total += time.perf_counter() - start
    return total


class Steps:
    """Times steps, and notes the peak of each."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peaks: dict[str, float] = {}

    def timed(self, step: str, work: Callable[[], Any]) -> Any:
        """Return what the step gives."""
        start_new_peak()
        start = time.perf_counter()
        result = work()
        self.seconds.setdefault(step, []).append(time.perf_counter() - start)
        self.peaks[step] = max(self.peaks.get(step, 0.0), peak_megabytes())
        return result


def selector_cell(name: str, n: int) -> dict[str, Any]:
    """Measure a selector's life: made, some rounds, saved, loaded."""
    steps = Steps()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "selector"
        live(SELECTORS[name], n, path, steps)
        file_mb = path.stat().st_size / 2**20
        steps.timed("load", lambda: Selector.load(path))
    return {
        **{f"{step}_s": float(np.median(found)) for step, found in steps.seconds.items()},
        **{f"peak_{step}_mb": peak for step, peak in steps.peaks.items()},
        "file_mb": file_mb,
    }


def live(recipe: Recipe, n: int, path: Path, steps: Steps) -> None:
    """Make a selector, play rounds, and save it."""
    rng, sizes = np.random.default_rng(0), unbalanced_sizes(n, seed=0)
    selector = steps.timed("build", lambda: Selector(recipe, sizes, seed=0, sketch=SKETCH))
    if recipe.learns:
        selector.memory = filled_memory(n, SELECTOR_DIMENSION)
    for _ in range(SELECTOR_ROUNDS):
        cohort = steps.timed("draw", selector.draw)
        updates = rng.standard_normal((len(cohort), SELECTOR_DIMENSION), dtype=np.float32)
        steps.timed("aggregate", partial(selector.aggregate, updates))
    steps.timed("save", lambda: selector.save(path))


def ward_cell(federation: str, seed: int) -> dict[str, Any]:
    """Measure the bisecting tree and Ward's on all pairs, on one federation."""
    population = Population(unbalanced_sizes(WARD_CLIENTS, seed=seed))
    updates = FEDERATIONS[federation](WARD_CLIENTS, seed)
    numbers: dict[str, Any] = {}
    for kind in ("bisecting", "exact"):
        start_new_peak()
        start = time.perf_counter()
        design = TournamentDesign(
            population, WARD_COHORT, updates, tree=kind, rng=np.random.default_rng(seed)
        )
        numbers[f"{kind}_s"] = time.perf_counter() - start
        numbers[f"{kind}_peak_mb"] = peak_megabytes()
        numbers[f"{kind}_v"] = design.aggregate_variance(updates)
    return {
        **numbers,
        "multinomial_v": MultinomialDesign(population, WARD_COHORT).aggregate_variance(updates),
        "v_ratio": numbers["bisecting_v"] / numbers["exact_v"],
        "time_ratio": numbers["bisecting_s"] / numbers["exact_s"],
    }


def measure_all(largest: int) -> dict[str, Any]:
    """Run every cell, one after the other, with a progress bar on standard error."""
    sizes = [n for n in CLIENTS if n <= largest]
    cells = [("selection", n, m) for n in sizes for m in COHORTS]
    compared = [("ward", name, seed) for name in FEDERATIONS for seed in range(WARD_SEEDS)]
    if largest < WARD_CLIENTS:
        compared = []
    selectors = [("selector", name, sizes[-1]) for name in SELECTORS]
    measured = []
    for cell in shown([*cells, *compared, *selectors]):
        measured.append(in_own_process(__file__, *cell))
    selection = [
        {"n": n, "m": m, **numbers} for (_, n, m), numbers in zip(cells, measured, strict=False)
    ]
    ward = [
        {"federation": name, "seed": seed, **numbers}
        for (_, name, seed), numbers in zip(compared, measured[len(cells) :], strict=False)
    ]
    lives = [
        {"recipe": name, "n": n, **numbers}
        for (_, name, n), numbers in zip(selectors, measured[-len(selectors) :], strict=True)
    ]
    return {
        "machine": machine(),
        "selection": selection,
        "growth": growth(selection),
        "ward": ward,
        "selectors": lives,
        "bars": bars(selection, ward),
    }


def shown(cells: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the cells under a progress bar; where there is no terminal, with a line each."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(cells))
        for cell in cells:
            text = " ".join(map(str, cell))
            progress.update(task, description=f"{text:24}")
            if not console.is_terminal:
                console.print(text)
            yield cell
            progress.advance(task)


def growth(selection: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Divide the tree's times of neighbouring cells of one kind; n log m says what to expect.

    The fastest of the times, which others on the machine have disturbed least.
    """
    ratios = []
    for m in COHORTS:
        for small, large in pairwise(cell for cell in selection if cell["m"] == m):
            ratios.append((small, large, large["n"] / small["n"]))
    for small, large in pairwise(selection):
        if small["n"] == large["n"]:
            ratios.append((small, large, float(np.log(large["m"]) / np.log(small["m"]))))
    return [
        {
            "from": {"n": small["n"], "m": small["m"]},
            "to": {"n": large["n"], "m": large["m"]},
            "tree": large["tree_fastest_s"] / small["tree_fastest_s"],
            "n_log_m": expected,
        }
        for small, large, expected in ratios
        if small["kind"] == large["kind"] == "bisecting"
    ]


def bars(selection: list[dict[str, Any]], ward: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold the figures that were measured to their bars."""
    rows: list[tuple[str, float, float]] = []
    for cell in selection:
        place = f"n = {cell['n']}, m = {cell['m']}"
        if cell["n"] == 10**5:
            rows.append((f"{place}: tree s", cell["tree_s"], 1.5))
        if (cell["n"], cell["m"]) == (10**6, 1000):
            rows.append((f"{place}: tree s", cell["tree_s"], 15.0))
            rows.append((f"{place}: draw ms", cell["draw_ms"], 100.0))
            rows.append((f"{place}: peak MB, everything", cell["peak_mb"], 4000.0))
    for name in FEDERATIONS if ward else ():
        worst = max(cell["v_ratio"] for cell in ward if cell["federation"] == name)
        rows.append((f"{name}, worst of {WARD_SEEDS}: V bisecting / V Ward", worst, 1.1))
    return [
        {"bar": name, "measured": value, "limit": limit, "kept": value < limit}
        for name, value, limit in rows
    ]


def print_tables(results: dict[str, Any], console: Console) -> None:
    """Print what was measured, for people."""
    console.print(str(results["machine"]))
    console.print(f"\nOne round, sketches of {SKETCH}, d = {DIMENSION}; MB: peak of the step")
    console.print(selection_table(results["selection"]))
    for ratio in results["growth"]:
        steps = " -> ".join(
            f"n = {end['n']}, m = {end['m']}" for end in (ratio["from"], ratio["to"])
        )
        console.print(f"tree {steps}: times {ratio['tree']:.2f} (n log m: {ratio['n_log_m']:.2f})")
    if results["ward"]:
        console.print(
            f"\nThe bisecting tree beside Ward's on all pairs, n = {WARD_CLIENTS}, "
            f"m = {WARD_COHORT}, {WARD_SEEDS} seeds"
        )
        console.print(ward_table(results["ward"]))
    console.print(
        f"\nA selector, n = {results['selectors'][0]['n']}, m = {SELECTOR_COHORT}, "
        f"d = {SELECTOR_DIMENSION}; s, and MB: peak of the step"
    )
    console.print(selectors_table(results["selectors"]))
    console.print()
    for bar in results["bars"]:
        verdict = "kept" if bar["kept"] else "MISSED"
        console.print(f"{verdict:6} {bar['bar']}: {bar['measured']:.3g} (limit {bar['limit']:.3g})")


def selection_table(selection: list[dict[str, Any]]) -> Table:
    """Put the cells into lines."""
    table = new_table(
        "n", "m", "record s", "MB", "tree s", "kind", "MB", "draw ms", "/ numpy", "peak MB"
    )
    for cell in selection:
        table.add_row(
            str(cell["n"]),
            str(cell["m"]),
            f"{cell['record_s']:.2f}",
            f"{cell['peak_record_mb']:.0f}",
            f"{cell['tree_s']:.3f}",
            cell["kind"],
            f"{cell['peak_tree_mb']:.0f}",
            f"{cell['draw_ms']:.2f}",
            f"{cell['draw_over_numpy']:.2f}",
            f"{cell['peak_mb']:.0f}",
        )
    return table


def ward_table(ward: list[dict[str, Any]]) -> Table:
    """Put the means over the seeds into lines, and the range of the ratio."""
    table = new_table(
        "federation", "V Ward / V MD", "V ratio", "from", "to", "time ratio", "Ward s"
    )
    for name in FEDERATIONS:
        cells = [cell for cell in ward if cell["federation"] == name]
        ratios = [cell["v_ratio"] for cell in cells]
        table.add_row(
            name,
            f"{np.mean([cell['exact_v'] / cell['multinomial_v'] for cell in cells]):.3f}",
            f"{np.mean(ratios):.3f}",
            f"{min(ratios):.3f}",
            f"{max(ratios):.3f}",
            f"{np.mean([cell['time_ratio'] for cell in cells]):.4f}",
            f"{np.mean([cell['exact_s'] for cell in cells]):.1f}",
        )
    return table


def selectors_table(selectors: list[dict[str, Any]]) -> Table:
    """Put the selectors into lines."""
    steps = ("build", "draw", "aggregate", "save", "load")
    table = new_table("recipe", *(head for step in steps for head in (step, "MB")), "file MB")
    for cell in selectors:
        numbers = [
            text
            for step in steps
            for text in (f"{cell[f'{step}_s']:.3f}", f"{cell[f'peak_{step}_mb']:.0f}")
        ]
        table.add_row(cell["recipe"], *numbers, f"{cell['file_mb']:.0f}")
    return table


def new_table(*columns: str) -> Table:
    """Return an empty table with numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--largest", type=int, default=CLIENTS[-1], metavar="N", help="leave out more clients"
    )
    options = parser.parse_args()
    if options.largest < CLIENTS[0]:
        parser.error(f"--largest must be at least {CLIENTS[0]}; got {options.largest}")
    results = measure_all(options.largest)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print_tables(results, Console(highlight=False, width=100))


if __name__ == "__main__":
    cell_or(main, {"selection": selection_cell, "ward": ward_cell, "selector": selector_cell})
