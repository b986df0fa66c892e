"""Tables of patients in hospitals of unequal size, with numpy and no framework for training.

Three hundred hospitals have 30 to 4,000 patients each, and are of four kinds: children's hospitals
see other patients than heart centres. All fit one logistic regression: who comes back within 30
days? The server asks ten hospitals in a round, and draws them in four ways:

* ``cohort-mean``: all hospitals alike, averaged by their sizes, as most frameworks do,
* ``multinomial``: by size alone,
* ``stratified``: by size within each kind, which the server is told,
* ``difference``: by size alone, with the difference estimator, which remembers updates.

The table shows how far the loss over all patients is above that of the best model, in the last 50
rounds: the mean, and the worst of these rounds. ``cohort-mean`` is biased, and its mean is twice
that of the others. These three have about the same mean. But after an unlucky draw,
``multinomial`` is three times as far off as the two that know the kinds or remember.

Run it as ``python examples/tabular_loop.py``: 5 seconds. Needs fedcohort without extras.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort import CohortMean, Multinomial, Recipe, Selector, Stratified

Numbers = NDArray[np.float64]
HOSPITALS, DRAWS, ROUNDS, LAST = 300, 10, 150, 50
KINDS = {"general": 0.55, "children": 0.2, "heart": 0.15, "geriatric": 0.1}
#: Age in years, systolic blood pressure, earlier stays, days in bed: mean and deviation by kind.
PATIENTS = {
    "general": ((55, 130, 1.0, 4), (18, 18, 1.0, 2)),
    "children": ((9, 100, 0.5, 3), (4, 10, 0.7, 1)),
    "heart": ((66, 150, 2.5, 7), (10, 20, 1.2, 3)),
    "geriatric": ((82, 140, 3.0, 11), (6, 20, 1.5, 4)),
}
#: The risk of coming back rises with other columns in each kind; the fifth number is the base.
RISKS = {
    "general": (0.5, 0.3, 0.6, 0.2, -1.0),
    "children": (-0.6, 0.0, 0.9, 0.7, -0.4),
    "heart": (0.2, 0.9, 0.7, 0.1, -0.6),
    "geriatric": (0.9, -0.2, 0.4, 0.6, -0.8),
}

rng = np.random.default_rng(0)
names = [f"hospital-{number:03d}" for number in range(HOSPITALS)]
kinds = dict(zip(names, rng.choice(list(KINDS), HOSPITALS, p=list(KINDS.values())), strict=True))
amounts = rng.lognormal(5.5, 1.0, HOSPITALS).clip(30, 4000).astype(int)
sizes = dict(zip(names, amounts.tolist(), strict=True))


def patients(name: str) -> tuple[Numbers, Numbers]:
    """Return the table of a hospital: standardised columns with a leading 1, and who came back."""
    mean, deviation = PATIENTS[kinds[name]]
    table = rng.normal(mean, deviation, (sizes[name], 4))
    table = (table - (50, 128, 1.4, 5)) / (26, 24, 1.4, 3.5)
    columns = np.column_stack([table, np.ones(sizes[name])])
    return columns, (rng.random(sizes[name]) < chance(columns, np.array(RISKS[kinds[name]]))) * 1.0


def chance(columns: Numbers, model: Numbers) -> Numbers:
    """Return each patient's chance to come back, by a model."""
    return 1 / (1 + np.exp(-columns @ model))


tables = {name: patients(name) for name in names}
everyone = tuple(np.concatenate(parts) for parts in zip(*tables.values(), strict=True))


def loss(model: Numbers) -> float:
    """Return the log loss over the patients of all hospitals."""
    columns, back = everyone
    return float(np.mean(np.logaddexp(0, columns @ model) - back * (columns @ model)))


def train(model: Numbers, name: Any) -> Numbers:
    """Take three gradient steps on a hospital's table; return its model minus the server's."""
    columns, back = tables[name]
    own = model.copy()
    for _ in range(3):
        own -= 0.3 * columns.T @ (chance(columns, own) - back) / len(back)
    return own - model


def serve(recipe: Recipe, **options: Any) -> Numbers:
    """Train by cohorts; return the losses of the last rounds."""
    selector, model = Selector(recipe, sizes, seed=1, **options), np.zeros(5)
    losses = []
    for _ in range(ROUNDS):
        cohort = selector.draw()
        model = model + selector.aggregate({name: train(model, name) for name in cohort.ids})
        losses.append(loss(model))
    return np.array(losses[-LAST:])


if __name__ == "__main__":
    best = np.zeros(5)
    for _ in range(2000):
        columns, back = everyone
        best -= 0.5 * columns.T @ (chance(columns, best) - back) / len(back)
    print("             above the best  worst round")
    for name, recipe, options in (
        ("cohort-mean", CohortMean(DRAWS), {}),
        ("multinomial", Multinomial(DRAWS), {}),
        ("stratified", Stratified(DRAWS), {"groups": kinds}),
        ("difference", Multinomial(DRAWS), {"estimator": "difference"}),
    ):
        above = serve(recipe, **options) - loss(best)
        print(f"{name:12} {above.mean():.4f}          {above.max():.4f}")
