"""Runs to simulate, the server's options, and the fingerprint in a checkpoint."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedcohort._archive import json_value, read_archive
from fedcohort._arguments import (
    COMPUTE_DEVICES,
    MOST,
    KindNeed,
    TextNeed,
    as_array,
    checked_choice,
    checked_numbers,
    sentence,
)
from fedcohort._display import record_repr
from fedcohort._fields import Record, choice, declared, of_kind, whole
from fedcohort.designs.catalogue import text_of
from fedcohort.errors import PopulationError, SelectorError, SimulationError
from fedcohort.optimizers import ServerOptimizer
from fedcohort.population import Population
from fedcohort.selector import Selector
from fedcohort.selector.settings import SelectorSettings
from fedcohort.simulation.data.partitions import FederatedData
from fedcohort.simulation.devices.devices import Devices
from fedcohort.simulation.engine.local_training import LocalTraining, rate
from fedcohort.streams import Stream, stream

#: What a checkpoint's archive means, and its version.
KIND = "simulation 4"
#: Importance by a word.
Importance = Literal["sizes", "equal"]
IMPORTANCES = get_args(Importance)


@dataclass(frozen=True, slots=True)
class Options(Record):
    """Settings of the server that all runs share.

    Attributes
    ----------
    server_lr
        The server's learning rate.
    measure_every
        Measure loss and accuracy after every n-th round, and after the last.
    oracle_every
        Train all clients in every n-th round, to compare with full participation; None: never.
    floor_clients
        In these rounds, train a sample of clients a second time, with other batches, to estimate
        the noise floor: this many draws by importance. With as many draws as clients, all train
        again. 0: no floor.
    rows_every
        Record every client's distribution in every n-th round; None: never.
    measure_clients
        Measure loss and accuracy of a sample of clients: this many draws by importance, made once.
        None, or as many draws as clients: all are measured.
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
    threads
        The CPU threads to compute on, at most one per core. None: one if the clients train on the
        CPU, and torch's setting with a GPU. Small models are fastest on one thread, and results
        are then equal bit for bit on machines with more or fewer cores.
    """

    _error = SimulationError

    server_lr: float = rate(1.0)
    measure_every: int = whole(1, least=1, most=MOST)
    oracle_every: int | None = whole(None, least=1, most=MOST)
    floor_clients: int = whole(20, most=MOST)
    rows_every: int | None = whole(None, least=1, most=MOST)
    measure_clients: int | None = whole(None, least=1, most=MOST)
    device: str = choice("auto", COMPUTE_DEVICES, way_out="'auto' takes a GPU if there is one.")
    threads: int | None = whole(None, least=1, most=MOST)

    __repr__ = record_repr

    def measured(self, n_clients: int) -> int | None:
        """Return how many draws of clients are measured; None: all clients."""
        sample = self.measure_clients
        return None if sample is None or sample >= n_clients else sample

    def torch_device(self) -> torch.device:
        """Return the device; raise an error if it is missing."""
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise SimulationError("Options: device 'cuda' is not available here. Use 'cpu'.")
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Run(SelectorSettings):
    """One design on one data set with one seed.

    The other settings are those of :class:`fedcohort.Selector`. With ``extra``, clients answer in
    the order of their durations. With ``overlap``, the next design is built while clients train.
    With ``presence="known"``, the chances are those of the devices' availability in each round.
    Features for :class:`fedcohort.Regression` may be ``"classes"``: the shares of the classes
    among a client's samples.

    Attributes
    ----------
    recipe, data, seed
        How clients are drawn, what they hold, and the seed of everything random, an integer. Runs
        with one seed can be compared round by round.
    devices
        What clients train on; None: all are equal (``Devices.equal``) and always available.
    importance
        How much each client counts in the loss that is minimised: ``"sizes"``, by its number of
        training samples; ``"equal"``, 1/n for each of the n clients with samples; or one share per
        client, which sum to 1.
    failures
        The chance that a drawn client sends no update, one number or one per client; None: 0.
        Failures are drawn in every round from a stream of their own: two runs with one seed lose
        the same clients.
    optimizer
        How the server moves along the aggregate, one of ``fedcohort.optimizers``; its step is
        multiplied by ``server_lr``. None: the aggregate itself.
    lr, mu, server_lr
        Replace those of the simulation's ``LocalTraining`` and ``Options`` in this run; None: as
        there. Runs that differ in them still train together.
    label
        The run's name in its history and in legends. Default: the recipe and the estimator.
    """

    _owner = "Run"
    _error = SimulationError

    data: FederatedData = declared(
        KindNeed(kind=FederatedData, way_out="Pass for example Run(SizeClustered(10), data).")
    )
    # No generator and no None: compared runs must share one seed.
    seed: int = whole(0, way_out="Pass one seed to all runs that are to be compared.")
    devices: Devices | None = of_kind(
        None, Devices, way_out="Pass for example Devices.equal(100), or None."
    )
    importance: Importance | ArrayLike = "sizes"
    failures: ArrayLike | None = None
    optimizer: ServerOptimizer | None = of_kind(
        None, ServerOptimizer, way_out="Pass for example optimizers.SGD(momentum=0.9)."
    )
    lr: float | None = rate(None)
    mu: float | None = rate(None)
    server_lr: float | None = rate(None)
    label: str = declared(TextNeed(way_out="Pass a name."), "")

    def _check(self) -> None:
        SelectorSettings._check(self)  # super() does not work in a class with slots
        if not self.label:
            words = [text_of(self.recipe)]
            if not isinstance(self.estimator, str):
                words.append(type(self.estimator).__name__.lower())
            self._put(label=" + ".join(words))
        if self.failures is not None:
            self._put(failures=self._chances(self.failures))
        if not isinstance(self.importance, str):
            self._put(importance=self._shares(self.importance))
        else:
            checked_choice("Run", "importance", self.importance, IMPORTANCES, error=SimulationError)
        self.known_chances(0)

    def __repr__(self) -> str:
        estimator = f", estimator={record_repr(self.estimator)}"
        how = "" if self.estimator == "plain" else estimator
        how += "" if self.optimizer is None else f", optimizer={record_repr(self.optimizer)}"
        recipe, clients = record_repr(self.recipe), f"{self.data.n_clients} clients"
        return f"Run({recipe}, {clients}, seed={self.seed}{how})"

    def _chances(self, failures: ArrayLike) -> NDArray[np.float64]:
        """Return one chance per client."""
        given, n = as_array(failures), self.data.n_clients
        chances = given.astype(np.float64) if given.dtype.kind in "iuf" else np.full((), np.nan)
        if chances.shape not in ((), (n,)) or not ((chances >= 0) & (chances <= 1)).all():
            need = f"a chance from 0 to 1, or one for each of the {n} clients"
            way_out = "Pass for example 0.1."
            raise SimulationError(sentence("Run", "failures", need, failures, way_out))
        return np.broadcast_to(chances, (n,)).copy()

    def _shares(self, importance: ArrayLike) -> NDArray[np.float64]:
        """Return one share per client; refuse one of a client without samples."""
        has = self.data.population.sizes > 0
        given = checked_numbers("Run", "importance", importance, len(has), error=SimulationError)
        try:
            shares = Population(importance=given).importance
        except PopulationError as error:
            raise SimulationError(str(error).replace("Population: ", "Run: ", 1)) from error
        if (shares[~has] > 0).any():
            raise SimulationError(
                f"Run: importance must be 0 for a client without samples; client "
                f"{int(np.argmax((shares > 0) & ~has))} has none. Give 0, or leave the client out."
            )
        return given.astype(np.float64)

    def known_chances(self, round_: int) -> dict[int, float] | None:
        """Return the chances above 0 of clients to be there in a round, for ``presence="known"``.

        None if the selector does not use chances.
        """
        if self.presence != "known":
            return None
        times = None if self.devices is None else self.devices.availability
        chances = None if times is None else times.chances(round_)
        if chances is None:
            raise SimulationError(
                "Run: presence='known' needs devices with chances; got none. Pass for example "
                "Devices.equal(100, availability=Coins(chances)), or use presence='estimated'."
            )
        return {int(client): float(chances[client]) for client in np.flatnonzero(chances)}

    @property
    def population(self) -> Population:
        """The clients with their importance, which selectors draw from and losses are weighed by.

        Unlike ``data.population``, its sizes are only numbers of samples with
        ``importance="sizes"``.
        """
        own = self.data.population
        if isinstance(self.importance, str) and self.importance == "sizes":
            return own
        has = own.sizes > 0
        shares = has / has.sum() if isinstance(self.importance, str) else self.importance
        return Population(importance=shares, groups=own.groups)

    def selector(self) -> Selector:
        """Make the run's selector; refuse clients that cannot be drawn from."""
        settings, estimator = self.keywords(), self.estimator
        if not isinstance(estimator, str):
            settings["estimator"] = estimator._with_classes(self.data.class_counts)
        chances = self.known_chances(0)
        return Selector(self.recipe, self.population, seed=self.seed, chances=chances, **settings)

    def rates(self) -> dict[str, float]:
        """Return those of ``lr``, ``mu`` and ``server_lr`` that the run overrides."""
        found = {name: getattr(self, name) for name in ("lr", "mu", "server_lr")}
        return {name: value for name, value in found.items() if value is not None}

    def local(self, training: LocalTraining) -> LocalTraining:
        """Return the simulation's local training with the run's own rates."""
        lr = training.lr if self.lr is None else self.lr
        return replace(training, lr=lr, mu=training.mu if self.mu is None else self.mu)

    def failing(self, round_: int) -> NDArray[np.bool_]:
        """Return who would send no update in a round if drawn, shape (n_clients,)."""
        chances = np.zeros(self.data.n_clients) if self.failures is None else self.failures
        rng = stream(self.seed, round_=round_, use=Stream.FAILURES)
        return np.asarray(rng.random(self.data.n_clients) < np.asarray(chances))

    def parts(self) -> list[object]:
        """Return what identifies the run in a checkpoint, without its data."""
        settings = tuple(self.keywords().values())
        devices = [] if self.devices is None else self.devices.parts()
        rates = list(self.rates().items())
        how = [(self.recipe, self.seed), settings, self.optimizer, self.failures, self.importance]
        return [*how, *devices, *rates]


