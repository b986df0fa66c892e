"""The round loop of all runs: ask, draw, train, aggregate, measure, remember."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcohort._archive import json_array, with_prefix, without_prefix, write_archive
from fedcohort._arguments import brief, checked_path, checked_whole, sentence
from fedcohort._display import seconds_left, short_repr
from fedcohort._updates import Layout
from fedcohort.designs import Design
from fedcohort.errors import SimulationError
from fedcohort.simulation.engine.evaluation import ClientQuality, Evaluator, FullParticipation
from fedcohort.simulation.engine.gradients import ParameterLayout, ResidentData
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer, LocalTraining
from fedcohort.simulation.engine.models import (
    ModelSource,
    architecture,
    check_outputs,
    initial_models,
    takes_integers,
)
from fedcohort.simulation.history import History
from fedcohort.simulation.live_run import LiveRun, Positions, RoundState
from fedcohort.simulation.runs import (
    KIND,
    Options,
    Run,
    check_together,
    fingerprint,
    read_checkpoint,
    refusing_checkpoint,
)

#: Called after every round with the number of rounds done and the histories.
OnRound = Callable[[int, list[History]], object]
EXAMPLE = (
    "Pass for example Simulation([run], model, LocalTraining(steps=5, lr=0.1, batch_size=20))."
)
#: The number of progress lines if standard error is not a terminal.
LINES = 10


@final
class Simulation:
    """Several runs on one data set, their clients trained together, round by round.

    Runs with one seed share the initial model and every client's local randomness. They differ
    only by their designs.

    Parameters
    ----------
    runs
        The runs to simulate, all on one data set.
    model
        A function that makes the model (initialised from each run's seed), or a module.
    training
        The local training of every client, unless its run has its own ``lr`` or ``mu``.
    options
        The settings of the server, unless a run has its own ``server_lr``.

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
        check_together(runs)
        self.runs, self.training = tuple(runs), training
        self.options = options or Options()
        device = self.options.torch_device()
        module, models = initial_models(model, [run.seed for run in runs])
        dataset = runs[0].data.dataset
        integers = takes_integers(module, dataset)
        check_outputs(module, dataset, integers=integers)
        module, self._models = module.to(device), models.to(device)
        data = ResidentData(dataset, device, integers=integers)
        slots = sum(min(run.recipe.cohort_size + run.extra, run.data.n_clients) for run in runs)
        each = [run.local(training) for run in runs]
        self._trainer = LocalTrainer(module, training, data, slots=slots, trainings=each)
        shapes = ParameterLayout(module).shapes
        layout = Layout.of_shapes("Simulation", shapes, self._models[0])
        self._live = []
        for run in runs:
            sample = self.options.measured(run.data.n_clients)
            weights, seed = run.population.importance, run.seed
            evaluator = Evaluator(
                module, data, run.data, importance=weights, sample=sample, seed=seed
            )
            self._live.append(LiveRun(run, evaluator, self.options, training, layout=layout))
        # Runs are independent of each other; their matrix products leave the interpreter free.
        self._pool = ThreadPoolExecutor(min(len(runs), torch.get_num_interop_threads()))
        together = sum(run.recipe.learns and not run.overlap for run in runs) > 1
        self._map = self._pool.map if together else map
        self._everyone = FullParticipation(
            [run.data for run in runs],
            module,
            data,
            self._trained,
            self._pool,
            seeds=[run.seed for run in runs],
            floor_clients=self.options.floor_clients,
        )
        self._architecture = architecture(module)
        self._rounds_done = 0

    def __repr__(self) -> str:
        done, device = self.rounds_done, self._models.device.type
        return short_repr(self, runs=len(self.runs), rounds_done=done, device=device)

    @property
    def rounds_done(self) -> int:
        """How many rounds every run has trained, those before a resume included."""
        return self._rounds_done

    @property
    def models(self) -> NDArray[np.float32]:
        """The runs' current parameters, shape (runs, size)."""
        return self._models.cpu().numpy().copy()

    @property
    def histories(self) -> list[History]:
        """The histories so far, one per run."""
        return [run.history for run in self._live]

    def next_designs(self) -> list[Design]:
        """Build the design that every run would draw from next, from its present state.

        All clients count as available. Clients answer what the recipe asks.
        """
        rounds = [run.unplayed(self._rounds_done) for run in self._live]
        with computing_on(self._n_threads):
            self._ask(rounds)
            return [
                run.selector.next_design(now.signals)
                for run, now in zip(self._live, rounds, strict=True)
            ]

    def client_quality(self) -> list[ClientQuality]:
        """Judge every run's current model on each measured client's own samples; NaN for others."""
        pairs = zip(self._live, self._models, strict=True)
        with computing_on(self._n_threads):
            return [run.evaluator.client_quality(model) for run, model in pairs]

    def run(
        self,
        rounds: int,
        *,
        checkpoint: str | Path | None = None,
        every: int = 10,
        progress: bool | OnRound | None = None,
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
            None shows a progress bar if standard error is a terminal. True also writes ten lines
            if it is not, as in a pipe or a notebook. False shows nothing. A function replaces the
            bar: it is called after every round with the number of rounds done and the histories.

        Returns
        -------
        list of History
            One per run, with the rounds of earlier calls.
        """
        more = checked_whole("Simulation", "rounds", rounds, error=SimulationError)
        checked_whole("Simulation", "every", every, least=1, error=SimulationError)
        path = None if checkpoint is None else _checked_path(checkpoint)
        if path is not None and not path.parent.is_dir():
            raise SimulationError(
                f"Simulation: the folder of checkpoint must be there; got {brief(str(path))}. Make "
                f"it first."
            )
        total = self._rounds_done + more
        shown = _shown(progress, done=self._rounds_done, total=total)
        with computing_on(self._n_threads), shown as on_round:
            while self._rounds_done < total:
                self._play(self._rounds_done, last=self._rounds_done == total - 1)
                done = self._rounds_done
                if path is not None and (done % every == 0 or done == total):
                    self.save(path)
                on_round(done, self.histories)
        return self.histories

    def save(self, checkpoint: str | Path) -> None:
        """Write the state after the last whole round to a file."""
        head = {
            "fingerprint": self._fingerprint,
            "rounds_done": self._rounds_done,
            "histories": [history.as_dicts() for history in self.histories],
        }
        arrays: dict[str, NDArray[Any]] = {"head": json_array(head), "models": self.models}
        for k, run in enumerate(self._live):
            arrays |= with_prefix(f"{k}.", run.state())
        write_archive(_checked_path(checkpoint), KIND, arrays)

    def resume(self, checkpoint: str | Path) -> int:
        """Go on where the checkpoint was written; return the number of rounds done.

        The simulation must have been made with the same arguments: the file of another one is
        refused, and nothing changes. On the CPU it then ends bit for bit where an uninterrupted
        one ends.
        """
        path = _checked_path(checkpoint)
        head, arrays = read_checkpoint(path, expected=self._fingerprint)
        with refusing_checkpoint(path):  # before anything changes
            models, rounds_done = torch.from_numpy(arrays["models"]), int(head["rounds_done"])
            if models.shape != self._models.shape:
                raise ValueError(f"its models have the shape {tuple(models.shape)}")
            restored = [
                run.restoring(History.of_dicts(rows), without_prefix(f"{k}.", arrays))
                for k, (run, rows) in enumerate(zip(self._live, head["histories"], strict=True))
            ]
        for take_over in restored:
            take_over()
        self._models.copy_(models)
        self._rounds_done = rounds_done
        return rounds_done

    def _play(self, round_: int, *, last: bool) -> None:
        """Play a round; nothing changes before its end, so it can be interrupted and repeated."""
        lap, runs = stopwatch(), self._live
        for run in runs:
            run.open(round_)
        lap()
        self._ask([run.current for run in runs])
        asking = lap()
        list(self._map(LiveRun.draw, runs))
        self._share_draw_seconds(lap())
        if not last:
            for run in runs:
                run.prepare(self._pool)
        lap()
        steps = self._train(round_)
        moved = self._moved(steps)
        training = asking + lap()
        self._compare(steps, round_)
        shared = lap() / len(runs)
        for run, model in zip(runs, moved, strict=True):
            run.measure(model, last=last)
            run.current.train_seconds, run.current.measure_seconds = training, shared + lap()
        self._models, self._rounds_done = moved, round_ + 1
        for run in runs:
            run.commit()

    def _ask(self, rounds: Sequence[RoundState]) -> None:
        """Collect the signals of all runs; train the clients that report an update's norm."""
        early = [now.early for now in rounds]
        # Kept until the round is over: n_clients x size numbers, as a yardstick needs.
        if any(map(len, early)):
            for now, rows in zip(rounds, self._trained(early, rounds[0].round_), strict=True):
                now.early_updates = rows
        for run, now, model in zip(self._live, rounds, self._models, strict=True):
            run.answer(now, model)

    def _train(self, round_: int) -> list[Tensor]:
        """Train the drawn clients of all runs at once, and return every run's step.

        Clients that trained before the draw do not train again.
        """
        fresh = self._trained([run.current.untrained() for run in self._live], round_)
        updates = [run.current.all_updates(own) for run, own in zip(self._live, fresh, strict=True)]
        # Read the norms of all runs together: on a GPU each reading waits for its work.
        norms = torch.cat([rows.norm(dim=1, dtype=torch.float64) for rows in updates])
        ends = np.cumsum([len(rows) for rows in updates])[:-1]
        parts = np.split(norms.cpu().numpy(), ends)
        return [
            run.receive(rows, own, model)
            for run, rows, own, model in zip(self._live, updates, parts, self._models, strict=True)
        ]

    def _trained(
        self, clients: Sequence[Positions], round_: int, seeds: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Train clients, listed run by run, at once; return each run's updates, one row each.

        ``seeds`` replace the runs' seeds of batches and dropout.
        """
        seeds = [run.seed for run in self.runs] if seeds is None else seeds
        lanes = [
            Lane(k, seed, client, run.data.train[client])
            for k, (run, seed, own) in enumerate(zip(self.runs, seeds, clients, strict=True))
            for client in own.tolist()
        ]
        rows = self._trainer.updates(self._models, lanes, round_)
        return list(rows.split([len(own) for own in clients]))

    def _moved(self, steps: list[Tensor]) -> Tensor:
        """Return every model after its step; keep a model whose next one is not finite.

        Keep its optimiser too, or later steps would not be finite either.
        """
        moves = [run.moved(step) for run, step in zip(self._live, steps, strict=True)]
        moved = self._models + torch.stack(moves)
        finite = moved.isfinite().all(dim=1)
        # tolist waits for the device: its work counts as training time.
        for run, is_finite in zip(self._live, finite.tolist(), strict=True):
            if not is_finite:
                run.stay()
        return torch.where(finite[:, None], moved, self._models)

    def _compare(self, steps: list[Tensor], round_: int) -> None:
        """Compare with full participation, in the rounds that the options ask for."""
        every = self.options.oracle_every
        if every is None or round_ % every:
            return
        rounds = [run.drawn(step) for run, step in zip(self._live, steps, strict=True)]
        sticks = self._everyone.yardsticks(self._models, rounds, round_)
        for run, stick in zip(self._live, sticks, strict=True):
            run.current.yardstick = stick

    def _share_draw_seconds(self, seconds: float) -> None:
        """Divide the building time among designs that were built together."""
        total = sum(run.current.draw_seconds for run in self._live)
        for run in self._live:
            run.current.draw_seconds *= min(1.0, seconds / total) if total else 1.0

    @property
    def _n_threads(self) -> int | None:
        """How many CPU threads to compute on; None: as many as torch is set to."""
        if self.options.threads is None:
            return 1 if self._models.device.type == "cpu" else None
        return min(self.options.threads, os.cpu_count() or 1)

    @cached_property
    def _fingerprint(self) -> dict[str, str]:
        """Identifies this simulation's checkpoints; computed once, since it hashes all data."""
        return fingerprint(self.runs, self.training, self.options, self._architecture)


def _checked_path(checkpoint: object) -> Path:
    return checked_path("Simulation", "checkpoint", checkpoint, error=SimulationError)


def _check_kinds(runs: object, training: object, options: object) -> None:
    """Refuse arguments of another kind."""
    is_list = isinstance(runs, Sequence) and all(isinstance(run, Run) for run in runs)
    for name, fits, needed, value in (
        ("runs", is_list, "a list of Run", runs),
        ("training", isinstance(training, LocalTraining), "a LocalTraining", training),
        ("options", options is None or isinstance(options, Options), "Options or None", options),
    ):
        if not fits:
            raise SimulationError(sentence("Simulation", name, needed, value, EXAMPLE))


@contextmanager
def computing_on(threads: int | None) -> Iterator[None]:
    """Compute on this many CPU threads inside the block; None leaves their number as it is."""
    if threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _blas_on(threads):
            yield
    finally:
        torch.set_num_threads(before)


def _blas_on(threads: int) -> AbstractContextManager[object]:
    """Limit numpy's threads, if the library for it is installed."""
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    return cast(AbstractContextManager[object], threadpool_limits(threads, user_api="blas"))


@contextmanager
def _shown(progress: bool | OnRound | None, *, done: int, total: int) -> Iterator[OnRound]:
    """Yield the function to call after every round."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        need, way_out = "True, False, None or a function", "Pass False to show nothing."
        raise SimulationError(sentence("Simulation", "progress", need, progress, way_out))
    if callable(progress):
        yield progress
    elif progress is not False and sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar(done, total) as advance:
            yield advance
    else:
        yield _lines(done, total) if progress else lambda done, histories: None


def _lines(before: int, total: int) -> OnRound:
    """Write a line after every tenth of the rounds, to standard error."""
    start, said = time.perf_counter(), 0

    def write(now: int, histories: Sequence[History]) -> None:
        nonlocal said
        new, left = now - before, total - now
        tenth = LINES * new // (total - before)
        if tenth == said:
            return
        said = tenth
        loss = f", {text}" if (text := _loss_text(histories)) else ""
        seconds = (time.perf_counter() - start) / new * left
        rest = f"; {seconds_left(seconds)}" if left else ""
        sys.stderr.write(f"round {now} of {total}{loss}{rest}\n")
        sys.stderr.flush()

    return write


@contextmanager
def _bar(done: int, total: int) -> Iterator[OnRound]:
    """Show rounds done, the time left and the last loss; remove the bar at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=24), TimeLeft())
    loss = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True)
    with Progress(*columns, loss, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda now, histories: bar.update(
            task, completed=now, description=_loss_text(histories)
        )


def _loss_text(histories: Sequence[History]) -> str:
    """Return the last loss, or the mean over several runs; nothing before the first."""
    last = [history.last_quality for history in histories]
    losses = [quality.loss for quality in last if quality is not None]
    if not losses:
        return ""
    return f"{'loss' if len(losses) == 1 else 'mean loss'} {np.mean(losses):.4g}"


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since its last call."""
    last = time.perf_counter()

    def lap() -> float:
        nonlocal last
        before, last = last, time.perf_counter()
        return last - before

    return lap
