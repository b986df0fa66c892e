"""A round: who was asked, who answered with what, and why others failed."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from fedcohort.cohort import Cohort
from fedcohort.deployment.arrays import ArrayCheck, Arrays, ClientUpdate, ModelArrays
from fedcohort.deployment.checkpoint import Parts, read_checkpoint, write_checkpoint
from fedcohort.deployment.directory import Directory
from fedcohort.deployment.limits import Limits, Patience
from fedcohort.deployment.plugin import Plugin
from fedcohort.designs.signals import AskedSignal
from fedcohort.errors import AggregationError
from fedcohort.participation.live import LiveAudit
from fedcohort.selector import Answers, Selector
from fedcohort.selector.max_norm import factors_of

#: The metric of a train reply that is remembered as ``past_loss``.
LOSS_METRIC = "rms_loss"
#: The reason of a client that did not answer in time.
NO_ANSWER = "no answer: the deadline has passed"
#: Why a round had no answer if no client could be asked.
NOBODY = "no client with samples was connected"
#: The largest number of Python's floats.
LARGEST_FLOAT = sys.float_info.max
#: A model as the framework has it.
Model = TypeVar("Model")
#: Asks clients for a signal: (signal, clients) -> answers by client.
AskSignal = Callable[[AskedSignal, list[str]], Mapping[str, object]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClientAnswer:
    """A usable answer of one client.

    Attributes
    ----------
    reply
        The framework's own message.
    metrics
        The numbers that came with it.
    seconds
        How long the client took; None if that is unknown.
    update
        The update as it came; None if the round does not train.
    factor
        What the update is multiplied by: less than 1 if its norm is above ``max_norm``.
    scaled
        The client's model after that, in the model's types, for a framework that averages by
        itself; None if nothing was scaled.
    """

    reply: Any
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    update: ClientUpdate | None = None
    factor: float = 1.0
    scaled: Arrays | None = None

    def step(self, name: str) -> NDArray[Any]:
        """Return one array of the update as it counts; integers that are scaled become floats."""
        assert self.update is not None  # for mypy: the round trains
        step = self.update[name]
        return step if self.factor == 1.0 else self.factor * step


class Round:
    """Questions to clients and their answers.

    Parameters
    ----------
    plugin
        The plug-in, for its log.
    number
        The round, as the log shows it.
    doing
        What clients are asked to do.
    silence
        Why clients failed that did not answer.

    Attributes
    ----------
    asked
        When each client was asked.
    answered, failed
        The usable answers by client, in order of arrival, and why others cannot be used.
    """

    def __init__(
        self, plugin: Plugin, number: int, *, doing: str = "training", silence: str = NO_ANSWER
    ) -> None:
        self.plugin, self.number, self.silence = plugin, number, silence
        self._doing = f"{doing} in round {number}"
        self.asked: dict[str, float] = {}
        self.answered: dict[str, ClientAnswer] = {}
        self.failed: dict[str, str] = {}

    def ask(self, names: Iterable[str]) -> None:
        """Note that clients are asked now."""
        self.asked |= dict.fromkeys(names, time.monotonic())

    def expects(self, name: str | None) -> bool:
        """Return whether a client was asked and has neither answered nor failed."""
        return name in self.asked and name not in self.answered and name not in self.failed

    def accept(self, name: str, answer: ClientAnswer | str) -> bool:
        """Take a client's answer, or the reason why it failed; return whether it can be used."""
        if isinstance(answer, str):
            self.failed[name] = answer
        else:
            self.answered[name] = answer
        return name in self.answered

    def reject(self, name: str, reason: str) -> None:
        """Count a client that answered as one that failed."""
        del self.answered[name]
        self.failed[name] = reason
        self.plugin.log_failures({name: reason}, self._doing, len(self.asked))

    def close(self, names: Iterable[str]) -> list[str]:
        """Stop waiting for these clients; log and return those that failed."""
        asked = list(names)
        failed = {
            name: self.failed.setdefault(name, self.silence)
            for name in asked
            if name not in self.answered
        }
        self.plugin.log_failures(failed, self._doing, len(asked))
        return list(failed)


