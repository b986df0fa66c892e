"""The round loop: recipe, design, cohort, train, aggregate, remember, measure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort._arguments import brief
from fedcohort._display import short_repr
from fedcohort.designs import Design
from fedcohort.errors import SimulationError
from fedcohort.simulation.checkpoints import Checkpoint, fingerprint
from fedcohort.simulation.engine.evaluation import Evaluator, FullGradients, Yardstick
from fedcohort.simulation.engine.full_participation import Aggregated, FullParticipation
from fedcohort.simulation.engine.local_trainer import LocalTrainer
from fedcohort.simulation.engine.local_training import Lane, LocalTraining
from fedcohort.simulation.engine.models import (
    ModelSource,
    ResidentData,
    architecture,
    check_outputs,
    check_untrained_parts,
    flat_parameters,
    make_model,
)
from fedcohort.simulation.history import History
from fedcohort.simulation.progress_bar import OnRound, shown
from fedcohort.simulation.runs import Options, Run
from fedcohort.simulation.server import Asked, Drawn, Opening, Outcome, Server, ask_all


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
    >>> options = Options(device="cpu")
    >>> simulation = Simulation(runs, lambda: mlp(64, 16), training, options)
    >>> histories = simulation.run(rounds=10)
    >>> [history.last_quality.loss < 2.3 for history in histories]
    [True, True]
    >>> simulation
    Simulation(runs=2, rounds_done=10, device='cpu')
    """

    def __init__(
        self,
        runs: Sequence[Run],
        model: ModelSource,
        training: LocalTraining,
        options: Options | None = None,
    ) -> None:
        _check_kinds(runs, training, options)
        if not runs or any(run.data.dataset is not runs[0].data.dataset for run in runs):
            raise SimulationError(
                f"Simulation: needs at least one run, all on one data set; got {len(runs)} runs. "
                f"Load the data set once, and make a simulation for each."
            )
        self.runs, self.training = tuple(runs), training
        self.options = options or Options()
        device = self.options.torch_device()
        modules = {seed: make_model(model, seed=seed) for seed in {run.seed for run in runs}}
        check_untrained_parts(list(modules.values()))
        starts = {seed: flat_parameters(module) for seed, module in modules.items()}
        self._models = torch.stack([starts[run.seed] for run in runs]).to(device)
        shape = next(iter(modules.values())).to(device)
        data = ResidentData(runs[0].data.dataset, device)
        check_outputs(shape, data, runs[0].data.dataset.n_classes)
        slots = sum(min(run.recipe.cohort_size + run.extra, run.data.n_clients) for run in runs)
        self._trainer = LocalTrainer(shape, training, data, slots=slots)
        self._evaluators = [Evaluator(shape, data, run.data) for run in runs]
        self._servers = [
            Server(run, evaluator, self.options, training, n_parameters=self._models.shape[1])
            for run, evaluator in zip(runs, self._evaluators, strict=True)
        ]
        # Runs are independent of each other; their matrix products leave the interpreter free.
        self._learners = sum(run.recipe.learns for run in runs)
        self._pool = ThreadPoolExecutor(min(len(runs), os.cpu_count() or 1))
        gradients = [FullGradients(shape, data, run.data) for run in runs]
        self._everyone = FullParticipation(self.runs, self._trainer, gradients, self._pool)
        self._architecture = architecture(shape)
        self._next_round = 0

    def __repr__(self) -> str:
        done, device = self.rounds_done, self._models.device.type
        return short_repr(self, runs=len(self.runs), rounds_done=done, device=device)

    @property
    def rounds_done(self) -> int:
        """How many rounds every run has trained, those before a resume included."""
        return self._next_round

    @property
    def models(self) -> NDArray[np.float32]:
        """The runs' current parameters, shape (runs, size)."""
        return self._models.cpu().numpy().copy()

    @property
    def histories(self) -> list[History]:
        """What happened so far, run by run."""
        return [server.history for server in self._servers]

    def next_designs(self) -> list[Design]:
        """Build the design that every run would draw from next, from what it knows now.

        Where clients come and go: as if all were there. Where a recipe asks them, they are asked.
        """
        openings = [server.open_to_all(self._next_round) for server in self._servers]
        answers = self._ask(openings)
        return [
            server.selector.next_design(answer.signals)
            for server, answer in zip(self._servers, answers, strict=True)
        ]

    def run(
        self,
        rounds: int,
        *,
        checkpoint: Path | None = None,
        every: int = 10,
        progress: bool | OnRound = True,
    ) -> list[History]:
        """Train ``rounds`` more rounds, and return all that has happened so far.

        Two calls ``run(10)`` train 20 rounds. After :meth:`resume`, train what is left with
        ``run(total - simulation.rounds_done)``.

        Parameters
        ----------
        rounds
            How many rounds to train in this call; 0 trains none.
        checkpoint
            A file to write the state to, whole, after every ``every`` rounds and the last; None
            writes nothing.
        every
            How many rounds lie between checkpoints.
        progress
            True shows a progress bar if standard error is a terminal, False shows none. A function
            replaces the bar: it is called after every round with the number of rounds done and the
            histories.

        Returns
        -------
        list of History
            One per run, with the rounds of earlier calls.

        Raises
        ------
        SimulationError
            If ``rounds`` is no whole number of at least 0, ``every`` none of at least 1, or the
            folder of ``checkpoint`` is not there.
        """
        total = self._next_round + _checked("rounds", rounds, 0, "Pass how many more to train.")
        _checked("every", every, 1, "Pass the rounds between checkpoints.")
        if checkpoint is not None and not Path(checkpoint).parent.is_dir():
            raise SimulationError(
                f"Simulation: the folder of checkpoint must be there; got "
                f"{brief(str(checkpoint))}. Make it first."
            )
        with shown(progress, done=self._next_round, total=total) as on_round:
            while self._next_round < total:
                self._round(self._next_round, last=self._next_round == total - 1)
                done = self._next_round
                if checkpoint is not None and (done % every == 0 or done == total):
                    self.save(Path(checkpoint))
                on_round(done, self.histories)
        return self.histories

    def save(self, checkpoint: Path) -> None:
        """Write the state after the last whole round to a file."""
        self._checkpoint().save(Path(checkpoint))

    def resume(self, checkpoint: Path) -> int:
        """Go on where the checkpoint was written; return the number of rounds done.

        The simulation must have been made with the same arguments. On the CPU it then ends bit for
        bit where an uninterrupted one ends.

        Raises
        ------
        SimulationError
            If the file cannot be read, or another simulation has written it.
        """
        state = Checkpoint.load(Path(checkpoint), expected=self._fingerprint)
        self._models.copy_(torch.from_numpy(state.models))
        for server, history, kept in zip(
            self._servers, state.histories, state.servers, strict=True
        ):
            server.restore(history, kept)
        self._next_round = state.rounds_done
        return self._next_round

    def _round(self, round_: int, *, last: bool) -> None:
        together = self._learners > 1 and not self.options.overlap
        each = self._pool.map if together else map
        openings = [server.open(round_) for server in self._servers]
        start = time.perf_counter()
        answers = self._ask(openings)
        asking = time.perf_counter() - start
        start = time.perf_counter()
        signals = [answer.signals for answer in answers]
        drawn = list(each(Server.draw, self._servers, openings, signals))
        drawn = _sharing_time(drawn, time.perf_counter() - start)
        if self.options.overlap and not last:
            for server in self._servers:
                server.prepare(self._pool)
        start = time.perf_counter()
        outcomes = self._trained_outcomes(drawn, answers, round_)
        steps = [
            server.selector.step(outcome.updates, outcome.clients)
            for server, outcome in zip(self._servers, outcomes, strict=True)
        ]
        moved, stays = self._moved(steps)
        seconds = asking + time.perf_counter() - start
        start = time.perf_counter()
        sticks, lost = self._yardsticks(drawn, steps, round_)
        shared = (time.perf_counter() - start) / len(self.runs)
        judged = []
        for k, server in enumerate(self._servers):
            start = time.perf_counter()
            quality = server.measure(moved[k], round_, last=last)
            judged.append(
                replace(
                    outcomes[k],
                    has_diverged=answers[k].diverged or stays[k] or lost[k],
                    quality=quality,
                    yardstick=sticks[k],
                    train_seconds=seconds,
                    measure_seconds=shared + time.perf_counter() - start,
                )
            )
        # Nothing has changed so far: an interrupted round can be played again.
        self._models, self._next_round = moved, round_ + 1
        for server, one, outcome in zip(self._servers, drawn, judged, strict=True):
            server.commit(one, outcome)

    def _ask(self, openings: list[Opening]) -> list[Asked]:
        """Let the asked clients of all runs answer, from the round's models."""
        round_ = openings[0].round_
        return ask_all(
            openings, self._evaluators, self._models, lambda who: self._trained(who, round_)
        )

    def _trained_outcomes(
        self, drawn: list[Drawn], answers: list[Asked], round_: int
    ) -> list[Outcome]:
        """Train the clients of all runs at once; leave out updates that are not finite.

        Clients that have trained before the draw do not train again.
        """
        left = [a.untrained(one.trains) for a, one in zip(answers, drawn, strict=True)]
        who = [(k, int(client)) for k, clients in enumerate(left) for client in clients]
        fresh = self._trained(who, round_).split([len(clients) for clients in left])
        updates = [
            a.with_updates_of(one.trains, own)
            for a, one, own in zip(answers, drawn, fresh, strict=True)
        ]
        # One look at all of them: on a GPU each look waits for its work.
        finite = torch.cat([rows.isfinite().all(dim=1) for rows in updates]).cpu().numpy()
        parts = np.split(finite, np.cumsum([len(one.trains) for one in drawn])[:-1])
        outcomes = []
        for server, model, one, rows, good in zip(
            self._servers, self._models, drawn, updates, parts, strict=True
        ):
            clients = one.trains[good]
            rows = rows if good.all() else rows[torch.from_numpy(good).to(rows.device)]
            losses = server.reported_losses(model, clients)
            outcomes.append(Outcome(clients, rows, one.trains[~good], losses=losses))
        return outcomes

    def _trained(self, who: list[tuple[int, int]], round_: int) -> Tensor:
        """Train these clients of these runs; one update each."""
        lanes = [
            Lane(k, self.runs[k].seed, client, self.runs[k].data.train[client]) for k, client in who
        ]
        return self._trainer.updates(self._models, lanes, round_)

    def _moved(self, steps: list[Tensor]) -> tuple[Tensor, list[bool]]:
        """Move every model by its step; one that would not be finite stays where it is.

        Returns the models, and which of them stay for that reason.
        """
        moved = self._models + self.options.server_lr * torch.stack(steps)
        finite = moved.isfinite().all(dim=1)
        moved = torch.where(finite[:, None], moved, self._models)
        return moved, (~finite).tolist()  # waits for the device: the time is its work

    def _yardsticks(
        self, drawn: list[Drawn], steps: list[Tensor], round_: int
    ) -> tuple[list[Yardstick | None], list[bool]]:
        """Where it is asked for, let all clients train from the round's models, and compare.

        Returns the yardsticks, and of which runs they are not finite.
        """
        every = self.options.oracle_every
        if every is None or round_ % every:
            return [None] * len(self.runs), [False] * len(self.runs)
        facts = [
            None if one.design is None else Aggregated(one.design, step, server.selector.variates)
            for one, step, server in zip(drawn, steps, self._servers, strict=True)
        ]
        sticks = self._everyone.yardsticks(self._models, facts, round_)
        return sticks, [stick is not None and not stick.is_finite for stick in sticks]

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            fingerprint=self._fingerprint,
            rounds_done=self._next_round,
            models=self.models,
            histories=self.histories,
            servers=[server.state() for server in self._servers],
        )

    @cached_property
    def _fingerprint(self) -> dict[str, str]:
        """What checkpoints are recognised by; hashes the whole data set, so once."""
        dataset = self.runs[0].data.dataset
        return fingerprint(
            {
                "runs": [part for run in self.runs for part in run.parts()],
                "training": self.training,
                "options": replace(self.options, device="auto"),
                "model": self._architecture,
                "data": [
                    *(dataset.x, dataset.y, dataset.test_x, dataset.test_y),
                    (dataset.scale, dataset.shift),
                    *(part for run in self.runs for part in run.data.train + run.data.test),
                ],
            }
        )


def _check_kinds(runs: object, training: object, options: object) -> None:
    """Refuse arguments of another kind."""
    is_list = isinstance(runs, Sequence) and all(isinstance(run, Run) for run in runs)
    for name, fits, needed, value in (
        ("runs", is_list, "a list of Run", runs),
        ("training", isinstance(training, LocalTraining), "a LocalTraining", training),
        ("options", options is None or isinstance(options, Options), "Options or None", options),
    ):
        if not fits:
            raise SimulationError(
                f"Simulation: {name} must be {needed}; got {brief(value)}. Pass for example "
                f"Simulation([run], model, LocalTraining(steps=5, lr=0.1, batch_size=20))."
            )


def _checked(name: str, value: int, least: int, way_out: str) -> int:
    """Validate a whole number."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise SimulationError(
            f"Simulation: {name} must be a whole number of at least {least}; got {brief(value)}. "
            f"{way_out}"
        )
    return int(value)


def _sharing_time(drawn: list[Drawn], seconds: float) -> list[Drawn]:
    """Let designs that were built at once share the time that this took."""
    total = sum(each.seconds for each in drawn)
    if total <= seconds:
        return drawn
    return [replace(each, seconds=each.seconds * seconds / total) for each in drawn]
