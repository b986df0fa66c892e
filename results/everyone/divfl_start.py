"""Tell whether DivFL's lead is its choice of clients, or the model that its first rounds leave.

Run ``python results/everyone/divfl_start.py``, some minutes on a core: DivFL trains for 100 rounds
on the federation of seed 0; from its model full participation goes on for 100 rounds, and so does
DivFL with an empty memory. Prints the training loss of every 20th round.
"""

from pathlib import Path

import torch
from torch.nn.utils import vector_to_parameters

from fedcohort import DivFL, Uniform
from fedcohort.experiments.experiment_file import read_experiment
from fedcohort.simulation import LocalTraining, Options, Run, Simulation, load_dataset, mlp
from fedcohort.simulation.history import History

FILE = Path(__file__).parents[2] / "experiments" / "everyone.toml"
TRAINING = LocalTraining(steps=50, batch_size=50, lr=0.01)
OPTIONS = Options(device="cpu", measure_every=20)


def show(name: str, history: History) -> None:
    """Print the losses that were measured."""
    losses = [each.quality.loss for each in history.rounds if each.quality is not None]
    print(f"{name:44}", *(f"{loss:.3f}" for loss in losses), flush=True)


def main() -> None:
    """Train, and go on from there."""
    torch.set_num_threads(1)
    data = read_experiment(FILE).panels[0].data.federation(load_dataset("mnist"), 0)
    first = Simulation([Run(DivFL(10), data)], mlp, TRAINING, OPTIONS)
    show("divfl", first.run(100)[0])
    model = mlp()
    vector_to_parameters(torch.from_numpy(first.models[0]), model.parameters())
    everyone, anew = Run(Uniform(100), data), Run(DivFL(10), data)
    histories = Simulation([everyone, anew], model, TRAINING, OPTIONS).run(100)
    show("from there: full participation", histories[0])
    show("from there: divfl with an empty memory", histories[1])


if __name__ == "__main__":
    main()
