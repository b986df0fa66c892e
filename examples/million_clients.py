"""A million clients whose data are made when they train, and never stored.

The federation of ``own_loop.py``, ten thousand times as large: clients of ten kinds fit one linear
model, each to the line of its kind. A client's samples come from its address (seed, purpose,
client), so they are the same whenever it trains. The server draws 1,000 clients per round, in three
ways:

* ``multinomial``: by size alone,
* ``tournament``: by size and by sketches, 32 numbers of each client's last update,
* ``multinomial, regression``: by size alone, with the regression estimator, which predicts updates
  from a given feature. Here that is a guess at the client's kind, right for 90 % of the clients.

The table shows the mean squared error of the model above that of the best model, over the second
half of the rounds. After 100 rounds the server has updates of 9 % of the clients, and a sketch says
nothing about the others: the tournament changes little. The guess is known for all clients, and the
regression estimator ends with about a third of the error. Among fewer clients, the tournament
helps too.

Run it as ``python examples/million_clients.py``: 75 s on one core, and less than 1 GB. ``--clients
5000 --draws 50 --rounds 60`` takes 3 s. ``--plot FILE`` writes a figure. Needs fedcohort without
extras, and matplotlib for the figure.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort import Multinomial, Recipe, Regression, Selector, Tournament
from fedcohort.memory import EstimatorName
from fedcohort.streams import Stream, stream
from fedcohort.synthetic import unbalanced_sizes

KINDS, INPUTS, SEED = 10, 50, 0
#: The share of clients whose kind is guessed right.
GUESSED = 0.9
#: How many numbers of an update the tournament keeps, and how often it builds its tree.
SKETCH, REBUILD_EVERY = 32, 10

Row = NDArray[np.float32]


class Federation:
    """A size, a kind and a guess at the kind for each client. Samples are made when needed."""

    def __init__(self, n_clients: int) -> None:
        rng = stream(SEED, use=Stream.PARTITION)
        self.sizes = unbalanced_sizes(n_clients, seed=SEED) // 2
        self.lines = rng.standard_normal((KINDS, INPUTS), dtype=np.float32)
        self.kinds, others = rng.integers(KINDS, size=(2, n_clients), dtype=np.int8)
        self.guesses = np.where(rng.random(n_clients) < GUESSED, self.kinds, others).astype(str)
        #: The best model is the mean line of all clients, by size.
        shares = np.bincount(self.kinds, weights=self.sizes, minlength=KINDS) / self.sizes.sum()
        self.best = shares @ self.lines

    def update(self, model: Row, client: int) -> Row:
        """Make the client's samples, take five gradient steps, and return the model's change."""
        rng = stream(SEED, use=Stream.SYNTHETIC, client=client)
        inputs = rng.standard_normal((self.sizes[client], INPUTS), dtype=np.float32)
        noise = 0.1 * rng.standard_normal(len(inputs), dtype=np.float32)
        outputs, local = inputs @ self.lines[self.kinds[client]] + noise, model.copy()
        for _ in range(5):
            local -= 0.05 * ((inputs @ local - outputs) @ inputs) / len(inputs)
        return local - model


def serve(federation: Federation, selector: Selector, rounds: int, name: str) -> list[float]:
    """Train by cohorts; return the error above the best model's after each round."""
    model, errors = np.zeros(INPUTS, dtype=np.float32), []
    for round_ in range(rounds):
        if sys.stderr.isatty():
            print(f"\r{name}: round {round_ + 1} of {rounds}", end="\r", file=sys.stderr)
        cohort = selector.draw()
        updates = np.stack([federation.update(model, client) for client in cohort.clients])
        model = model + selector.aggregate(updates)
        errors.append(float(((model - federation.best) ** 2).sum()))
    return errors


def plot(errors: dict[str, list[float]], n_clients: int, draws: int, path: Path) -> None:
    """Write a figure of the errors by round."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for name, values in errors.items():
        axes.plot(range(1, len(values) + 1), values, label=name)
    axes.set(xlabel="round", ylabel="error above the best model's", yscale="log")
    axes.set_title(f"{draws:,} draws a round among {n_clients:,} clients")
    axes.legend()
    figure.savefig(path)


def positive(text: str) -> int:
    """Return a positive integer."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def main() -> None:
    """Parse, train in three ways, print, plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=positive, default=1_000_000)
    parser.add_argument("--draws", type=positive, default=1000, help="per round")
    parser.add_argument("--rounds", type=positive, default=100)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="such as errors.svg")
    chosen = parser.parse_args()
    federation, errors = Federation(chosen.clients), {}
    given = Regression(features=federation.guesses, keep=None)
    ways: list[tuple[str, Recipe, EstimatorName | Regression]] = [
        ("multinomial", Multinomial(chosen.draws), "plain"),
        ("tournament", Tournament(chosen.draws), "plain"),
        ("multinomial, regression", Multinomial(chosen.draws), given),
    ]
    print("                         error above the best model's  CPU seconds")
    for name, recipe, estimator in ways:
        start = time.process_time()
        selector = Selector(
            recipe,
            federation.sizes,
            seed=SEED,
            estimator=estimator,
            sketch=SKETCH,
            rebuild_every=REBUILD_EVERY,
        )
        errors[name] = serve(federation, selector, chosen.rounds, name)
        error = np.mean(errors[name][chosen.rounds // 2 :])
        print(f"{name:24} {error:.4f}{time.process_time() - start:34.1f}", flush=True)
        if selector.memory is not None:
            heard = selector.memory.seen.mean()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"the tournament heard from {heard:.1%} of the clients; peak memory {peak:.2f} GB")
    if chosen.plot:
        plot(errors, chosen.clients, chosen.draws, chosen.plot)


if __name__ == "__main__":
    main()
