"""What the nodes train: a linear classifier on the columns of a table, by scikit-learn."""

from fedbiomed.common.datamanager import DataManager
from fedbiomed.common.dataset import TabularDataset
from fedbiomed.common.training_plans import FedSGDClassifier


class LinearPlan(FedSGDClassifier):
    """Fed-BioMed sends the source of this class to the nodes, with the imports that it names."""

    def init_dependencies(self) -> list[str]:
        """Name the imports."""
        return [
            "from fedbiomed.common.datamanager import DataManager",
            "from fedbiomed.common.dataset import TabularDataset",
        ]

    def training_data(self) -> DataManager:
        """Read a node's table."""
        return DataManager(TabularDataset(["age", "dose"], "outcome"), batch_size=16)
