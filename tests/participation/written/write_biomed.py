"""Print the log in ``fedbiomed.txt``: stock Fed-BioMed, a node of three is killed once.

With Fed-BioMed's Python, 40 seconds on 2 cores::

    PYTHONPATH=examples/fedbiomed-tabular:tests/biomed/cpu_torch python
    tests/participation/written/write_biomed.py | grep -E " (INFO|WARNING|ERROR) " > fedbiomed.txt

Its default strategy ends the experiment when a node does not answer; the node is started again, and
the round is played again.
"""

import logging
import tempfile
from pathlib import Path

from local_nodes import LocalNodes, wait_for

ROWS = {"Nice": 200, "Lyon": 120, "Brest": 80}


def main() -> None:
    """Play six rounds; kill a node in the fourth. Fed-BioMed prints its log."""
    with tempfile.TemporaryDirectory() as folder, LocalNodes(Path(folder), ROWS) as nodes:
        from fedbiomed.common.exceptions import FedbiomedError
        from fedbiomed.researcher.federated_workflows import Experiment
        from fedbiomed.researcher.strategies.default_strategy import DefaultStrategy
        from training_plan import LinearPlan

        experiment = Experiment(
            tags=["patients"],
            training_plan_class=LinearPlan,
            model_args={"n_features": 2, "n_classes": 2, "eta0": 0.01},
            training_args={"epochs": 1, "loader_args": {"batch_size": 16}},
            node_selection_strategy=DefaultStrategy(),
        )
        wait_for(experiment, nodes)
        experiment.set_training_data(None, from_tags=True)
        experiment.run(rounds=3, increase=True)
        nodes.kill("Lyon")
        try:
            experiment.run(rounds=1, increase=True)
        except (FedbiomedError, SystemExit) as error:
            logging.getLogger().warning("ended: %s", error)
        nodes.start("Lyon")
        wait_for(experiment, nodes)
        experiment.run(rounds=3, increase=True)


if __name__ == "__main__":
    main()
