"""Figure: which classes every client holds, as in the paper's appendix D."""

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray


def class_shares_figure(counts: NDArray[np.int64]) -> Figure:
    """Draw each client's class shares as a bar, and the samples of each class beside them.

    ``counts`` has shape (n_clients, n_classes): ``FederatedData.class_counts()``.
    """
    n_clients, n_classes = counts.shape
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 1))
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    below = np.zeros(n_clients)
    for label in range(n_classes):
        colour = colormaps["tab20" if n_classes > 10 else "tab10"](label % 20)
        left.bar(np.arange(n_clients), shares[:, label], 1.0, below, color=colour, label=str(label))
        right.barh(label, counts[:, label].sum(), color=colour)
        below += shares[:, label]
    left.set(
        xlabel="client", ylabel="share of each class", xlim=(-0.5, n_clients - 0.5), ylim=(0, 1)
    )
    right.set(xlabel="samples", ylabel="class", yticks=range(n_classes))
    return figure
