"""One run's server: its selector, its clock, and what has happened."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort._client_records import below
from fedcohort.cohort import Cohort
from fedcohort.designs import Design, RowDesign
from fedcohort.designs.signals import Request, Signals
from fedcohort.errors import SimulationError
from fedcohort.simulation.devices.cost import NOBODY, Clock, Cost, Times, round_cost
from fedcohort.simulation.engine.evaluation import Evaluator, Quality, Yardstick
from fedcohort.simulation.engine.local_training import LocalTraining
from fedcohort.simulation.history import History, Round
from fedcohort.simulation.runs import Options, Run


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """How a round begins.

    Attributes
    ----------
    round_
        From 0.
    available
        Who can be drawn, shape (n_clients,); None: everyone.
    request
        Who is asked for what before the draw; None: nobody.
    times
        How long clients take in this round.
    """

    round_: int
    available: NDArray[np.bool_] | None
    request: Request | None
    times: Times


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Who trains in a round.

    Attributes
    ----------
    opening
        How the round began.
    design
        What was drawn from; None: nobody was available.
    trains
        The clients that train and answer, replacements included, in order of arrival.
    failed
        The clients that were asked and send no update.
    seconds
        How long building the design and drawing took.
    """

    opening: Opening
    design: Design | None
    trains: NDArray[np.int64]
    failed: NDArray[np.int64]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a round came to.

    Attributes
    ----------
    clients, updates
        Those that answered, in order of arrival, and their updates, one row each.
    diverged
        Clients whose training is not finite; they count as failed.
    has_diverged
        Whether anything that was computed in the round is not finite, also by the oracle.
    losses
        What the clients report of the model that they were sent; None where nobody asks.
    quality, yardstick
        Of the model after the round, where it was measured.
    """

    clients: NDArray[np.int64]
    updates: Tensor
    diverged: NDArray[np.int64]
    has_diverged: bool = False
    losses: NDArray[np.float64] | None = None
    quality: Quality | None = None
    yardstick: Yardstick | None = None
    train_seconds: float = 0.0
    measure_seconds: float = 0.0


@final
class Server:
    """One run's server: a selector, with simulated time around it."""

    def __init__(
        self,
        run: Run,
        evaluator: Evaluator,
        options: Options,
        training: LocalTraining,
        *,
        n_parameters: int,
    ) -> None:
        self.history = History()
        self._run, self._evaluator, self._options = run, evaluator, options
        population = run.data.population
        self._clock = Clock(
            run.devices, population, training, n_parameters=n_parameters, seed=run.seed
        )
        self.selector = run.selector(sketch=options.sketch, overlap=options.overlap)
        self._has_class = run.data.class_counts() > 0
        self._drawn: Drawn | None = None

    def open(self, round_: int) -> Opening:
        """Begin a round: see who is there, and whom the recipe asks."""
        times = self._clock.times(round_)
        if self.selector.cohort is not None:  # an interrupted round is played again
            return self._drawn.opening if self._drawn else Opening(round_, None, None, times)
        available = self._clock.available()
        return Opening(round_, available, self.selector.ask(available), times)

    def open_to_all(self, round_: int) -> Opening:
        """Begin a round that is never played, as if everyone were there."""
        if self.selector.cohort is not None:  # an interrupted round; its draw will be the same
            self.selector.restore(self.selector.state())
            self._drawn = None
        return Opening(round_, None, self.selector.ask(), self._clock.times(round_))

    def draw(self, opening: Opening, signals: Signals) -> Drawn:
        """Draw the cohort, and others in the place of those that fail; the same if asked again."""
        if self._drawn is not None and self._drawn.opening.round_ == opening.round_:
            return self._drawn
        start, selector = time.perf_counter(), self.selector
        if selector.cohort is None:
            selector.draw(opening.available, signals)
        seconds = time.perf_counter() - start
        trains, failed = np.array(selector.asked, dtype=np.int64), NOBODY
        if self._run.failures is not None:
            trains, failed = self._replaced(self._run.failing(opening.round_))
        if self._run.extra:
            trains = trains[np.argsort(opening.times.duration[trains], kind="stable")]
        self._drawn = Drawn(opening, selector.design, trains, failed, seconds)
        return self._drawn

    def _replaced(self, fails: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw in the place of clients that fail; return those that answer, and the others."""
        asked = np.array(self.selector.asked, dtype=np.int64)
        while self.selector.redraw(asked[fails[asked]]):
            asked = np.array(self.selector.asked, dtype=np.int64)
        return asked[~fails[asked]], asked[fails[asked]]

    def prepare(self, pool: Executor) -> None:
        """Build the next design in the background, where nobody is ever away."""
        if not self._clock.has_availability:
            self.selector.prepare(pool)

    def reported_losses(
        self, model: Tensor, clients: NDArray[np.int64]
    ) -> NDArray[np.float64] | None:
        """Return what clients report of the model that they were sent, if the recipe reads it.

        That is the root of the mean squared loss over all of the client's samples, dropout off.
        With epochs these are the samples that it trained on; with steps a random part of them is.
        """
        if not self.selector.wants_losses:
            return None
        found = self._evaluator.losses_of(model, clients)[1]
        return np.where(np.isfinite(found), found, np.nan)

    def measure(self, model: Tensor, round_: int, *, last: bool) -> Quality | None:
        """Judge the model after a round, if it is its turn."""
        return self._evaluator.quality(model) if last or self._is_turn(round_) else None

    def commit(self, drawn: Drawn, outcome: Outcome) -> None:
        """Add the round to the history, and let the selector remember it.

        A round that was measured because it was the last one is so no longer.
        """
        rounds, clients = self.history.rounds, outcome.clients
        if rounds and not self._is_turn(rounds[-1].round_):
            rounds[-1] = replace(rounds[-1], quality=None)
        settled = self.selector.settle(clients)
        cost = self._cost(drawn, settled)
        quality = outcome.quality
        diverged = outcome.has_diverged or bool(len(outcome.diverged))
        diverged |= quality is not None and not math.isfinite(quality.loss)
        rounds.append(
            Round(
                drawn.opening.round_,
                clients=settled.clients.tolist(),
                counts=settled.counts.tolist(),
                weights=settled.weights.tolist(),
                residual=settled.residual,
                distinct_classes=int(self._has_class[settled.clients].any(axis=0).sum()),
                draw_seconds=drawn.seconds,
                train_seconds=outcome.train_seconds,
                measure_seconds=outcome.measure_seconds,
                quality=quality,
                yardstick=outcome.yardstick,
                rows=self._rows(drawn),
                cost=cost,
                failed=sorted([*drawn.failed.tolist(), *outcome.diverged.tolist()]),
                diverged=diverged or bool(rounds and rounds[-1].diverged),
            )
        )
        self._clock.now += cost.simulated_seconds
        took = drawn.opening.times.duration[clients]
        self.selector.remember(outcome.updates, clients, losses=outcome.losses, durations=took)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return what a resumed server needs beside its history, as arrays."""
        kept: dict[str, NDArray[np.generic]] = {"now": np.array(self._clock.now)}
        return kept | {f"selector.{name}": a for name, a in self.selector.state().items()}

    def restore(self, history: History, state: dict[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        self.history, self._drawn = history, None
        self._clock.now = float(state["now"])
        self.selector.restore(below("selector.", state))

    def _cost(self, drawn: Drawn, settled: Cohort) -> Cost:
        if drawn.design is None:
            return self._clock.idle()
        return round_cost(
            self._run.recipe,
            drawn.opening.request,
            settled,
            drawn.opening.times,
            model_bytes=self._clock.model_bytes,
            idle=np.setdiff1d(drawn.trains, settled.clients),
            failed=drawn.failed,
        )

    def _rows(self, drawn: Drawn) -> list[int] | None:
        every = self._options.rows_every
        if every is None or drawn.opening.round_ % every or not isinstance(drawn.design, RowDesign):
            return None
        return [int(row) for row in drawn.design.plan.main_rows()]

    def _is_turn(self, round_: int) -> bool:
        return (round_ + 1) % self._options.measure_every == 0


#: Trains clients of some runs, each from its run's model: (run, client) pairs in, one update each.
Train = Callable[[list[tuple[int, int]]], Tensor]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What the asked clients of a run answered.

    Attributes
    ----------
    signals
        The signal that was asked for, one number per client, NaN for those who were not asked.
    trained, updates
        The clients that had to train for it, sorted, and their updates, one row each.
    diverged
        Whether an answer was not finite; it then counts as none.
    """

    signals: dict[str, NDArray[np.float64]]
    trained: NDArray[np.int64]
    updates: Tensor | None = None
    diverged: bool = False

    def untrained(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of the clients that have not trained yet, in their order."""
        return clients[~np.isin(clients, self.trained)]

    def with_updates_of(self, clients: NDArray[np.int64], fresh: Tensor) -> Tensor:
        """Return all these clients' updates; ``fresh`` are those of the untrained ones."""
        if self.updates is None:
            return fresh
        before = np.isin(clients, self.trained)
        rows = fresh.new_empty((len(clients), fresh.shape[1]))
        own = np.searchsorted(self.trained, clients[before])
        known = torch.from_numpy(before).to(rows.device)
        rows[known] = self.updates[torch.from_numpy(own).to(rows.device)]
        rows[~known] = fresh
        return rows


def ask_all(
    openings: Sequence[Opening], evaluators: Sequence[Evaluator], models: Tensor, train: Train
) -> list[Asked]:
    """Let the asked clients of all runs answer; those that must train do so at once."""
    who = [
        (k, int(client))
        for k, opening in enumerate(openings)
        if opening.request is not None and opening.request.signal == "update_norm"
        for client in opening.request.clients
    ]
    # All of them are kept until the round is over: n_clients x size numbers, as a yardstick needs.
    updates = train(who) if who else None
    found, start = [], 0
    for opening, evaluator, model in zip(openings, evaluators, models, strict=True):
        if opening.request is None:
            found.append(Asked({}, NOBODY))
            continue
        signal, clients = opening.request.signal, opening.request.clients
        own = None
        if signal == "update_norm" and updates is not None:
            own, start = updates[start : start + len(clients)], start + len(clients)
            values = own.double().norm(dim=1).cpu().numpy()
        elif signal == "loss":
            values, _ = evaluator.losses_of(model, clients)
        else:
            values = opening.times.duration[clients]
        finite = np.isfinite(values)
        if signal == "duration" and not finite.all():
            raise SimulationError(
                "Simulation: asked for duration, a client's is not finite; its device is too slow. "
                "Raise its speed and bandwidths, or leave the client out."
            )
        everyone = np.full(len(opening.times.duration), np.nan)
        everyone[clients] = np.where(finite, values, np.nan)
        trained = NOBODY if own is None else clients
        found.append(Asked({signal: everyone}, trained, own, not finite.all()))
    return found
