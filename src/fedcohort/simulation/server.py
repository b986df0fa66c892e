"""One run's server: its designs, its memory, and what it has seen."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import index
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.cohort import Cohort
from fedcohort.designs import Design, Recipe, RowDesign
from fedcohort.difference import ControlVariates, Difference, EstimatorName, estimator_of
from fedcohort.similarity.memory import UpdateMemory
from fedcohort.simulation.evaluation import Evaluator, Quality
from fedcohort.simulation.federated_data import FederatedData
from fedcohort.simulation.history import History, Round
from fedcohort.simulation.options import Options
from fedcohort.simulation.oracle import Yardstick
from fedcohort.streams import Stream, stream


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training: who is drawn how, on whose data, from which seed, and how it is aggregated.

    ``estimator`` is ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`.
    """

    recipe: Recipe
    data: FederatedData
    seed: int = 0
    estimator: EstimatorName | Difference = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", index(self.seed))
        # One name for each estimator: checkpoints are recognised by it.
        object.__setattr__(self, "estimator", estimator_of("Run", self.estimator) or "plain")


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A round's design and cohort, and how long they took."""

    round_: int
    design: Design
    cohort: Cohort
    seconds: float


@final
class Server:
    """One run's server: its designs, its memory, and what it has seen."""

    def __init__(self, run: Run, evaluator: Evaluator, options: Options, model: Tensor) -> None:
        self.history = History()
        self._run, self._evaluator, self._options = run, evaluator, options
        self._population = run.data.population
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

    def draw(self, round_: int) -> Drawn:
        """Build the design if something changed, and draw the cohort; the same if asked again."""
        if self._drawn is not None and self._drawn.round_ == round_:
            return self._drawn
        start = time.perf_counter()
        if self._prepared is not None:
            self._design, self._prepared = self._prepared.result(), None
        elif self._design is None or self._run.recipe.learns:
            self._design = self._build(round_)
        self._record_pending()
        cohort = self._design.draw(stream(self._run.seed, round_=round_, use=Stream.COHORT))
        self._drawn = Drawn(round_, self._design, cohort, time.perf_counter() - start)
        return self._drawn

    def prepare(self, round_: int, pool: ThreadPoolExecutor) -> None:
        """Build a learning design in the background, from the memory as it is now."""
        if self._run.recipe.learns and self._prepared is None:
            self._prepared = pool.submit(self._build, round_)

    def measure(self, model: Tensor, round_: int, *, last: bool) -> Quality | None:
        """Judge the model after a round, if it is its turn."""
        return self._evaluator.quality(model) if last or self._is_turn(round_) else None

    def commit(
        self,
        drawn: Drawn,
        updates: Tensor,
        judged: tuple[Quality | None, Yardstick | None, float],
        *,
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
            )
        )
        if self.variates is not None:
            self.variates.record(cohort.clients, updates)
        if self._memory is not None:
            self._pending = (cohort.clients, updates.cpu().numpy(), drawn.round_)
            if not self._options.overlap:
                self._record_pending()

    def next_design(self) -> Design:
        """Build the design that the memory as it is now leads to."""
        return self._build(len(self.history.rounds))

    def _rows(self, drawn: Drawn) -> list[int] | None:
        every = self._options.rows_every
        if every is None or drawn.round_ % every or not isinstance(drawn.design, RowDesign):
            return None
        return [int(row) for row in drawn.design.plan.main_rows()]

    def _is_turn(self, round_: int) -> bool:
        return (round_ + 1) % self._options.measure_every == 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return what a resumed server needs beside its history, as arrays."""
        kept: dict[str, NDArray[np.generic]] = {}
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

    def _build(self, round_: int) -> Design:
        # A design that does not learn is built once: its ties are those of round 0.
        address = round_ if self._run.recipe.learns else 0
        rng = stream(self._run.seed, round_=address, use=Stream.TIES)
        return self._run.recipe.build(self._population, self._memory, None, round_, rng)

    def _record_pending(self) -> None:
        if self._memory is not None and self._pending is not None:
            clients, updates, round_ = self._pending
            self._memory.record(clients, updates, round_=round_)
            self._pending = None


def _below(prefix: str, state: dict[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays whose names begin so, without that beginning."""
    return {
        name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)
    }
