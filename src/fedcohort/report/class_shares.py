"""Figure: which classes every client holds, as in the paper's appendix D."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedcohort.report.colours import class_colours


def class_shares_figure(counts: NDArray[np.int64]) -> Figure:
    """Draw each client's class shares as a bar, and the samples of each class beside them.

    ``counts`` has shape (n_clients, n_classes): ``FederatedData.class_counts()``.
    """
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    draw_class_shares(left, counts)
    draw_class_samples(right, counts)
    return figure


def draw_class_shares(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Draw one bar per client, stacked by class."""
    n_clients, n_classes = counts.shape
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    below = np.zeros(n_clients)
    for label, colour in enumerate(class_colours(n_classes)):
        axes.bar(np.arange(n_clients), shares[:, label], 1.0, below, color=colour, label=str(label))
        below += shares[:, label]
    axes.set(
        xlabel="client", ylabel="share of each class", xlim=(-0.5, n_clients - 0.5), ylim=(0, 1)
    )


def draw_class_samples(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Draw the samples of every class over all clients."""
    n_classes = counts.shape[1]
    axes.barh(np.arange(n_classes), counts.sum(axis=0), color=class_colours(n_classes))
    every = max(1, n_classes // 10)
    axes.set(xlabel="samples", ylabel="class", yticks=range(0, n_classes, every))
