"""Server optimisers: how the model moves along a round's aggregate.

An optimiser is a frozen record of settings. Its state is a dictionary of arrays that the caller
keeps, so that a checkpoint can hold it:

>>> optimizer, state = Adam(lr=0.1), None
>>> model = np.zeros(1)
>>> for aggregate in (np.ones(1), np.ones(1)):
...     step, state = optimizer.step(aggregate, state)
...     model = model + step
>>> model.round(7)
array([0.2327412])

Aggregates are arrays, lists of arrays or mappings of arrays, numpy or torch, as the selector
returns them; the step has the same structure. Counters (integer arrays beside floating-point ones)
move by the aggregate itself. If none of the drawn clients answers, there is no aggregate: do not
call ``step``. The model and the state then stay as they are. An empty cohort
(:class:`fedcohort.Poisson` can draw one) has an aggregate, with the plain estimator zeros: step by
it.

References
----------
S. Reddi et al., "Adaptive federated optimization", ICLR 2021, arXiv 2003.00295; T.-M. H. Hsu et
al., "Measuring the effects of non-identical data distribution", arXiv 1909.06335 (momentum).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np

from fedcohort._arguments import MOST, brief, suggest_names
from fedcohort._fields import Record, choice, flag, number
from fedcohort._updates import Array, Layout, Update, double, is_finite, is_tensor, like
from fedcohort.errors import AggregationError

__all__ = ["SGD", "Adagrad", "Adam", "ServerOptimizer", "Yogi"]

#: How the adaptive ones start: as in the paper, or as in Flower 1.41.
Convention = Literal["paper", "flower"]
#: The number of steps taken, and the moments: flat, in float64, on the aggregate's device.
State = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Record, ABC):
    """Turns a round's aggregate v, the direction of the update, into the model's step."""

    _error = AggregationError

    lr: float = number(1.0, least=0)

    def step(self, aggregate: Update, state: State | None = None) -> tuple[Update, State]:
        """Return the step and the next state; the arguments stay as they are.

        Parameters
        ----------
        aggregate
            v, as ``selector.aggregate`` returns it.
        state
            What the last call returned; None at the start.
        """
        layout, flat, counters = Layout.read(type(self).__name__, aggregate)
        v = double(flat)
        found = self._started(v) if state is None else self._checked(state, v)
        rounds = int(found["rounds"]) + 1
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            step, moments = self._moved(v, found, rounds)
            step = like(step, flat)
        if not all(map(is_finite, moments.values())):
            raise AggregationError(
                f"{type(self).__name__}: the moments must be finite; the aggregate has an entry of "
                f"{float(abs(v).max()):g}. Leave this aggregate out, and bound updates by max_norm."
            )
        moved = layout.unflat(step, counters)
        return moved, {"rounds": np.array(float(rounds)), **moments}

    def _started(self, v: Array) -> State:
        """Return the state before the first step."""
        filled = {name: 0 * v + value for name, value in self._starts().items()}
        return {"rounds": np.array(0.0), **filled}

    def _checked(self, state: State, v: Array) -> State:
        """Return the state on the device of v; refuse one of another optimiser or model."""
        names = ["rounds", *self._starts()]
        found = state if isinstance(state, Mapping) else {}
        shapes = {name: _shape(array) for name, array in found.items()}
        is_right = shapes == {"rounds": (), **dict.fromkeys(names[1:], tuple(v.shape))}
        if not is_right or not 0 <= float(found["rounds"]) < MOST:
            raise AggregationError(
                f"{type(self).__name__}: the state must hold {', '.join(names)} for an aggregate "
                f"of {len(v)} numbers; got {brief(shapes or state)}. Pass what step returned, or "
                f"None to start."
            )
        return {"rounds": state["rounds"], **{name: like(state[name], v) for name in names[1:]}}

    @abstractmethod
    def _starts(self) -> dict[str, float]:
        """Return the moments by name, with the number that they start from."""

    @abstractmethod
    def _moved(self, v: Array, state: State, rounds: int) -> tuple[Array, dict[str, Array]]:
        """Return the step and the next moments; ``rounds`` counts from 1."""


@final
@dataclass(frozen=True, kw_only=True)
class SGD(ServerOptimizer):
    r"""Step along the aggregate, with momentum.

    .. math:: u \gets \beta u + v, \qquad \theta \gets \theta + \eta u

    This is FedAvgM, and unbiased if v is: the sum of all steps is linear in v.

    Parameters
    ----------
    lr
        :math:`\eta`.
    momentum
        :math:`\beta`; 0 is a plain step.
    damped
        Use :math:`u \gets \beta u + (1 - \beta) v`: a constant v then gives steps of
        :math:`\eta v`, where the undamped form gives :math:`\eta v / (1 - \beta)`.
    nesterov
        Step by :math:`\beta u + v` (damped: :math:`\beta u + (1 - \beta) v`) with the new u.
    """

    momentum: float = number(0.0, least=0, below=1, way_out="Try 0.9.")
    damped: bool = flag(False)
    nesterov: bool = flag(False)

    def _check(self) -> None:
        if not self.momentum and (self.damped or self.nesterov):
            raise AggregationError(
                f"SGD: momentum must be above 0 for damped and nesterov; got {self.momentum:g}. "
                f"Try 0.9."
            )

    def _starts(self) -> dict[str, float]:
        return {"u": 0.0} if self.momentum else {}

    def _moved(self, v: Array, state: State, rounds: int) -> tuple[Array, dict[str, Array]]:
        if not self.momentum:
            return self.lr * v, {}
        share = (1 - self.momentum if self.damped else 1.0) * v
        u = self.momentum * state["u"] + share
        return self.lr * (self.momentum * u + share if self.nesterov else u), {"u": u}


@dataclass(frozen=True, kw_only=True)
class _Adaptive(ServerOptimizer):
    r"""Divide by the root of a second moment s, plus tau.

    Parameters
    ----------
    tau
        Added to the root.
    convention
        ``"paper"`` starts s at :math:`\tau^2`; ``"flower"`` at 0, as Flower 1.41 does.
    """

    lr: float = number(0.1, least=0)
    tau: float = number(1e-3, least=1e-12)
    convention: Convention = choice("paper", get_args(Convention))

    @property
    def _first_square(self) -> float:
        return self.tau**2 if self.convention == "paper" else 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Adagrad(_Adaptive):
    r"""FedAdagrad: :math:`s \gets s + v^2, \; \theta \gets \theta + \eta v / (\sqrt s + \tau)`."""

    def _starts(self) -> dict[str, float]:
        return {"s": self._first_square}

    def _moved(self, v: Array, state: State, rounds: int) -> tuple[Array, dict[str, Array]]:
        s = state["s"] + v**2
        return self.lr * v / (_root(s) + self.tau), {"s": s}


@dataclass(frozen=True, kw_only=True)
class _TwoMoments(_Adaptive):
    """A moving mean u of v, and a second moment s; see :class:`Adam` and :class:`Yogi`."""

    beta1: float = number(0.9, least=0, below=1, way_out="Try 0.9.")
    beta2: float = number(0.99, least=0, below=1, way_out="Try 0.99.")

    def _starts(self) -> dict[str, float]:
        return {"u": 0.0, "s": self._first_square}

    def _moved(self, v: Array, state: State, rounds: int) -> tuple[Array, dict[str, Array]]:
        u = self.beta1 * state["u"] + (1 - self.beta1) * v
        s = self._square(state["s"], v**2)
        return self._rate(rounds) * u / (_root(s) + self.tau), {"u": u, "s": s}

    def _rate(self, rounds: int) -> float:
        return self.lr

    @abstractmethod
    def _square(self, s: Array, square: Array) -> Array:
        """Return the next second moment."""


@final
@dataclass(frozen=True, kw_only=True)
class Adam(_TwoMoments):
    r"""FedAdam.

    .. math:: u \gets \beta_1 u + (1 - \beta_1) v, \quad s \gets \beta_2 s + (1 - \beta_2) v^2,
        \quad \theta \gets \theta + \eta u / (\sqrt s + \tau)

    The paper has no bias correction. Flower multiplies :math:`\eta` by
    :math:`\sqrt{1 - \beta_2^{t + 1}} / (1 - \beta_1^{t + 1})`, t the round from 1: the exponent is
    one more than Kingma and Ba's.
    """

    def _rate(self, rounds: int) -> float:
        if self.convention == "paper":
            return self.lr
        power = rounds + 1
        return float(self.lr * np.sqrt(1 - self.beta2**power) / (1 - self.beta1**power))

    def _square(self, s: Array, square: Array) -> Array:
        return self.beta2 * s + (1 - self.beta2) * square


@final
@dataclass(frozen=True, kw_only=True)
class Yogi(_TwoMoments):
    r"""FedYogi: as :class:`Adam`, but s forgets slowly.

    .. math:: s \gets s - (1 - \beta_2) v^2 \operatorname{sign}(s - v^2)
    """

    lr: float = number(0.01, least=0)

    def _square(self, s: Array, square: Array) -> Array:
        return s - (1 - self.beta2) * square * _sign(s - square)


#: The optimisers by their names in files.
OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "sgd": SGD,
    "adagrad": Adagrad,
    "adam": Adam,
    "yogi": Yogi,
}


def _shape(value: object) -> tuple[int, ...] | str:
    """Return the shape of an array of real numbers; the type's name for anything else."""
    is_array = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iuf"
    if is_array or is_tensor(value):
        return tuple(value.shape)  # type: ignore[attr-defined]
    return type(value).__name__


def _root(values: Array) -> Array:
    return np.sqrt(values) if isinstance(values, np.ndarray) else values.sqrt()


def _sign(values: Array) -> Array:
    return np.sign(values) if isinstance(values, np.ndarray) else values.sign()


suggest_names(__name__, __all__)
