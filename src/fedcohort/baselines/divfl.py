"""DivFL: the clients that represent all updates best, by greedy facility location."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import Rng, checked_rng
from fedcohort.baselines.chosen import ChosenDesign
from fedcohort.designs.base import drawable_clients
from fedcohort.designs.recipe import Knowledge, Recipe, known_updates
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.similarity.measures import LARGEST_EXACT, checked_updates, l2


@final
class DivFLDesign(ChosenDesign):
    r"""Choose clients one by one so that every client has a similar one in the cohort.

    Every client *k* is represented by the chosen client nearest to it. The error of the aggregate
    is then at most the mean distance

    .. math:: G(S) = \sum_k p_k \min_{i \in S} \|\Delta_k - \Delta_i\| .

    Each step adds the client that lowers it most. A chosen client weighs the importance of all
    clients that it represents. Distances are those of the last known updates. Ties are broken at
    random. Clients that were never seen have zero updates, at distance 0 from each other.

    Biased: the cohort is certain, and a client that is not chosen has weight 0. As published, the
    distance is not squared. The paper's importances are equal; here they are the population's.

    Needs the memory of updates. Keeps all distances, 8 n^2 bytes, for at most 20,000 clients. A
    step looks only at clients whose gain may still be the largest, O(n) for each.

    Parameters
    ----------
    updates
        The clients' last updates, zero before the first; shape (n_clients, dimension).

    Examples
    --------
    >>> population = Population([5, 3, 2, 2])
    >>> updates = [[0.0, 1.0], [5.0, 0.0], [5.1, 0.0], [0.0, 1.2]]
    >>> design = DivFLDesign(population, 2, updates, rng=0)
    >>> design.chosen.tolist(), design.weight_per_draw().round(4).tolist()
    ([0, 1], [0.5833, 0.4167, 0.0, 0.0])

    References
    ----------
    R. Balakrishnan et al., "Diverse client selection for federated learning via submodular
    maximization", ICLR 2022. M. Minoux, "Accelerated greedy algorithms for maximizing submodular
    set functions", 1978 (which clients a step need not look at).
    """

    reads = "clients' updates"

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        updates: ArrayLike,
        *,
        rng: Rng = None,
    ) -> None:
        from scipy.spatial.distance import squareform

        super().__init__(population, cohort_size)
        rng = checked_rng(self.name, rng)
        if population.n_clients > LARGEST_EXACT:
            raise DesignError(
                f"{self.name}: keeps all distances, for at most {LARGEST_EXACT} clients; got "
                f"{population.n_clients}. Use TournamentDesign with a bisecting tree."
            )
        deltas = checked_updates(self.name, updates, population.n_clients)
        # Permuted: taking the first of equals then breaks ties at random.
        clients = rng.permutation(drawable_clients(self))
        distances = squareform(l2(deltas[clients]))
        sizes = population.sizes[clients]
        picked = _greedy(distances, sizes / population.total, self.cohort_size)
        behind = _nearest(distances[:, picked], picked, rng)
        held = np.zeros(self.cohort_size, dtype=np.int64)
        np.add.at(held, behind, sizes)
        self._choose(clients[picked], held / population.total)


def _greedy(
    distances: NDArray[np.float64], importance: NDArray[np.float64], number: int
) -> NDArray[np.int64]:
    """Return positions, each of which lowers the mean distance most; the first wins ties."""
    # Before the first choice, start from a distance larger than all others.
    nearest = np.full(len(distances), distances.max(initial=0.0) + 1.0)
    gains = importance @ (nearest[:, None] - distances)
    # Gains never grow, so an old gain is an upper bound. The first up-to-date gain in the queue
    # is the largest.
    queue = [(-gain, position, 0) for position, gain in enumerate(gains.tolist())]
    heapify(queue)
    picked: list[int] = []
    while len(picked) < number:
        _, position, step = heappop(queue)
        if step == len(picked):
            picked.append(position)
            nearest = np.minimum(nearest, distances[position])
        else:
            gain = float(importance @ np.maximum(nearest - distances[position], 0.0))
            heappush(queue, (-gain, position, len(picked)))
    return np.array(picked, dtype=np.int64)


def _nearest(
    distances: NDArray[np.float64], picked: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the number of the picked client nearest to each client; ties are random.

    ``distances`` has shape (n_clients, picked). A picked client represents itself.
    """
    equal = distances == distances.min(axis=1, keepdims=True)
    # Random numbers in (0, 1]: the largest product is always one of the nearest.
    which = np.argmax(equal * (1.0 - rng.random(distances.shape)), axis=1)
    which[picked] = np.arange(len(picked))
    return np.asarray(which, dtype=np.int64)


@final
@dataclass(frozen=True, repr=False)
class DivFL(Recipe):
    """Recipe of :class:`DivFLDesign`; without a memory every update is zero."""

    name: ClassVar[str] = "divfl"
    learns: ClassVar[bool] = True

    def design(self, population: Population, known: Knowledge) -> DivFLDesign:
        updates = known_updates(population, known)
        return DivFLDesign(population, self.cohort_size, updates, rng=known.rng)
