"""Runs to simulate and the server's options; and how a checkpoint knows its simulation."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import COMPUTE_DEVICES, brief, checked_whole
from fedcohort._display import record_repr
from fedcohort._whole_file import read_arrays
from fedcohort.designs import Recipe
from fedcohort.designs.recipe import estimator_for
from fedcohort.errors import SelectorError, SimulationError
from fedcohort.memory import Difference, EstimatorName
from fedcohort.optimizers import ServerOptimizer
from fedcohort.selector import Selector
from fedcohort.selector.open_round import FailureRule, OnFailure
from fedcohort.simulation.data.partitions import FederatedData
from fedcohort.simulation.devices.devices import Devices
from fedcohort.simulation.engine.local_training import LocalTraining, keep_numbers, keep_positive
from fedcohort.streams import Stream, stream

#: The first line of a checkpoint.
FORMAT = "fedcohort checkpoint 2"


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the server, besides the drawing of clients.

    Attributes
    ----------
    server_lr
        The server's learning rate.
    measure_every
        Measure loss and accuracy after every n-th round, and after the last.
    oracle_every
        Train all clients in every n-th round, to compare with full participation; None: never.
    sketch
        How many numbers of an update the memory keeps; None keeps it whole.
    rows_every
        Record every client's distribution in every n-th round; None: never.
    rebuild_every
        Build designs that learn in every n-th round only.
    measure_clients
        Measure loss and accuracy of a sample of clients: this many draws by importance, made once.
        None, or as many draws as clients: all are measured.
    overlap
        Build the next design while clients train, from the updates up to the round before.
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"``: a GPU if there is one.
    """

    server_lr: float = 1.0
    measure_every: int = 1
    oracle_every: int | None = None
    sketch: int | None = None
    rows_every: int | None = None
    rebuild_every: int = 1
    measure_clients: int | None = None
    overlap: bool = False
    device: str = "auto"

    __repr__ = record_repr

    def __post_init__(self) -> None:
        optional = ("oracle_every", "sketch", "rows_every", "measure_clients")
        given = [name for name in optional if getattr(self, name) is not None]
        keep_positive(self, "measure_every", "rebuild_every", *given)
        keep_numbers(self, "server_lr")
        if self.device not in COMPUTE_DEVICES:
            raise SimulationError(
                f"Options: device must be auto, cpu or cuda; got {brief(self.device)}. 'auto' "
                f"takes a GPU if there is one."
            )

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
class Run:
    """One design on one data set with one seed.

    Attributes
    ----------
    recipe, data, seed
        How clients are drawn, what they hold, and the seed of everything random, an integer. Runs
        with one seed can be compared round by round.
    estimator
        ``"plain"``, ``"difference"``, or a :class:`fedcohort.Difference`.
    devices
        What clients train on; None: all are equal (``Devices.equal``) and always available.
    failures
        The chance that a drawn client sends no update, one number or one per client; None: 0.
        Failures are drawn in every round from a stream of their own: two runs with one seed lose
        the same clients.
    on_failure, tries, extra
        What happens to the weight of lost clients; see :class:`fedcohort.Selector`. With
        ``extra``, clients answer in the order of their durations.
    optimizer
        How the server moves along the aggregate, one of ``fedcohort.optimizers``; its step is
        multiplied by ``server_lr``. None: the aggregate itself.
    lr, mu, server_lr
        Replace those of the simulation's ``LocalTraining`` and ``Options`` in this run; None: as
        there. Runs that differ in them still train together.
    """

    recipe: Recipe
    data: FederatedData
    seed: int = 0
    estimator: EstimatorName | Difference = "plain"
    devices: Devices | None = None
    failures: ArrayLike | None = None
    on_failure: OnFailure = "keep"
    tries: int = 10
    extra: int = 0
    optimizer: ServerOptimizer | None = None
    lr: float | None = None
    mu: float | None = None
    server_lr: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.recipe, Recipe) or not isinstance(self.data, FederatedData):
            raise SimulationError(
                f"Run: needs a Recipe and FederatedData; got {brief(self.recipe)} and "
                f"{brief(self.data)}. Pass for example Run(SizeClustered(10), data)."
            )
        # Refuse a generator and None: compared runs must share one seed.
        way_out = "Pass one seed to all runs that are to be compared."
        seed = checked_whole("Run", "seed", self.seed, way_out=way_out)
        object.__setattr__(self, "seed", seed)
        # One form for each estimator, since it is part of a checkpoint's fingerprint.
        settings = estimator_for("Run", self.recipe, self.estimator, error=SimulationError)
        object.__setattr__(self, "estimator", settings or "plain")
        FailureRule(self.on_failure, self.tries, self.extra)
        if not isinstance(self.optimizer, ServerOptimizer | None):
            raise SimulationError(
                f"Run: optimizer must be one of fedcohort.optimizers, or None; got "
                f"{brief(self.optimizer)}. Pass for example SGD(momentum=0.9)."
            )
        keep_numbers(self, *self.rates())
        if self.failures is not None:
            object.__setattr__(self, "failures", self._chances(self.failures))

    def __repr__(self) -> str:
        estimator = f", estimator={record_repr(self.estimator)}"
        how = "" if self.estimator == "plain" else estimator
        how += "" if self.optimizer is None else f", optimizer={record_repr(self.optimizer)}"
        recipe, clients = record_repr(self.recipe), f"{self.data.n_clients} clients"
        return f"Run({recipe}, {clients}, seed={self.seed}{how})"

    def _chances(self, failures: ArrayLike) -> NDArray[np.float64]:
        """Return one chance per client."""
        chances = np.asarray(failures, dtype=np.float64)
        n = self.data.n_clients
        if chances.shape not in ((), (n,)) or not ((chances >= 0) & (chances <= 1)).all():
            raise SimulationError(
                f"Run: failures must be a chance from 0 to 1, or one for each of the {n} clients; "
                f"got {brief(failures)}. Pass for example 0.1."
            )
        return np.broadcast_to(chances, (n,)).copy()

    def selector(self, options: Options | None = None) -> Selector:
        """Make the run's selector; refuse clients that cannot be drawn from."""
        options = options or Options()
        # A recipe that needs a design in every round gets one.
        every = 1 if self.recipe.signals else options.rebuild_every
        return Selector(
            self.recipe,
            self.data.population,
            seed=self.seed,
            estimator=self.estimator,
            sketch=options.sketch,
            on_failure=self.on_failure,
            tries=self.tries,
            extra=self.extra,
            overlap=options.overlap,
            rebuild_every=every,
        )

    def rates(self) -> dict[str, float]:
        """Return what of ``lr``, ``mu`` and ``server_lr`` the run has of its own."""
        found = {name: getattr(self, name) for name in ("lr", "mu", "server_lr")}
        return {name: value for name, value in found.items() if value is not None}

    def local(self, training: LocalTraining) -> LocalTraining:
        """Return what the run's clients do, given what clients of other runs do."""
        lr = training.lr if self.lr is None else self.lr
        return replace(training, lr=lr, mu=training.mu if self.mu is None else self.mu)

    def failing(self, round_: int) -> NDArray[np.bool_]:
        """Return who would send no update in a round if drawn, shape (n_clients,)."""
        chances = np.zeros(self.data.n_clients) if self.failures is None else self.failures
        rng = stream(self.seed, round_=round_, use=Stream.FAILURES)
        return np.asarray(rng.random(self.data.n_clients) < np.asarray(chances))

    def parts(self) -> list[object]:
        """Return what identifies the run in a checkpoint, without its data."""
        rule = (self.on_failure, self.tries, self.extra)
        devices = [] if self.devices is None else self.devices.parts()
        rates = list(self.rates().items())
        how = [(self.recipe, self.seed, self.estimator), self.optimizer, rule, self.failures]
        return [*how, *devices, *rates]