def check_together(runs: Sequence[Run]) -> None:
    """Refuse runs on several data sets."""
    if not runs or any(run.data.dataset is not runs[0].data.dataset for run in runs):
        raise SimulationError(
            f"Simulation: needs at least one run, all on one data set; got {len(runs)} runs. "
            f"Load the data set once, and make a simulation for each."
        )


def read_checkpoint(
    path: Path, *, expected: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the head and the arrays of a simulation with this fingerprint; refuse other files."""
    try:
        arrays = read_archive(path, KIND)
    except ValueError as error:
        raise SimulationError(
            f"checkpoint {path}: cannot be read ({error}). Start again, or use another file."
        ) from error
    head = json_value(arrays.pop("head"))
    differ = [name for name in expected if head["fingerprint"].get(name) != expected[name]]
    if differ:
        raise SimulationError(
            f"checkpoint {path}: was written by another simulation; {', '.join(differ)} "
            f"differ. Use the same arguments, or start again."
        )
    return head, arrays


@contextmanager
def refusing_checkpoint(path: Path) -> Iterator[None]:
    """Raise one sentence if a part of a checkpoint is missing or does not fit."""
    try:
        yield
    except (SelectorError, LookupError, TypeError, ValueError) as error:
        cause = (isinstance(error, SelectorError) and error.__cause__) or error
        why = f"it has no {cause}" if isinstance(cause, KeyError) else str(cause).partition(". ")[0]
        raise SimulationError(
            f"checkpoint {path}: cannot be used ({why}). Start again, or use another file."
        ) from error


def fingerprint(
    runs: Sequence[Run], training: LocalTraining, options: Options, architecture: list[object]
) -> dict[str, str]:
    """Hash a simulation's arguments, name by name, and the whole data set."""
    data = runs[0].data.dataset
    positions = [part for run in runs for part in run.data.train + run.data.test]
    values: dict[str, object] = {
        "runs": [part for run in runs for part in run.parts()],
        "training": training,
        "options": replace(options, device="auto", threads=None),
        "model": architecture,
        "data": [data.x, data.y, data.test_x, data.test_y, (data.scale, data.shift), *positions],
    }
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: object) -> str:
    digest = hashlib.sha256()
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape} ".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            with np.printoptions(threshold=sys.maxsize):
                digest.update(f"{_written(part)} ".encode())
    return digest.hexdigest()[:16]


def _written(part: object) -> str:
    """Write all fields of dataclasses: their ``repr`` may leave some out."""
    if isinstance(part, tuple):
        return f"({' '.join(map(_written, part))})"
    if not is_dataclass(part):
        return repr(part)
    own = [each.name for each in fields(part) if each.repr and each.compare]
    named = [(name, getattr(part, name)) for name in own]
    return f"{type(part).__qualname__}({named!r})"
