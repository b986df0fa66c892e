"""The round loop: recipe, design, cohort, train, aggregate, remember, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort.cohort import Cohort
from fedcohort.designs import Design, Recipe
from fedcohort.errors import SimulationError
from fedcohort.similarity.memory import UpdateMemory
from fedcohort.simulation.batches import Lane
from fedcohort.simulation.checkpoints import Checkpoint, fingerprint
from fedcohort.simulation.evaluation import Evaluator, Quality
from fedcohort.simulation.federated_data import FederatedData
from fedcohort.simulation.full_gradients import FullGradients
from fedcohort.simulation.history import History, Round
from fedcohort.simulation.local_trainer import LocalTrainer
from fedcohort.simulation.local_training import LocalTraining
from fedcohort.simulation.models import ModelSource, flat_parameters, make_model
from fedcohort.simulation.oracle import Yardstick, yardstick
from fedcohort.simulation.resident_data import ResidentData
from fedcohort.streams import Stream, stream


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training: who is drawn how, on whose data, from which seed."""

    recipe: Recipe
    data: FederatedData
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """What the server does beside drawing.

    Attributes
    ----------
    server_lr
        The server's learning rate.
    measure_every
        Measure loss and accuracy after every so many rounds, and after the last.
    oracle_every
        Train all clients in every so many rounds, to compare with full participation; None never.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    overlap
        Build the next round's design while the clients train, from updates up to the round before.
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
    """

    server_lr: float = 1.0
    measure_every: int = 1
    oracle_every: int | None = None
    sketch: int | None = None
    overlap: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("measure_every", "oracle_every", "sketch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SimulationError(f"Options: {name} must be at least 1; got {value!r}.")

    def torch_device(self) -> torch.device:
        """Return the device, or say that there is none."""
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise SimulationError("Options: device 'cuda' is not available here. Use 'cpu'.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise SimulationError(
                f"Options: device must be auto, cpu or cuda; got {self.device!r}."
            )
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")


@final
class Simulation:
    """Several runs on one data set, their clients trained together, round by round.

    Runs with one seed share the initial model and every client's local randomness, so that a
    difference between them is the design's.

    Parameters
    ----------
    runs
        What to train; all on one data set.
    model
        A function that makes the model (initialised from each run's seed), or a module.
    training
        What every client does.
    options
        What the server does.

    Examples
    --------
    >>> from fedcohort import Multinomial, SizeClustered
    >>> from fedcohort.simulation import iid, load_dataset, mlp
    >>> data = iid(load_dataset("digits"), n_clients=20, seed=0)
    >>> runs = [Run(Multinomial(5), data), Run(SizeClustered(5), data)]
    >>> training = LocalTraining(steps=5, lr=0.1, batch_size=20)
    >>> simulation = Simulation(runs, lambda: mlp(64, 16), training)
    >>> histories = simulation.run(rounds=10)
    >>> [round(history.rounds[-1].quality.loss, 1) < 2.3 for history in histories]
    [True, True]
    """

    def __init__(
        self,
        runs: Sequence[Run],
        model: ModelSource,
        training: LocalTraining,
        options: Options | None = None,
    ) -> None:
        if not runs or any(run.data.dataset is not runs[0].data.dataset for run in runs):
            raise SimulationError(
                f"Simulation: needs at least one run, all on one data set; got {len(runs)} runs. "
                f"Load the data set once, and make a simulation for each."
            )
        self.runs, self.training = tuple(runs), training
        self.options = options or Options()
        device = self.options.torch_device()
        modules = {seed: make_model(model, seed=seed) for seed in {run.seed for run in runs}}
        starts = {seed: flat_parameters(module) for seed, module in modules.items()}
        self._models = torch.stack([starts[run.seed] for run in runs]).to(device)
        shape = next(iter(modules.values())).to(device)
        data = ResidentData(runs[0].data.dataset, device)
        slots = sum(min(run.recipe.cohort_size, run.data.n_clients) for run in runs)
        self._trainer = LocalTrainer(shape, training, data, slots=slots)
        size = self._models.shape[1]
        self._servers = [
            _Server(run, Evaluator(shape, data, run.data), self.options, size) for run in runs
        ]
        self._full_gradients = [FullGradients(shape, data, run.data) for run in runs]
        self._next_round = 0

    @property
    def models(self) -> NDArray[np.float32]:
        """The runs' current parameters, shape (runs, size)."""
        return self._models.cpu().numpy().copy()

    @property
    def histories(self) -> list[History]:
        """What happened so far, run by run."""
        return [server.history for server in self._servers]

    def run(
        self,
        rounds: int,
        *,
        checkpoint: Path | None = None,
        every: int = 10,
        progress: Callable[[int, list[History]], None] | None = None,
    ) -> list[History]:
        """Train until ``rounds`` rounds are done, and return what happened.

        Parameters
        ----------
        rounds
            All rounds, those before a resume included.
        checkpoint
            A file to write the state to, whole, after every ``every`` rounds and the last; None
            writes nothing.
        progress
            Called after every round with the number of rounds done.
        """
        while self._next_round < rounds:
            self._round(self._next_round, last=self._next_round == rounds - 1)
            self._next_round += 1
            if checkpoint is not None and (
                self._next_round % every == 0 or self._next_round == rounds
            ):
                self._checkpoint().save(checkpoint)
            if progress is not None:
                progress(self._next_round, self.histories)
        return self.histories

    def resume(self, checkpoint: Path) -> int:
        """Go on where the checkpoint was written; return the number of rounds done.

        The simulation must have been made with the same arguments. On the CPU it then ends bit for
        bit where an uninterrupted one ends.
        """
        state = Checkpoint.load(checkpoint, expected=self._fingerprint())
        self._models.copy_(torch.from_numpy(state.models))
        for server, history, kept in zip(
            self._servers, state.histories, state.servers, strict=True
        ):
            server.restore(history, kept)
        self._next_round = state.rounds_done
        return self._next_round

    def _round(self, round_: int, *, last: bool) -> None:
        with ThreadPoolExecutor(1) as pool:
            drawn = [server.draw(round_) for server in self._servers]
            lanes = [
                Lane(k, run.seed, int(client), run.data.train[client])
                for k, (run, each) in enumerate(zip(self.runs, drawn, strict=True))
                for client in each.cohort.clients
            ]
            before = self._models.clone()
            if self.options.overlap:
                for server in self._servers:
                    server.prepare(round_ + 1, pool)
            start = time.perf_counter()
            updates = self._trainer.updates(before, lanes, round_)
            own = updates.split([len(each.cohort) for each in drawn])
            for k, (each, update) in enumerate(zip(drawn, own, strict=True)):
                weights = torch.from_numpy(each.cohort.weights).to(update)
                self._models[k] += self.options.server_lr * (weights @ update)
            seconds = time.perf_counter() - start
            for k, server in enumerate(self._servers):
                server.remember(drawn[k].cohort, own[k], round_)
                oracle = self.options.oracle_every
                asked = oracle is not None and round_ % oracle == 0
                stick = self._yardstick(k, drawn[k], own[k], before[k], round_) if asked else None
                server.measure(self._models[k], drawn[k], stick, last=last, train_seconds=seconds)

    def _yardstick(
        self, k: int, drawn: _Drawn, own: Tensor, model: Tensor, round_: int
    ) -> Yardstick:
        """Let all clients train from the round's model."""
        run = self.runs[k]
        lanes = [
            Lane(0, run.seed, client, samples)
            for client, samples in enumerate(run.data.train)
            if len(samples)
        ]
        updates = np.zeros((run.data.n_clients, len(model)), dtype=np.float32)
        trained = self._trainer.updates(model[None], lanes, round_)
        updates[[lane.client for lane in lanes]] = trained.cpu().numpy()
        aggregate = torch.from_numpy(drawn.cohort.weights).to(own) @ own
        gradients = self._full_gradients[k](model).cpu().numpy()
        return yardstick(drawn.design, aggregate.cpu().numpy(), updates, gradients)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            fingerprint=self._fingerprint(),
            rounds_done=self._next_round,
            models=self.models,
            histories=self.histories,
            servers=[server.state() for server in self._servers],
        )

    def _fingerprint(self) -> dict[str, str]:
        options = replace(self.options, device="auto")
        return fingerprint(
            {
                "runs": [(repr(run.recipe), run.seed) for run in self.runs],
                "training": self.training,
                "options": options,
                "parameters": self._models.shape[1],
            },
            [part for run in self.runs for part in run.data.train],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """A round's design and cohort, and how long they took."""

    design: Design
    cohort: Cohort
    seconds: float


class _Server:
    """One run's server: its designs, its memory, and what it has seen."""

    def __init__(self, run: Run, evaluator: Evaluator, options: Options, size: int) -> None:
        self.history = History()
        self._run, self._evaluator, self._options = run, evaluator, options
        self._population = run.data.population
        self._has_class = run.data.class_counts() > 0
        self._memory = (
            UpdateMemory(run.data.n_clients, size, options.sketch, run.seed)
            if run.recipe.learns
            else None
        )
        self._design: Design | None = None
        self._prepared: Callable[[], Design] | None = None
        #: With overlap: updates that the next design must not know yet.
        self._pending: tuple[NDArray[np.int64], NDArray[np.float32], int] | None = None

    def draw(self, round_: int) -> _Drawn:
        """Build the design if something changed, and draw the cohort."""
        start = time.perf_counter()
        if self._prepared is not None:
            self._design, self._prepared = self._prepared(), None
        elif self._design is None or self._run.recipe.learns:
            self._design = self._build(round_)
        self._record_pending()
        cohort = self._design.draw(stream(self._run.seed, round_=round_, use=Stream.COHORT))
        return _Drawn(self._design, cohort, time.perf_counter() - start)

    def prepare(self, round_: int, pool: ThreadPoolExecutor) -> None:
        """Build a learning design in the background, from the memory as it is now."""
        if self._run.recipe.learns:
            self._prepared = pool.submit(self._build, round_).result

    def remember(self, cohort: Cohort, updates: Tensor, round_: int) -> None:
        """Record the cohort's updates; with overlap, once the next design is built."""
        if self._memory is not None:
            self._pending = (cohort.clients, updates.cpu().numpy(), round_)
            if not self._options.overlap:
                self._record_pending()

    def measure(
        self,
        model: Tensor,
        drawn: _Drawn,
        stick: Yardstick | None,
        *,
        last: bool,
        train_seconds: float,
    ) -> None:
        """Add the round to the history, measured if it is its turn."""
        round_ = len(self.history.rounds)
        start = time.perf_counter()
        quality: Quality | None = None
        if last or (round_ + 1) % self._options.measure_every == 0:
            quality = self._evaluator.quality(model)
        cohort = drawn.cohort
        self.history.rounds.append(
            Round(
                round_,
                clients=cohort.clients.tolist(),
                counts=cohort.counts.tolist(),
                weights=cohort.weights.tolist(),
                residual=cohort.residual,
                distinct_classes=int(self._has_class[cohort.clients].any(axis=0).sum()),
                draw_seconds=drawn.seconds,
                train_seconds=train_seconds,
                measure_seconds=time.perf_counter() - start,
                quality=quality,
                yardstick=stick,
            )
        )

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return what a resumed server needs beside its history, as arrays."""
        if self._memory is None:
            return {}
        kept = {f"memory.{name}": array for name, array in self._memory.state().items()}
        if self._pending is not None:
            clients, updates, round_ = self._pending
            kept |= {
                "pending.clients": clients,
                "pending.updates": updates,
                "pending.round": np.array(round_),
            }
        return kept

    def restore(self, history: History, state: dict[str, NDArray[np.generic]]) -> None:
        """Take over what :meth:`state` gave."""
        self.history = history
        self._design, self._prepared, self._pending = None, None, None
        if self._memory is not None:
            memory = {
                name.removeprefix("memory."): array
                for name, array in state.items()
                if name.startswith("memory.")
            }
            self._memory = UpdateMemory.of_state(memory)
        if "pending.clients" in state:
            self._pending = (
                state["pending.clients"].astype(np.int64),
                state["pending.updates"].astype(np.float32),
                int(state["pending.round"]),
            )

    def _build(self, round_: int) -> Design:
        # A design that does not learn is built once: its ties are those of round 0.
        address = round_ if self._run.recipe.learns else 0
        rng = stream(self._run.seed, round_=address, use=Stream.TIES)
        return self._run.recipe.build(self._population, self._memory, None, round_, rng)

    def _record_pending(self) -> None:
        if self._memory is not None and self._pending is not None:
            clients, updates, round_ = self._pending
            self._memory.record(clients, updates, round_=round_)
            self._pending = None
