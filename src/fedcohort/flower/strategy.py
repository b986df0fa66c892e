"""A Flower strategy that draws the clients, around one that aggregates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import INFO, NOTSET, getLogger
from pathlib import Path
from typing import Unpack, final

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcohort._arguments import brief, checked_kind
from fedcohort._whole_file import make_folder
from fedcohort.deployment.checkpoint import must_resume
from fedcohort.deployment.directory import Eligible
from fedcohort.deployment.options import PluginKeywords, SelectorOptions
from fedcohort.deployment.round import NO_ANSWER, Rounds, TrainingRound
from fedcohort.deployment.waits import BackOff
from fedcohort.designs import Recipe
from fedcohort.designs.signals import AskedSignal
from fedcohort.errors import DesignError, SelectorError
from fedcohort.flower.averaging import averaged, stepped
from fedcohort.flower.directory import Names, NodeDirectory
from fedcohort.flower.evaluation import Evaluation
from fedcohort.flower.grid import RoundClock, error_of
from fedcohort.flower.inner_strategy import (
    check_model,
    check_weights,
    check_wrapper,
    messages_to,
    packed,
    put_back,
    refuse_other_loops,
    state_of,
    unpacked,
    warn_of_weights,
    weighing_strategy,
    without_sampling_lines,
)
from fedcohort.flower.queries import signal_queries, signals_of
from fedcohort.flower.replies import Decode, SentModel, TrainingMessages, record_of
from fedcohort.flower.secure import SecureAggregation, SecureSum, check_floats, check_secure
from fedcohort.flower.settings import FLOWER, Waits
from fedcohort.selector.selections import SelectionLog
from fedcohort.selector.settings import unpacks

#: The file in a checkpoint folder.
FILE = "checkpoint"
#: Evaluates the model on the server: (round, model) -> metrics.
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@unpacks(SelectorOptions, without=FLOWER.lacks)
@final
class CohortStrategy(Strategy):
    """Draw every round's clients by a recipe, and let another strategy aggregate them.

    Estimators that remember updates, ``extra`` and ``on_failure="redraw"`` need this strategy's
    own ``start``. These estimators refuse wrappers for privacy.

    Parameters
    ----------
    strategy
        The strategy that aggregates: FedAvg or one that inherits its weighted average (FedProx,
        FedAdam, FedYogi, FedAdagrad, FedAvgM, the DP wrappers). Those that ignore weights are
        refused.
    recipe
        How clients are drawn.
    {settings}
    sizes
        Samples by client name or node id; None asks the nodes (``register_size_query``).
    min_known
        How many sizes of connected clients must be known before training starts. The strategy's
        ``min_available_nodes`` counts connected nodes, also those whose sizes are unknown.
    eligible
        Who may take part: client names, or a function of a client's name, its node's id and its
        properties. The function is called before every draw. Weights are unbiased over the eligible
        clients.
    names
        How clients are named. ``"client"`` takes the name that each client reports (its
        ``partition-id`` or the ``key`` of ``register_size_query``). ``"node"`` takes node ids,
        which stay the same and cannot be spoofed under node authentication.
    evaluate
        Draw this many clients by sample size for every evaluation, and report unbiased means over
        all clients, with standard errors. None leaves evaluation to ``strategy``.
    waits
        How long the server waits.
    checkpoint, every
        A folder for checkpoints, and how many rounds lie between two; ``start(resume=True)``
        continues from the last one.
    decode
        Decompresses a reply's content into arrays like the model's, given the model that was sent;
        None if clients send plain arrays.
    secure
        Let the server learn the sum of a round's updates only, by Flower's SecAgg+; clients need
        ``secure_aggregation_mod``. For recipes by size; a round with fewer than 3 answers is
        skipped. None shows it every update.

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
        min_known: int = 1,
        eligible: Eligible | Collection[str] | None = None,
        names: Names = "client",
        evaluate: int | None = None,
        waits: Waits | None = None,
        checkpoint: str | Path | None = None,
        every: int = 10,
        decode: Decode | None = None,
        secure: SecureAggregation | None = None,
        **settings: Unpack[PluginKeywords],
    ) -> None:
        waits = FLOWER.record("waits", waits, Waits)
        options = SelectorOptions(recipe, plugin=FLOWER, **settings)
        own = options.estimator
        #: The name of an estimator that remembers updates.
        self._estimator = None if isinstance(own, str) else type(own).__name__.lower()
        self.selector, bounds = options.selector(), options.bounds
        self.strategy, self.recipe, self.seed = strategy, recipe, self.selector.seed
        self._inner = weighing_strategy(strategy)
        self._has_wrapper = strategy is not self._inner
        if self._has_wrapper:
            check_wrapper(
                strategy,
                recipe,
                self._estimator,
                presence=options.presence,
                on_failure=options.on_failure,
            )
        self.secure = secure
        if secure is not None:
            check_secure(secure, options, strategy, self._inner, decodes=decode is not None)
        self.directory = NodeDirectory(
            options.sizes, eligible=eligible, names=names, waits=waits, limits=bounds
        )
        self._min_known = FLOWER.count("min_known", min_known)
        self.selections.first_shown = 1  # as Flower counts
        self._origin = {"strategy": type(self._inner).__name__, "names": names}
        if decode is not None and not callable(decode):
            raise FLOWER.refusal(
                f"decode must be a function; got {brief(decode)}. Pass one, or None."
            )
        self._decode = decode
        self._evaluation = Evaluation(
            strategy, self._inner, evaluate, seed=self.seed, limits=bounds
        )
        self._rounds = Rounds(
            *(FLOWER, self.selector, self.directory, bounds),
            whole=False,
            first=1,
            audit_every=options.audit_every,
        )
        self._redraws, self._extra = options.on_failure == "redraw", options.extra
        self.clock = RoundClock(waits, more_follows=self._redraws or self._evaluation.is_on)
        if checkpoint is not None and options.seed is None:
            raise FLOWER.refusal(
                "checkpoint needs a seed, which a restarted server must pass again; got None. "
                "Pass seed=0 or another number."
            )
        self._file = None if checkpoint is None else FLOWER.path("checkpoint", checkpoint) / FILE
        self._every = FLOWER.count("every", every)
        self._questions = BackOff(waits.query)  # for signals
        self._round: TrainingMessages | None = None
        self._is_first, self._is_started = True, False
        self._full_counters: set[str] = set()  # they stay: their types cannot hold more

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
        """Log who draws the clients, and the inner strategy's own summary."""
        FLOWER.logger.info(
            "training: %r draws the clients, seed %d; fraction_train has no effect",
            *(self.recipe, self.seed),
        )
        FLOWER.logger.info("evaluation: %s", self._evaluation.describe())
        with without_sampling_lines():
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
        loop = _TrainingLoop(self, grid, self._file, self._every, configs, evaluate_fn, timeout)
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
        if not self._is_started and (
            self._estimator or self._redraws or self._extra or self.secure
        ):
            refuse_other_loops(self._estimator, is_secure=self.secure is not None)
        self._round = None
        self._rounds.skip_abandoned()
        sent = SentModel(arrays)
        self._rounds.check_model(sent)
        check_model(sent, self._inner)
        if self.secure is not None:
            check_floats(sent)
        if self._is_first:
            needed = self._inner.min_available_nodes
            self.directory.gather(grid, needed, self._min_known, self._can_draw)
        self.clock.begin(self.rounds_done)
        self.directory.wait_for_a_client(grid, self.clock.until)
        clients = self.directory.present
        there = None if len(clients) == len(self.directory.sizes) else clients
        cohort = self._rounds.draw(there, partial(self._ask_signal, grid, sent.record))
        if self._has_wrapper and (design := self.selector.design) is not None:
            if self.secure is None:
                check_weights(self.strategy, design, self.recipe)
            if self._is_first:
                warn_of_weights(self.strategy, design)
        # With extra, a client that did not answer was not late; it was not among the first.
        answers = self._rounds.open(sent, silence="no answer" if self._extra else NO_ANSWER)
        key = self._inner.weighted_by_key
        now = TrainingMessages(server_round, sent, config, grid, key, self._decode, answers)
        self._round, self._is_first = now, False
        return self._messages(now, cohort.ids)

    def is_enough(self, replies: list[Message]) -> bool:
        """Whether enough draws of the open round were answered, with ``extra``."""
        now, cohort = self._round, self.selector.cohort
        if now is None or cohort is None or not self._extra:
            return False
        now.accept(replies, self._keys_by_node(cohort.ids))
        has_answered = [each in now.answers.answered for each in cohort.ids]
        return int(cohort.counts[has_answered].sum()) >= self.recipe.cohort_size

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the replies, settle what failed, and let the inner strategy aggregate."""
        now, cohort = self._round, self.selector.cohort
        if now is None or cohort is None or now.server_round != server_round:
            raise FLOWER.refusal(
                f"round {server_round} was not configured by it. Call configure_train first."
            )
        self._round, answers = None, now.answers
        now.take(replies, self._keys_by_node(cohort.ids))
        if self._redraws and answers.failed:
            self._ask_others(now)
        model, metrics = None, None
        if not self._rounds.is_void(answers):
            model, metrics = averaged(
                self.strategy, self._inner, now, self.selector, self._full_counters
            )
        had_memory = self.selector.estimator is not None
        self._end(answers, has_moved=model is not None)
        if not had_memory and (estimator := self.selector.estimator) is not None:
            size = estimator.nbytes_at_most / 1e6
            FLOWER.logger.info("the %s estimator takes up to %.2f MB", self._estimator, size)
        return model, metrics

    def aggregate_securely(
        self, messages: list[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Collect the sum of the updates of those who get these messages, and step by it."""
        now, cohort = self._round, self.selector.cohort
        assert now is not None  # for mypy: the loop has configured the round
        assert cohort is not None  # for mypy
        assert self.secure is not None  # for mypy
        self._round, answers = None, now.answers
        keys = self._keys_by_node(cohort.ids)
        weights = dict(zip(keys, cohort.weights.tolist(), strict=True))
        found = SecureSum(self.secure, messages, weights, self.clock)
        found.play(now.grid, answers.number, now.sent.dimension)
        for node, reason in found.failed.items():
            answers.accept(keys[node], reason)
        for node, metrics in found.metrics.items():
            answers.accept_unseen(keys[node], metrics)
        answers.close(keys.values())
        model, means = None, None
        if found.mean is not None and not self._rounds.is_void(answers):
            settled = self.selector.settle(answers.answered)
            model, means = stepped(self.strategy, self._inner, now, found.mean, settled)
        self._end(answers, has_moved=model is not None)
        return model, means

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy write to those that evaluate: connected and eligible clients."""
        if not self._evaluation.is_on:
            return []
        if not self.clock.is_enough(self.clock.seconds(is_last=True)):
            FLOWER.logger.warning("round %d has no time left for an evaluation", self._number)
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
        owner, way_out = FLOWER.owner, "Pass the model."
        checked_kind(owner, "arrays", arrays, ArrayRecord, way_out=way_out, error=FLOWER.error)
        parts = {
            "evaluation": self._evaluation.state(),
            "inner": packed(state_of(self._inner)),
            "model": {name: array.numpy() for name, array in arrays.items()},
        }
        self._rounds.save(FLOWER.path("path", path), parts, origin=self._origin)

    def load(self, path: str | Path) -> ArrayRecord:
        """Continue from a saved state, with the same sequence of cohorts; return the model.

        If the file cannot be used, nothing changes.
        """
        parts, restore_rounds = self._rounds.read(FLOWER.path("path", path), origin=self._origin)
        restore_evaluation = self._evaluation.restoring(parts["evaluation"])
        moments = {**dict.fromkeys(state_of(self._inner)), **unpacked(parts["inner"])}
        model = record_of(parts["model"])
        restore_rounds()
        restore_evaluation()
        put_back(self._inner, moments)
        self._round, self._is_first = None, True
        return model

    @property
    def _number(self) -> int:
        """The open round, or the one that ended last, counted from 1."""
        return self.rounds_done + (self.selector.cohort is not None)

    def _can_draw(self) -> bool:
        """Whether the design can draw; with fewer clients than draws, some cannot yet."""
        try:
            self._rounds.update_clients()
        except (DesignError, SelectorError):
            if len(self.directory.participants(with_samples=True)) >= self.recipe.cohort_size:
                raise
            return False
        return True

    def _ask_signal(
        self, grid: Grid, model: ArrayRecord, signal: AskedSignal, ids: list[str]
    ) -> dict[str, object]:
        """Ask clients for what the recipe wants to know before the draw.

        A client that did not answer a question may still work on it. It is asked again after a
        pause, at once only if no other client can be asked.
        """
        seconds = min(self.clock.waits.query, self.clock.until.left / 2)  # training follows
        self._questions.keep(self.directory.present)
        asked = [each for each in ids if self._questions.is_due(each)] or ids
        nodes = self._keys_by_node(asked)
        messages = signal_queries(signal, nodes, model, seconds)
        replies = self.clock.exchange(grid, messages, seconds)
        came = {
            nodes.get(reply.metadata.src_node_id)
            for reply in replies
            if not reply.has_error() or error_of(reply) != NO_ANSWER
        }
        for each in asked:
            (self._questions.forget if each in came else self._questions.back_off)(each)
        return dict.fromkeys(ids) | signals_of(replies, signal, nodes)

    def _messages(self, now: TrainingMessages, ids: Iterable[object]) -> list[Message]:
        """Let the inner strategy write to these clients."""
        nodes = self._keys_by_node(ids)
        sent = now.sent.record, now.config
        messages = messages_to(list(nodes), self.strategy, now.answers.number, sent, now.grid)
        FLOWER.logger.info(
            "configure_train: asks %d of %d clients", len(nodes), len(self.directory.present)
        )
        now.metadata += [message.metadata for message in messages]
        now.answers.ask(nodes.values())
        return self.clock.stamped(messages)

    def _end(self, answers: TrainingRound, *, has_moved: bool) -> None:
        has_clients = bool(self.directory.participants(with_samples=True))
        self._rounds.end(answers, has_moved=has_moved, has_clients=has_clients)

    def _keys_by_node(self, ids: Iterable[object]) -> dict[int, str]:
        return {self.directory.connection_of(str(each)): str(each) for each in ids}

    def _ask_others(self, now: TrainingMessages) -> None:
        """Ask clients in place of those that failed, until enough answered."""
        clock = self.clock
        while clock.is_enough(clock.seconds()) and (more := self._rounds.redraw(now.answers)):
            replies = clock.exchange(now.grid, self._messages(now, more), clock.seconds())
            now.take(replies, self._keys_by_node(more))


@final
@dataclass(slots=True)
class _TrainingLoop:
    """Plays the rounds of a strategy, as Flower's own loop does, but with bounded waits."""

    strategy: CohortStrategy
    grid: Grid
    path: Path | None
    every: int
    configs: tuple[ConfigRecord, ConfigRecord]
    evaluate_fn: EvaluateFn | None
    timeout: float

    def first_model(self, initial_arrays: ArrayRecord, *, resume: bool) -> ArrayRecord:
        """Return the model to start from: the checkpoint's where there is one to resume."""
        path, strategy = self.path, self.strategy
        if path is None and resume:
            raise FLOWER.refusal(
                "resume needs a checkpoint folder; got none. Pass checkpoint=FOLDER when the "
                "strategy is made."
            )
        has_begun = not resume and strategy.rounds_done > 0  # a second start overwrites its own
        if path is None or has_begun or not must_resume(FLOWER, path, resume=resume):
            return initial_arrays
        return strategy.load(path)

    def run(self, arrays: ArrayRecord, last: int) -> Result:
        """Play the rounds that are left until ``last``, and keep their metrics."""
        strategy, result = self.strategy, Result(arrays=arrays)
        saved = strategy.rounds_done
        if (path := self.path) is not None:
            make_folder(path.parent)
        with _logged_by_flower():
            strategy.summary()
            self._evaluate(result, saved)
            try:
                for number in range(saved + 1, last + 1):
                    FLOWER.logger.info("[ROUND %d/%d]", number, last)
                    self._play(result, number)
                    self._evaluate(result, number)
                    if path is not None and number % self.every == 0:
                        strategy.save(path, result.arrays)
                        saved = number
            finally:
                if path is not None and strategy.rounds_done > saved:
                    strategy.save(path, result.arrays)
            strategy.selections.log_summary()
        return result

    def _play(self, result: Result, number: int) -> None:
        """Play one round."""
        strategy, grid = self.strategy, self.grid
        train_config, evaluate_config = self.configs
        messages = list(strategy.configure_train(number, result.arrays, train_config, grid))
        if strategy.secure is not None:
            arrays, metrics = strategy.aggregate_securely(messages)
        else:
            seconds = min(self.timeout, strategy.clock.seconds())
            replies = strategy.clock.exchange(grid, messages, seconds, strategy.is_enough)
            arrays, metrics = strategy.aggregate_train(number, replies)
        if arrays is not None:
            result.arrays = arrays
        _keep(result.train_metrics_clientapp, number, metrics)
        messages = list(strategy.configure_evaluate(number, result.arrays, evaluate_config, grid))
        seconds = min(self.timeout, strategy.clock.seconds(is_last=True))
        replies = strategy.clock.exchange(grid, messages, seconds)
        metrics = strategy.aggregate_evaluate(number, replies) if messages else None
        _keep(result.evaluate_metrics_clientapp, number, metrics)

    def _evaluate(self, result: Result, number: int) -> None:
        """Evaluate on the server."""
        if self.evaluate_fn is not None:
            metrics = self.evaluate_fn(number, result.arrays)
            _keep(result.evaluate_metrics_serverapp, number, metrics)


def _keep(records: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    """Keep a round's metrics, and log them if there are any."""
    if metrics:
        FLOWER.logger.info("metrics: %s", metrics)
    if metrics is not None:
        records[number] = metrics


@contextmanager
def _logged_by_flower() -> Iterator[None]:
    """Send the library's log lines to Flower's handlers inside the block."""
    library = getLogger("fedcohort")
    level = library.level
    handlers = [each for each in getLogger("flwr").handlers if each not in library.handlers]
    for each in handlers:
        library.addHandler(each)
    library.setLevel(INFO if level == NOTSET else level)
    try:
        yield
    finally:
        for each in handlers:
            library.removeHandler(each)
        library.setLevel(level)
