"""Start three Fed-BioMed nodes here, train, kill one, restart from a breakpoint, stop everything.

Run it as ``python examples/fedbiomed-tabular/demo.py`` in an environment with
``fedbiomed[researcher,node]`` and fedcohort: one to two minutes on 2 cores.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from local_nodes import LocalNodes

ROWS = {"Nice": 200, "Lyon": 120, "Brest": 80}
VICTIM = "Brest"


def main() -> int:
    """Train five rounds, lose a node in one of them, and train three more after a restart."""
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.monotonic()
        with LocalNodes(folder, ROWS) as nodes:
            print(f"three nodes are starting ({time.monotonic() - start:.0f} s)", flush=True)
            experiment = experiment_on(nodes, folder / "cohorts.jsonl")
            start = time.monotonic()
            experiment.run(rounds=3)
            kill_when_drawn(experiment.strategy(), nodes)
            experiment.run(rounds=3, increase=True)
            print(f"six rounds ({time.monotonic() - start:.0f} s)", flush=True)
            show(folder / "cohorts.jsonl", nodes.names())
            return restarted(nodes, folder / "cohorts.jsonl")


def experiment_on(nodes: LocalNodes, log_file: Path) -> Any:
    """Return an experiment whose nodes are drawn by the recipe, as soon as all are there."""
    from fedbiomed.common.logger import logger
    from fedbiomed.researcher.federated_workflows import Experiment
    from training_plan import LinearPlan

    from fedcohort import SizeClustered
    from fedcohort.fedbiomed import CohortStrategy

    logger.setLevel("ERROR")
    strategy = CohortStrategy(SizeClustered(2), seed=0, log_file=log_file)
    experiment = Experiment(
        tags=["patients"],
        training_plan_class=LinearPlan,
        model_args={"n_features": 2, "n_classes": 2, "eta0": 0.01},
        training_args={"epochs": 1, "loader_args": {"batch_size": 16}},
        node_selection_strategy=strategy,
        save_breakpoints=True,
    )
    while len(experiment.requests.ping_nodes()) < len(nodes.rows):
        time.sleep(0.5)
    experiment.set_training_data(None, from_tags=True)
    strategy.attach(experiment)
    return experiment


def kill_when_drawn(strategy: Any, nodes: LocalNodes) -> None:
    """Kill the victim between a draw and its training, where Fed-BioMed cannot know it yet."""
    draw = strategy.sample_nodes

    def draw_and_kill(from_nodes: list[str], round_i: int) -> list[str]:
        drawn: list[str] = draw(from_nodes, round_i)
        if VICTIM in [nodes.names()[node] for node in drawn]:
            strategy.sample_nodes = draw
            nodes.kill(VICTIM)
            print(f"{VICTIM} is drawn in round {round_i}, and killed", flush=True)
        return drawn

    strategy.sample_nodes = draw_and_kill


def restarted(nodes: LocalNodes, log_file: Path) -> int:
    """Go on from the last breakpoint, as after a restart of the researcher."""
    from fedbiomed.researcher.federated_workflows import Experiment

    experiment = Experiment.load_breakpoint()
    experiment.strategy().attach(experiment)
    before = len(log_file.read_text().splitlines())
    experiment.run(rounds=2, increase=True)
    print("two rounds after a restart from the breakpoint")
    show(log_file, nodes.names(), first=before)
    return 0


def show(log_file: Path, names: dict[str, str], first: int = 0) -> None:
    """Print who was drawn with what weight, and who failed."""
    for line in log_file.read_text().splitlines()[first:]:
        found = json.loads(line)
        weights = {names[node]: round(weight, 3) for node, weight in found["weights"].items()}
        failed = {names[node]: reason for node, reason in found["failed"].items()}
        print(f"  round {found['round']}: weights {weights}, failed {failed or 'none'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
