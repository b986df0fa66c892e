"""One run's server: its designs, its memory, and what it has seen."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.cohort import Cohort
from fedcohort.designs import Design, Recipe, RowDesign
from fedcohort.designs.signals import Signals
from fedcohort.difference import ControlVariates, estimator_of
from fedcohort.population import Population
from fedcohort.similarity.memory import UpdateMemory
from fedcohort.simulation.clock import Clock
from fedcohort.simulation.cost import Cost, round_cost
from fedcohort.simulation.evaluation import Evaluator, Quality
from fedcohort.simulation.history import History, Round
from fedcohort.simulation.local_training import LocalTraining
from fedcohort.simulation.openings import Opening, fitted_to, request_of
from fedcohort.simulation.options import Options
from fedcohort.simulation.oracle import Yardstick
from fedcohort.simulation.past_signals import PastSignals
from fedcohort.simulation.runs import Drawn, Run
from fedcohort.streams import Stream, stream


@final
class Server:
    """One run's server: its designs, its memory, and what it has seen."""

    def __init__(
        self,
        run: Run,
        evaluator: Evaluator,
        options: Options,
        training: LocalTraining,
        model: Tensor,
    ) -> None:
        self.history = History()
        self._run, self._evaluator, self._options = run, evaluator, options
        self._population = run.data.population
        self._clock = Clock(
            run.devices, self._population, training, n_parameters=len(model), seed=run.seed
        )
        self._past = PastSignals(run.recipe, run.data.n_clients)
        self._has_class = run.data.class_counts() > 0
        self._memory = (
            UpdateMemory(run.data.n_clients, len(model), options.sketch, run.seed)
            if run.recipe.learns
            else None
        )
        difference = estimator_of("Run", run.estimator)
        #: Of the difference estimator; None aggregates plainly.
        self.variates: ControlVariates | None = (
            None
            if difference is None
            else difference.memory(self._population.importance, torch.zeros_like(model))
        )
        self._design: Design | None = None
        self._drawn: Drawn | None = None
        self._prepared: Future[Design] | None = None
        #: With overlap: updates that the next design must not know yet.
        self._pending: tuple[NDArray[np.int64], NDArray[np.float32], int] | None = None

    def open(self, round_: int, *, everyone: bool = False) -> Opening:
        """Begin a round: see who is there (or let ``everyone`` be), and whom the recipe asks."""
        population = self._population if everyone else self._clock.population()
        times = self._clock.times(round_)
        opening = Opening(round_, population, None, times)
        if population is None:
            return opening
        recipe, seed = self._run.recipe, self._run.seed
        request = request_of(recipe, population, seed, round_, lower=self._lowers(population))
        return replace(opening, request=request)

    def draw(self, opening: Opening, signals: Signals) -> Drawn:
        """Build the design if something changed, and draw the cohort; the same if asked again."""
        round_ = opening.round_
        if self._drawn is not None and self._drawn.round_ == round_:
            return self._drawn
        start = time.perf_counter()
        design = self._current_design(opening, signals)
        self._record_pending()
        cohort = (
            _nobody()
            if design is None
            else design.draw(stream(self._run.seed, round_=round_, use=Stream.COHORT))
        )
        seconds = time.perf_counter() - start
        cost = self._clock.idle() if design is None else self._cost(opening, cohort)
        self._drawn = Drawn(opening, design, cohort, cost, seconds)
        return self._drawn

    def prepare(self, round_: int, pool: ThreadPoolExecutor) -> None:
        """Build a learning design in the background, from the memory as it is now.

        Not one that needs to know more, or who is there: that is not known yet.
        """
        recipe = self._run.recipe
        if recipe.signals or self._clock.has_availability:
            return
        if recipe.learns and self._prepared is None:
            self._prepared = pool.submit(self._build, round_, self._population, {})

    def reported_losses(self, model: Tensor, drawn: Drawn) -> NDArray[np.float64] | None:
        """Return what the drawn clients report of the model that they were sent, if asked to."""
        if not self._past.wants_loss:
            return None
        return self._evaluator.losses_of(model, drawn.cohort.clients)[1]

    def measure(self, model: Tensor, round_: int, *, last: bool) -> Quality | None:
        """Judge the model after a round, if it is its turn."""
        return self._evaluator.quality(model) if last or self._is_turn(round_) else None

    def commit(
        self,
        drawn: Drawn,
        updates: Tensor,
        judged: tuple[Quality | None, Yardstick | None, float],
        *,
        losses: NDArray[np.float64] | None,
        train_seconds: float,
    ) -> None:
        """Add the round, and remember its updates (with overlap, once the next design is built).

        A round that was measured because it was the last one is so no longer.
        """
        cohort, rounds = drawn.cohort, self.history.rounds
        if rounds and not self._is_turn(rounds[-1].round_):
            rounds[-1] = replace(rounds[-1], quality=None)
        quality, stick, measure_seconds = judged
        rounds.append(
            Round(
                drawn.round_,
                clients=cohort.clients.tolist(),
                counts=cohort.counts.tolist(),
                weights=cohort.weights.tolist(),
                residual=cohort.residual,
                distinct_classes=int(self._has_class[cohort.clients].any(axis=0).sum()),
                draw_seconds=drawn.seconds,
                train_seconds=train_seconds,
                measure_seconds=measure_seconds,
                quality=quality,
                yardstick=stick,
                rows=self._rows(drawn),
                cost=drawn.cost,
            )
        )
        self._clock.now += drawn.cost.simulated_seconds
        took = drawn.opening.times.duration[cohort.clients]
        heard = {"past_loss": losses, "past_duration": took, "past_round": drawn.round_}
        self._past.record(cohort.clients, heard)
        if self.variates is not None:
            self.variates.record(cohort.clients, updates)
        if self._memory is not None:
            self._pending = (cohort.clients, updates.cpu().numpy(), drawn.round_)
            if not self._options.overlap:
                self._record_pending()

    def next_design(self, opening: Opening, signals: Signals) -> Design:
        """Build the design that what is known now leads to, as if all clients were there."""
        return self._build(opening.round_, self._population, signals)

    def _cost(self, opening: Opening, cohort: Cohort) -> Cost:
        recipe, model_bytes = self._run.recipe, self._clock.model_bytes
        return round_cost(recipe, opening.request, cohort, opening.times, model_bytes=model_bytes)

    def _rows(self, drawn: Drawn) -> list[int] | None:
        every = self._options.rows_every
        if every is None or drawn.round_ % every or not isinstance(drawn.design, RowDesign):
            return None
        return [int(row) for row in drawn.design.plan.main_rows()]

    def _is_turn(self, round_: int) -> bool:
        return (round_ + 1) % self._options.measure_every == 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return what a resumed server needs beside its history, as arrays."""
        kept: dict[str, NDArray[np.generic]] = {"now": np.array(self._clock.now)}
        kept |= {f"past.{name}": array for name, array in self._past.state().items()}
        if self._memory is not None:
            kept |= {f"memory.{name}": array for name, array in self._memory.state().items()}
        if self.variates is not None:
            kept |= {f"variates.{name}": array for name, array in self.variates.state().items()}
        if self._pending is not None:
            clients, updates, round_ = self._pending
            kept |= {
                "pending.clients": clients,
                "pending.updates": updates,
                "pending.round": np.array(round_),
            }
        return kept

    def restore(self, history: History, state: dict[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        self.history = history
        self._design, self._drawn, self._prepared, self._pending = None, None, None, None
        self._clock.now = float(state.get("now", np.array(0.0)))
        self._past.restore(_below("past.", state))
        if self._memory is not None:
            self._memory = UpdateMemory.of_state(_below("memory.", state))
        if self.variates is not None:
            self.variates.restore(_below("variates.", state))
        if "pending.clients" in state:
            self._pending = (
                state["pending.clients"].astype(np.int64),
                state["pending.updates"].astype(np.float32),
                int(state["pending.round"]),
            )

    def _current_design(self, opening: Opening, signals: Signals) -> Design | None:
        """Return the round's design; None where nobody is there."""
        population = opening.population
        if population is None:
            return None
        if self.variates is not None and self._clock.has_availability:
            self.variates.reweigh(population.importance)
        if self._prepared is not None:
            self._design, self._prepared = self._prepared.result(), None
        elif self._run.recipe.changes or not _is_over(self._design, population):
            self._design = self._build(opening.round_, population, signals)
        return self._design

    def _build(self, round_: int, population: Population, signals: Signals) -> Design:
        recipe = self._run.recipe
        # A design that does not change is built once: its ties are those of round 0.
        address = round_ if recipe.changes else 0
        known = {**signals, **self._past.values()} if recipe.signals else None

        def built(fitted: Recipe) -> Design:
            rng = stream(self._run.seed, round_=address, use=Stream.TIES)
            return fitted.build(population, self._memory, known, round_, rng)

        return fitted_to(recipe, population, built, lower=self._lowers(population))

    def _lowers(self, population: Population) -> bool:
        """Whether a smaller cohort is drawn where these are too few: some may be away."""
        return population is not self._population

    def _record_pending(self) -> None:
        if self._memory is not None and self._pending is not None:
            clients, updates, round_ = self._pending
            self._memory.record(clients, updates, round_=round_)
            self._pending = None


def _is_over(design: Design | None, population: Population) -> bool:
    """Whether a design is over these clients and sizes."""
    if design is None:
        return False
    known = design.population
    return known is population or bool((known.sizes == population.sizes).all())


def _nobody() -> Cohort:
    none = np.empty(0, dtype=np.int64)
    return Cohort.of_weights(none, none, np.empty(0))


def _below(prefix: str, state: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays whose names begin so, without that beginning."""
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }
