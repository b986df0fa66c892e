"""Train on three Fed-BioMed nodes here, kill one, restart from a breakpoint, let the node back in.

Run it as ``python examples/fedbiomed-tabular/demo.py`` in an environment with fedcohort and
``fedbiomed[researcher,node]``: 60 to 90 seconds on 2 cores, most of it to start Fed-BioMed.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from local_nodes import LocalNodes, wait_for

ROWS = {"Nice": 200, "Lyon": 120, "Brest": 80}
#: Seconds; Fed-BioMed itself waits without limit for a node that does not answer.
LONGEST = 400


def main() -> int:
    """Play the four parts, and print who was drawn in each."""
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST)
    with tempfile.TemporaryDirectory() as name:
        log_file = Path(name) / "cohorts.jsonl"
        with LocalNodes(Path(name), ROWS) as nodes:
            print("three nodes are starting", flush=True)
            experiment = experiment_on(nodes, log_file)
            play(experiment, 3, "three rounds", nodes, log_file)

            victim = kill_a_drawn_node(experiment.strategy(), nodes)
            play(experiment, 3, "a node is killed in the first", nodes, log_file)

            experiment = restarted()
            play(experiment, 2, "after a restart from the breakpoint", nodes, log_file)

            nodes.start(victim[0])
            wait_for(experiment, nodes)
            play(experiment, 3, f"{victim[0]} is back", nodes, log_file)
    return 0


def give_up(number: int, frame: object) -> None:
    """Stop the nodes too, whatever hangs."""
    raise TimeoutError(f"the federation has not ended after {LONGEST} s")


def experiment_on(nodes: LocalNodes, log_file: Path) -> Any:
    """Return an experiment whose nodes are drawn by a recipe, as soon as all are there."""
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
    wait_for(experiment, nodes)
    experiment.set_training_data(None, from_tags=True)
    strategy.attach(experiment)
    return experiment


def kill_a_drawn_node(strategy: Any, nodes: LocalNodes) -> list[str]:
    """Kill a node between the next draw and its training; return a list that will name it."""
    draw, killed = strategy.sample_nodes, list[str]()

    def draw_and_kill(from_nodes: list[str], round_i: int) -> list[str]:
        strategy.sample_nodes = draw
        drawn: list[str] = draw(from_nodes, round_i)
        killed.append(nodes.names()[drawn[0]])
        nodes.kill(killed[0])
        return drawn

    strategy.sample_nodes = draw_and_kill
    return killed


def restarted() -> Any:
    """Return the experiment of the last breakpoint, as after a restart of the researcher."""
    from fedbiomed.researcher.federated_workflows import Experiment

    experiment = Experiment.load_breakpoint()
    experiment.strategy().attach(experiment)
    return experiment


def play(experiment: Any, rounds: int, what: str, nodes: LocalNodes, log_file: Path) -> None:
    """Train, and print who was drawn with what weight, and who failed."""
    before, start = len(log_file.read_text().splitlines()), time.monotonic()
    experiment.run(rounds=rounds, increase=True)
    print(f"{what} ({time.monotonic() - start:.1f} s)")
    names = nodes.names()
    for line in log_file.read_text().splitlines()[before:]:
        found = json.loads(line)
        weights = {names[node]: weight for node, weight in found["weights"].items()}
        failed = {names[node]: reason for node, reason in found["failed"].items()}
        print(f"  round {found['round']}: weights {weights}, failed {failed or 'none'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
