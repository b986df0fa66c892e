"""The selector's records of its clients, by position, and how it reads their updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._archive import json_array, json_value, with_prefix, without_prefix
from fedcohort._arguments import Id, brief
from fedcohort._updates import Array, Layout, as_numpy, reordered, same_place, zero_rows
from fedcohort.cohort import Cohort
from fedcohort.designs import Recipe
from fedcohort.designs.recipe import ObservedRound, output_place
from fedcohort.designs.signals import ASKED
from fedcohort.errors import SelectorError
from fedcohort.memory import (
    Estimator,
    Memory,
    UpdateMemory,
)
from fedcohort.memory.features import FeatureTable
from fedcohort.memory.regression import RegressionEstimator
from fedcohort.population import Population
from fedcohort.selector.answers import Answers, Reader
from fedcohort.selector.settings import SelectorSettings

State = dict[str, NDArray[Any]]
#: A recipe's own arrays, by name: a row per client.
Notes = dict[str, NDArray[np.float64]]


@final
class ClientRecords:
    """The server's records of the clients, for a recipe and an estimator.

    The recipe says what to remember: updates (``learns``), past signals, arrays of its own.
    """

    def __init__(self, settings: SelectorSettings, seed: int) -> None:
        self._recipe, self._settings = settings.recipe, settings.predictor
        self._sketch, self._seed = settings.sketch, seed
        self._bounds_norms = settings.max_norm is not None
        self.n_clients = 0
        #: The clients' last updates; None before the first, and if the recipe does not learn.
        self.memory: UpdateMemory | None = None
        #: The estimator with what it remembers; None before the first update, and if it is plain.
        self.estimator: Estimator | None = None
        #: The features that were given; the regression estimator uses them.
        self.features = FeatureTable(self._seed)
        #: The arrays of the updates that were recorded, in the order of the first one's.
        self.layout: Layout | None = None
        #: The memory that the first recorded update goes into: it shortens updates before.
        self._first: UpdateMemory | None = None
        #: Past signals by name, and the recipe's own arrays; NaN before the first.
        self._signals = {name: np.zeros(0) for name in self._recipe.signals if name not in ASKED}
        self._notes: Notes = {name: np.zeros(0) for name in self._recipe.keeps}

    def signals(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of the past signals, by name."""
        return {name: values.copy() for name, values in self._signals.items()}

    def notes(self, n_clients: int) -> Notes:
        """Return copies of the recipe's own arrays, by name; NaN for clients not yet known."""
        if n_clients != self.n_clients:  # a first design is tried before there are clients
            return {name: np.full(n_clients, np.nan) for name in self._notes}
        return {name: values.copy() for name, values in self._notes.items()}

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        held: list[Any] = [*self._signals.values(), *self._notes.values(), *self._memories]
        held.append(self.features)
        return sum(each.nbytes for each in held)

    @property
    def _memories(self) -> list[Memory]:
        """The memories in use."""
        return [each for each in (self.memory, self.estimator) if each is not None]

    # Reading updates

    @property
    def wants_rows(self) -> bool:
        """Whether the end of a round needs whole updates."""
        return self._settings is not None

    def reader(self, *, whole: bool, max_norm: float | None) -> Reader:
        """Return the reader of a round's updates; ``whole``: whole updates are needed."""
        return Reader(
            whole=whole,
            shorten=self._shortened if self._recipe.learns else None,
            sketches=self._sketch is not None,
            measure=self._keeps_notes or self._bounds_norms,
            output=self._output if self._recipe.learns_output else None,
            max_norm=max_norm,
            match=self.matched,
        )

    def matched(self, layout: Layout) -> Layout:
        """Return a layout of updates in the order of the earlier ones.

        Refuse that of another model, and names that cannot be saved.
        """
        known, _ = self.layout, layout.signature
        if self._settings is not None:
            self._settings._check_layout(layout)
        if known is not None and not known.matches(layout):
            raise SelectorError(
                f"Selector: earlier updates had {known.size} numbers, {known.shapes}; got "
                f"{layout.size}, {layout.shapes}. Make a selector for each model."
            )
        self._check_dimension(layout.size)
        return layout if known is None else layout.in_order_of(known)

    def _output(self, layout: Layout) -> slice:
        """Return the place of the output layer's bias in updates."""
        return output_place(self._recipe, layout)

    def _check_dimension(self, dimension: int) -> None:
        """Refuse updates of another model than the remembered ones."""
        known = self._dimensions()
        if known - {dimension}:
            raise SelectorError(
                f"Selector: remembers updates of {known.pop()} numbers; got {dimension}. Make a "
                f"selector for each model."
            )

    def _dimensions(self) -> set[int]:
        """Return how many numbers the remembered updates have."""
        return {each.dimension for each in self._memories}

    def _shortened(self, rows: Array) -> NDArray[np.float32]:
        """Return what the memory keeps of updates."""
        dimension, memory = rows.shape[1], self.memory or self._first
        if memory is None or memory.dimension != dimension:
            memory = self._first = UpdateMemory(
                self.n_clients, dimension, sketch=self._sketch, seed=self._seed
            )
        return memory.shortened(rows)

    # Remembering

    def estimator_for(self, rows: Array) -> Estimator | None:
        """Return the estimator in the kind of ``rows``; None before the first update."""
        known = self.estimator
        if known is None:
            return None
        is_numpy = isinstance(rows, np.ndarray)
        if not same_place(known.zeros, rows) or not (is_numpy or known.zeros.dtype == rows.dtype):
            state = known.state()
            self.estimator = self._new_estimator(state["importance"], zero_rows(rows, 1)[0])
            self.estimator.restore(state)
        return self.estimator

    def _new_estimator(self, importance: NDArray[np.float64], zeros: Array) -> Estimator:
        """Make an empty memory of the estimator."""
        settings, layout = self._settings, self.layout
        assert settings is not None  # for mypy: the callers need an estimator
        assert layout is not None  # for mypy: known from the first update on
        n_given = self.features.n_features if self.takes_features else 0
        return settings._memory(importance, zeros, layout=layout, n_given=n_given, seed=self._seed)

    @property
    def takes_features(self) -> bool:
        """Whether the estimator uses given features."""
        return self._settings is not None and self._settings.source == "given"

    def know(self, ids: Sequence[Id], given: object, places: NDArray[np.int64]) -> None:
        """Take given features in the order of ``ids``; ``places`` has -1 for unknown clients."""
        self.features.set(ids, given, places)

    def forget_coming(self, ids: Iterable[Id]) -> None:
        """Erase the features of clients that have not joined yet."""
        self.features.forget(ids)
        self._encode_features()

    @property
    def moves_alone(self) -> bool:
        """Whether a round without answers moves by what is remembered of the members."""
        return self._settings is not None and self._settings.over_members

    def weighed(self, cohort: Cohort, members: Population) -> Cohort:
        """Return a drawn cohort with the weights that the estimator wants."""
        if self._settings is None:
            return cohort
        return self._settings.weighed(cohort, members.importance)

    def settle(self, population: Population) -> None:
        """Give the estimator, before a draw, the importance of these clients and their features."""
        if self.estimator is not None:
            self.estimator.reweigh(population.importance)
        self._encode_features()

    def _encode_features(self) -> None:
        """Encode the features that are known by now, if there are others than before."""
        if self.features.has_changed and isinstance(self.estimator, RegressionEstimator):
            self.estimator.know(self.features.encoded())

    def record(self, answers: Answers, population: Population, round_: int, *, later: bool) -> None:
        """Remember updates; ``later``: the memory shows them after :meth:`publish`."""
        clients, kept = answers.clients, answers.kept
        if not len(clients):
            return
        self.layout = answers.layout or self.layout  # of the same arrays, in the same order
        if answers.rows is not None and self._settings is not None:
            rows = answers.rows.flat
            if self.estimator is None:
                zeros = zero_rows(rows, 1)[0]
                self.estimator = self._new_estimator(population.importance, zeros)
                self.features.has_changed |= self.takes_features  # the estimator is new
                self._encode_features()
            estimator = self.estimator_for(rows) or self.estimator
            estimator.record_kept(clients, estimator.shortened(rows), round_=round_)
        if kept is not None:
            self.memory, self._first = self.memory or self._first, None
            assert self.memory is not None  # for mypy: it has shortened the updates
            record = self.memory.record_later if later else self.memory.record_kept
            record(clients, kept, round_=round_)

    def publish(self, before_round: int, prepared: UpdateMemory | None = None) -> None:
        """Let the memory show pending updates of earlier rounds; ``prepared`` has them already."""
        if self.memory is not None:
            self.memory = self.memory.publish(before_round, prepared)

    @property
    def _keeps_notes(self) -> bool:
        """Whether the recipe fills arrays of its own."""
        return type(self._recipe).observe is not Recipe.observe

    def observed(self, observed: Callable[[], ObservedRound], answers: Answers) -> Notes:
        """Return the recipe's own arrays after a round; what is remembered does not change."""
        notes = self.notes(self.n_clients)
        if self._keeps_notes and len(answers):
            self._recipe.observe(notes, observed())
            self._check_notes(notes)
        return notes

    def _check_notes(self, notes: Notes) -> None:
        """Refuse arrays that the recipe does not keep, or that lack a row per client."""
        for name in {*self._notes, *notes}:
            own: Any = notes.get(name)
            fits = isinstance(own, np.ndarray) and own.dtype == np.float64 and own.ndim > 0
            if name not in self._notes or not fits or len(own) != self.n_clients:
                raise SelectorError(
                    f"Selector: observe of {self._recipe.name} must leave its arrays "
                    f"{', '.join(self._notes)} with a row of float64 for each of "
                    f"{self.n_clients} clients; {name!r} is {brief(own)}. Change them in place."
                )

    def store_reports(self, answers: Answers, notes: Notes) -> None:
        """Store the past signals, except negative and non-finite values, and the notes."""
        for name, values in answers.reported.items():
            if name in self._signals:
                known = np.isfinite(values) & (values >= 0)
                self._signals[name][answers.clients[known]] = values[known]
        self._notes = notes

    # Moving and saving

    def rearrange(self, order: NDArray[np.int64], ids: Sequence[Id]) -> None:
        """Move to other positions: ``order`` gives each client's old one, -1 for a new client.

        ``ids`` are those of the clients in their new order.
        """
        n_before, self.n_clients = self.n_clients, len(order)
        for arrays in (self._signals, self._notes):
            arrays |= {name: reordered(own, order, fill=np.nan) for name, own in arrays.items()}
        if not len(order):
            self.memory, self.estimator, self.layout = None, None, None
        for memory in self._memories:
            memory.rearrange(order)
        self.features.rearrange(order, ids)
        if np.count_nonzero(order >= 0) < n_before:  # drop what was learned of their features
            self._encode_features()
        self._first = None

    def state(self) -> State:
        """Return everything that is saved, as arrays."""
        kept = with_prefix("signal.", self._signals) | with_prefix("own.", self._notes)
        kept["layout"] = json_array(None if self.layout is None else self.layout.signature)
        kept |= with_prefix("features.", self.features.state())
        if self.memory is not None:
            kept |= with_prefix("memory.", self.memory.state())
        if self.estimator is not None:
            kept |= with_prefix("estimator.", self.estimator.state())
            kept["estimator.zeros"] = as_numpy(self.estimator.zeros)
        return kept

    def restore(self, state: Mapping[str, NDArray[Any]], n_clients: int) -> None:
        """Restore a :meth:`state`; raise a ``ValueError`` if it does not match."""
        self.n_clients = n_clients
        # New dictionaries: a copy of these records shares the old ones.
        self._signals = {name: state[f"signal.{name}"].astype(np.float64) for name in self._signals}
        self._notes = {name: state[f"own.{name}"].astype(np.float64) for name in self._notes}
        memory, kept = without_prefix("memory.", state), without_prefix("estimator.", state)
        self.memory = UpdateMemory.of_state(memory) if memory else None
        self.estimator = None
        signature = json_value(state["layout"])
        self.layout = signature and Layout.of_signature("Selector", signature)
        given = without_prefix("features.", state)
        self.features = FeatureTable.of_state(given, n_clients, self._seed)
        if kept and self._settings is not None:
            zeros = self.layout.in_kind(kept["zeros"])
            self.estimator = self._new_estimator(kept["importance"], zeros)
            self.estimator.restore(kept)
        self._first = None
        self._check()

    def _check(self) -> None:
        """Refuse parts that are not of these clients, or not of one model."""
        n = self.n_clients
        of_clients = [values.shape == (n,) for values in self._signals.values()]
        of_clients += [values.shape[:1] == (n,) for values in self._notes.values()]
        of_clients += [self.memory is None or self.memory.n_clients == n]
        sizes = self._dimensions() | (set() if self.layout is None else {self.layout.size})
        if not all(of_clients) or len(sizes) > 1:
            raise ValueError(f"what it remembers must be of its {n} clients, and of one model")
