"""A Flower strategy that draws the clients, around one that aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcohort.arguments import checked_choice
from fedcohort.designs import Design, Recipe, RowDesign
from fedcohort.errors import FlowerError
from fedcohort.flower.directory import Directory
from fedcohort.flower.failures import (
    ON_FAILURE,
    OnFailure,
    check_draws,
    check_redraw,
    redrawn,
    renormalised,
)
from fedcohort.flower.grid_view import FirstAnswers, GridView, wait_for_nodes
from fedcohort.flower.inner_strategy import (
    refuse_secure_aggregation,
    waiting_for_no_more_than,
    weighing_strategy,
    writing_to_all,
)
from fedcohort.flower.keyed_memory import KeyedMemory
from fedcohort.flower.replies import (
    Decode,
    checked_reply,
    resting,
    shared_metrics,
    typed_like,
    weighed,
)
from fedcohort.flower.saved_state import SavedState, read_state, write_state
from fedcohort.flower.selection_log import SelectionLog
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
    sizes
        Samples by client name or node id; None asks the nodes (``register_size_query``).
    on_failure
        What becomes of the weight of a drawn client that fails: ``"keep"`` leaves it on the
        current model, ``"redraw"`` draws other clients in its place, ``"renormalise"`` spreads
        it over those that answered (as Flower does; biased).
    tries
        How often ``"redraw"`` draws again.
        With a wrapper for privacy around this strategy, replies that come so are not clipped.
    extra
        Over-selection: so many more draws, of which the first ``cohort_size`` that are answered
        count. That favours fast clients, so it is biased; only with ``start`` of this strategy.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    deadline
        Seconds that a client has to answer; None leaves that to ``start``.
    max_size, max_share, max_norm
        Bounds: on the samples a client can claim, on its share of all samples, and on the norm of
        an update.
    max_draws
        Refuse a design that can draw one client more often in a round: with differential privacy
        a client that is drawn k times moves the aggregate by k shares.
    query_timeout
        Seconds that a new node has to say its size.
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
        sizes: Mapping[str | int, int] | None = None,
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
        checked_choice("CohortStrategy", "on_failure", on_failure, ON_FAILURE)
        if secure_aggregation:
            refuse_secure_aggregation(recipe)
        self.strategy, self.recipe, self.seed = strategy, recipe, seed
        self._inner = weighing_strategy(strategy)
        if extra < 0 or (extra and on_failure == "redraw"):
            raise FlowerError(
                f"CohortStrategy: extra must be 0 or more, and 0 with on_failure='redraw', which "
                f"replaces what is lost; got {extra}. Choose one of the two."
            )
        self._on_failure, self._tries, self._extra = on_failure, tries, extra
        self._deadline, self._max_norm, self._decode = deadline, max_norm, decode
        self._max_draws, self._sketch = max_draws, sketch
        self.directory = Directory(
            sizes, max_size=max_size, max_share=max_share, query_timeout=query_timeout
        )
        self.selections = SelectionLog(log_file)
        self._memory = KeyedMemory(sketch, seed=seed) if recipe.learns else None
        self._design: Design | None = None
        self._round: TrainingRound | None = None
        self._rounds_before = self._number = 0

    def summary(self) -> None:
        """Log how clients are drawn, and the inner strategy's own summary."""
        log.info("clients are drawn by %r, seed %d", self.recipe, self.seed)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients, and let the inner strategy write to exactly these."""
        number = self._rounds_before + server_round
        # Only before the first round: afterwards training goes on with whoever is left.
        if self._design is None:
            wait_for_nodes(grid, self._inner.min_available_nodes)
        changed = self.directory.refresh(grid)
        if self._design is not None and not self.directory.has_samples:
            log.warning("round %d: no client with samples is there; the model stays", number)
            self._round = TrainingRound(server_round, number, arrays, config, grid, _refuse)
            return []
        if changed or self.recipe.learns or self._design is None:
            self._design = self._built(number)
        design = self._design
        cohort = design.draw(stream(self.seed, round_=number, use=Stream.COHORT))
        keys = [str(design.population.ids[client]) for client in cohort.clients]
        self._round = now = TrainingRound(
            server_round,
            number,
            arrays,
            config,
            grid,
            partial(
                checked_reply,
                sent=arrays,
                weight_key=self._inner.weighted_by_key,
                max_norm=self._max_norm,
                decode=self._decode,
            ),
            design,
            counts=dict(zip(keys, cohort.counts.tolist(), strict=True)),
            weights=dict(zip(keys, cohort.weights.tolist(), strict=True)),
        )
        return self._messages(now, keys)

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
        weights = self._settled(now, now.design)
        self.selections.write(now.number, now.design, now.counts, weights, now.failed, self.seed)
        if self._memory is not None:
            self._memory.record({key: reply.update for key, reply in now.answered.items()})
        total = sum(weights.values())
        if total == 0.0:
            return None, None
        # In the population's order: neither node ids nor arrival change a sum of floats.
        weight_key = self._inner.weighted_by_key
        chosen = [key for key in self.directory.keys if weights.get(key)]
        metrics = shared_metrics([now.answered[key] for key in chosen], weight_key)
        # A wrapper clips what it gets: it must get the updates as they are, and the lost weight
        # as a client that did not move.
        is_wrapped = self.strategy is not self._inner
        messages = [
            weighed(
                now.answered[key],
                now.sent,
                weight=weights[key],
                total=1.0 if is_wrapped else total,
                weight_key=weight_key,
                metrics=metrics,
            )
            for key in chosen
        ]
        if is_wrapped and total < 1.0:
            messages.append(resting(messages[0], now.sent, 1.0 - total, weight_key))
        arrays, averages = self.strategy.aggregate_train(server_round, messages)
        return None if arrays is None else typed_like(arrays, now.sent), averages

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Train, as every strategy does; with ``extra`` a round ends with the first answers."""
        around = FirstAnswers(grid, self._is_enough) if self._extra else grid
        self._rounds_before = self._number  # a second start goes on in the stream
        result = super().start(around, *args, **kwargs)
        self.selections.log_summary()
        return result

    def _is_enough(self, replies: list[Message]) -> bool:
        """Whether as many draws were answered as count."""
        if self._round is None:
            return False
        key_of = self._keys_by_node(self._round.counts)
        return self._round.draws_answered(replies, key_of) >= self.recipe.cohort_size

    def save(self, path: Path) -> None:
        """Write what a restarted server needs: how many rounds were drawn, and the memory."""
        kept = {} if self._memory is None else self._memory.state()
        write_state(path, SavedState(self._number, self.seed, self._sketch, kept))

    def load(self, path: Path) -> None:
        """Go on where :meth:`save` was called, in the same stream of cohorts."""
        state = read_state(path, seed=self.seed, sketch=self._sketch)
        self._rounds_before = self._number = state.rounds
        if self._memory is not None:
            self._memory.restore(state.updates)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy, which waits for nobody that has gone."""
        with waiting_for_no_more_than(self._inner, len(list(grid.get_node_ids()))):
            return list(self.strategy.configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Leave evaluation to the inner strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _built(self, number: int) -> Design:
        population = self.directory.population
        memory = None if self._memory is None else self._memory.of(self.directory.keys)
        rng = stream(self.seed, round_=number, use=Stream.TIES)
        draws = self.recipe.cohort_size + self._extra
        left = int((population.sizes > 0).sum())
        if self._design is not None and draws > left and not isinstance(self._design, RowDesign):
            log.warning("round %d: only %d clients are left for %d draws", number, left, draws)
            draws = left
        recipe = replace(self.recipe, cohort_size=draws)
        design = recipe.build(population, memory, None, number, rng)
        if self._on_failure == "redraw" or self._extra or self.strategy is not self._inner:
            check_redraw(design)
        if self._max_draws is not None:
            check_draws(design, self._max_draws)
        return design

    def _messages(self, now: TrainingRound, keys: list[str]) -> list[Message]:
        """Let the inner strategy write to these clients, and see that it does."""
        nodes = [self.directory.node_of(key) for key in keys]
        if not nodes:
            return []
        view = GridView(now.grid, nodes)
        with writing_to_all(self._inner, len(nodes)):
            messages = list(
                self.strategy.configure_train(now.server_round, now.sent, now.config, view)
            )
        if sorted(message.metadata.dst_node_id for message in messages) != sorted(nodes):
            raise FlowerError(
                f"CohortStrategy: {type(self.strategy).__name__} must write to the "
                f"{len(nodes)} drawn clients, each once; it wrote {len(messages)} messages. Use a "
                f"strategy that trains on all nodes of its grid."
            )
        if self._deadline is not None:
            for message in messages:
                message.metadata.ttl = self._deadline
        return messages

    def _keys_by_node(self, keys: Iterable[str]) -> dict[int, str]:
        return {self.directory.node_of(key): key for key in keys}

    def _settled(self, now: TrainingRound, design: Design) -> dict[str, float]:
        """Return the weights of those that answered, by the rule for failures."""
        weights = {key: w for key, w in now.weights.items() if key in now.answered}
        if self._extra:
            counts = {key: now.counts[key] for key in now.answered}
            shares = sum(counts.values())
            if self._on_failure == "keep":
                shares = max(self.recipe.cohort_size, shares)
            return {key: count / shares for key, count in counts.items()}
        if self._on_failure == "renormalise":
            return renormalised(weights)
        if self._on_failure == "keep" or len(weights) == len(now.weights):
            return weights

        def ask(keys: list[str]) -> set[str]:
            if keys:
                messages = self._messages(now, keys)
                replies = now.grid.send_and_receive(messages, timeout=self._deadline or REDRAW_WAIT)
                now.take(replies, self._keys_by_node(keys))
            return set(now.answered)

        counts = redrawn(
            now.counts,
            design.population,
            ask,
            tries=self._tries,
            rng=stream(self.seed, round_=now.number, use=Stream.REDRAW),
        )
        return {key: count / design.cohort_size for key, count in counts.items()}


def _refuse(message: Message) -> str:
    return "nobody was asked"