@final
class TrainingRound(Round):
    """A training round between the draw and the aggregate; each update is read once.

    Parameters
    ----------
    plugin, number, silence
        As for :class:`Round`.
    sent
        The model that clients were sent.
    check
        Says whether arrays can be used.
    selector
        Reads the updates when they come; None if no round of it is open.
    max_norm
        The largest norm of an update if there is no selector; None for no bound.
    whole
        False if the framework averages by itself: then the selector reads only what its memory
        keeps of an update.
    """

    def __init__(
        self,
        plugin: Plugin,
        number: int,
        sent: ModelArrays,
        check: ArrayCheck,
        selector: Selector | None = None,
        *,
        max_norm: float | None = None,
        whole: bool = True,
        silence: str = NO_ANSWER,
    ) -> None:
        super().__init__(plugin, number, silence=silence)
        self._max_norm = max_norm
        self.sent, self._check, self._selector, self._whole = sent, check, selector, whole
        self._norms: dict[str, float] = {}
        self._read: dict[str, Answers] = {}
        self._joined: Answers | None = None
        self._joined_of: list[str] = []

    def accept_arrays(
        self,
        name: str,
        arrays: Arrays,
        reply: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        seconds: float | None = None,
        is_update: bool = False,
    ) -> bool:
        """Check and read a client's model; return whether it can be used.

        Parameters
        ----------
        name
            The client.
        arrays
            Its model by name; a mapping may decode each array when it is read.
        reply, metrics
            The framework's own message, and the metrics in it.
        seconds
            How long the client took; by default since it was asked.
        is_update
            Whether ``arrays`` are the update itself, not the client's model.
        """
        start = self._zero if is_update else self.sent
        names = start.arrays if arrays.keys() == start.arrays.keys() else ()  # else refused unread
        try:  # decode once, for the check and for the selector's memory
            decoded = {each: arrays[each] for each in names}
        except Exception as error:  # a client can send anything
            return self.accept(name, f"cannot be read: {type(error).__name__}, {error}")
        checked = self._check(decoded, start)
        if isinstance(checked, str):
            return self.accept(name, checked)
        seconds = time.monotonic() - self.asked[name] if seconds is None else seconds
        came = ClientUpdate(start, arrays, checked.held)
        answer = ClientAnswer(reply, metrics or {}, seconds, came)
        update, factors = ClientUpdate(start, decoded, checked.held), None
        if self._selector is None and self._max_norm is not None:
            factors = factors_of(np.array([checked.norm]), self._max_norm)
        if self._selector is not None:
            self._norms[name] = checked.norm
            cohort = self._selector.cohort
            # Weights that sum to more than 1 stretch every update, whether we or the framework
            # average.
            whole = self._whole or (cohort is not None and cohort.residual < -1e-12)
            read = self._received({name: update}, {name: answer}, whole=whole)
            if not len(read):
                return self.accept(name, "is not finite, or too large for its type")
            self._read[name], factors = read, read.factors
        if factors is not None and factors[0] < 1:
            factor = float(factors[0])
            # Now, while it is decoded.
            scaled = update.scaled_model(factor) if self._averages_models else None
            answer = replace(answer, factor=factor, scaled=scaled)
        return self.accept(name, answer)

    def accept_unseen(self, name: str, metrics: Mapping[str, Any]) -> None:
        """Take an answer whose update is part of a secure sum: the server never sees it."""
        assert self._selector is not None  # for mypy: callers have drawn the round
        self._read[name] = self._selector.receive({name: None}, whole=False)
        self.accept(name, ClientAnswer(None, metrics, time.monotonic() - self.asked[name]))

    @property
    def _averages_models(self) -> bool:
        """Whether the framework averages models as they came: no estimator predicts updates."""
        has_estimator = self._selector is not None and self._selector.estimator is not None
        return not self._whole and not has_estimator

    @cached_property
    def _zero(self) -> ModelArrays:
        """A model of zeros, the start of updates."""
        return self.sent.at_zero()

    @property
    def updates(self) -> dict[str, ClientUpdate]:
        """The updates of those that answered, none of them computed yet."""
        return {name: own.update for name, own in self.answered.items() if own.update is not None}

    def answers(self, *, whole: bool = False) -> Answers:
        """Return what the selector read of all usable answers; ``whole``: with whole updates."""
        names, joined = list(self.answered), self._joined
        if joined is None or self._joined_of != names or (whole and joined.rows is None):
            parts = [self._read[name] for name in names]
            if not parts or (whole and any(part.rows is None for part in parts)):
                joined = self._received(self.updates, self.answered, whole=whole)
            else:
                joined = Answers.joined(parts)
            self._joined, self._joined_of = joined, names
        return joined

    def _received(
        self, updates: Mapping[str, Any], answers: Mapping[str, ClientAnswer], *, whole: bool
    ) -> Answers:
        assert self._selector is not None  # for mypy: callers have checked it
        losses = {name: loss for name, own in answers.items() if (loss := _loss(own)) is not None}
        durations = {name: own.seconds for name, own in answers.items() if own.seconds is not None}
        norms = {name: self._norms[name] for name in updates}
        return self._selector.receive(
            updates, losses=losses, durations=durations, norms=norms, whole=whole
        )

    def shares(
        self, is_plain: Callable[[Cohort], bool], write: Callable[[Arrays], Model]
    ) -> list[tuple[str, float, Model | None]]:
        """Return clients, weights and models whose mean a framework takes by itself.

        None stands for the client's model as it came: ``is_plain`` says whether the settled
        weights alone make the aggregate. Otherwise ``write`` makes a model of arrays. An answer
        has failed if the model's types cannot hold it with its weight.
        """
        assert self._selector is not None  # for mypy: callers have drawn the round
        while True:
            settled = self._selector.settle(self.answered)
            if is_plain(settled):
                own = weights_of(settled).items()
                return [(name, weight, None) for name, weight in own if weight]
            shares, too_large = list[tuple[str, float, Model | None]](), list[str]()
            for id_, weight, update in self._selector.for_average(self.answers(whole=True)):
                if (arrays := self.sent.plus(update)) is None:
                    too_large.append(str(id_))
                else:
                    shares.append((str(id_), weight, write(arrays)))
            if not too_large:
                return shares
            for name in too_large:
                self.reject(name, "its update is too large for its weight")

    def mean_metrics(self, settled: Cohort) -> dict[str, float] | None:
        """Return the means, by the settled weights, of the metrics that all answers share."""
        own = weights_of(settled).items()
        weighed = [(self.answered[name].metrics, weight) for name, weight in own if weight > 0]
        total = math.fsum(weight for _, weight in weighed)
        return {
            key: math.fsum(weight * float(own[key]) for own, weight in weighed) / total
            for key in shared_metrics([own for own, _ in weighed])
        } or None


