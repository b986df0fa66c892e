"""A Flower strategy that draws the clients, around one that aggregates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, final

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcohort._arguments import checked_flag
from fedcohort._deployment import ArrayCheck, Limits, Patience
from fedcohort.designs import Recipe
from fedcohort.errors import FlowerError, SelectorError
from fedcohort.flower.averaging import averaged
from fedcohort.flower.directory import Directory, Eligible, Names
from fedcohort.flower.evaluation import Evaluation
from fedcohort.flower.grid import RoundClock, exchange
from fedcohort.flower.inner_strategy import (
    check_model,
    check_wrapper,
    messages_to,
    packed,
    put_back,
    refuse_other_loops,
    refuse_secure_aggregation,
    state_of,
    unpacked,
    weighing_strategy,
)
from fedcohort.flower.queries import ask_signal
from fedcohort.flower.replies import Decode, ReplyCheck, SentModel, TrainingRound
from fedcohort.flower.settings import Waits, checked_function, checked_groups, checked_path, of_type
from fedcohort.flower.training_loop import (
    Checkpoint,
    EvaluateFn,
    TrainingLoop,
    read_checkpoint,
    write_checkpoint,
)
from fedcohort.memory import Difference, EstimatorName
from fedcohort.population import Label
from fedcohort.selector import Selector
from fedcohort.selector.files import SelectionLog
from fedcohort.selector.open_round import OnFailure, check_equal_draws
from fedcohort.streams import Seed

log = getLogger("flwr.fedcohort")


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
        Seeds the draws and the order of ties: one seed gives one sequence of cohorts.
    estimator
        ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`. The difference estimator
        remembers the clients' last updates and takes their variance out of the aggregate. It needs
        memory for n models (or ``clusters`` of them) and this strategy's own ``start``, and
        refuses wrappers for privacy.
    sizes
        Samples by client name or node id; None asks the nodes (``register_size_query``).
    groups
        Labels by client name or node id, for recipes that draw by group; clients without one form
        the group ``"unlabelled"``.
    eligible
        Who may take part: client names, or a function of a client's name, its node's id and its
        properties. The function is called before every draw. Weights are unbiased over the eligible
        clients.
    names
        How clients are named. ``"client"`` takes the name that each client reports (its
        ``partition-id`` or the ``key`` of ``register_size_query``). ``"node"`` takes node ids,
        which stay the same and cannot be spoofed under node authentication.
    on_failure
        What happens to the weight of a drawn client that fails. ``"keep"`` leaves it on the
        current model. ``"redraw"`` draws other clients in its place. ``"renormalise"`` spreads
        it over the clients that answered (as Flower does; biased).
    tries
        How often ``"redraw"`` draws again.
    extra
        Over-selection: this many more draws, of which the first ``cohort_size`` that are answered
        count. That favours fast clients, so it is biased; only with ``start`` of this strategy.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    evaluate
        Draw this many clients by sample size for every evaluation, and report unbiased means over
        all clients, with standard errors. None leaves evaluation to ``strategy``.
    waits, limits
        How long the server waits, and what it accepts.
    checkpoint, every
        A folder for checkpoints, and how many rounds lie between two; ``start(resume=True)`` goes
        on from the last one.
    log_file
        Where to write a JSON line for every round; None writes none.
    decode
        Decompresses a reply's content into arrays like the model's, given the model that was sent;
        None if clients send plain arrays.
    secure_aggregation
        True is refused, with the reason.

    Attributes
    ----------
    selector
        Draws the clients and remembers what it needs of them; rounds count from 0.
    directory
        The nodes' clients and their sizes.
    clock
        What is left of the round's time.
    """

    def __init__(
        self,
        strategy: Strategy,
        recipe: Recipe,
        *,
        seed: Seed = None,
        estimator: EstimatorName | Difference = "plain",
        sizes: Mapping[Any, int] | None = None,
        groups: Mapping[Any, Label | None] | None = None,
        eligible: Eligible | Collection[str] | None = None,
        names: Names = "client",
        on_failure: OnFailure = "keep",
        tries: int = 10,
        extra: int = 0,
        sketch: int | None = None,
        evaluate: int | None = None,
        waits: Waits | None = None,
        limits: Limits | None = None,
        checkpoint: str | Path | None = None,
        every: int = 10,
        log_file: str | Path | None = None,
        decode: Decode | None = None,
        secure_aggregation: bool = False,
    ) -> None:
        waits, self._limits = of_type(Waits, waits), of_type(Limits, limits)
        self.selector = Selector(
            recipe,
            {},
            seed=seed,
            groups=checked_groups(groups),
            estimator=estimator,
            sketch=sketch,
            on_failure=on_failure,
            tries=tries,
            extra=extra,
            max_draws=self._limits.max_draws,
            log=checked_path("log_file", log_file) or True,
        )
        self._limits.check_cohort("CohortStrategy", recipe.cohort_size + extra, FlowerError)
        self._is_difference = estimator != "plain"
        if checked_flag("CohortStrategy", "secure_aggregation", secure_aggregation):
            refuse_secure_aggregation(recipe, is_difference=self._is_difference)
        self.strategy, self.recipe, self.seed = strategy, recipe, self.selector.seed
        self._inner = weighing_strategy(strategy)
        self._has_wrapper = strategy is not self._inner
        if self._has_wrapper:
            check_wrapper(strategy, recipe, is_difference=self._is_difference)
        self.directory = Directory(
            sizes, eligible=eligible, names=names, waits=waits, limits=self._limits
        )
        self._origin = {"strategy": type(self._inner).__name__, "names": names}
        arrays = ArrayCheck(self._limits.max_norm, recipe.learns)
        decoder = checked_function("decode", decode)
        self._check = ReplyCheck(self._inner.weighted_by_key, arrays, decoder)
        self._evaluation = Evaluation(strategy, self._inner, evaluate, seed=self.seed)
        self._patience = Patience("CohortStrategy", self._limits, FlowerError)
        self._redraws, self._extra = on_failure == "redraw", extra
        self.clock = RoundClock(waits, more_follows=self._redraws or self._evaluation.is_on)
        self.checkpoint = Checkpoint(checkpoint, every, seed)
        self._round: TrainingRound | None = None
        self._is_first, self._is_started = True, False

    @property
    def rounds_done(self) -> int:
        """How many rounds have ended, over all starts."""
        return self.selector.round_

    @property
    def selections(self) -> SelectionLog:
        """How often each client was drawn, and the expected number of draws."""
        assert self.selector.selections is not None  # for mypy: the selector has a log
        return self.selector.selections

    def summary(self) -> None:
        """Log how clients are drawn, and the inner strategy's own summary."""
        log.info("clients are drawn by %r, seed %d", self.recipe, self.seed)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        resume: bool = False,
    ) -> Result:
        """Train for ``num_rounds`` rounds, as every strategy does.

        With ``resume`` continue from the checkpoint, if there is one, until ``num_rounds`` rounds
        are done in total. ``timeout`` bounds the wait for one set of replies, besides ``waits``.
        Rounds count from 1, over all starts, in the result and for ``evaluate_fn``.
        """
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        loop = TrainingLoop(self, grid, self.checkpoint, configs, evaluate_fn, timeout)
        arrays = loop.first_model(initial_arrays, resume=resume)
        last = num_rounds if resume else self.rounds_done + num_rounds
        self._is_started = self._is_first = True
        try:
            return loop.run(arrays, last)
        finally:
            self._is_started = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients, and let the inner strategy write to exactly these."""
        if not self._is_started and (self._is_difference or self._redraws or self._extra):
            refuse_other_loops(is_difference=self._is_difference)
        self._close_dropped_round()
        sent = SentModel(arrays)
        check_model(sent, self._inner, self.selector)
        if self._is_first:
            self.directory.gather(grid, self._inner.min_available_nodes)
        self.clock.begin(self.rounds_done)
        self.directory.wait_for_somebody(grid, self.clock.until)
        if self.selector.clients != self.directory.sizes:
            self.selector.clients = self.directory.sizes
        takers = self.directory.takers()
        # By the number over all starts: FedAdam's step depends on it, and a restart must not.
        number = self.rounds_done + 1
        now = TrainingRound(server_round, number, sent, config, grid, self._check)
        if self._extra:
            now.silence = "no answer"  # not too late, but not among the first
        there = None if len(takers) == len(self.directory.sizes) else takers
        cohort = self.selector.draw(there, self._signals(now, there))
        if self._has_wrapper and self.selector.design is not None:
            check_equal_draws(self.selector.design, self.recipe, "a privacy wrapper")
        self._round, self._is_first = now, False
        return self._messages(now, cohort.ids)

    def is_enough(self, replies: list[Message]) -> bool:
        """Whether enough draws of the open round were answered, with ``extra``."""
        now, cohort = self._round, self.selector.cohort
        if now is None or cohort is None or not self._extra:
            return False
        now.accept(replies, self._keys_by_node(cohort.ids))
        has_answered = [each in now.answered for each in cohort.ids]
        return int(cohort.counts[has_answered].sum()) >= self.recipe.cohort_size

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, settle what failed, and let the inner strategy aggregate the rest."""
        now, cohort = self._round, self.selector.cohort
        if now is None or cohort is None or now.server_round != server_round:
            raise FlowerError(
                f"CohortStrategy: round {server_round} was not configured by it. Call "
                f"configure_train first."
            )
        self._round = None
        now.take(replies, self._keys_by_node(cohort.ids))
        if self._redraws and now.failed:
            self._ask_others(now)
        model, metrics = None, None
        if not now.asked or not self._patience.is_void(now.number - 1, len(now.answered), log):
            model, metrics = averaged(self.strategy, self._inner, now, self.selector)
        if model is None:
            unused = dict.fromkeys(now.answered, "the round's aggregate was not used")
            self.selector.skip(failed={**unused, **now.failed})
        else:
            self._remember(now)
        self._patience.end_round(now.answered, self._why_nobody_answered(now))
        return model, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy write to those that evaluate: connected and eligible clients."""
        if not self._evaluation.is_on:
            return []
        if self.clock.until.has_passed:
            log.warning("round %d has no time left for an evaluation", self._number - 1)
            return []
        messages = self._evaluation.messages(self._number, (arrays, config), grid, self.directory)
        return self.clock.stamped(messages, is_last=True)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Check the replies, and let the inner strategy average the metrics."""
        return self._evaluation.metrics(self._number, replies)

    def save(self, path: str | Path, arrays: ArrayRecord) -> None:
        """Write the state that a restarted server needs, atomically.

        That is the model, the selector (round, clients, memory, counts of draws), the nodes, and
        the moments or the momentum of the inner strategy.
        """
        head = {**self._origin, "directory": self.directory.state(), "model": list(arrays)}
        parts = {
            "selector": self.selector.state(),
            "evaluation": self._evaluation.state(),
            "inner": packed(state_of(self._inner)),
            "model": {str(k): array.numpy() for k, array in enumerate(arrays.values())},
        }
        write_checkpoint(Path(path), head, parts)

    def load(self, path: str | Path) -> ArrayRecord:
        """Continue from a saved state, with the same sequence of cohorts; return the model."""
        head, parts = read_checkpoint(Path(path), self._origin)
        kept = self._evaluation.state()
        self._evaluation.restore(parts["evaluation"])
        try:
            self.selector.restore(parts["selector"])
        except SelectorError:
            self._evaluation.restore(kept)  # nothing changes
            raise
        self.directory.restore(head["directory"])
        put_back(self._inner, unpacked(parts["inner"]))
        self._round, self._is_first = None, True
        arrays = map(Array, parts["model"].values())
        return ArrayRecord(dict(zip(head["model"], arrays, strict=True)))

    @property
    def _number(self) -> int:
        """The open round, or the one that ended last, counted from 1."""
        return self.rounds_done + (self.selector.cohort is not None)

    def _close_dropped_round(self) -> None:
        """Skip a round that a wrapper around this strategy never gave back."""
        self._round = None
        if (cohort := self.selector.cohort) is not None:
            log.warning("round %d was dropped by what calls this strategy", cohort.round_)
            self.selector.skip(failed=dict.fromkeys(cohort.ids, "the round was dropped"))

    def _signals(
        self, now: TrainingRound, there: list[str] | None
    ) -> dict[str, dict[str, float]] | None:
        """Ask clients for what the recipe wants to know before the draw."""
        request = self.selector.ask(there)
        if request is None:
            return None
        nodes = self._keys_by_node(request.ids)
        seconds = min(self.clock.waits.query, self.clock.until.left / 2)  # training follows
        answers = ask_signal(now.grid, request.signal, nodes, now.sent.record, seconds=seconds)
        if nodes and not answers:
            now.unheard = f"no client gave its {request.signal}"
        return {request.signal: answers}

    def _messages(self, now: TrainingRound, ids: Iterable[object]) -> list[Message]:
        """Let the inner strategy write to these clients."""
        nodes = list(self._keys_by_node(ids))
        sent = now.sent.record, now.config
        messages = messages_to(nodes, self.strategy, now.number, sent, now.grid)
        now.asked += [message.metadata for message in messages]
        return self.clock.stamped(messages)

    def _keys_by_node(self, ids: Iterable[object]) -> dict[int, str]:
        return {self.directory.node_of(str(each)): str(each) for each in ids}

    def _ask_others(self, now: TrainingRound) -> None:
        """Ask clients in place of those that failed, until enough answered."""
        lost = list(now.failed)
        while not self.clock.until.has_passed and (more := self.selector.redraw(lost)):
            replies = exchange(now.grid, self._messages(now, more), self.clock.seconds())
            now.take(replies, self._keys_by_node(more))
            lost = [str(each) for each in more if each in now.failed]

    def _remember(self, now: TrainingRound) -> None:
        """Let the selector remember the updates and what replies report beside them."""
        losses, durations = now.reported()
        was_empty = self.selector.variates is None
        self.selector.remember(now.updates, losses=losses, durations=durations, failed=now.failed)
        if was_empty and (variates := self.selector.variates) is not None:
            log.info("the difference estimator takes up to %.2f MB", variates.nbytes_at_most / 1e6)

    def _why_nobody_answered(self, now: TrainingRound) -> Iterable[str]:
        """Return the reasons of a round without a reply; none if the cohort was empty."""
        if now.asked:
            return now.failed.values()
        if now.unheard:
            return [now.unheard]
        takers = self.directory.takers(with_samples=True)
        return [] if takers else ["no client with samples was there"]
