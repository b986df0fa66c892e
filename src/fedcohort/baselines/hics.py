"""HiCS-FL: groups of clients with similar data, the most balanced data first."""

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import as_array, brief, checked_number, checked_whole
from fedcohort._fields import number, whole
from fedcohort.designs.base import DistinctDesign, drawable_clients
from fedcohort.designs.recipe import Knowledge, ObservedRound, Recipe
from fedcohort.errors import DesignError
from fedcohort.population import Population
from fedcohort.similarity.measures import LARGEST_EXACT, l2
from fedcohort.similarity.trees import merge_tree

Numbers = NDArray[np.float64]

#: Cohorts are listed, and moments exact, if this many steps list them. Otherwise moments are
#: estimated from this many cohorts.
MOST_STEPS, ESTIMATE_COHORTS = 200_000, 1000


def entropies(biases: Numbers, temperature: float) -> Numbers:
    r"""Return the entropy of softmax(b / temperature) of every row b: how balanced its data are.

    Examples
    --------
    >>> entropies(np.array([[1.0, 1.0], [9.0, 0.0]]), 1.0).round(4).tolist()
    [0.6931, 0.0012]
    """
    logs = (biases - biases.max(axis=1, keepdims=True)) / temperature
    sums = np.exp(logs).sum(axis=1, keepdims=True)
    shares = np.exp(logs) / sums
    # A share that underflows to 0 has an infinite logarithm at most; it adds 0.
    terms = np.where(shares > 0, shares * (np.maximum(logs, -1e300) - np.log(sums)), 0.0)
    found: Numbers = 0.0 - terms.sum(axis=1)
    return found


def data_distances(biases: Numbers, entropy: Numbers, balance: float) -> Numbers:
    """Return the angles between biases plus ``balance`` times the differences of entropy.

    Shape (n, n). The angle of a bias of zero counts 0.
    """
    norms = np.linalg.norm(biases, axis=1)
    units = np.divide(biases, norms[:, None], out=np.zeros_like(biases), where=norms[:, None] > 0)
    angles = np.arccos(np.clip(units @ units.T, -1.0, 1.0))
    angles[norms == 0] = 0.0
    angles[:, norms == 0] = 0.0
    distances: Numbers = angles + balance * np.abs(entropy[:, None] - entropy)
    np.fill_diagonal(distances, 0.0)
    return distances


def tree_groups(distances: Numbers, n_groups: int) -> NDArray[np.int64]:
    """Cut Ward's tree over the rows of ``distances``, taken as points, into groups, from 0 on."""
    n = len(distances)
    merges = merge_tree(l2(distances), "ward").merges
    of = list(range(2 * n - 1))
    for t, pair in enumerate(merges[: n - n_groups].tolist()):
        for child in pair:
            of[child] = n + t
    for node in reversed(range(2 * n - 1)):  # parents have larger numbers
        of[node] = of[of[node]]
    return np.unique(np.array(of[:n]), return_inverse=True)[1].astype(np.int64)


