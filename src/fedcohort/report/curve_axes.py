"""Drawing one measured column of a panel: a line per design, seeds as a band."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes

from fedcohort.experiments.costs import COSTS, spent
from fedcohort.experiments.results import Results
from fedcohort.experiments.settings import Setting
from fedcohort.experiments.summary import common_rounds, curve, window_of
from fedcohort.report.bands import band
from fedcohort.report.colours import design_colours, design_dashes, design_labels

#: What the axes of a column are called.
NAMES = {
    "loss": "training loss",
    "accuracy": "test accuracy",
    "distinct_classes": "distinct classes",
    "distinct_clients": "distinct clients",
}
LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


@dataclass(frozen=True, slots=True, eq=False)
class Pen:
    """Draws a run's columns, every design in its own colour."""

    results: Results
    colours: dict[str, str]
    dashes: dict[str, str]

    @classmethod
    def of(cls, results: Results) -> Pen:
        """Give the designs of a run their colours."""
        labels = design_labels([results])
        return cls(results, design_colours(labels), design_dashes(labels))

    def counted(self, panels: list[Setting]) -> bool:
        """Whether every cost of every design was counted."""
        return all(
            spent(self.results, panel, entry.label, cost) is not None
            for panel in panels
            for entry in panel.design
            for cost in COSTS
        )

    def draw(
        self,
        axes: Axes,
        panel: Setting,
        column: str,
        *,
        rolling: bool,
        against: str | None = None,
    ) -> None:
        """Draw a column against the rounds, or a cost; ``rolling`` draws its rolling mean."""
        window = window_of(common_rounds(self.results, panel)[1]) if rolling else 1
        for entry in panel.design:
            over = band(curve(self.results, panel, entry.label, column).rolling(window))
            colour = self.colours[entry.label]
            cost = None if against is None else spent(self.results, panel, entry.label, against)
            places = over.rounds if cost is None else cost.mean(axis=0)[over.rounds - 1]
            axes.plot(
                places,
                over.mean,
                LINE_STYLES[self.dashes[entry.label]],
                linewidth=1.4 if rolling else 0.8,
                color=colour,
                label=entry.label,
            )
            if over.n_seeds > 1:
                axes.fill_between(
                    places, over.low, over.high, color=colour, alpha=0.18, linewidth=0
                )
        axes.set(xlabel="rounds" if against is None else COSTS[against][1], ylabel=NAMES[column])
        if against is not None:
            # A tenth of the cost is the same distance everywhere.
            axes.set_xscale("log")
        axes.margins(x=0.01)
        axes.grid(alpha=0.25)
