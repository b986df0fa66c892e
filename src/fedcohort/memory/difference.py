"""The difference estimator: its settings, and a memory of cluster means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import brief, checked_number, checked_whole
from fedcohort._display import record_repr
from fedcohort._updates import Array, as_numpy, double, like, moved, zero_rows
from fedcohort.errors import AggregationError, FedcohortError
from fedcohort.memory.base import Variates
from fedcohort.memory.last_updates import LastUpdates, LowRankUpdates

#: How updates are aggregated, by name.
EstimatorName = Literal["plain", "difference"]
#: How the difference estimator keeps the last updates.
Keep = Literal["float32", "float64", "float16", "int8", "sign", "rank"]
KEEPS: tuple[Keep, ...] = get_args(Keep)
#: The largest number of clusters, directions or clients.
MOST = 10**9
#: The names of the estimators.
ESTIMATORS: tuple[EstimatorName, ...] = get_args(EstimatorName)


@dataclass(frozen=True, slots=True)
class Difference:
    r"""Settings of the difference estimator.

    .. math:: v = \sum_i w_i (\Delta_i - h_i) + \sum_j p_j h_j ,

    It is unbiased for every design with :math:`E[w] = p` and every h that is fixed before the
    draw. Its variance is the design's variance on :math:`\Delta - h`.

    Attributes
    ----------
    shrink
        The factor from what is remembered to h. With 0 this is the plain aggregate.
    clusters
        None remembers every client's last update. K remembers the means of K clusters of clients,
        K x d numbers, and the cluster of each client.
    keep
        How an update of d numbers is kept: ``"float32"`` (4 d bytes a client), ``"float64"``,
        ``"float16"``, ``"int8"`` (d bytes: one scale per update), ``"sign"`` (d / 8 bytes: one
        magnitude per update), or ``"rank"``, r numbers a client and r d in all.
    rank
        r, for ``keep="rank"``.
    max_remembered
        The most clients that are remembered. Beyond it, the clients that were not heard of for
        the longest time are forgotten, after each round.
    file
        Keep the rows in this file, mapped into memory; every memory needs its own. A checkpoint
        refers to it, and finds its rows there unchanged. That holds for the last two checkpoints,
        and every call of ``state`` counts as one. The default keeps the rows in memory, on the
        device of the updates.

    Examples
    --------
    >>> Difference(keep="int8", max_remembered=10_000)
    Difference(keep='int8', max_remembered=10000)

    References
    ----------
    D. Jhunjhunwala et al., "FedVARP: tackling the variance due to partial client participation",
    2022: this estimator, for uniform sampling and equal importance. A. Rodio, G. Neglia,
    "FedStale: leveraging stale client updates in federated learning", 2024: ``shrink`` is its
    beta, with unequal importance.
    """

    shrink: float = 1.0
    clusters: int | None = None
    keep: Keep = "float32"
    rank: int = 32
    max_remembered: int | None = None
    #: It is not compared, since a folder with a checkpoint and its rows may move.
    file: str | None = field(default=None, compare=False)

    __repr__ = record_repr

    def __post_init__(self) -> None:
        shrink = checked_number(
            "Difference", "shrink", self.shrink, least=0, most=1, error=AggregationError
        )
        object.__setattr__(self, "shrink", shrink)
        if not isinstance(self.keep, str) or self.keep not in KEEPS:
            raise AggregationError(
                f"Difference: keep must be one of {', '.join(KEEPS)}; got {brief(self.keep)}."
            )
        self._keep_whole("clusters", "None remembers every client.")
        self._keep_whole("rank", "32 serves well.")
        self._keep_whole("max_remembered", "None remembers all clients.")
        if self.file is not None:
            object.__setattr__(self, "file", self._checked_file())
        self._check_together()

    def _keep_whole(self, name: str, way_out: str) -> None:
        """Validate a positive integer, if there is one."""
        if (value := getattr(self, name)) is not None:
            options = {"least": 1, "most": MOST, "way_out": way_out, "error": AggregationError}
            whole = checked_whole("Difference", name, value, **options)  # type: ignore[arg-type]
            object.__setattr__(self, name, whole)

    def _checked_file(self) -> str:
        if not isinstance(self.file, (str, Path)) or not Path(self.file).name:
            raise AggregationError(
                f"Difference: file must be a path; got {brief(self.file)}. None keeps all in "
                f"memory."
            )
        if not Path(self.file).parent.is_dir():
            raise AggregationError(
                f"Difference: the folder of file must be there; got {brief(str(self.file))}. Make "
                f"it first."
            )
        return str(self.file)

    def _check_together(self) -> None:
        """Refuse settings that have no meaning together."""
        needs = {
            "rank needs keep='rank'": self.rank != 32 and self.keep != "rank",
            "clusters cannot be combined with keep, max_remembered or file": (
                self.clusters is not None
                and (self.keep, self.max_remembered, self.file) != ("float32", None, None)
            ),
            "a file cannot hold keep='rank', which fits into memory": (
                self.file is not None and self.keep == "rank"
            ),
        }
        for sentence, is_wrong in needs.items():
            if is_wrong:
                raise AggregationError(f"Difference: {sentence}; got {self!r}. Leave one out.")

    def memory(self, importance: ArrayLike, zeros: Array) -> Variates:
        """Make an empty memory for the estimator.

        ``importance`` is the population's, shape (n_clients,). ``zeros`` is a flat model of zeros:
        a numpy array or a torch tensor, with the type and device of the updates.
        """
        shrink, most = self.shrink, self.max_remembered
        if self.clusters is not None:
            return ClusterMeans(importance, zeros, shrink=shrink, clusters=self.clusters)
        if self.keep == "rank":
            return LowRankUpdates(
                importance, zeros, shrink=shrink, rank=self.rank, max_remembered=most
            )
        return LastUpdates(
            importance, zeros, shrink=shrink, keep=self.keep, max_remembered=most, file=self.file
        )


def estimator_of(
    owner: str,
    estimator: EstimatorName | Difference,
    *,
    error: type[FedcohortError] = AggregationError,
) -> Difference | None:
    """Return the settings of a named estimator; None for the plain one."""
    if isinstance(estimator, Difference):
        return estimator
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        raise error(
            f"{owner}: estimator must be one of {', '.join(ESTIMATORS)}, or a Difference; got "
            f"{brief(estimator)}."
        )
    return Difference() if estimator == "difference" else None


@final
class ClusterMeans(Variates):
    """The mean update of each of K clusters, and the cluster of every client that was seen.

    The first K clients open the clusters. After that, a client joins the cluster whose mean is
    nearest to its last update. But if two means are nearer to each other than the update is to any
    mean, these two clusters merge, and the update opens a new one. A cluster's mean is the mean of
    its members' updates in the last cohort that had any.

    Examples
    --------
    >>> memory = ClusterMeans(np.full(4, 0.25), np.zeros(1), shrink=1.0, clusters=2)
    >>> memory.record(np.array([0, 1, 2]), np.array([[1.0], [9.0], [3.0]]))
    >>> memory.of(np.arange(4)).ravel().tolist()
    [2.0, 9.0, 2.0, 0.0]
    """

    def __init__(
        self, importance: ArrayLike, zeros: Array, *, shrink: float, clusters: int
    ) -> None:
        super().__init__(importance, zeros, shrink=shrink)
        # The last row stays zero: it belongs to the clients that were never seen.
        self._most = clusters
        try:
            means = zero_rows(zeros[None], clusters + 1)
        except (MemoryError, ValueError, OverflowError, RuntimeError, TypeError) as error:
            raise AggregationError(
                f"Difference: {clusters} updates of {self.dimension} numbers do not fit into "
                f"memory. Remember the means of fewer clusters."
            ) from error
        cluster, n_open = np.full(self.n_clients, clusters), np.zeros((), dtype=np.int64)
        self._arrays = {"means": means, "cluster": cluster, "open": n_open}
        self._limits = {"cluster": (0, clusters), "open": (0, clusters)}

    def _record(self, clients: NDArray[np.int64], updates: Array, round_: int) -> None:
        means, cluster, n_open = self._arrays.values()
        for client, update in zip(clients.tolist(), updates, strict=True):
            if cluster[client] == self._most and n_open < self._most:
                means[int(n_open)] = update
                cluster[client] = n_open
                n_open += 1
            else:
                cluster[client] = self._place_of(update)
        chosen = cluster[clients]
        for each in np.unique(chosen).tolist():
            means[each] = updates[np.flatnonzero(chosen == each)].mean(0)

    def _place_of(self, update: Array) -> int:
        """Return the cluster of an update; it may open a new one."""
        own, cluster, n_open = self._arrays.values()
        # Centre in float64: the common part of the means can be much larger than their differences.
        means = double(own[: int(n_open)])
        centre = means.mean(0)
        means = means - centre
        off = means - (double(update) - centre)
        distances = as_numpy((off * off).sum(1))
        nearest = int(distances.argmin())
        apart = as_numpy(means @ means.T).astype(np.float64)
        squares = apart.diagonal().copy()
        apart = squares[:, None] + squares[None, :] - 2 * apart
        apart[np.tril_indices(len(apart))] = np.inf
        kept, freed = np.unravel_index(int(apart.argmin()), apart.shape)
        if distances[nearest] <= apart[kept, freed]:
            return nearest
        # Two means are nearer to each other than the update is to any mean: merge them.
        own[int(kept)] = (own[int(kept)] + own[int(freed)]) / 2
        cluster[cluster == freed] = kept
        own[int(freed)] = update
        return int(freed)

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        self._arrays["cluster"] = moved(self._arrays["cluster"], order, fill=self._most)

    def _remembered(self, clients: NDArray[np.int64]) -> Array:
        return self._arrays["means"][self._arrays["cluster"][clients]]

    def _mean(self) -> Array:
        shares = np.bincount(self._arrays["cluster"], self._importance, self._most + 1)
        return like(shares, self.zeros) @ self._arrays["means"]
