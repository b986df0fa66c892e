"""The server loop: ask, draw, settle who did not answer, aggregate, remember."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from logging import getLogger
from operator import index
from pathlib import Path
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort.aggregation import aggregate as aggregated
from fedcohort.answers import Answers, Numbers
from fedcohort.arrays import Array
from fedcohort.client_records import ClientRecords, below
from fedcohort.cohort import Cohort
from fedcohort.designs import RECIPES, Design, Recipe
from fedcohort.designs.recipe import estimator_for
from fedcohort.designs.signals import Request, Signals
from fedcohort.difference import ControlVariates, Difference, EstimatorName
from fedcohort.errors import SelectorError
from fedcohort.failures import Draws, FailureRule, OnFailure
from fedcohort.planner import Planner
from fedcohort.population import Population
from fedcohort.roster import Clients, Groups, Id, Roster
from fedcohort.selection_log import SelectionLog
from fedcohort.similarity import UpdateMemory
from fedcohort.streams import Stream, stream
from fedcohort.updates import Layout, Rows, Update
from fedcohort.whole_file import read_arrays, write_arrays

log = getLogger("fedcohort")

FORMAT = "fedcohort selector 1"
#: Updates by id, or rows in the order of ids.
Updates = Mapping[Any, Update] | Array | Sequence[Update]


@final
class Selector:
    """The server's side of one federation: who trains in each round, and with what weight.

    It holds all that a server keeps between rounds: the clients, what is remembered of them, the
    round, and the log. One seed gives one sequence of cohorts.

    Parameters
    ----------
    recipe
        How clients are drawn.
    clients
        The members: sizes as a list or an array (ids 0 ... n - 1), sizes by id, or a
        :class:`Population`. Ids are strings or integers. An empty mapping: they come later.
    seed
        Of all draws: an integer, a generator that is asked for one, or None for a random one.
    importance
        Shares that replace the sizes, in the order of ``clients`` or by id; they sum to 1.
    groups
        Labels for recipes that draw by group, in the order of ``clients`` or by id. Clients
        without one form the group ``"unlabelled"``.
    estimator
        ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    on_failure
        What becomes of the weight of a drawn client that does not answer: ``"keep"`` leaves it on
        the current model, ``"redraw"`` draws other clients in its place, ``"renormalise"``
        spreads it over those that answered (biased).
    tries
        How often ``"redraw"`` draws again.
    extra
        Over-selection: this many more draws, of which the first ``cohort_size`` that are answered
        count (biased toward fast clients).
    max_draws
        Refuse a design that can draw one client more often in a round.
    overlap
        Build each design from the updates up to the round before the last, so that
        :meth:`prepare` can build it while clients train.
    log
        A file that gets a JSON line for every round; True only counts draws
        (``selector.selections``).

    Attributes
    ----------
    recipe, seed, round_
        As given; the round that is open or comes next, from 0.
    selections
        How often each client was drawn, and how often that was to be expected; None without
        ``log``.

    Examples
    --------
    >>> from fedcohort import SizeClustered
    >>> selector = Selector(SizeClustered(2), {"Nice": 5, "Lyon": 3, "Brest": 2}, seed=1)
    >>> cohort = selector.draw()
    >>> cohort.ids, cohort.weights.tolist()
    (['Lyon', 'Nice'], [0.5, 0.5])
    >>> selector.aggregate({"Nice": np.array([1.0, 0.0]), "Lyon": np.array([0.0, 4.0])}).tolist()
    [0.5, 2.0]
    >>> selector.round_
    1
    """

    def __init__(
        self,
        recipe: Recipe,
        clients: Clients,
        *,
        seed: int | np.random.Generator | None = None,
        importance: ArrayLike | Mapping[Any, float] | None = None,
        groups: Groups | None = None,
        estimator: EstimatorName | Difference = "plain",
        sketch: int | None = None,
        on_failure: OnFailure = "keep",
        tries: int = 10,
        extra: int = 0,
        max_draws: int | None = None,
        overlap: bool = False,
        log: str | Path | Literal[True] | None = None,
    ) -> None:
        if not isinstance(recipe, Recipe):
            raise SelectorError(
                f"Selector: recipe must be a Recipe; got {type(recipe).__name__}. Pass for example "
                f"SizeClustered(10)."
            )
        self.recipe, self.seed, self.round_ = recipe, _checked_seed(seed), 0
        self._difference = estimator_for("Selector", recipe, estimator)
        if sketch is not None and (isinstance(sketch, bool) or index(sketch) < 1):
            raise SelectorError(
                f"Selector: sketch must be a whole number of at least 1; got {sketch!r}. Leave it "
                f"out to remember updates whole."
            )
        self._sketch, self._overlap = sketch, bool(overlap)
        self._rule = FailureRule(on_failure, tries, extra, max_draws)
        self._roster = Roster(groups, importance)
        self._records = ClientRecords(recipe, self._difference, sketch=sketch, seed=self.seed)
        self._planner = Planner(recipe, self._rule, self._records, seed=self.seed)
        path = None if log is None or log is True else Path(log)
        self.selections = None if log is None else SelectionLog(self._roster, path)
        self._open: _OpenRound | None = None
        self._present: NDArray[np.bool_] | None = None
        self.clients = clients

    def __repr__(self) -> str:
        n = int(self._roster.is_member.sum())
        return f"Selector({self.recipe!r}, {n} clients, seed={self.seed}, round_={self.round_})"

    # Who there is

    @property
    def clients(self) -> dict[Id, int]:
        """The members' sizes by id; assign sizes to let members come, go or change size."""
        return self._roster.members()

    @clients.setter
    def clients(self, clients: Clients) -> None:
        self._refuse_open("clients can change")
        if isinstance(clients, Mapping) and not clients:
            self._roster.clear()
            return
        is_first = not self._roster.n_clients
        order = self._roster.set(clients)
        if order is not None:
            self._rearrange(order)
        self._planner.discard()
        if is_first:
            self._planner.rehearse(self._roster.population)

    @property
    def population(self) -> Population:
        """Everyone that is known, in the order of ids; who has left has size 0."""
        return self._roster.population

    def forget(self, ids: Iterable[object]) -> None:
        """Erase clients: membership, updates, signals, labels and counts.

        Lines already written to a log file stay, and so does what a client has added to the means
        of its cluster (``Difference(clusters=...)``).
        """
        self._refuse_open("clients can be forgotten")
        self._planner.discard()
        self._rearrange(self._roster.remove(ids))

    # Before the draw

    def ask(self, available: object = None) -> Request | None:
        """Return the signal to collect before the draw, and from whom; None for most recipes.

        ``available`` is that of :meth:`draw`, which then uses it by default.
        """
        self._refuse_open("clients can be asked")
        self._present = self._roster.presence(available)
        population = self._there(self._present)
        return None if population is None else self._named_request(population)

    def draw(self, available: object = None, signals: Mapping[str, Any] | None = None) -> Cohort:
        """Open a round and draw its cohort.

        Parameters
        ----------
        available
            Who can be asked in this round: ids, or a mask over ``population``; None: everyone.
        signals
            What clients answered, by the signal's name: numbers by id, or one per client of
            ``population``, NaN for none. Only answers of clients that were asked count.

        Returns
        -------
        The cohort; empty where nobody with samples is available.
        """
        self._refuse_open("another can be drawn")
        present = self._present if available is None else self._roster.presence(available)
        population = self._there(self._roster.is_member if present is None else present)
        design, cohort = None, Cohort.empty()
        if population is None:
            log.warning("round %d: no client with samples is available", self.round_)
        else:
            heard = self._heard(population, signals)
            full = population is self._roster.population
            design = self._planner.design(population, heard, self.round_, is_full=full)
            cohort = design.draw(stream(self.seed, round_=self.round_, use=Stream.COHORT))
        self._records.settle_pending()
        cohort = self._named(cohort)
        self._open = _OpenRound(
            design,
            Draws(
                cohort,
                self._roster.population if population is None else population,
                0 if design is None else design.cohort_size,
                stream(self.seed, round_=self.round_, use=Stream.REDRAW),
                self._rule.tries,
            ),
        )
        self._present = None
        return cohort

    @property
    def cohort(self) -> Cohort | None:
        """The open round's cohort; None between rounds."""
        return None if self._open is None else self._open.draws.cohort

    @property
    def design(self) -> Design | None:
        """The law of the open round, or of the last one drawn; None before the first."""
        return self._planner.last if self._open is None else self._open.design

    def next_design(self, signals: Mapping[str, Any] | None = None) -> Design:
        """Build what the next round's law would be, if every member were available."""
        population = self._roster.population
        heard = self._heard(population, signals)
        return self._planner.built(population, heard, self.round_ + (self._open is not None))

    def prepare(self, executor: Executor) -> None:
        """Build the next round's design in the background, where ``overlap`` allows it."""
        now = self._required("be prepared")
        full = now.draws.population is self._roster.population
        if self._overlap and self.recipe.learns and not self.recipe.signals and full:
            self._planner.prepare(executor, now.draws.population, self.round_ + 1)

    # Between the draw and the aggregate

    def redraw(self, lost: Iterable[object]) -> list[Id]:
        """Return whom to ask in the place of these clients, with ``on_failure="redraw"``.

        Call it again with those of them that fail, until it returns none.
        """
        now = self._required("be drawn again")
        if self._rule.on_failure != "redraw":
            return []
        return self._roster.names(np.array(now.draws.replace(self._asked(lost).tolist()), int))

    def settle(self, answered: Iterable[object]) -> Cohort:
        """Return the cohort of those that answered, with their final weights; changes nothing.

        ``answered`` are ids, in order of arrival where ``extra`` counts.
        """
        return self._settled(self._asked(answered))

    def step(self, updates: Updates, ids: Iterable[object] | None = None) -> Update:
        """Return the step that :meth:`aggregate` returns, and change nothing."""
        return self._step(self._answers(updates, ids, whole=True), None)

    def recall(self, ids: Iterable[object]) -> tuple[Array, Array] | None:
        """Return what the difference estimator remembers: h, one row per id, and H = sum p h.

        None where there is nothing to recall.
        """
        now, variates = self._required("be recalled"), self._records.variates
        if variates is None:
            return None
        variates.reweigh(now.draws.population.importance)
        return variates.of(self._roster.positions(ids)), variates.expected()

    def for_average(
        self, updates: Mapping[Any, Update]
    ) -> Iterator[tuple[Id | None, float, Update]]:
        r"""Yield (id, weight, update) for a framework that divides by the sum of the weights.

        With W the sum of the settled weights, :math:`W(\Delta_i - h_i) + H` in the place of
        :math:`\Delta_i` makes its average the aggregate. Updates that need no change are passed
        on as they are. Where nobody was drawn and the difference estimator remembers something,
        one pair stands for H: its id is None, its update flat.
        """
        now, settled = self._required("be averaged"), self.settle(updates)
        total = 1.0 if abs(settled.residual) <= 1e-12 else 1.0 - settled.residual
        recalled = None if now.design is None else self.recall(settled.ids)
        if not len(now.draws.cohort) and recalled is not None:
            yield None, 1.0, recalled[1]
        for k, each in enumerate(settled.ids):
            update, weight = updates[each], float(settled.weights[k])
            if weight == 0.0:
                continue
            if total != 1.0 or recalled is not None:
                around = None if recalled is None else (recalled[0][k], recalled[1])
                update = _stretched(update, total, around)
            yield each, weight, update  # type: ignore[misc]

    # The end of a round

    def aggregate(
        self,
        updates: Updates,
        ids: Iterable[object] | None = None,
        *,
        model: Update | None = None,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
    ) -> Update:
        """Settle failures, aggregate, remember, and end the round.

        Parameters
        ----------
        updates
            Client model minus the model that it was sent: by id, or rows in the order of ``ids``.
            Each is an array, a list of arrays or a mapping of arrays, numpy or torch. Who is
            missing has failed, and so has a client whose update is not finite.
        ids
            Whose the rows are; the cohort's by default.
        model
            The model to move; None returns the step alone.
        losses, durations
            What the clients reported: the root of the mean squared loss of their samples, and the
            seconds they took; by id, or in the order of the updates.

        Returns
        -------
        The step in the structure of the updates, or the moved model in its own. 0 where nobody
        answered and no model is given.
        """
        answers = self._answers(updates, ids, whole=True)
        heard = self._reported(answers, losses, durations)
        result = self._step(answers, model)
        self._finish(answers, heard, {})
        return result

    def remember(
        self,
        updates: Updates,
        ids: Iterable[object] | None = None,
        *,
        losses: Numbers | None = None,
        durations: Numbers | None = None,
        failed: Mapping[Any, str] | None = None,
    ) -> None:
        """Record the updates of those that answered, and end the round.

        The arguments are those of :meth:`aggregate`; ``failed`` says for the log why clients
        failed. Updates are read one at a time, and only where the recipe or the estimator needs
        them.
        """
        answers = self._answers(updates, ids, whole=self._records.wants_rows)
        heard = self._reported(answers, losses, durations)
        self._finish(answers, heard, failed or {})

    def skip(self, failed: Mapping[Any, str] | None = None) -> None:
        """End the round as if nobody had answered; nothing is remembered."""
        self._required("be skipped")
        self._finish(Answers.none(), {}, failed or {})

    # Saving

    @property
    def memory(self) -> UpdateMemory | None:
        """The clients' last updates, in the order of ``population``; assign one to start from."""
        return self._records.memory

    @memory.setter
    def memory(self, memory: UpdateMemory) -> None:
        self._refuse_open("the memory can change")
        if memory.n_clients != self._roster.n_clients:
            raise SelectorError(
                f"Selector: memory must be of its {self._roster.n_clients} clients; got "
                f"{memory.n_clients}."
            )
        self._planner.discard()
        self._records.memory, self._records.pending = memory, None

    @property
    def variates(self) -> ControlVariates | None:
        """What the difference estimator remembers; None before the first update."""
        return self._records.variates

    @property
    def wants_losses(self) -> bool:
        """Whether the recipe reads the losses that clients report."""
        return self._records.wants_loss

    @property
    def nbytes(self) -> int:
        """Bytes that the clients' sizes and all that is remembered of them take."""
        return self._roster.sizes.nbytes + self._roster.is_member.nbytes + self._records.nbytes

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that is to be kept, as arrays; an open round is not."""
        self._planner.wait()
        head = json.dumps({**self._origin(), "round": self.round_}, default=np.generic.item)
        kept = {"head": np.frombuffer(head.encode(), np.uint8)}
        kept |= {f"roster.{name}": array for name, array in self._roster.state().items()}
        kept |= {f"records.{name}": array for name, array in self._records.state().items()}
        if self.selections is not None:
            kept |= {f"log.{name}": array for name, array in self.selections.state().items()}
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` gave; refuse a state of another recipe or settings."""
        head = json.loads(state["head"].tobytes())
        for name, own in json.loads(json.dumps(self._origin(), default=np.generic.item)).items():
            if head.get(name) != own:
                raise SelectorError(
                    f"Selector: the state was written with another {name}, "
                    f"{_shown(head.get(name))}; got {_shown(own)}. Use the same one."
                )
        self._planner.discard()
        self._roster.restore(below("roster.", state))
        self._records.restore(below("records.", state), self._roster.n_clients)
        if self.selections is not None:
            self.selections.restore(below("log.", state), self._roster.n_clients)
        self.round_, self._open, self._present = int(head["round"]), None, None

    def save(self, path: str | Path) -> None:
        """Write the state to a file, whole or not at all; only its owner may read it."""
        write_arrays(Path(path), FORMAT, self.state())

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        recipe: Recipe | None = None,
        log: str | Path | Literal[True] | None = None,
    ) -> Self:
        """Go on where :meth:`save` was called, with the same cohorts.

        A recipe that is not one of the library's must be given. Nothing is unpickled or imported.
        """
        try:
            state = read_arrays(Path(path), FORMAT)
            head = json.loads(state["head"].tobytes())
        except (OSError, ValueError, KeyError) as error:
            raise SelectorError(
                f"Selector: {path} cannot be read ({error}). Start without it."
            ) from error
        saved = head["recipe"]
        if recipe is None:
            if saved["fields"] is None:
                raise SelectorError(
                    f"Selector: {path} was written with a recipe of your own, {saved['text']}. "
                    f"Pass it as recipe=."
                )
            recipe = RECIPES[saved["name"]](**saved["fields"])
        difference = head["estimator"]
        selector = cls(
            recipe,
            {},
            seed=head["seed"],
            estimator="plain" if difference is None else Difference(**difference),
            sketch=head["sketch"],
            overlap=head["overlap"],
            log=log,
            **head["failures"],
        )
        selector.restore(state)
        return selector

    def _origin(self) -> dict[str, Any]:
        """Return what a state belongs to."""
        own, text = self.recipe, repr(self.recipe)
        fields = asdict(own) if RECIPES.get(own.name) is type(own) else None
        return {
            "recipe": {"name": own.name, "fields": fields, "text": text},
            "seed": self.seed,
            "estimator": None if self._difference is None else asdict(self._difference),
            "sketch": self._sketch,
            "failures": asdict(self._rule),
            "overlap": self._overlap,
        }

    # What the above is made of

    def _refuse_open(self, what: str) -> None:
        if self._open is not None:
            raise SelectorError(
                f"Selector: round {self.round_} is open; it must end before {what}. Call aggregate "
                f"or remember, or skip."
            )

    def _required(self, what: str) -> _OpenRound:
        if self._open is None:
            raise SelectorError(f"Selector: no round is open that could {what}. Call draw first.")
        return self._open

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        self._records.rearrange(order)
        if self.selections is not None:
            self.selections.rearrange(order)

    def _there(self, present: NDArray[np.bool_]) -> Population | None:
        """Return the clients with those that are away at size 0; None: nobody has samples."""
        sizes = np.where(present, self._roster.sizes, 0)
        if not sizes.any():
            return None
        if np.array_equal(sizes, self._roster.sizes):
            return self._roster.population
        return Population.of_checked(sizes, self._roster.ids, self._roster.groups)

    def _named_request(self, population: Population) -> Request | None:
        request = self._planner.request(population, self.round_)
        if request is None:
            return None
        return Request(request.signal, request.clients, self._roster.names(request.clients))

    def _named(self, cohort: Cohort) -> Cohort:
        return cohort.named(self._roster.names(cohort.clients), self.round_)

    def _heard(self, population: Population, signals: Mapping[str, Any] | None) -> Signals | None:
        """Return what the recipe may know: past signals, and answers of those that were asked."""
        if not self.recipe.signals:
            return None
        known = self._records.signals()
        request = self._planner.request(population, self.round_)
        for name, given in (signals or {}).items():
            values = self._by_position(name, given)
            if request is not None and name == request.signal:
                answers = np.full(len(values), np.nan)
                answers[request.clients] = values[request.clients]
                values = answers
            known[name] = values
        return known

    def _by_position(self, name: str, given: Numbers) -> NDArray[np.float64]:
        """Return numbers by id as one number per known client, NaN for none."""
        if isinstance(given, Mapping):
            values = np.full(self._roster.n_clients, np.nan)
            values[self._roster.positions(given)] = list(given.values())
            return values
        values = np.asarray(given, dtype=np.float64)
        if values.shape != (self._roster.n_clients,):
            raise SelectorError(
                f"Selector: the signal {name!r} must be numbers by id, or one for each of the "
                f"{self._roster.n_clients} clients; got shape {values.shape}."
            )
        return values

    def _asked(self, ids: Iterable[object]) -> NDArray[np.int64]:
        """Return positions of clients; refuse those that the open round did not ask."""
        now = self._required("be settled")
        positions = self._roster.positions(ids)
        if len(set(positions.tolist())) < len(positions):
            raise SelectorError("Selector: a client answers once; got an id twice.")
        for client in positions.tolist():
            if client not in now.draws.asked:
                raise SelectorError(
                    f"Selector: client {self._roster.ids[client]!r} was not drawn in round "
                    f"{self.round_}. Pass answers of the cohort alone."
                )
        return positions

    def _settled(self, positions: NDArray[np.int64]) -> Cohort:
        now = self._required("be settled")
        size = min(self.recipe.cohort_size, now.draws.cohort_size)
        return self._named(self._rule.settled(now.draws, positions, cohort_size=size))

    def _answers(self, updates: Updates, ids: Iterable[object] | None, *, whole: bool) -> Answers:
        now = self._required("be aggregated")
        if isinstance(updates, Mapping):
            named: Sequence[object] = list(updates)
        else:
            named = now.draws.cohort.ids if ids is None else list(ids)
        return Answers.read(updates, named, self._asked(named), self._records, whole=whole)

    def _reported(
        self, answers: Answers, losses: Numbers | None, durations: Numbers | None
    ) -> dict[str, NDArray[np.float64]]:
        """Return what clients reported, by the name of the past signal."""
        ids = self._roster.names(answers.clients)
        heard = {"past_round": np.full(len(ids), float(self.round_))}
        for name, given in (("past_loss", losses), ("past_duration", durations)):
            if (values := answers.numbers(name, given, ids)) is not None:
                heard[name] = values
        return heard

    def _step(self, answers: Answers, model: Update | None) -> Update:
        """Aggregate by the settled weights."""
        now, settled, rows = self._required("step"), self._settled(answers.arrived), answers.rows
        memory = self._records.variates
        if rows is None:  # no update says of which kind they are
            rows = None if memory is None else Rows.of("Selector", memory.zeros[None][:0], 0)
        if rows is None or (len(now.draws.cohort) and not len(settled)) or now.design is None:
            # Nobody answered: the difference estimator's H would repeat the last updates.
            return model if model is not None else 0.0 if rows is None else rows.zero()
        chosen = rows.taken(np.searchsorted(answers.clients, settled.clients))
        estimator = self._records.estimator(chosen.flat, now.draws.population.importance)
        return aggregated(model, chosen, settled, memory=estimator)

    def _finish(
        self,
        answers: Answers,
        heard: Mapping[str, NDArray[np.float64]],
        failed: Mapping[Any, str],
    ) -> None:
        """Remember the answers, write the log, and end the round."""
        now, settled = self._required("end"), self._settled(answers.arrived)
        records, rows, clients = self._records, answers.rows, answers.clients
        if rows is not None and len(clients):
            variates = records.estimator(rows.flat, now.draws.population.importance)
            if variates is not None:
                variates.record(clients, rows.flat)
        records.record(clients, answers.kept, round_=self.round_)
        if not self._overlap:
            records.settle_pending()
        records.hear(clients, heard)
        if records.wants_norms and rows is not None:
            records.observe(settled, clients, rows.flat)
        if self.selections is not None:
            lost = sorted(now.draws.asked - set(clients.tolist()))
            missing = dict.fromkeys(self._roster.names(np.array(lost, dtype=int)), "no answer")
            drawn = now.draws.cohort
            self.selections.write(drawn, settled, now.design, {**missing, **failed}, self.seed)
        self._open, self.round_ = None, self.round_ + 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class _OpenRound:
    """A round between draw and aggregate; no design: nobody was available."""

    design: Design | None
    draws: Draws


def _checked_seed(seed: object) -> int:
    """Validate a seed, or draw one."""
    if seed is None:
        return secrets.randbits(63)
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**63))
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and seed >= 0:
        return int(seed)
    raise SelectorError(
        f"Selector: seed must be a whole number of at least 0, a generator or None; got {seed!r}."
    )


def _stretched(update: Update, total: float, around: tuple[Array, Array] | None) -> Update:
    """Return total * (update - h) + H; counters have neither."""
    layout = Layout.of("Selector", update)
    leaves = layout.leaves(update)

    def make(number: int, place: slice | None) -> Array:
        leaf = next(leaves)[0].reshape(-1)
        if around is None or place is None:
            return total * leaf
        h, mean = around
        return total * (leaf - h[place]) + mean[place]

    return layout.structured(make)


def _shown(value: object) -> object:
    return value["text"] if isinstance(value, dict) and "text" in value else value