@final
class HiCSDesign(DistinctDesign):
    r"""Draw a group by how balanced its clients' data seem, then a client of it by size.

    What a client has of each class shows in the update :math:`b_i` of the output layer's bias:
    :math:`\hat H_i` is the entropy of softmax(:math:`b_i` / temperature). Clients are at the
    distance

    .. math:: D_{ij} = \arccos \frac{\langle b_i, b_j \rangle}{\|b_i\| \|b_j\|}
        + \lambda\, |\hat H_i - \hat H_j| .

    Ward's tree over the rows of D is cut into G groups. Group g is drawn with a chance
    :math:`\pi_g \propto \exp(\gamma \bar H_g)`, with its mean entropy, and client i of it with
    chance :math:`p_i / p(g)`. Repeats are thrown away, until the cohort has m clients: clients are
    drawn one after the other without replacement, in proportion to :math:`\omega_i = \pi_g p_i /
    p(g)`. Each weighs 1/m.

    While there are clients that were never heard, the cohort is drawn from these alone, all equally
    likely; the last of these cohorts may be smaller than m.

    Biased: :math:`E[w_i]` is the chance to be drawn over m, and not p, also with :math:`\gamma =
    0`. The law has no formula. With few clients all cohorts are listed, and moments are exact;
    otherwise they are estimated from 1,000 cohorts.

    Parameters
    ----------
    population, cohort_size
        The clients to draw from, and the number of clients.
    biases
        Every client's last update of the output layer's bias, shape (n_clients, classes); a row of
        NaN for a client that was never heard.
    gamma
        How much balanced groups are preferred; 0: all groups are equally likely.
    temperature
        Divides the biases. Small, since biases move little.
    balance
        The weight of entropies in the distance, :math:`\lambda`.
    groups
        The number of groups, G; None for the cohort's size.

    Examples
    --------
    >>> biases = [[0.9, -0.9], [-0.9, 0.9], [0.1, -0.1], [0.0, 0.1]]
    >>> design = HiCSDesign(Population([1] * 4), 2, biases, gamma=4.0, temperature=1.0)
    >>> design.groups.tolist(), design.chances.round(3).tolist()
    ([1, 1, 0, 0], [0.122, 0.122, 0.378, 0.378])

    References
    ----------
    H. Chen, H. Vikalo, "Heterogeneity-guided client sampling: towards fast and efficient non-IID
    federated learning", NeurIPS 2024.
    """

    unbiased = False
    reads = "clients' updates"

    def __init__(
        self,
        population: Population,
        cohort_size: int,
        biases: ArrayLike,
        *,
        gamma: float = 4.0,
        temperature: float = 0.0025,
        balance: float = 10.0,
        groups: int | None = None,
    ) -> None:
        super().__init__(population, cohort_size)
        clients, n = drawable_clients(self), population.n_clients
        known = _checked_biases(self.name, biases, n)
        gamma = checked_number(self.name, "gamma", gamma, least=0)
        temperature = checked_number(self.name, "temperature", temperature, above=0)
        balance = checked_number(self.name, "balance", balance, least=0)
        wanted = self.cohort_size if groups is None else groups
        wanted = checked_whole(self.name, "groups", wanted, least=1)
        #: The group of every client, -1 outside of groups; and its chance in the first draw.
        self.groups, self.chances = np.full(n, -1, dtype=np.int64), np.zeros(n)
        never_heard = clients[np.isnan(known[clients]).any(axis=1)]
        if len(never_heard):
            self.cohort_size = min(self.cohort_size, len(never_heard))
            self.chances[never_heard] = 1 / len(never_heard)
        else:
            if len(clients) > LARGEST_EXACT:
                raise DesignError(
                    f"{self.name}: keeps all distances, for at most {LARGEST_EXACT} clients; got "
                    f"{len(clients)}. Use TournamentDesign with a bisecting tree."
                )
            own = known[clients]
            entropy = entropies(own, temperature)
            distances = data_distances(own, entropy, balance)
            of = tree_groups(distances, min(wanted, len(clients)))
            self.groups[clients] = of
            logs = gamma * (np.bincount(of, entropy) / np.bincount(of))
            shares = np.exp(logs - logs.max())
            sizes = population.sizes[clients] / population.total
            chances = (shares / shares.sum())[of] * (sizes / np.bincount(of, sizes)[of])
            # So that every client can be drawn if all others were.
            self.chances[clients] = np.maximum(chances, 1e-290)
        self._some = np.flatnonzero(self.chances)
        is_listed = self._steps() <= MOST_STEPS
        self.exact_counts = self.exact_weights = self.exact_moments = is_listed
        self.estimate_cohorts = 0 if is_listed else ESTIMATE_COHORTS

    def expected_counts(self) -> Numbers:
        """Return the chance of each client, shape (n_clients,); estimated if not listed."""
        if not self.exact_counts:
            return self._estimated
        cohorts, chances = self._listed
        of_members, n = np.repeat(chances, self.cohort_size), self.population.n_clients
        return np.asarray(np.bincount(cohorts.ravel(), of_members, n), dtype=np.float64)

    def weight_variance(self) -> Numbers:
        chance = self.expected_counts()
        return chance * np.maximum(1 - chance, 0.0) / self.cohort_size**2

    def max_count(self) -> NDArray[np.int64]:
        return (self.chances > 0).astype(np.int64)

    def covariance(self) -> Numbers:
        cohorts, chances = self._listed
        n, mean = self.population.n_clients, self.expected_counts()
        drawn = np.zeros((len(cohorts), n))
        np.put_along_axis(drawn, cohorts, 1.0, axis=1)
        off = drawn - mean
        covariance: Numbers = (off * chances[:, None]).T @ off / self.cohort_size**2
        np.fill_diagonal(covariance, self.weight_variance())
        return covariance

    def sample(self, rng: np.random.Generator, rounds: int) -> NDArray[np.int64]:
        # The m first of independent exponential times, each with its chance as the rate, are as
        # likely as one draw after the other without replacement.
        times = rng.exponential(size=(rounds, len(self._some))) / self.chances[self._some]
        return self._some[np.argsort(times, axis=1)[:, : self.cohort_size]]

    def _steps(self) -> int:
        """Return how many steps it takes to list all cohorts."""
        n = len(self._some)
        if n > 64:  # only the first draws count then
            return sum(math.comb(n, k) * (n - k) for k in range(min(self.cohort_size, 4)))
        return sum(math.comb(n, k) * (n - k) for k in range(self.cohort_size))

    @cached_property
    def _listed(self) -> tuple[NDArray[np.int64], Numbers]:
        """All cohorts, shape (cohorts, m), and their probabilities."""
        chance = dict(zip(self._some.tolist(), self.chances[self._some].tolist(), strict=True))
        level: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(self.cohort_size):
            following: dict[tuple[int, ...], float] = defaultdict(float)
            for members, probability in level.items():
                rest = [each for each in chance if each not in members]
                total = math.fsum(chance[each] for each in rest)
                for each in rest:
                    grown = tuple(sorted((*members, each)))
                    following[grown] += probability * (chance[each] / total)
            level = dict(following)
        return np.array(list(level), dtype=np.int64), np.array(list(level.values()))

    @cached_property
    def _estimated(self) -> Numbers:
        """The chances that drawn cohorts show."""
        drawn = self.sample(np.random.default_rng(0), ESTIMATE_COHORTS)
        counts = np.bincount(drawn.ravel(), minlength=self.population.n_clients)
        return counts / ESTIMATE_COHORTS


