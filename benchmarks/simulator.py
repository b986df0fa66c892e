"""The simulator, side by side with a plain PyTorch loop.

Run ``python benchmarks/simulator.py [--json]``: some minutes on 2 cores. On one CPU thread, in CPU
time: the paper's figure-1 round (10 of 100 clients, 784-50-10, 50 steps of batch 50), with and
without the loss of all 100 clients. Where there is a GPU, in wall-clock time: a CIFAR round of
figure 2 (10 clients, the paper's CNN, 100 steps of batch 50). Inputs are random: time does not
depend on them. Then 3,550 clients with 122,570 parameters train, for their memory; similarity
trains with and without overlap, for its time and its loss; 10 of 1,000 clients train with each form
of the two estimators, and 10 of 10,000 clients with each design, over the time of plain multinomial
sampling of 1,000 clients. Last, a small model trains beside a busy process on every
core, with a thread per core, over the time on one thread, which is the default.

Bars: train_ratio 0.40, train_eval_ratio 0.50, gpu_ratio 0.10, memory 4 GB, each estimator 1.2.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcohort import (
    Difference,
    Multinomial,
    Recipe,
    Regression,
    SimilarityClustered,
    SizeClustered,
    Tournament,
)
from fedcohort.simulation import (
    Dataset,
    FederatedData,
    LocalTraining,
    Options,
    Run,
    Simulation,
    cnn,
    iid,
    load_dataset,
    mlp,
    one_class_shards,
)
from fedcohort.simulation.data.datasets import data_folder
from fedcohort.simulation.engine.evaluation import Evaluator
from fedcohort.simulation.engine.gradients import ResidentData
from fedcohort.simulation.engine.local_training import Lane, LocalTrainer
from fedcohort.simulation.engine.models import flat_parameters, make_model
from measurement import cell_or, in_own_process, machine, peak_megabytes

ROUNDS = 9


def federation(shape: tuple[int, ...], n_clients: int, samples: int) -> FederatedData:
    """Random bytes of a data set's shape, as many for every client."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(n_clients * samples, *shape), dtype=np.uint8)
    y = rng.integers(10, size=len(x))
    parts = tuple(np.arange(len(x)).reshape(n_clients, samples))
    dataset = Dataset(x, y, x[:0], y[:0], n_classes=10, scale=1 / 255)
    return FederatedData(dataset, parts, tuple(part[:0] for part in parts))


def plain_round(
    model: nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]], steps: int, batch: int
) -> list[nn.Module]:
    """Train one client after the other, as a first program would: data in float, on the device."""
    trained = []
    for x, y in clients:
        local = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(local.parameters(), lr=0.01)
        for _ in range(steps):
            rows = torch.randperm(len(x), device=x.device)[:batch]
            optimizer.zero_grad()
            cross_entropy(local(x[rows]), y[rows]).backward()
            optimizer.step()
        trained.append(local)
    return trained


