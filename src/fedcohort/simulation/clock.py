"""One run's simulated time: how long clients take, who is there, and how late it is."""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import SimulationError
from fedcohort.population import Population
from fedcohort.simulation.cost import FORWARD, NUMBER_BYTES, PARAMETER_BYTES, Cost, Times, idle_cost
from fedcohort.simulation.devices import Devices
from fedcohort.simulation.local_training import LocalTraining


@final
class Clock:
    """Knows the devices, and counts the seconds.

    Parameters
    ----------
    devices
        Of the run's clients; None: all equal, at the default speeds.
    population
        The clients.
    training
        What a client does in a round.
    n_parameters, seed
        Of the model, and the run's.
    """

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
                f"Run: devices must be one per client, {n_clients}; got {self._devices.n_clients}."
            )
        times = self._devices.availability
        if times is not None and not population.sizes[times.client].any():
            raise SimulationError(
                "Run: devices must let at least one client with samples be available some time; "
                "none ever is. Give it an interval."
            )
        self._population, self._seed = population, seed
        self._samples = training.samples_processed(population.sizes)
        self.model_bytes = PARAMETER_BYTES * n_parameters
        self.now = 0.0

    @property
    def has_availability(self) -> bool:
        """Whether availability is modelled."""
        return self._devices.availability is not None

    def available(self) -> NDArray[np.bool_] | None:
        """Return who is there now, shape (n_clients,); None: everyone, always."""
        return self._devices.available(self.now) if self.has_availability else None

    def times(self, round_: int) -> Times:
        """Return how long everything takes in a round."""
        if self._devices.jitter == 0:
            return self._steady
        return self._paced(self._devices.delays(self._seed, round_))

    @cached_property
    def _steady(self) -> Times:
        return self._paced(np.ones(self._population.n_clients))

    def _paced(self, delays: NDArray[np.float64]) -> Times:
        devices = self._devices
        pace = delays / devices.speed
        return Times(
            get_model=self.model_bytes / devices.down,
            train=self._samples * pace,
            send_update=self.model_bytes / devices.up,
            look=FORWARD * self._population.sizes * pace,
            get_number=NUMBER_BYTES / devices.down,
            send_number=NUMBER_BYTES / devices.up,
        )

    def idle(self) -> Cost:
        """Return what it costs that nobody is there now."""
        availability = self._devices.availability
        someone: NDArray[np.bool_] = self._population.sizes > 0
        if availability is None:
            return idle_cost(0.0)
        return idle_cost(availability.seconds_until_somebody(self.now, someone))