def _checked_biases(owner: str, biases: ArrayLike, n_clients: int) -> Numbers:
    """Validate biases: rows of finite numbers, or of NaN."""
    given = as_array(biases)
    fits = given.ndim == 2 and len(given) == n_clients and given.shape[1] > 0
    if not fits or given.dtype.kind not in "iuf" or np.isinf(given).any():
        raise DesignError(
            f"{owner}: biases must be finite numbers of shape ({n_clients}, classes), with a row "
            f"of NaN for clients that were never heard; got {brief(biases)}. Pass the updates of "
            f"the output layer's bias."
        )
    return given.astype(np.float64)


@final
@dataclass(frozen=True, repr=False)
class HiCS(Recipe):
    r"""Recipe of :class:`HiCSDesign`; keeps every client's last update of the output layer's bias.

    This is the algorithm of the publication. The preference for balanced groups fades,
    :math:`\gamma_t = \gamma (1 - t / R)`, with rounds t from 1; after round R it is 0.

    Parameters
    ----------
    gamma
        The preference for balanced groups at the start. Published: 4 on FMNIST and CIFAR-10, 2 on
        Mini-ImageNet.
    temperature
        Divides the biases. Published: 0.0025 on FMNIST, 0.0015 on CIFAR-10 and Mini-ImageNet.
    balance
        The weight of entropies in the distance.
    groups
        The number of groups; None for the cohort's size.
    rounds
        The number of rounds, R.
    layer
        The name of the output layer's bias; empty for the last one-dimensional array.

    Notes
    -----
    The published program is another scheme in many ways: features from the weights of the layer, a
    warm-up in the order of the clients, features that no longer change after it, and groups that
    are drawn without replacement with equal chances inside.
    """

    name: ClassVar[str] = "hics"
    keeps: ClassVar[tuple[str, ...]] = ("biases",)
    learns_output: ClassVar[bool] = True

    gamma: float = number(4.0, least=0)
    temperature: float = number(0.0025, above=0)
    balance: float = number(10.0, least=0)
    groups: int | None = whole(None, least=1)
    rounds: int = whole(1000, least=1, way_out="Pass the number of rounds.")
    layer: str = ""

    @property
    def output_name(self) -> str:
        """The name of the output layer's bias."""
        return self.layer

    def design(self, population: Population, known: Knowledge) -> HiCSDesign:
        biases = known.kept("biases").reshape(population.n_clients, -1)
        left = max(0.0, 1 - (known.round_ + 1) / self.rounds)
        return HiCSDesign(
            population,
            self.cohort_size,
            biases,
            gamma=self.gamma * left,
            temperature=self.temperature,
            balance=self.balance,
            groups=self.groups,
        )

    def observe(self, kept: dict[str, Numbers], observed: ObservedRound) -> None:
        heard = observed.outputs
        assert heard is not None  # for mypy: the recipe learns the output
        before = kept["biases"].reshape(len(kept["biases"]), -1)
        if before.shape[1] != heard.shape[1]:  # the first round
            before = np.full((len(before), heard.shape[1]), np.nan)
        before[observed.cohort.clients] = heard
        kept["biases"] = before