@torch.no_grad()
def plain_loss(model: nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Evaluate every client, one after the other."""
    model.eval()
    return sum(cross_entropy(model(x), y).item() for x, y in clients) / len(clients)


def median_of(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the median time of ``work`` in milliseconds, after one call that does not count."""
    work()
    times = []
    for _ in range(ROUNDS):
        start = clock()
        work()
        times.append(clock() - start)
    return 1e3 * float(np.median(times))


def floats(data: FederatedData, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every client's samples as a plain program holds them."""
    dataset = data.dataset
    return [
        (
            torch.from_numpy(dataset.x[part]).to(device).float() / 255,
            torch.from_numpy(dataset.y[part]).to(device),
        )
        for part in data.train
    ]


def cpu_cell() -> dict[str, float]:
    """Measure the figure-1 round on one thread."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    data = federation((1, 28, 28), 100, 500)
    model = make_model(mlp, seed=0)
    resident = ResidentData(data.dataset, device)
    trainer = LocalTrainer(model, LocalTraining(steps=50, lr=0.01), resident)
    importance = data.population.importance
    evaluator = Evaluator(model, resident, data, importance=importance)
    theta = flat_parameters(model)
    drawn = list(range(0, 100, 10))
    lanes = [Lane(0, 0, client, data.train[client]) for client in drawn]
    clients = floats(data, device)
    chosen = [clients[client] for client in drawn]

    def ours() -> None:
        trainer.updates(theta[None], lanes, round_=0)

    def ours_measured() -> None:
        ours()
        evaluator.losses_of(theta, np.arange(data.n_clients))

    def plain() -> None:
        plain_round(model, chosen, 50, 50)

    def plain_measured() -> None:
        plain()
        plain_loss(model, clients)

    clock = time.process_time
    times = {
        "train_ms": median_of(ours, clock),
        "plain_train_ms": median_of(plain, clock),
        "train_eval_ms": median_of(ours_measured, clock),
        "plain_train_eval_ms": median_of(plain_measured, clock),
    }
    return {
        **times,
        "train_ratio": times["train_ms"] / times["plain_train_ms"],
        "train_eval_ratio": times["train_eval_ms"] / times["plain_train_eval_ms"],
    }


def gpu_cell() -> dict[str, float]:
    """Measure the CIFAR round on a GPU, every run's clients in one graph."""
    device = torch.device("cuda")
    data = federation((3, 32, 32), 100, 500)
    model = make_model(cnn, seed=0).to(device)
    resident = ResidentData(data.dataset, device)
    training = LocalTraining(steps=100, lr=0.05)
    theta = flat_parameters(model).to(device)
    lanes = [Lane(0, 0, client, data.train[client]) for client in range(70)]
    chosen = floats(data, device)[:10]

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def ours(n_lanes: int) -> Callable[[], object]:
        trainer = LocalTrainer(model, training, resident, slots=n_lanes)
        return lambda: trainer.updates(theta[None], lanes[:n_lanes], round_=0)

    plain = median_of(lambda: plain_round(model, chosen, 100, 50), clock)
    one, seven = median_of(ours(10), clock), median_of(ours(70), clock)
    return {
        "plain_ms": plain,
        "train_ms": one,
        "train_ms_of_7_runs_together": seven / 7,
        "gpu_ratio": one / plain,
        "gpu_ratio_of_7_runs_together": seven / 7 / plain,
    }


def memory_cell() -> dict[str, float]:
    """Let 3,550 clients with the paper's CNN train, their updates sketched to 64 numbers."""
    data = federation((3, 32, 32), 3550, 14)
    run = Run(SimilarityClustered(10), data, sketch=64)
    options = Options(device="cpu", measure_every=3)
    start = time.perf_counter()
    Simulation([run], cnn, LocalTraining(steps=2, lr=0.05), options).run(3)
    return {"memory_mb": peak_megabytes(), "memory_rounds_s": time.perf_counter() - start}


def overlap_cell() -> dict[str, float]:
    """Train figure 1 by similarity, with and without building designs while the clients train.

    On MNIST where it is there, else on digits; one seed, 60 rounds.
    """
    data, model = _one_class_clients()
    found = {}
    for overlap in (False, True):
        run = Run(SimilarityClustered(10), data, overlap=overlap)
        options = Options(device="cpu", measure_every=60)
        simulation = Simulation([run], model, LocalTraining(steps=50, lr=0.01), options)
        simulation.run(10)
        start = time.perf_counter()
        (history,) = simulation.run(50)
        name = "overlap" if overlap else "no_overlap"
        found[f"{name}_ms_per_round"] = 1e3 * (time.perf_counter() - start) / 50
        quality = history.rounds[-1].quality
        assert quality is not None
        found[f"{name}_loss"] = quality.loss
    return found


def _one_class_clients() -> tuple[FederatedData, Callable[[], nn.Module]]:
    rng = np.random.default_rng(0)
    if (data_folder() / "mnist").exists():
        return one_class_shards(load_dataset("mnist"), seed=0).renumbered(rng), mlp
    digits = load_dataset("digits")
    shards = one_class_shards(digits, seed=0, clients_per_class=10, train_size=13, test_size=3)
    return shards.renumbered(rng), lambda: mlp(64)


def ten_of(n_clients: int, recipe: Recipe, **run: Any) -> Simulation:
    """Make a simulation of 10 clients a round: the paper's CNN, 20 steps of batch 20."""
    data = federation((3, 32, 32), n_clients, 20)
    options = Options(measure_every=100, measure_clients=1)
    training = LocalTraining(steps=20, batch_size=20, lr=0.05)
    own = Run(recipe, data, rebuild_every=1 if recipe.signals else 5, **run)
    return Simulation([own], cnn, training, options)


def round_ratios(
    simulations: dict[str, Simulation], *, rounds: int | None = None
) -> tuple[float, dict[str, float]]:
    """Return the milliseconds of a round of the first simulation, and the others' ratios to it.

    All take turns, since the speed of a machine changes; the median turn counts.
    """
    turns, usual = (11, 9) if torch.cuda.is_available() else (5, 1)
    rounds = rounds or usual
    times: dict[str, list[float]] = {name: [] for name in simulations}
    for _ in range(turns):
        for name, simulation in simulations.items():
            start = time.perf_counter()
            simulation.run(rounds)
            times[name].append(1e3 * (time.perf_counter() - start) / rounds)
    first, *others = (np.array(each[1:]) for each in times.values())  # the first turn warms up
    names = list(times)[1:]
    ratios = [float(np.median(each / first)) for each in others]
    return float(np.median(first)), dict(zip(names, ratios, strict=True))


ESTIMATORS = {
    "difference_ratio_float32": Difference(),
    "difference_ratio_int8": Difference(keep="int8"),
    "difference_ratio_rank32": Difference(keep="rank", rank=32),
    "difference_ratio_rank64": Difference(keep="rank", rank=64),
    "regression_ratio_none": Regression(keep=None),
    "regression_ratio_int8": Regression(),
    "regression_ratio_rank32": Regression(keep="rank"),
    "regression_ratio_classes": Regression("classes"),
}


def estimators_cell() -> dict[str, float]:
    """Measure the round of 10 among 1,000 clients, with each estimator and without."""
    simulations = {"plain": ten_of(1000, Multinomial(10))} | {
        name: ten_of(1000, Multinomial(10), estimator=form) for name, form in ESTIMATORS.items()
    }
    plain, ratios = round_ratios(simulations)
    return {"plain_ms_of_1000": plain, **ratios}


def many_cell() -> dict[str, float]:
    """Measure the round of 10 among 10,000 clients by design, over plain rounds of 1,000."""
    recipes = [Multinomial(10), SizeClustered(10), SimilarityClustered(10), Tournament(10)]
    simulations = {"plain": ten_of(1000, Multinomial(10))} | {
        f"ratio_of_10000_{recipe.name}": ten_of(10_000, recipe, sketch=128) for recipe in recipes
    }
    return round_ratios(simulations)[1]


def busy_cell() -> dict[str, float]:
    """Train 10 of 40 clients, 64-50-10, beside as many busy processes as there are cores."""
    cores = os.cpu_count() or 1
    data = iid(load_dataset("digits"), n_clients=40, seed=0)
    training = LocalTraining(steps=5, batch_size=20, lr=0.1)

    def simulation(threads: int | None) -> Simulation:
        options = Options(device="cpu", threads=threads)
        return Simulation([Run(Multinomial(10), data)], lambda: mlp(64), training, options)

    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        one, ratios = round_ratios(
            {"one": simulation(None), "busy_ratio_of_a_thread_per_core": simulation(cores)},
            rounds=30,
        )
    finally:
        for each in others:
            each.kill()
    return {"busy_ms": one, **ratios}


CELLS: dict[str, Callable[[], dict[str, float]]] = {
    "cpu": cpu_cell,
    "gpu": gpu_cell,
    "memory": memory_cell,
    "overlap": overlap_cell,
    "estimators": estimators_cell,
    "many": many_cell,
    "busy": busy_cell,
}
LIMITS = {
    "train_ratio": 0.40,
    "train_eval_ratio": 0.50,
    "gpu_ratio": 0.10,
    "memory_mb": 4000.0,
    **dict.fromkeys(ESTIMATORS, 1.2),
}


def main() -> None:
    """Measure every part in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--only", choices=CELLS, help="measure one part")
    arguments = parser.parse_args()
    parts = [name for name in CELLS if arguments.only in (None, name)]
    results: dict[str, Any] = {"machine": {**machine(), "torch": torch.__version__}}
    for name in parts:
        if name == "gpu" and not torch.cuda.is_available():
            continue
        results |= in_own_process(__file__, name)
    if torch.cuda.is_available():
        results["machine"]["gpu"] = torch.cuda.get_device_name()
    results["kept"] = {
        name: results[name] <= limit for name, limit in LIMITS.items() if name in results
    }
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        print(f"{name:30} {value:.3f}" if isinstance(value, float) else f"{name:30} {value}")


if __name__ == "__main__":
    cell_or(main, CELLS)