@final
class Rounds:
    """The rounds of a plug-in: draw, ask others in place of lost clients, end.

    Parameters
    ----------
    plugin
        The plug-in, for its log and its errors.
    selector
        Draws the clients.
    directory
        The clients and their sizes.
    limits
        What the server accepts, and when it gives up.
    whole
        False if the framework averages by itself; see :class:`TrainingRound`.
    first
        The number of the first round, as the framework counts.
    audit_every
        Log who has taken part every this many rounds; None: only when the log is summed up.
    """

    def __init__(
        self,
        plugin: Plugin,
        selector: Selector,
        directory: Directory,
        limits: Limits,
        *,
        whole: bool = True,
        first: int = 0,
        audit_every: int | None = None,
    ) -> None:
        self._plugin, self._selector, self._directory = plugin, selector, directory
        if (log := selector.selections) is not None:
            log.follower = LiveAudit(
                plugin.logger, every=audit_every, path=log.path, first_shown=first
            )
        self._whole, self._first = whole, first
        self._check = ArrayCheck(limits, selector.recipe.learns)
        self._patience = Patience(plugin, limits)
        self._signals: dict[str, dict[str, float]] = {}
        self._takes_features = selector.awaits_features

    @property
    def number(self) -> int:
        """The open round, or the one that comes next."""
        return self._selector.round_ + self._first

    def update_clients(self) -> None:
        """Tell the selector the clients' sizes, and their features if its estimator takes them."""
        if self._selector.clients != self._directory.sizes:
            self._selector.clients = self._directory.sizes
        if self._takes_features and (new := self._directory.new_features()):
            self._selector.set_features(new)

    def draw(self, available: list[str] | None, ask: AskSignal) -> Cohort:
        """Draw a round's clients, of those that are there; ``ask`` collects signals for it.

        ``available`` also has clients that are not eligible; None: all members are there.
        """
        self.update_clients()
        there = list(self._directory.sizes) if available is None else available
        # Clients that are away matter only if weights make up for them.
        corrects = self._selector.settings.corrects_presence
        eligible = self._directory.eligible(self._directory.sizes if corrects else there)
        request = self._selector.ask(available, eligible=eligible)
        self._signals = {}
        if request is not None:
            answers = ask(request.signal, [str(each) for each in request.ids])
            self._signals = {request.signal: self._numbers(request.signal, answers)}
        return self._selector.draw(available, self._signals or None, eligible=eligible)

    def _numbers(self, signal: str, answers: Mapping[str, object]) -> dict[str, float]:
        """Return the valid answers, numbers of at least 0, and log who gave none."""
        numbers = {
            name: float(value)  # type: ignore[arg-type]
            for name, value in answers.items()
            if is_number(value, least=0.0)
        }
        if missing := [name for name in answers if name not in numbers]:
            self._plugin.logger.warning(
                "%d of %d clients gave no %s: %.200s", len(missing), len(answers), signal, missing
            )
        return numbers

    def check_model(self, sent: ModelArrays) -> None:
        """Refuse another model than the one whose updates are remembered."""
        for memory in (self._selector.memory, self._selector.estimator):
            if memory is not None and memory.dimension != sent.dimension:
                raise self._plugin.refusal(
                    f"remembers updates of {memory.dimension} numbers; got a model of "
                    f"{sent.dimension}. Start again for another model, with another checkpoint."
                )

    def open(
        self, sent: ModelArrays, *, number: int | None = None, silence: str = NO_ANSWER
    ) -> TrainingRound:
        """Open the round that was drawn, with the model that clients are sent.

        ``number`` and ``silence`` are those of :class:`Round`; by default the selector's number.
        """
        return TrainingRound(
            self._plugin,
            self.number if number is None else number,
            sent,
            self._check,
            self._selector,
            whole=self._whole,
            silence=silence,
        )

    def redraw(self, now: TrainingRound) -> list[str]:
        """Return the clients to ask in place of those that failed; see ``Selector.redraw``."""
        return [str(each) for each in self._selector.redraw(now.failed)]

    def is_void(self, now: TrainingRound) -> bool:
        """Return whether too few of the asked clients answered, so that the model stays."""
        return bool(now.asked) and self._patience.is_void(now.number, len(now.answered))

    def step(
        self, now: TrainingRound, optimize: Callable[[Arrays], Arrays] = lambda step: step
    ) -> Arrays | None:
        """Return what to add to the model; None if it stays.

        That is the aggregate of the answers, or what ``optimize`` makes of it. The model stays if
        the round is void, it has no client to estimate, or the model's types cannot hold the sum.
        """
        if self.is_void(now) or self._selector.target is None:
            return None
        try:
            step = self._selector.step(now.answers(whole=True))
            if not isinstance(step, Mapping):  # an empty cohort, and nothing is remembered
                step = now.sent.at_zero().arrays
            moved = optimize(step)
        except AggregationError:
            moved = None
        if moved is None or now.sent.plus(moved) is None:
            message = "round %d: the aggregate is not finite; the model stays"
            self._plugin.logger.error(message, now.number)
            return None
        return moved

    def end(self, now: TrainingRound, *, has_moved: bool, has_clients: bool = True) -> None:
        """End the round; raise after too many rounds in a row without a usable answer.

        Parameters
        ----------
        now
            The round.
        has_moved
            Whether the aggregate was used; otherwise nothing is remembered.
        has_clients
            Whether a client with samples was connected.
        """
        if has_moved:
            self._selector.remember(now.answers(), failed=now.failed)
        else:
            unused = dict.fromkeys(now.answered, "the round's aggregate was not used")
            self._selector.skip(failed={**unused, **now.failed}, answered=now.answered)
        reasons = list(now.failed.values())
        if not now.asked and not has_clients:
            reasons = [NOBODY]
        elif not now.asked:  # only a missing signal makes an empty cohort a failure
            reasons = [
                f"no client gave its {name}" for name, own in self._signals.items() if not own
            ]
        self._patience.end_round(now.answered, reasons)

    def save(self, path: Path, parts: Parts, *, origin: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint atomically; only its owner may read it.

        Parameters
        ----------
        path
            The file; its folder is made.
        parts
            Arrays by part and name besides the selector's, such as ``{"model": model}``.
        origin
            JSON values that must be the same when the file is read.
        """
        every = {**parts, "selector": self._selector.state()}
        state = {"directory": self._directory.state()}
        write_checkpoint(self._plugin, path, every, state=state, origin=origin)

    def read(
        self, path: Path, *, origin: Mapping[str, Any] | None = None
    ) -> tuple[Parts, Callable[[], None]]:
        """Return a checkpoint's parts, and the function that restores selector and directory.

        Check your own parts first, and call the function then: a file that cannot be used changes
        nothing.
        """
        state, parts = read_checkpoint(self._plugin, path, origin=origin)
        restored = (
            self._directory.restoring(state["directory"]),
            self._selector.restoring(parts.pop("selector")),
        )

        def take_over() -> None:
            for each in restored:
                each()

        return parts, take_over

    def skip_abandoned(self) -> None:
        """End a round that the framework never finished."""
        if (cohort := self._selector.cohort) is not None:
            self._plugin.logger.warning("round %d was abandoned by the caller", self.number)
            dropped = dict.fromkeys(cohort.ids, "the round was dropped")
            self._selector.skip(failed=dropped, answered=cohort.ids)


def weights_of(cohort: Cohort) -> dict[str, float]:
    """Return a cohort's weights by client."""
    return dict(zip(map(str, cohort.ids), cohort.weights.tolist(), strict=True))


def is_number(value: object, *, least: float = -math.inf) -> bool:
    """Return whether a metric is one finite number, and at least ``least``."""
    # Compared, not converted: an integer can be too large for a float.
    return isinstance(value, (int, float)) and max(least, -LARGEST_FLOAT) <= value <= LARGEST_FLOAT


def shared_metrics(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics that all records have as one finite number."""
    first = records[0] if records else {}
    return [name for name in first if all(is_number(own.get(name)) for own in records)]


def _loss(answer: ClientAnswer) -> float | None:
    loss: Any = answer.metrics.get(LOSS_METRIC)
    return float(loss) if is_number(loss, least=0.0) else None
