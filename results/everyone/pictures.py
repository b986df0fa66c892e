"""Draw the pictures of this folder and the README's, and print its table.

Run ``python results/everyone/pictures.py``: pictures of 21 schemes need their lines named where
they end, which the figures of every run folder (``fedcohort report --figures``) do not do.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedcohort.experiments.costs import COSTS, cost_axis, prices, spent
from fedcohort.experiments.results import (
    WINDOW,
    Results,
    curve,
    half_life_of,
    interval,
    read_results,
)
from fedcohort.report.page_data import band

HERE = Path(__file__).parent
#: Bytes of a megabyte, and seconds of an hour.
UNITS = {"bytes": 1e6, "client_seconds": 3600, "simulated_seconds": 3600}
FULL, BASELINE = "full participation", "multinomial"
KINDS = {
    "all train": ("black", [FULL]),
    "unbiased; sizes": (
        "#0072b2",
        ["uniform unbiased", "multinomial", "poisson", "size"],
    ),
    "unbiased; groups": ("#56b4e9", ["target", "stratified"]),
    "unbiased; past updates": (
        "#009e73",
        ["similarity", "tournament", "auto", "balanced", "multinomial + difference"],
    ),
    "unbiased; norms of all": ("#cc79a7", ["norm-optimal"]),
    "biased": (
        "#d55e00",
        [
            *("cohort-mean", "uniform", "round-robin", "first", "deadline deadline=4.0"),
            *("power-of-choice", "oort", "divfl"),
        ],
    ),
}
DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)), (0, (8, 2))]
LOWEST, HIGHEST = 0.5, 2.4
#: Lines that are named where they end, and by how many points their names are moved up.
NAMED = {
    FULL: -4,
    BASELINE: -3,
    "similarity": 5,
    "divfl": 0,
    "power-of-choice": 6,
    "oort": 6,
    "deadline deadline=4.0": -6,
    "uniform": 0,
    "norm-optimal": 4,
}
#: Lines of the README's picture: their colours, and what they are called.
HEADLINE = {
    FULL: ("#555555", "all 100 clients"),
    "multinomial + difference": ("#0077bb", "difference estimator"),
    "tournament": ("#009270", "tournament"),
    "cohort-mean": ("#d55e00", "FedAvg in most frameworks"),
}
#: Rounds whose cohorts the picture shows, and the seed.
SHOWN, SEED = range(150, 200), 0
FAST = ("deadline deadline=4.0", "oort", "tournament")


def plain(label: str) -> str:
    """Return a label without a word that it says twice: the run has ``deadline deadline=4.0``."""
    return label.replace("deadline deadline=", "deadline ")


def pictures() -> None:
    """Draw the smoothed loss against rounds and against each cost."""
    results = read_results(HERE)
    panel = results.folder.experiment.panels[0]
    half_life = half_life_of(panel.rounds)
    assert sorted(label for _, labels in KINDS.values() for label in labels) == sorted(
        entry.label for entry in panel.design
    )
    figure = Figure(figsize=(13, 11.5), layout="constrained")
    rows = figure.add_gridspec(3, 2, height_ratios=(1, 1, 0.46))
    grid = [figure.add_subplot(rows[row, column]) for row in (0, 1) for column in (0, 1)]
    for axes, cost in zip(grid, (None, *COSTS), strict=True):
        for colour, labels in KINDS.values():
            for label, dash in zip(labels, DASHES, strict=False):
                over = band(curve(results, panel, label, "loss").smoothed(half_life))
                places = over.rounds
                if cost is not None:
                    total = spent(results, panel, label, cost)
                    assert total is not None
                    places = total.mean(axis=0)[over.rounds - 1] / UNITS[cost]
                axes.plot(
                    places, over.mean, linestyle=dash, color=colour, label=plain(label), lw=1.3
                )
                if label in NAMED and (cost is not None or label != "norm-optimal"):
                    axes.annotate(
                        label.split()[0] if label != FULL else FULL,
                        (places[-1], over.mean[-1]),
                        xytext=(4, NAMED[label]),
                        textcoords="offset points",
                        va="center",
                        fontsize=8,
                        color=colour,
                    )
        axes.margins(x=0.16)
        axes.set(
            xlabel="rounds" if cost is None else cost_axis(cost, UNITS[cost])[0],
            xscale="linear" if cost is None else "log",
            ylim=(LOWEST, HIGHEST),
        )
        axes.grid(alpha=0.25)
        axes.set_ylabel("training loss")
    names = figure.add_subplot(rows[2, :])
    names.axis("off")
    lines = {str(line.get_label()): line for line in grid[0].lines}
    for number, (kind, (_, labels)) in enumerate(KINDS.items()):
        legend = names.legend(
            [lines[plain(label)] for label in labels],
            [plain(label) for label in labels],
            title=kind,
            loc="upper left",
            bbox_to_anchor=(number / len(KINDS), 1),
            frameon=False,
            alignment="left",
            fontsize=9,
            title_fontproperties={"weight": "bold", "size": 9},
        )
        names.add_artist(legend)
    folder = HERE / "figures"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / "four.png", dpi=110)


def headline() -> None:
    """Draw who is drawn, and the accuracy that this gives."""
    results = read_results(HERE)
    figure = Figure(figsize=(7, 3.7), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(0.85, 1))
    for axes, label in zip(
        left.subplots(2, sharex=True), ("cohort-mean", "tournament"), strict=True
    ):
        colour, name = HEADLINE[label]
        axes.imshow(
            digits_drawn(results, label),
            cmap=LinearSegmentedColormap.from_list(label, ["white", colour]),
            aspect="auto",
            interpolation="none",
            vmax=0.25,
            extent=(SHOWN[0], SHOWN[-1] + 1, 9.5, -0.5),
        )
        axes.set_title(name, color=colour, fontsize=11, loc="left")
        axes.set(yticks=[0, 3, 6, 9], ylabel="digit")
    axes.set_xlabel("round; white: the digit has no client")
    draw_accuracies(right.subplots(), results)
    figure.savefig(HERE / "figures" / "headline.png", dpi=150)


def digits_drawn(results: Results, label: str) -> NDArray[np.float64]:
    """Return the weight of every digit in the rounds shown, of shape (digits, rounds)."""
    (run,) = (each for each in results.runs if (each.design, each.seed) == (label, SEED))
    digits = results.class_counts(run.panel, SEED).argmax(axis=1)
    weights = np.zeros((10, SHOWN[-1] + 1))
    rounds, clients = (
        results.column("cohorts", run, name).astype(int) for name in ("round", "client")
    )
    np.add.at(weights, (digits[clients], rounds), results.column("cohorts", run, "weight"))
    return weights[:, SHOWN[0] :]


def draw_accuracies(axes: Axes, results: Results) -> None:
    """Draw the smoothed accuracies of the headline: mean, lowest and highest seed."""
    panel = results.folder.experiment.panels[0]
    for place, (label, (colour, name)) in enumerate(HEADLINE.items()):
        values = curve(results, panel, label, "accuracy")
        over = band(values.smoothed(half_life_of(panel.rounds)))
        low, high = 100 * over.low, 100 * over.high
        axes.fill_between(over.rounds, low, high, color=colour, alpha=0.18, lw=0)
        axes.plot(over.rounds, 100 * over.mean, color=colour, lw=2)
        last = 100 * values.values[:, -WINDOW:].mean()
        text = {"y": 33 - 7.5 * place, "fontsize": 10.5, "color": colour, "ha": "right"}
        axes.text(x=160, s=name, **text)
        axes.text(x=197, s=f"{last:.1f} %", **text)
    axes.set(xlabel="round", xlim=(0, 200), ylim=(0, 90))
    axes.set_title("test accuracy, %", fontsize=11, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def table() -> None:
    """Print one line per design, in Markdown."""
    results = read_results(HERE)
    panel = results.folder.experiment.panels[0]
    found = prices(results, panel)
    assert found is not None
    level, each = found
    final = {
        price.design: curve(results, panel, price.design, "loss").values[:, -WINDOW:].mean(axis=1)
        for price in each
    }
    accuracy = {
        price.design: curve(results, panel, price.design, "accuracy").values[:, -WINDOW:].mean()
        for price in each
    }
    print(f"the level is {level:.4f}, {BASELINE}'s final loss\n")
    print("| design | final loss | above full participation | accuracy | rounds | MB ", end="")
    print("| client hours | hours |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for price in sorted(each, key=lambda price: price.final_loss):
        own = final[price.design]
        above = interval(own - final[FULL])
        rounds = "never" if price.rounds is None else f"{price.rounds:.0f}"
        if 0 < price.n_reached < price.n_seeds:
            rounds += f" ({price.n_reached} of {price.n_seeds} seeds)"
        costs = [
            "" if cost is None else f"{float(f'{cost / UNITS[name]:.3g}'):g}"
            for name, cost in price.costs.items()
        ]
        print(
            f"| {plain(price.design)} | {own.mean():.3f} ± {own.std(ddof=1):.3f} "
            f"| {above.mean:+.3f} ({above.low:+.3f} to {above.high:+.3f}) "
            f"| {100 * accuracy[price.design]:.1f} % | {rounds} | {' | '.join(costs)} |"
        )


def early(hours: float, rounds: int = 10) -> None:
    """Print the loss of schemes that prefer fast clients, and of the tournament, after ``hours``.

    The loss is the mean over the last rounds that ended by then, over seeds.
    """
    results = read_results(HERE)
    panel = results.folder.experiment.panels[0]
    for label in FAST:
        losses = curve(results, panel, label, "loss").values
        passed = spent(results, panel, label, "simulated_seconds")
        assert passed is not None
        ends = [int(np.searchsorted(own / 3600, hours, side="right")) for own in passed]
        last = [
            own[max(0, end - rounds) : end].mean() for own, end in zip(losses, ends, strict=True)
        ]
        print(f"{hours} hours, {label}: {np.mean(last):.2f} ± {np.std(last, ddof=1):.2f}")


if __name__ == "__main__":
    pictures()
    headline()
    table()
    print()
    for hours in (0.11, 0.23):
        early(hours)
