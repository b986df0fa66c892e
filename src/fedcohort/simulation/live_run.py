"""One run during its simulation: the server's part of a round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort._archive import with_prefix, without_prefix
from fedcohort._updates import LARGEST_ENTRY, Layout, Rows, as_numpy
from fedcohort.cohort import NOBODY, Cohort
from fedcohort.designs import Design, RowDesign
from fedcohort.designs.recipe import output_place
from fedcohort.designs.signals import Request
from fedcohort.errors import AggregationError, SimulationError
from fedcohort.memory import EstimatorSettings
from fedcohort.optimizers import State as OptimizerState
from fedcohort.selector.answers import Answers
from fedcohort.simulation.devices.cost import Clock, Cost, Times, round_cost
from fedcohort.simulation.engine.evaluation import Drawn, Evaluator, Quality, Yardstick
from fedcohort.simulation.engine.local_training import LocalTraining
from fedcohort.simulation.history import History, Round
from fedcohort.simulation.runs import Options, Run

Positions = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class RoundState:
    """One run's round so far: every step of the round fills in its part.

    Attributes
    ----------
    available
        Who can be drawn, shape (n_clients,); None: everyone.
    request
        The clients that the recipe asks before the draw, and for what; None: asks none.
    signals
        The answers by the signal's name, one number per client, NaN without an answer.
    early_updates
        If clients had to train to answer: their updates, one row per client of the request.
    design
        The law that the cohort was drawn from; None: no client was available.
    trains, failed
        Clients that train and answer, replacements included, in order of arrival; and clients that
        were asked and send no update.
    clients, answers
        Clients with a usable update, in order of arrival; and what the selector read of them.
    moments
        The optimiser's state after the round.
    diverged
        Whether the model's step or loss, or every client's answer or update, is not finite.
    """

    round_: int
    available: NDArray[np.bool_] | None
    request: Request | None
    times: Times
    signals: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    early_updates: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    design: Design | None = None
    trains: Positions = field(default_factory=NOBODY.copy)
    failed: Positions = field(default_factory=NOBODY.copy)
    clients: Positions = field(default_factory=NOBODY.copy)
    answers: Answers | None = None
    moments: OptimizerState | None = None
    quality: Quality | None = None
    yardstick: Yardstick | None = None
    diverged: bool = False
    is_drawn: bool = False
    draw_seconds: float = 0.0
    train_seconds: float = 0.0
    measure_seconds: float = 0.0

    @property
    def early(self) -> Positions:
        """Clients that trained to answer, sorted."""
        if self.request is None or self.request.signal != "update_norm":
            return NOBODY
        return self.request.clients

    def untrained(self) -> Positions:
        """Return the drawn clients that have not trained yet, in order of arrival."""
        return self.trains[~np.isin(self.trains, self.early)]

    def all_updates(self, fresh: Tensor) -> Tensor:
        """Return the updates of all drawn clients; ``fresh`` are those of :meth:`untrained`."""
        is_early = np.isin(self.trains, self.early)
        if not is_early.any():
            return fresh
        rows = fresh.new_empty((len(self.trains), fresh.shape[1]))
        own = np.searchsorted(self.early, self.trains[is_early])
        known = torch.from_numpy(is_early).to(rows.device)
        rows[known] = self.early_updates[torch.from_numpy(own).to(rows.device)]
        rows[~known] = fresh
        return rows


@final
class LiveRun:
    """A run while it is simulated: its selector, its simulated time and its history."""

    def __init__(
        self,
        run: Run,
        evaluator: Evaluator,
        options: Options,
        training: LocalTraining,
        *,
        layout: Layout,
    ) -> None:
        self.run, self._layout = run, layout
        self.history = History(label=run.label, seed=run.seed)
        self.evaluator, self._options = evaluator, options
        of_run = {"n_parameters": layout.size, "seed": run.seed}
        self._clock = Clock(run.devices, run.data.population, training, **of_run)
        self.selector = run.selector()
        self._check_output()
        lr = run.server_lr
        self._server_lr = options.server_lr if lr is None else lr
        self._moments: OptimizerState | None = None
        self._has_class = run.data.class_counts() > 0
        self.current: RoundState

    def _check_output(self) -> None:
        """Refuse an estimator or a recipe that learns from an array that the model lacks."""
        try:
            if (predictor := self._predictor) is not None:
                predictor._check_layout(self._layout)
            if self.run.recipe.learns_output:
                output_place(self.run.recipe, self._layout)
        except AggregationError as error:
            raise SimulationError(f"Simulation: {error}") from error

    def unplayed(self, round_: int) -> RoundState:
        """Return a round in which everyone is available, and which is never played."""
        if self.selector.cohort is not None:  # drop an interrupted round: its draw will be the same
            self.selector.restore(self.selector.state())
        return RoundState(round_, None, self.selector.ask(), self._clock.times(round_))

    def open(self, round_: int) -> None:
        """Begin a round: find the available clients, and those that the recipe asks."""
        if self.selector.cohort is not None:  # an interrupted round is played again
            self.current = replace(self.current, quality=None, diverged=False)
            return
        if (chances := self.run.known_chances(round_)) is not None:
            self.selector.chances = chances
        available, times = self._clock.available(round_), self._clock.times(round_)
        self.current = RoundState(round_, available, self.selector.ask(available), times)

    def answer(self, now: RoundState, model: Tensor) -> None:
        """Compute the asked clients' signals; a value that is not finite counts as missing."""
        if now.request is None:
            return
        signal, clients = now.request.signal, now.request.clients
        if signal == "loss":
            values, _ = self.evaluator.losses_of(model, clients)
        elif signal == "update_norm":
            values = now.early_updates.double().norm(dim=1).cpu().numpy()
        else:
            values = now.times.duration[clients]
        finite = np.isfinite(values)
        if signal == "duration" and not finite.all():
            raise SimulationError(
                f"Simulation: every asked client needs a finite duration; that of client "
                f"{clients[int(np.argmin(finite))]} is not, since its device is too slow. Raise "
                f"its speed and bandwidths, or leave the client out."
            )
        everyone = np.full(len(now.times.duration), np.nan)
        everyone[clients] = np.where(finite, values, np.nan)
        now.signals, now.diverged = {signal: everyone}, _is_none(finite)

    def draw(self) -> None:
        """Draw the cohort, and others in place of clients that fail; only once in a round."""
        start, now, selector = time.perf_counter(), self.current, self.selector
        if now.is_drawn:
            return
        if selector.cohort is None:
            selector.draw(now.available, now.signals)
        now.draw_seconds, now.design = time.perf_counter() - start, selector.design
        now.trains = np.array(selector.asked, dtype=np.int64)
        if self.run.failures is not None:
            self._replace(self.run.failing(now.round_))
        if self.run.extra:
            now.trains = now.trains[np.argsort(now.times.duration[now.trains], kind="stable")]
        now.is_drawn = True

    def _replace(self, fails: NDArray[np.bool_]) -> None:
        """Draw in place of clients that fail; note which clients answer and which fail."""
        asked = self.current.trains
        while self.selector.redraw(asked[fails[asked]]):
            asked = np.array(self.selector.asked, dtype=np.int64)
        self.current.trains, self.current.failed = asked[~fails[asked]], asked[fails[asked]]

    def prepare(self, pool: Executor) -> None:
        """Build the next design in the background, if everyone is always available."""
        if self.run.overlap and not self._clock.has_availability:
            self.selector.prepare(pool)

    def receive(self, updates: Tensor, norms: NDArray[np.float64], model: Tensor) -> Tensor:
        """Keep the usable updates of the clients that train, and return the server's step.

        Whether an update is usable shows in its norm: nothing else scans it in this round.

        If the recipe reads losses, clients report the root of the mean squared loss over all
        their samples, dropout off. With epochs they trained on exactly these samples; with steps
        on a random part of them.
        """
        now, losses, usable = self.current, None, norms < LARGEST_ENTRY
        now.clients, now.diverged = now.trains[usable], now.diverged or _is_none(usable)
        if self.selector.wants_losses:
            found = self.evaluator.losses_of(model, now.clients)[1]
            losses = np.where(np.isfinite(found), found, np.nan)
        took = now.times.duration[now.clients]
        kept = updates if usable.all() else updates[torch.from_numpy(usable).to(updates.device)]
        rows = Rows(self._layout, kept, [{}] * len(kept))
        now.answers = self.selector.receive(
            rows, now.clients, losses=losses, durations=took, norms=norms[usable]
        )
        with suppress(AggregationError):
            return torch.cat([part.reshape(-1) for part in self.selector.step(now.answers)])
        return torch.full_like(model, math.nan)  # the step does not fit its type

    def drawn(self, step: Tensor) -> Drawn | None:
        """Return what a comparison with full participation needs.

        None if nothing was drawn, and if weights make up for presence: no design knows their law.
        """
        design, own = self.current.design, self.selector
        if design is None or own.settings.corrects_presence:
            return None
        predictor = self._predictor
        has_own = predictor is not None and predictor.own_weights
        return Drawn(design, step, own.estimator, own.max_norm, has_own)

    @property
    def _predictor(self) -> EstimatorSettings | None:
        """The settings of the estimator; None for the plain one."""
        return None if isinstance(self.run.estimator, str) else self.run.estimator

    def moved(self, step: Tensor) -> Tensor:
        """Return how the server moves along a step; its optimiser changes at the commit.

        If clients were drawn and none answered, there is no aggregate: the server does not move.
        A cohort that is empty by design is a draw like any other, with its aggregate.
        """
        now, optimizer = self.current, self.run.optimizer
        now.moments = self._moments
        if optimizer is None:
            return self._server_lr * step
        drawn, predictor = self.selector.cohort, self._predictor
        is_lost = drawn is not None and len(drawn) > 0 and not len(now.clients)
        moves_alone = predictor is not None and predictor.over_members
        if self.selector.target is None or (is_lost and not moves_alone):
            return torch.zeros_like(step)
        with suppress(AggregationError):
            move, now.moments = optimizer.step(step, self._moments)
            return torch.as_tensor(self._server_lr * move)
        return torch.full_like(step, math.nan)  # the move does not fit its type

    def stay(self) -> None:
        """Note that the step is not finite; keep model and optimiser unchanged."""
        self.current.diverged, self.current.moments = True, self._moments

    def measure(self, model: Tensor, *, last: bool) -> None:
        """Evaluate the model after a round, if this round is measured."""
        if last or self._is_turn(self.current.round_):
            self.current.quality = self.evaluator.quality(model)
            self.current.diverged |= not math.isfinite(self.current.quality.loss)

    def commit(self) -> None:
        """Add the round to the history, and let the selector remember it.

        The round before loses its quality if it was measured only because it was the last.
        """
        now, rounds = self.current, self.history.rounds
        assert now.answers is not None  # for mypy: the round was played
        if rounds and not self._is_turn(rounds[-1].round_):
            rounds[-1] = replace(rounds[-1], quality=None)
        settled = self.selector.settle(now.answers)
        cost, lost = self._cost(settled), np.setdiff1d(now.trains, now.clients)
        rounds.append(
            Round(
                now.round_,
                clients=settled.clients.tolist(),
                counts=settled.counts.tolist(),
                weights=settled.weights.tolist(),
                residual=settled.residual,
                distinct_classes=int(self._has_class[settled.clients].any(axis=0).sum()),
                draw_seconds=now.draw_seconds,
                train_seconds=now.train_seconds,
                measure_seconds=now.measure_seconds,
                quality=now.quality,
                yardstick=now.yardstick,
                rows=self._rows(),
                cost=cost,
                failed=sorted(np.concatenate([now.failed, lost]).tolist()),
                scaled=now.answers.scaled.tolist(),
                diverged=now.diverged or bool(rounds and rounds[-1].diverged),
            )
        )
        self._clock.seconds += cost.simulated_seconds
        self._moments = now.moments
        self.selector.remember(now.answers)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the state of a resumed run, without its history, as arrays."""
        kept: dict[str, NDArray[np.generic]] = {"now": np.array(self._clock.seconds)}
        for name, array in (self._moments or {}).items():
            kept[f"moments.{name}"] = as_numpy(array).copy()
        return kept | with_prefix("selector.", self.selector.state())

    def restoring(
        self, history: History, state: dict[str, NDArray[np.generic]]
    ) -> Callable[[], None]:
        """Read what :meth:`state` returned, and return the function that takes it over."""
        seconds, moments = float(state["now"]), without_prefix("moments.", state) or None
        restore_selector = self.selector.restoring(without_prefix("selector.", state))

        def take_over() -> None:
            restore_selector()
            self.history = replace(history, label=self.run.label, seed=self.run.seed)
            self._clock.seconds, self._moments = seconds, moments

        return take_over

    def _cost(self, settled: Cohort) -> Cost:
        now = self.current
        if now.design is None:
            return self._clock.idle()
        return round_cost(
            self.run.recipe,
            now.request,
            settled,
            now.times,
            model_bytes=self._clock.model_bytes,
            idle=np.setdiff1d(now.trains, settled.clients),
            failed=now.failed,
        )

    def _rows(self) -> list[int] | None:
        every, design = self._options.rows_every, self.current.design
        if every is None or self.current.round_ % every or not isinstance(design, RowDesign):
            return None
        return [int(row) for row in design.plan.main_rows()]

    def _is_turn(self, round_: int) -> bool:
        return (round_ + 1) % self._options.measure_every == 0


def _is_none(finite: NDArray[np.bool_]) -> bool:
    """Return whether there are answers and none is finite."""
    return len(finite) > 0 and not finite.any()
