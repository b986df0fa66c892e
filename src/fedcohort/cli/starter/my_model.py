"""Your model: change ``make``; any ``torch.nn.Module`` without batch norm will do."""

from torch import nn

from fedcohort.simulation import Dataset


def make(dataset: Dataset, width: int = 16) -> nn.Module:
    """Return a new model for the data; the keys of ``[model]`` are arguments, such as ``width``."""
    (features,) = dataset.x.shape[1:]
    return nn.Sequential(
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Linear(width, dataset.n_classes),
    )
