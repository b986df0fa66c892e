"""The cost of a round, and one run's simulated time: all accounting is here.

**Bytes.** The model and an update are 4 bytes for each trained parameter. A number is 8 bytes. A
client that trains for the cohort gets the model once and sends one update. On top of that

- ``update_norm``: every asked client gets the model, trains, and sends a number; the drawn ones
  then send their updates, and need neither the model nor the training again;
- ``loss``: every asked client gets the model, evaluates it on all its samples, and sends a
  number. (A forward pass takes a third of the time of training.) The drawn ones do not get the
  model again;
- ``duration``: every asked client gets a message of one number, and sends one back. With a recipe
  that *overselects* the asked clients get the model instead and all train; the server observes
  their durations. Clients that are not drawn answer too late: their updates are not received;
- ``past_loss``: every drawn client sends one more number with its update;
- ``past_duration`` and ``past_round`` cost nothing: the server knows them.

**Client seconds.** The computing time of all clients that trained or evaluated, whether their work
was used or not.

**Contacted.** Clients that were sent anything.

**Failures.** A client that fails (``Run(failures=...)``) is sent the model and fails at once: it
neither computes nor answers, and the server does not wait for it. A client whose answer does not
count (over-selection by ``extra``, or training that diverged) has trained, but its update is not
received.

**Simulated seconds.** The server waits first for the slowest asked client's number, then for the
updates of the drawn clients (:meth:`fedcohort.Recipe.waits`; by default the slowest one's). The
server's own computing and measuring take no simulated time. Numbers that travel with an update
take none either. A round without an available client lasts until one comes, and 60 seconds where
clients come by the round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import record_repr
from fedcohort.cohort import NOBODY, Cohort
from fedcohort.designs.recipe import Recipe
from fedcohort.designs.signals import AskedSignal, Request
from fedcohort.errors import SimulationError
from fedcohort.population import Population
from fedcohort.simulation.devices.devices import Devices
from fedcohort.simulation.engine.local_training import LocalTraining

PARAMETER_BYTES = 4
NUMBER_BYTES = 8
#: The time of a forward pass, as a share of the time of training on the sample.
FORWARD = 1 / 3
#: Seconds of a round without an available client: at least, and if none ever comes.
SHORTEST_WAIT = 1e-6
NO_CLIENT_WAIT = 60.0

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a round: bytes, client seconds, clients contacted, and its duration.

    ``bytes_down`` are from the server to clients, ``bytes_up`` back; seconds are simulated. See
    :mod:`fedcohort.simulation.devices.cost` for the rules.
    """

    bytes_down: int
    bytes_up: int
    client_seconds: float
    contacted: int
    simulated_seconds: float

    __repr__ = record_repr


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """How long everything takes in a round, one number per client each, in simulated seconds."""

    get_model: Seconds
    train: Seconds
    send_update: Seconds
    #: One forward pass over the client's samples.
    look: Seconds
    get_number: Seconds
    send_number: Seconds

    @property
    def duration(self) -> Seconds:
        """From getting the model to the update's arrival."""
        return self.get_model + self.train + self.send_update


@dataclass(frozen=True, slots=True)
class _Ask:
    """The work of a client that is asked for a signal."""

    gets_model: bool
    trains: bool = False
    looks: bool = False
    answers: bool = True


ASKING: dict[AskedSignal, _Ask] = {
    "update_norm": _Ask(gets_model=True, trains=True),
    "loss": _Ask(gets_model=True, looks=True),
    "duration": _Ask(gets_model=False),
}
OVERSELECTING = _Ask(gets_model=True, trains=True, answers=False)
NOTHING = _Ask(gets_model=False, answers=False)


