"""DivFL: the clients whose updates stand best for all, by greedy facility location."""

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
from fedcohort.similarity.measures import checked_updates, l2

#: All distances between more clients than this take more than 3 GB.
LARGEST_MATRIX = 20_000


@final
class DivFLDesign(ChosenDesign):
    r"""Choose clients one by one so that every client has one like it in the cohort.

    With every client *k* standing behind the chosen client nearest to it, the error of the
    aggregate is at most the mean distance

    .. math:: G(S) = \sum_k p_k \min_{i \in S} \|\Delta_k - \Delta_i\| ,

    and each step adds the client that lowers it most. A chosen client weighs the importance of all
    that stand behind it. The distances are those of the last updates that the server knows. Equal
    gains and equal distances are settled at random. Clients that were never seen are all zero:
    they stand behind one another, at distance 0.

    Biased: the cohort is certain, so that a client that is not chosen has weight 0. As published,
    the distance is not squared and importances are equal; here they are those of the population.

    Needs the memory of updates. Keeps all distances, 8 n^2 bytes, for at most 20,000 clients; a
    step looks only at clients whose gain may still be the largest, and takes O(n) for each.

    Parameters
    ----------
    population, cohort_size
        Whom to choose from, and how many.
    updates
        The clients' last updates, zero before the first; shape (n_clients, dimension).
    rng
        Breaks ties.

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
        if population.n_clients > LARGEST_MATRIX:
            raise DesignError(
                f"{self.name}: keeps all distances, for at most {LARGEST_MATRIX} clients; got "
                f"{population.n_clients}. Use TournamentDesign with a bisecting tree."
            )
        deltas = checked_updates(self.name, updates, population.n_clients)
        # Permuted, so that the first of equals is any of them.
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
    """Return positions, each the one that lowers the mean distance most, the first of equals."""
    # Nobody is chosen yet: as if someone farther than everyone stood for all.
    nearest = np.full(len(distances), distances.max(initial=0.0) + 1.0)
    gains = importance @ (nearest[:, None] - distances)
    # A gain never grows as others are chosen: an old one is a bound, and the best that is up to
    # date beats all others' bounds.
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
    """Return which of the picked clients each client is nearest to, of equals any one.

    ``distances`` has shape (n_clients, picked). A picked client stands for itself.
    """
    equal = distances == distances.min(axis=1, keepdims=True)
    # Positive numbers, so that the largest is one of the equals.
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
        """Make the design from what is known."""
        updates = known_updates(population, known)
        return DivFLDesign(population, self.cohort_size, updates, rng=known.rng)
