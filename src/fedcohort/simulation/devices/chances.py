"""The chances of clients to be there: given, or tied to their classes, sizes or luck.

The seven modes of FedGS (Wang et al., "FedGS: federated graph-based sampling with arbitrary client
availability", AAAI 2023, arXiv 2211.13975) are, with their letters: everyone always there (IDL),
:func:`size_chances` with a positive power (MDF) or a negative one (LDF),
:func:`lowest_class_chances` (YMF), :func:`class_turn_chances` (YC), :func:`log_normal_chances` (LN)
and these over a sine of ``high=0.9, low=0.1, period=24`` (SLN).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import NumberNeed, OneOrListNeed, WholeNeed
from fedcohort._fields import checks
from fedcohort.errors import SimulationError
from fedcohort.simulation.data.partitions import FEDERATION, FederatedData
from fedcohort.streams import Seed, Stream, checked_seed, stream

Chances = NDArray[np.float64]
SHARE = NumberNeed(least=0, most=1)
#: Powers of sizes, and spreads of a logarithm: with these limits all chances are finite.
POWER, SPREAD = NumberNeed(least=-10, most=10), NumberNeed(least=0, most=10)


@checks(SimulationError, data=FEDERATION, chance=OneOrListNeed(item=SHARE))
def given_chances(data: FederatedData, *, chance: float | Sequence[float] = 0.5) -> Chances:
    """Take chances as they are given.

    Parameters
    ----------
    chance
        One number for all clients, or one for each, in their order.
    """
    values = _one_each("given_chances", "chance", chance, data.n_clients, "clients")
    return np.array(values, dtype=np.float64)


@checks(SimulationError, data=FEDERATION, most=OneOrListNeed(item=SHARE))
def class_chances(
    data: FederatedData, *, seed: Seed = None, most: float | Sequence[float] = 1.0
) -> Chances:
    r"""Tie chances to the clients' shares of classes, as FedAWE does.

    Client i has chance :math:`\sum_c \nu_{ic} \varphi_c`, where :math:`\nu_{ic}` is the share of
    class c among its training samples, and :math:`\varphi_c` is uniform between 0 and ``most``.

    Parameters
    ----------
    most
        One number for all classes, or one for each. FedAWE has 1 for the first five classes of ten
        and 0.5 for the others.
    """
    limits = _one_each("class_chances", "most", most, data.dataset.n_classes, "classes")
    rng = stream(checked_seed("class_chances", seed, SimulationError), use=Stream.CHANCES)
    # Shares may sum to a rounding more than 1.
    found: Chances = class_shares(data) @ (rng.random(len(limits)) * np.array(limits))
    return np.minimum(found, 1.0)


@checks(
    SimulationError,
    data=FEDERATION,
    alpha=NumberNeed(above=0, most=1e9),
    mean=SHARE,
    least=SHARE,
)
def skewed_class_chances(
    data: FederatedData,
    *,
    seed: Seed = None,
    alpha: float = 0.1,
    mean: float = 0.1,
    least: float = 0.02,
) -> Chances:
    r"""Tie chances to the clients' shares of classes, a few classes above all, as FedAU does.

    Client i has chance :math:`C \cdot \text{mean} \sum_c \nu_{ic} \kappa_c`, at least ``least`` and
    at most 1. There :math:`\nu_{ic}` is the share of class c of C among its training samples, and
    :math:`\kappa` one draw of Dir(``alpha``) over the classes.

    Parameters
    ----------
    alpha
        The smaller, the fewer classes come often.
    mean
        The mean chance of clients whose classes are alike.
    least
        The lowest chance of a client.
    """
    rng = stream(checked_seed("skewed_class_chances", seed, SimulationError), use=Stream.CHANCES)
    n_classes = data.dataset.n_classes
    skew = n_classes * mean * rng.dirichlet(np.full(n_classes, alpha))
    return np.clip(class_shares(data) @ skew, least, 1.0)


@checks(SimulationError, data=FEDERATION, power=POWER)
def size_chances(data: FederatedData, *, power: float = 0.5) -> Chances:
    """Tie chances to sizes: n_i to the ``power``, divided by the largest of these.

    Parameters
    ----------
    power
        Above 0, clients with many samples come more often; below 0, those with few.
    """
    sizes = data.population.sizes
    has = sizes > 0
    logs = power * np.log(np.where(has, sizes, 1))
    return np.where(has, np.exp(logs - logs[has].max()), 0.0)


@checks(SimulationError, data=FEDERATION, spread=SHARE)
def lowest_class_chances(data: FederatedData, *, spread: float = 0.9) -> Chances:
    """Tie chances to the lowest class that a client holds: the higher, the more often it comes.

    MIFA's rule (Gu et al., NeurIPS 2021): ``1 - spread * (1 - lowest / highest class)``.

    Parameters
    ----------
    spread
        The chance of a client with class 0 is ``1 - spread``.
    """
    highest = max(data.dataset.n_classes - 1, 1)
    lowest = (data.class_counts() > 0).argmax(axis=1)
    return np.asarray(1 - spread * (1 - lowest / highest))


@checks(SimulationError, data=FEDERATION, spread=SHARE, turn=WholeNeed(least=1, most=10**4))
def class_turn_chances(data: FederatedData, *, spread: float = 0.9, turn: int = 10) -> Chances:
    """Let classes take turns: clients that hold the class come always, all others less often.

    Return one row of chances for each round of a cycle through all classes.

    Parameters
    ----------
    spread
        Clients without the class come with chance ``1 - spread``.
    turn
        The rounds of each class's turn.
    """
    holds = np.repeat((data.class_counts() > 0).T, turn, axis=0)
    return np.where(holds, 1.0, 1 - spread)


@checks(SimulationError, data=FEDERATION, spread=SPREAD)
def log_normal_chances(data: FederatedData, *, seed: Seed = None, spread: float = 0.7) -> Chances:
    """Draw chances that depend on nothing else: log-normal, divided by the largest of them.

    Parameters
    ----------
    spread
        The standard deviation of the logarithm. FedGS writes it as -ln(1 - beta), and 0.7 is near
        its beta = 0.5.
    """
    rng = stream(checked_seed("log_normal_chances", seed, SimulationError), use=Stream.CHANCES)
    logs = spread * rng.standard_normal(data.n_clients)
    return np.asarray(np.exp(logs - logs.max()))


def class_shares(data: FederatedData) -> Chances:
    """Return the shares of classes among each client's training samples; 0 without any.

    Shape (n_clients, n_classes).
    """
    counts = data.class_counts()
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _one_each(
    owner: str, name: str, given: float | Sequence[float], n: int, what: str
) -> list[float]:
    """Return one number each; repeat a single one."""
    values = list(given) if isinstance(given, Sequence) else [given] * n
    if len(values) != n:
        raise SimulationError(
            f"{owner}: {name} must be one number, or one for each of the {n} {what}; got "
            f"{len(values)}. Add or drop some."
        )
    return values