def check_together(runs: Sequence[Run]) -> None:
    """Refuse runs on several data sets, and runs that would keep their rows in the same file."""
    if not runs or any(run.data.dataset is not runs[0].data.dataset for run in runs):
        raise SimulationError(
            f"Simulation: needs at least one run, all on one data set; got {len(runs)} runs. "
            f"Load the data set once, and make a simulation for each."
        )
    settings = [run.estimator for run in runs if isinstance(run.estimator, Difference)]
    files = [Path(each.file).resolve() for each in settings if each.file is not None]
    for file in files:
        if files.count(file) > 1:
            raise SimulationError(
                f"Simulation: every run needs a file of rows of its own; got {file} more than "
                f"once. Name another file in each Difference(file=...)."
            )


def read_checkpoint(
    path: Path, *, expected: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the head and the arrays of a simulation with this fingerprint; refuse other files."""
    try:
        arrays = read_arrays(path, FORMAT)
    except (OSError, ValueError) as error:
        raise SimulationError(
            f"checkpoint {path}: cannot be read ({error}). Start again, or use another file."
        ) from error
    head = json.loads(str(arrays.pop("head")))
    differ = [name for name in expected if head["fingerprint"].get(name) != expected[name]]
    if differ:
        raise SimulationError(
            f"checkpoint {path}: was written by another simulation; {', '.join(differ)} "
            f"differ. Use the same arguments, or start again."
        )
    return head, arrays


@contextmanager
def refusing_checkpoint(path: Path) -> Iterator[None]:
    """Say in one sentence why a selector cannot be restored from a checkpoint."""
    try:
        yield
    except SelectorError as error:
        why = str(error.__cause__ or error).partition(". ")[0]
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
        "options": replace(options, device="auto"),
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
