"""Print the table of a run folder here: excess loss, variance, rounds needed.

Run ``python results/beyond/excess.py results/beyond/mnist``.
"""

import sys
from pathlib import Path

import numpy as np

from fedcohort.experiments.results import WINDOW, Curve, half_life_of, interval, read_results

FULL, BASELINE = "full participation", "multinomial"


def main(path: Path) -> None:
    """Print one line per design, in Markdown."""
    results = read_results(path)
    panel = results.folder.experiment.panels[0]
    last = panel.rounds - WINDOW
    losses, accuracies, realised, expected = {}, {}, {}, {}
    for trial in results.runs:
        column = {
            name: results.column("rounds", trial, name)
            for name in (
                *("round", "loss", "accuracy"),
                *("squared_error", "design_variance", "multinomial_variance"),
            )
        }
        measured = ~np.isnan(column["loss"])
        curve = Curve(column["round"][measured].astype(int), column["loss"][measured][None])
        losses.setdefault(trial.design, {})[trial.seed] = curve
        late = measured & (column["round"] >= last)
        accuracies.setdefault(trial.design, []).append(column["accuracy"][late].mean())
        half = ~np.isnan(column["squared_error"]) & (column["round"] >= panel.rounds / 2)
        plain = column["multinomial_variance"][half].sum()
        realised.setdefault(trial.design, []).append(column["squared_error"][half].sum() / plain)
        expected.setdefault(trial.design, []).append(column["design_variance"][half].sum() / plain)
    final = {
        design: np.array([curve.values[0, curve.rounds >= last].mean() for curve in own.values()])
        for design, own in losses.items()
    }
    level = final[BASELINE].mean()
    print(f"{len(panel.seeds)} seeds, {panel.rounds} rounds; {BASELINE} ends at {level:.3f}\n")
    print("| | final loss | above full participation | below multinomial | accuracy", end="")
    print(" | V / V_MD measured | expected | rounds to multinomial's loss |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    half_life = half_life_of(panel.rounds)
    for design, values in final.items():
        above, below = interval(values - final[FULL]), interval(final[BASELINE] - values)
        needed = np.array(
            [float(c.smoothed(half_life).first_below(level)[0]) for c in losses[design].values()]
        )
        reached = needed[~np.isnan(needed)]
        print(
            f"| {design} | {values.mean():.3f} ± {values.std(ddof=1):.3f} "
            f"| {above.mean:.3f} ({above.low:.3f} to {above.high:.3f}) "
            f"| {below.mean:.3f} ({below.low:.3f} to {below.high:.3f}) "
            f"| {100 * np.mean(accuracies[design]):.1f} % "
            f"| {np.mean(realised[design]):.3f} ± {np.std(realised[design], ddof=1):.3f} "
            f"| {np.mean(expected[design]):.3f} "
            f"| {reached.mean():.0f} ({len(reached)} of {len(needed)} seeds) |"
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("excess.py: needs one run folder, as results/beyond/mnist.")
    main(Path(sys.argv[1]))