def round_cost(
    recipe: Recipe,
    request: Request | None,
    cohort: Cohort,
    times: Times,
    *,
    model_bytes: int,
    idle: NDArray[np.int64] = NOBODY,
    failed: NDArray[np.int64] = NOBODY,
) -> Cost:
    """Count the cost of a round in which ``request`` was asked and ``cohort`` answered.

    ``idle`` are clients that trained for nothing, ``failed`` clients that only got the model.
    """
    asked, ask = NOBODY, NOTHING
    if request is not None:
        late = recipe.overselects and request.signal == "duration"
        asked, ask = request.clients, OVERSELECTING if late else ASKING[request.signal]
    drawn = np.union1d(cohort.clients, idle)
    fresh = np.setdiff1d(drawn, asked, assume_unique=True)
    sent = fresh if ask.gets_model else drawn
    trained = fresh if ask.trains else drawn
    unasked = np.setdiff1d(failed, asked) if ask.gets_model else failed
    down = model_bytes * (len(sent) + len(unasked) + ask.gets_model * len(asked))
    if ask.answers and not ask.gets_model:
        down += NUMBER_BYTES * len(asked)
    n_reported = int("past_loss" in recipe.signals)
    up = (model_bytes + NUMBER_BYTES * n_reported) * len(cohort)
    up += NUMBER_BYTES * ask.answers * len(asked)
    at_asked = times.train * ask.trains + times.look * ask.looks
    computed = [*times.train[trained], *at_asked[asked]]
    return Cost(
        bytes_down=down,
        bytes_up=up,
        client_seconds=math.fsum(computed),
        contacted=len(np.union1d(np.union1d(asked, drawn), failed)),
        simulated_seconds=_asking_seconds(ask, asked, times)
        + _waiting_seconds(recipe, ask, asked, cohort, times),
    )


def _asking_seconds(ask: _Ask, asked: NDArray[np.int64], times: Times) -> float:
    """Return how long the slowest asked client's number takes."""
    if not ask.answers:
        return 0.0
    seconds = times.send_number + (times.get_model if ask.gets_model else times.get_number)
    seconds = seconds + times.train * ask.trains + times.look * ask.looks
    return float(seconds[asked].max(initial=0.0))


def _waiting_seconds(
    recipe: Recipe, ask: _Ask, asked: NDArray[np.int64], cohort: Cohort, times: Times
) -> float:
    """Return how long the drawn clients' answers take from the draw on."""
    left = times.duration
    if ask.answers:  # what was done before the draw is not done again
        left[asked] -= times.get_model[asked] * ask.gets_model + times.train[asked] * ask.trains
    seconds = recipe.waits(left, cohort)
    if not 0 <= seconds < math.inf:
        raise SimulationError(
            f"{recipe.name}: waits must return seconds, at least 0 and finite; got {seconds!r}. "
            f"Return for example durations[cohort.clients].max(initial=0.0)."
        )
    return float(seconds)


@final
class Clock:
    """One run's simulated time; without ``devices`` all are equal, at the default speeds."""

    def __init__(
        self,
        devices: Devices | None,
        population: Population,
        training: LocalTraining,
        *,
        n_parameters: int,
        seed: int,
    ) -> None:
        n_clients = population.n_clients
        self._devices = Devices.equal(n_clients) if devices is None else devices
        if self._devices.n_clients != n_clients:
            raise SimulationError(
                f"Run: devices must be one per client, {n_clients}; got {self._devices.n_clients}. "
                f"Pass for example Devices.equal({n_clients})."
            )
        times = self._devices.availability
        if times is not None and not population.sizes[times._ever(n_clients)].any():
            raise SimulationError(
                "Run: devices must let at least one client with samples be available some time; "
                "none ever is. Give it an interval or a chance."
            )
        self._population, self._seed = population, seed
        self._samples = training.samples_processed(population.sizes)
        self.model_bytes = PARAMETER_BYTES * n_parameters
        self.seconds = 0.0

    @property
    def has_availability(self) -> bool:
        """Whether availability is modelled."""
        return self._devices.availability is not None

    def available(self, round_: int) -> NDArray[np.bool_] | None:
        """Return the availability mask, shape (n_clients,); None if all are always available."""
        if not self.has_availability:
            return None
        return self._devices.available(self.seconds, round_=round_, seed=self._seed)

    def times(self, round_: int) -> Times:
        """Return how long everything takes in a round."""
        devices = self._devices
        pace = devices.delays(self._seed, round_) / devices.speed
        return Times(
            get_model=self.model_bytes / devices.down,
            train=self._samples * pace,
            send_update=self.model_bytes / devices.up,
            look=FORWARD * self._population.sizes * pace,
            get_number=NUMBER_BYTES / devices.down,
            send_number=NUMBER_BYTES / devices.up,
        )

    def idle(self) -> Cost:
        """Return the cost of a round without an available client: time."""
        times, has_samples = self._devices.availability, self._population.sizes > 0
        wait = 0.0 if times is None else times.seconds_until_any(self.seconds, has_samples)
        return Cost(0, 0, 0.0, 0, NO_CLIENT_WAIT if wait == math.inf else max(wait, SHORTEST_WAIT))
