"""A Flower strategy that draws the clients, around one that aggregates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, NOTSET, getLogger
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcohort._client_records import below
from fedcohort._open_round import OnFailure, check_equal_draws
from fedcohort._selector_files import SelectionLog
from fedcohort._whole_file import read_arrays, write_arrays
from fedcohort.designs import Recipe
from fedcohort.designs.signals import Request
from fedcohort.errors import FlowerError
from fedcohort.flower.averaging import averaged
from fedcohort.flower.directory import Directory, Names
from fedcohort.flower.inner_strategy import (
    FirstAnswers,
    check_state,
    messages_to,
    packed,
    put_back,
    refuse_other_loops,
    refuse_secure_aggregation,
    refuse_wrapper,
    state_of,
    unpacked,
    wait_for_nodes,
    waiting_for_no_more_than,
    warn_of_choice,
    weighing_strategy,
)
from fedcohort.flower.queries import ask_signal
from fedcohort.flower.replies import Decode, ReplyCheck, SentModel, TrainingRound
from fedcohort.memory import Difference, EstimatorName
from fedcohort.population import Label
from fedcohort.selector import Selector

log = getLogger("flwr.fedcohort")

FORMAT = "fedcohort flower state 5"
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
    names
        How clients are named: ``"client"`` takes the name that each client tells (its
        ``partition-id`` or the ``key`` of ``register_size_query``); ``"node"`` takes node ids,
        which stay the same and cannot be spoofed under node authentication.
    on_failure
        What happens to the weight of a drawn client that fails: ``"keep"`` leaves it on the
        current model, ``"redraw"`` draws other clients in its place, ``"renormalise"`` spreads
        it over the clients that answered (as Flower does; biased).
    tries
        How often ``"redraw"`` draws again.
    extra
        Over-selection: this many more draws, of which the first ``cohort_size`` that are answered
        count. That favours fast clients, so it is biased; only with ``start`` of this strategy.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    deadline
        Seconds that a client has to answer; None leaves that to ``start``.
    max_size, max_share, max_norm
        Bounds on the samples that a client can claim, on its share of all samples, and on the norm
        of an update. Without ``max_share``, a client's own claim counts up to half of all samples
        if ten clients or more have samples.
    max_draws
        Refuse a design that can draw one client more often in a round: with differential privacy
        a client that is drawn k times moves the aggregate by k shares.
    query_timeout
        Seconds that a new node has to say its size, and a client to answer what the recipe asks
        before the draw (``register_signal_queries``).
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
    """

    def __init__(
        self,
        strategy: Strategy,
        recipe: Recipe,
        *,
        seed: int,
        estimator: EstimatorName | Difference = "plain",
        sizes: Mapping[Any, int] | None = None,
        groups: Mapping[Any, Label | None] | None = None,
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
        self.selector = Selector(
            recipe,
            {},
            seed=seed,
            groups=groups and {str(key): label for key, label in groups.items()},
            estimator=estimator,
            sketch=sketch,
            on_failure=on_failure,
            tries=tries,
            extra=extra,
            max_draws=max_draws,
            log=log_file or True,
        )
        self._is_difference = estimator != "plain"
        if secure_aggregation:
            refuse_secure_aggregation(recipe, is_difference=self._is_difference)
        self.strategy, self.recipe, self.seed = strategy, recipe, self.selector.seed
        self._inner = weighing_strategy(strategy)
        self._has_wrapper = strategy is not self._inner
        if self._has_wrapper:
            if self._is_difference:
                refuse_wrapper(strategy)
            warn_of_choice(strategy, recipe)
        self.directory = Directory(
            sizes,
            max_size=max_size,
            max_share=max_share,
            names=names,
            query_timeout=query_timeout,
        )
        self._origin = {"strategy": type(self._inner).__name__, "names": names}
        self._check = ReplyCheck(self._inner.weighted_by_key, max_norm, decode, recipe.learns)
        self._redraws, self._extra = on_failure == "redraw", extra
        self._deadline, self._query_timeout = deadline, query_timeout
        self._round: TrainingRound | None = None
        self._is_first, self._is_started = True, False

    @property
    def selections(self) -> SelectionLog:
        """How often each client was drawn, and the expected number of draws."""
        assert self.selector.selections is not None  # for mypy: the selector has a log
        return self.selector.selections

    def summary(self) -> None:
        """Log how clients are drawn, and the inner strategy's own summary."""
        log.info("clients are drawn by %r, seed %d", self.recipe, self.seed)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the round's clients, and let the inner strategy write to exactly these."""
        if not self._is_started and (self._is_difference or self._redraws or self._extra):
            refuse_other_loops(is_difference=self._is_difference)
        self._close_dropped_round()
        sent = SentModel(arrays)
        self._check_model(sent)
        self._look_around(grid)
        # By the number over all starts: FedAdam's step depends on it, and a restart must not.
        number = self.selector.round_ + 1
        now = TrainingRound(server_round, number, sent, config, grid, self._check)
        present = self.directory.present
        there = None if len(present) == len(self.directory.sizes) else present
        cohort = self.selector.draw(there, self._signals(now, self.selector.ask(there)))
        if self._has_wrapper and self.selector.design is not None:
            check_equal_draws(self.selector.design)
        self._round, self._is_first = now, False
        return self._messages(now, cohort.ids)

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
        model, metrics = averaged(self.strategy, self._inner, now, self.selector)
        if model is None:
            unused = dict.fromkeys(now.answered, "the round's aggregate was not used")
            self.selector.skip(failed={**unused, **now.failed})
        else:
            self._remember(now)
        return model, metrics

    def start(self, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        """Train, as every strategy does; with ``extra`` a round ends with the first answers."""
        around = FirstAnswers(grid, self._is_enough) if self._extra else grid
        self._is_started = True
        try:
            with _logged_by_flower():
                result = super().start(around, *args, **kwargs)
                self.selections.log_summary()
        finally:
            self._is_started = False
        return result

    def save(self, path: Path) -> None:
        """Write what a restarted server needs.

        That is the selector (round, clients, memory, counts of draws), the nodes, and the moments
        or the momentum of the inner strategy; the model is the caller's to keep.
        """
        head = {**self._origin, "directory": self.directory.state()}
        arrays = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
        arrays |= {f"selector.{name}": array for name, array in self.selector.state().items()}
        inner = packed(state_of(self._inner))
        write_arrays(
            Path(path), FORMAT, arrays | {f"inner.{name}": array for name, array in inner.items()}
        )

    def load(self, path: Path) -> None:
        """Go on where :meth:`save` was called, in the same stream of cohorts."""
        try:
            arrays = read_arrays(Path(path), FORMAT)
        except (OSError, ValueError) as error:
            raise FlowerError(
                f"CohortStrategy: {path} cannot be read ({error}). Start without it."
            ) from error
        head = json.loads(arrays["head"].tobytes())
        for name, own in self._origin.items():
            if head[name] != own:
                raise FlowerError(
                    f"CohortStrategy: {path} was written with another {name}, {head[name]}; got "
                    f"{own}. Use the same one."
                )
        self.selector.restore(below("selector.", arrays))
        self.directory.restore(head["directory"])
        put_back(self._inner, unpacked(below("inner.", arrays)))
        self._round = None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Leave evaluation to the inner strategy; let it wait only for connected nodes."""
        with waiting_for_no_more_than(self._inner, len(list(grid.get_node_ids()))):
            return list(self.strategy.configure_evaluate(self._number, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Leave evaluation to the inner strategy."""
        return self.strategy.aggregate_evaluate(self._number, replies)

    @property
    def _number(self) -> int:
        """The open round, or the one that ended last, counted from 1."""
        return self.selector.round_ + (self.selector.cohort is not None)

    def _close_dropped_round(self) -> None:
        """Skip a round that a wrapper around this strategy never gave back."""
        self._round = None
        if (cohort := self.selector.cohort) is not None:
            log.warning("round %d was dropped by what calls this strategy", cohort.round_)
            self.selector.skip(failed=dict.fromkeys(cohort.ids, "the round was dropped"))

    def _check_model(self, sent: SentModel) -> None:
        """Refuse another model than the one that is remembered."""
        check_state(self._inner, sent.arrays)
        for known in (self.selector.memory, self.selector.variates):
            if known is not None and known.dimension != sent.dimension:
                raise FlowerError(
                    f"CohortStrategy: remembers updates of {known.dimension} numbers; got a model "
                    f"of {sent.dimension}. Use a new strategy for another model."
                )

    def _look_around(self, grid: Grid) -> None:
        """Look up the connected clients; a client that ever told its size is a member."""
        # Only before the first round: afterwards training goes on with whoever is left.
        if self._is_first:
            wait_for_nodes(grid, self._inner.min_available_nodes)
        changed = self.directory.refresh(grid)
        if self._is_first and not self.directory.has_samples:
            raise FlowerError(
                "fedcohort.flower: no client is there that said its size. Start nodes, and call "
                "register_size_query in the client app or pass sizes by node id."
            )
        if changed and self.selector.clients != self.directory.sizes:
            self.selector.clients = self.directory.sizes

    def _signals(
        self, now: TrainingRound, request: Request | None
    ) -> dict[str, dict[str, float]] | None:
        """Ask clients for what the recipe wants to know before the draw."""
        if request is None:
            return None
        nodes, model = self._keys_by_node(request.ids), now.sent.record
        answers = ask_signal(now.grid, request.signal, nodes, model, timeout=self._query_timeout)
        return {request.signal: answers}

    def _messages(self, now: TrainingRound, ids: Iterable[object]) -> list[Message]:
        """Let the inner strategy write to these clients."""
        nodes = list(self._keys_by_node(ids))
        sent = now.sent.record, now.config
        messages = messages_to(nodes, self.strategy, now.number, sent, now.grid)
        for message in messages:
            now.asked.append(message.metadata)
            if self._deadline is not None:
                message.metadata.ttl = self._deadline
        return messages

    def _keys_by_node(self, ids: Iterable[object]) -> dict[int, str]:
        return {self.directory.node_of(str(each)): str(each) for each in ids}

    def _is_enough(self, replies: list[Message]) -> bool:
        """Whether as many draws were answered as count."""
        now, cohort = self._round, self.selector.cohort
        if now is None or cohort is None:
            return False
        now.accept(replies, self._keys_by_node(cohort.ids))
        counts = zip(cohort.ids, cohort.counts.tolist(), strict=True)
        answered: int = sum(count for each, count in counts if each in now.answered)
        return answered >= self.recipe.cohort_size

    def _ask_others(self, now: TrainingRound) -> None:
        """Ask clients in the place of those that failed, until enough answered."""
        lost = list(now.failed)
        while more := self.selector.redraw(lost):
            messages = self._messages(now, more)
            replies = now.grid.send_and_receive(messages, timeout=self._deadline or REDRAW_WAIT)
            now.take(replies, self._keys_by_node(more))
            lost = [str(each) for each in more if each in now.failed]

    def _remember(self, now: TrainingRound) -> None:
        """Let the selector remember the updates and what replies report beside them."""
        losses, durations = now.reported()
        was_empty = self.selector.variates is None
        self.selector.remember(now.updates, losses=losses, durations=durations, failed=now.failed)
        if was_empty and (variates := self.selector.variates) is not None:
            n, size = self.selector.population.n_clients, variates.nbytes / 1e6
            log.info("the difference estimator's memory of %d clients takes %.2f MB", n, size)


@contextmanager
def _logged_by_flower() -> Iterator[None]:
    """Meanwhile send the library's log lines to Flower's handlers."""
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
