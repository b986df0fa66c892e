"""A Flower strategy that draws the clients, around one that aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcohort.designs import Design, Recipe
from fedcohort.designs.recipe import estimator_for
from fedcohort.designs.signals import Request
from fedcohort.difference import Difference, EstimatorName
from fedcohort.errors import FlowerError
from fedcohort.flower.aggregate import aggregated, within_range
from fedcohort.flower.directory import Directory, Names
from fedcohort.flower.failures import OnFailure, refuse_other_loops
from fedcohort.flower.grid_view import FirstAnswers, wait_for_nodes
from fedcohort.flower.inner_state import packed, put_back, state_of, unpacked
from fedcohort.flower.inner_strategy import (
    messages_to,
    refuse_secure_aggregation,
    refuse_wrapper,
    waiting_for_no_more_than,
    warn_of_choice,
    weighing_strategy,
)
from fedcohort.flower.keyed_memory import KeyedMemory
from fedcohort.flower.keyed_variates import KeyedVariates
from fedcohort.flower.planner import Planner
from fedcohort.flower.replies import Decode, Reply, checked_reply
from fedcohort.flower.saved_state import Origin, SavedState, read_state, write_state
from fedcohort.flower.selection_log import SelectionLog
from fedcohort.flower.sent_model import SentModel
from fedcohort.flower.settling import FailureRule
from fedcohort.flower.signal_book import SignalBook
from fedcohort.flower.signal_query import ask_signal
from fedcohort.flower.training_round import TrainingRound
from fedcohort.streams import Stream, stream

log = getLogger("flwr.fedcohort")

#: Seconds to wait for clients that were drawn in the place of others, where there is no deadline.
REDRAW_WAIT = 600.0


@final
class CohortStrategy(Strategy):
    """Draw every round's clients by a recipe, and let another strategy aggregate them.

    Parameters
    ----------
    strategy
        The strategy that aggregates: FedAvg or one that inherits its weighted average (FedProx,
        FedAdam, FedYogi, FedAdagrad, FedAvgM, the DP wrappers). Those that ignore weights are
        refused.
    recipe
        Which design to draw from.
    seed
        Of draws and of the order of equals: one seed, one sequence of cohorts.
    estimator
        ``"plain"``; or ``"difference"``, or a :class:`fedcohort.Difference`, which remembers the
        clients' last updates to take their variance out of the aggregate. That needs memory for n
        models (or ``clusters`` of them) and this strategy's own ``start``; wrappers for privacy
        are refused with it.
    sizes
        Samples by client name or node id; None asks the nodes (``register_size_query``).
    names
        Under which names clients are known: ``"client"`` takes what each says of itself (its
        ``partition-id`` or the ``key`` of ``register_size_query``), ``"node"`` takes node ids,
        which stay the same and cannot be feigned under node authentication.
    on_failure
        What becomes of the weight of a drawn client that fails: ``"keep"`` leaves it on the
        current model, ``"redraw"`` draws other clients in its place, ``"renormalise"`` spreads
        it over those that answered (as Flower does; biased).
    tries
        How often ``"redraw"`` draws again.
    extra
        Over-selection: so many more draws, of which the first ``cohort_size`` that are answered
        count. That favours fast clients, so it is biased; only with ``start`` of this strategy.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    deadline
        Seconds that a client has to answer; None leaves that to ``start``.
    max_size, max_share, max_norm
        Bounds: on the samples a client can claim, on its share of all samples, and on the norm of
        an update. Without ``max_share``, what clients say of themselves counts up to half of all
        samples where ten clients or more have samples.
    max_draws
        Refuse a design that can draw one client more often in a round: with differential privacy
        a client that is drawn k times moves the aggregate by k shares.
    query_timeout
        Seconds that a new node has to say its size, and a client to answer what the recipe asks
        before the draw (``register_signal_queries``).
    log_file
        Where to write a JSON line for every round; None writes none.
    decode
        Turns a compressed reply's content into arrays like the model's, given the model that was
        sent; None where clients send arrays as they are.
    secure_aggregation
        True is refused, with the reason.
    """

    def __init__(
        self,
        strategy: Strategy,
        recipe: Recipe,
        *,
        seed: int,
        estimator: EstimatorName | Difference = "plain",
        sizes: Mapping[str | int, int] | None = None,
        names: Names = "client",
        on_failure: OnFailure = "keep",
        tries: int = 10,
        extra: int = 0,
        sketch: int | None = None,
        deadline: float | None = None,
        max_size: int | None = None,
        max_share: float | None = None,
        max_norm: float | None = None,
        max_draws: int | None = None,
        query_timeout: float = 60.0,
        log_file: Path | None = None,
        decode: Decode | None = None,
        secure_aggregation: bool = False,
    ) -> None:
        difference = estimator_for("CohortStrategy", recipe, estimator)
        if secure_aggregation:
            refuse_secure_aggregation(recipe, is_difference=difference is not None)
        self.strategy, self.recipe, self.seed = strategy, recipe, seed
        self._inner = weighing_strategy(strategy)
        self._rule = FailureRule(on_failure, tries, extra, recipe.cohort_size, seed)
        self._deadline, self._max_norm, self._decode = deadline, max_norm, decode
        self._query_timeout = query_timeout
        self._is_wrapper_within = strategy is not self._inner
        if self._is_wrapper_within:
            if difference is not None:
                refuse_wrapper(strategy)
            warn_of_choice(strategy, recipe)
        self._planner = Planner(
            recipe,
            seed=seed,
            extra=extra,
            needs_equal_draws=self._rule.needs_own_loop or self._is_wrapper_within,
            max_draws=max_draws,
        )
        self.directory = Directory(
            sizes,
            max_size=max_size,
            max_share=max_share,
            names=names,
            query_timeout=query_timeout,
        )
        self.selections = SelectionLog(log_file)
        self._memory = KeyedMemory(sketch, seed=seed) if recipe.learns else None
        self._signals = SignalBook(recipe, seed=seed)
        self._variates = None if difference is None else KeyedVariates(difference)
        self._origin = Origin(
            seed, sketch, type(self._inner).__name__, names, repr(difference or "plain")
        )
        self._design: Design | None = None
        self._round: TrainingRound | None = None
        self._rounds_before = self._number = 0
        self._is_started = False

    def summary(self) -> None:
        """Log how clients are drawn, and the inner strategy's own summary."""
        log.info("clients are drawn by %r, seed %d", self.recipe, self.seed)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients, and let the inner strategy write to exactly these."""
        is_difference = self._variates is not None
        if not self._is_started and (is_difference or self._rule.needs_own_loop):
            refuse_other_loops(is_difference=is_difference)
        self._close_dropped_round()
        number = self._rounds_before + server_round
        # Only before the first round: afterwards training goes on with whoever is left.
        if self._design is None:
            wait_for_nodes(grid, self._inner.min_available_nodes)
        changed = self.directory.refresh(grid)
        now = TrainingRound(server_round, number, SentModel(arrays), config, grid, self._check)
        self._round = now
        if self._design is not None and not self.directory.has_samples:
            log.warning("round %d: no client with samples is there; the model stays", number)
            return []
        if changed or self.recipe.changes or self._design is None:
            population = self.directory.population
            signals = self._signals.collect(population, number, partial(self._asked, now))
            self._design = self._planner.design(population, self._memory, signals, number)
        now.draw(self._design, stream(self.seed, round_=number, use=Stream.COHORT))
        return self._messages(now, list(now.counts))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, settle what failed, and let the inner strategy aggregate the rest."""
        if self._round is None or self._round.server_round != server_round:
            raise FlowerError(
                f"CohortStrategy: round {server_round} was not configured by it. Call "
                f"configure_train first."
            )
        now, self._round = self._round, None
        self._number = now.number
        if now.design is None:
            return None, None
        now.take(replies, self._keys_by_node(now.counts))
        settled = self._settled(now, now.design)
        if self._variates is not None:
            now.recalled = self._variates.recall(
                now.design.population, list(settled), now.sent.dimension
            )
        if not self._is_wrapper_within:
            settled = within_range(now, settled)
        # In the population's order: neither node ids nor arrival change a sum of floats.
        weights = {key: settled[key] for key in self.directory.keys if settled.get(key)}
        model, metrics = aggregated(self.strategy, self._inner, now, weights)
        moved = {} if model is None else weights
        self.selections.write(now.number, now.design, now.counts, moved, now.failed, self.seed)
        self._signals.report(now)
        if self._memory is not None:
            self._memory.record(now.kept())
        if self._variates is not None and model is not None:
            self._variates.record(now.updates())
        return model, metrics

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Train, as every strategy does; with ``extra`` a round ends with the first answers."""
        around = FirstAnswers(grid, self._is_enough) if self._rule.extra else grid
        self._rounds_before = self._number  # a second start goes on in the stream
        self._is_started = True
        try:
            result = super().start(around, *args, **kwargs)
        finally:
            self._is_started = False
        self.selections.log_summary()
        return result

    def save(self, path: Path) -> None:
        """Write what a restarted server needs.

        That is how many rounds were drawn, the clients, who was drawn, the memory (the difference
        estimator's as well), and the moments or the momentum of the inner strategy; the model is
        the caller's to keep.
        """
        kept = {} if self._memory is None else self._memory.state()
        inner = packed(state_of(self._inner))
        clients, drawn = self.directory.state(), self.selections.state()
        known, variates = ((), {}) if self._variates is None else self._variates.state()
        reports = self._signals.state()
        state = SavedState(self._number, clients, drawn, kept, inner, known, variates, reports)
        write_state(path, state, self._origin)

    def load(self, path: Path) -> None:
        """Go on where :meth:`save` was called, in the same stream of cohorts."""
        state = read_state(path, self._origin)
        self._rounds_before = self._number = state.rounds
        self.directory.restore(state.population)
        self.selections.restore(state.selections)
        put_back(self._inner, unpacked(state.inner))
        self._signals.restore(state.reports)
        if self._memory is not None:
            self._memory.restore(state.updates)
        if self._variates is not None:
            self._variates.restore(state.known, state.variates)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy, which waits for nobody that has gone."""
        number = self._rounds_before + server_round
        with waiting_for_no_more_than(self._inner, len(list(grid.get_node_ids()))):
            return list(self.strategy.configure_evaluate(number, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Leave evaluation to the inner strategy."""
        return self.strategy.aggregate_evaluate(self._rounds_before + server_round, replies)

    def _close_dropped_round(self) -> None:
        """Log a round that a wrapper around this strategy never gave back."""
        now, self._round = self._round, None
        if now is None or now.design is None:
            return
        self._number = now.number
        log.warning("round %d was dropped by what calls this strategy; the model stays", now.number)
        self.selections.write(now.number, now.design, now.counts, {}, {}, self.seed)

    def _is_enough(self, replies: list[Message]) -> bool:
        """Whether as many draws were answered as count."""
        if self._round is None:
            return False
        self._round.accept(replies, self._keys_by_node(self._round.counts))
        return self._round.draws_answered >= self.recipe.cohort_size

    def _asked(self, now: TrainingRound, request: Request) -> dict[str, float]:
        """Ask clients for a signal before the draw."""
        keys = [self.directory.keys[client] for client in request.clients]
        nodes = self._keys_by_node(keys)
        return ask_signal(
            now.grid, request.signal, nodes, now.sent.record, timeout=self._query_timeout
        )

    def _check(self, message: Message, sent: SentModel) -> Reply | str:
        return checked_reply(
            message,
            sent,
            weight_key=self._inner.weighted_by_key,
            max_norm=self._max_norm,
            decode=self._decode,
            keep=None if self._memory is None else self._memory.shortened,
            whole=self._variates is not None,
        )

    def _messages(self, now: TrainingRound, keys: list[str]) -> list[Message]:
        """Let the inner strategy write to these clients."""
        nodes = [self.directory.node_of(key) for key in keys]
        sent = now.sent.record, now.config
        # By the number in the stream: FedAdam's step depends on it, and a restart must not.
        messages = messages_to(nodes, self.strategy, now.number, sent, now.grid)
        for message in messages:
            now.asked.append(message.metadata)
            if self._deadline is not None:
                message.metadata.ttl = self._deadline
        return messages

    def _keys_by_node(self, keys: Iterable[str]) -> dict[int, str]:
        return {self.directory.node_of(key): key for key in keys}

    def _settled(self, now: TrainingRound, design: Design) -> dict[str, float]:
        """Return the weights of those that answered, by the rule for failures."""

        def ask(keys: list[str]) -> set[str]:
            if keys:
                messages = self._messages(now, keys)
                replies = now.grid.send_and_receive(messages, timeout=self._deadline or REDRAW_WAIT)
                now.take(replies, self._keys_by_node(keys))
            return set(now.answered)

        return self._rule.settled(now, design, ask)
