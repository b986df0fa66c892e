"""Epsilon against rounds by design, under two neighbouring relations."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from fedcohort import Population
from fedcohort.baselines import RoundRobinDesign
from fedcohort.designs import Design, PoissonDesign, UniformDesign
from fedcohort.designs.base import Relation
from fedcohort.diagnostics import epsilon

CLIENTS, DRAWS, NOISE = 1000, 10, 1.0
DELTA = CLIENTS**-1.1
ROUNDS = (10, 30, 100, 300, 1000, 3000)


def draw(colours: Mapping[str, str]) -> Figure:
    """Draw epsilon for known cohorts, turns, and amplification by sampling."""
    population = Population([50] * CLIENTS)
    turns = RoundRobinDesign(population, DRAWS, 0)
    coins, subsets = PoissonDesign(population, DRAWS), UniformDesign(population, DRAWS)
    figure = Figure(figsize=(5.2, 3.4))
    panels = figure.subplots(1, 2, sharey=True)
    secret: list[tuple[Relation, Design, str, str]] = [
        ("zero-out", coins, "poisson", "poisson, secret"),
        ("replace-one", subsets, "uniform", "uniform, secret"),
    ]
    for axes, (relation, design, name, label) in zip(panels, secret, strict=True):
        lines = [
            (coins, False, "#222222", "any, known"),
            (turns, False, colours["size"], "round-robin"),
            (design, True, colours[name], label),
        ]
        for each, amplified, colour, text in lines:
            found = [_epsilon(each, rounds, relation, amplified=amplified) for rounds in ROUNDS]
            axes.plot(ROUNDS, found, color=colour, marker="o", markersize=3, label=text)
        axes.set(xscale="log", yscale="log", xlabel="rounds", title=relation)
        axes.legend(fontsize=8, loc="upper left" if axes is panels[0] else "lower right")
    panels[0].set_ylabel("epsilon")
    return figure


def _epsilon(design: Design, rounds: int, relation: Relation, *, amplified: bool) -> float:
    event = design.privacy_event(NOISE, rounds=rounds, relation=relation, amplified=amplified)
    return epsilon(event, DELTA, relation)
