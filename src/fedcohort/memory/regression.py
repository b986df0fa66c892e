"""The regression estimator: predict a client's update, and learn how far to trust that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._archive import with_prefix, without_prefix
from fedcohort._arguments import MOST, ChoiceNeed, Need, as_whole
from fedcohort._display import record_repr
from fedcohort._fields import declared, whole
from fedcohort._updates import (
    Array,
    Layout,
    as_numpy,
    double,
    joined,
    like,
    reordered,
    row_norms,
    zero_rows,
)
from fedcohort.errors import AggregationError, FedcohortError
from fedcohort.memory.base import Estimator, EstimatorSettings
from fedcohort.memory.features import FEATURE_CLIP, MOST_FEATURES, Encoded, projection
from fedcohort.memory.rows import ClientRows, rows_of
from fedcohort.similarity.measures import BLOCK_ENTRIES

#: How the unexplained part of a client's updates is kept.
KeepRest = Literal["float16", "int8", "rank"]
#: Features that are not given as numbers.
FeatureSource = Literal["auto", "output", "given", "classes"]
#: The factor on the sums of squares at each round with answers: for B, and for the trusts.
FADING, TRUST_FADING = 0.97, 0.95
#: The ridge of the regression, as a share of the features' mean square; the mean square is
#: capped at that of the leading 1.
RIDGE = 0.02
#: The same for the trusts, of each part's own square.
TRUST_RIDGE = 1e-6
#: The bounds on the trusts, and the first trust in the residual.
TRUST_BOUNDS, FIRST_REST_TRUST = (-0.5, 1.5), 0.3
#: The first trusts count as much as this many rounds that taught trusts.
FIRST_ROUNDS = 5
#: The share of the whole model's sums that is added to those of each block.
SHARED_TRUST = 0.1
#: Arrays with fewer numbers share a trust.
SMALL_BLOCK = 1000
#: The share of a client's old features and residual when it answers again.
OLD_SHARE = 0.5
#: Updates longer than this many median norms are shortened before learning.
LONGEST = 3.0
#: How many past norms the median is taken of, beside those of the round; and how many positive
#: ones it needs: with three, one huge norm is not the median.
REMEMBERED_NORMS, NEEDED_NORMS = 256, 3
#: A round with fewer answers does not teach trusts.
NEEDED_ANSWERS = 3


@dataclass(frozen=True, kw_only=True)
class FeaturesNeed(ChoiceNeed):
    """One of several words, or values of clients.

    The values are checked later, where the clients are known.
    """

    def check(self, owner: str, name: str, value: object, error: type[FedcohortError]) -> Any:
        """Return the valid value, or raise."""
        return super().check(owner, name, value, error) if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class OutputNeed(Need):
    """An array of the model."""

    words: ClassVar[str] = "the name or the position of an array"
    way_out: str = "Leave it out to take the last one-dimensional array."

    def _found(self, value: object) -> str | int | None:
        return value if isinstance(value, str) else as_whole(value)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Regression(EstimatorSettings):
    r"""Settings of the regression estimator.

    .. math:: v = \sum_i w_i (\Delta_i - h_i) + \sum_j p_j h_j, \quad
        h_i = \bar x B + b_1 (x_i - \bar x) B + b_2 e_i

    It predicts each client's update from features x by least squares on past updates. e is what
    the features did not explain of the client's own updates. The trusts b are learned from how
    well past predictions were. All of it is fixed before the draw, so the estimator is unbiased
    for every design with :math:`E[w] = p`. There is nothing to tune.

    Attributes
    ----------
    features
        Numbers or text by client: an array in the order of the clients, or a mapping from id to a
        value, a row of values, or values by name. ``"output"`` learns x from the update of the
        output layer's bias. ``"auto"`` does so if the model has such an array. ``"given"`` waits
        for ``selector.set_features``. ``"classes"`` takes the shares of classes, in
        the simulator. None uses no features: x = 1.
    keep
        How e is kept: ``"float16"``, ``"int8"``, or in a basis of ``rank`` directions. None keeps
        no update of any client: only r (n + d) numbers, with r features.
    output
        The name, or position, of the output layer's bias; by default the last one-dimensional
        array that is trained.
    rank
        For ``keep="rank"``.

    Examples
    --------
    >>> Regression(features={"Nice": [0.2, "south"], "Brest": [0.7, "west"]}, keep=None)
    Regression(features='given', keep=None)

    References
    ----------
    C.-E. Sarndal, B. Swensson, J. Wretman, "Model assisted survey sampling", 1992: the generalised
    regression estimator. D. Jhunjhunwala et al., "FedVARP", 2022, and A. Rodio, G. Neglia,
    "FedStale", 2024: the difference estimator, which is the case x = 1 with given trusts.
    """

    features: Any = declared(FeaturesNeed(choices=get_args(FeatureSource), optional=True), "auto")
    keep: KeepRest | None = declared(ChoiceNeed(choices=get_args(KeepRest), optional=True), "int8")
    output: str | int | None = declared(OutputNeed(), None)
    rank: int = whole(32, least=1, most=MOST, way_out="Try 32.")

    def _check(self) -> None:
        if self.rank != 32 and self.keep != "rank":
            raise AggregationError(
                f"Regression: rank needs keep='rank'; got {self!r}. Leave one out."
            )
        if self.output is not None and not self.learns_features:
            raise AggregationError(
                f"Regression: output needs features='output'; got {self!r}. Leave one out."
            )

    def __repr__(self) -> str:
        return record_repr(self if self.data is None else self.plain)

    @property
    def data(self) -> Any:
        """The features, if they are values of clients; None otherwise."""
        return None if isinstance(self.features, str) else self.features

    @property
    def source(self) -> str | None:
        """Where features come from: ``"given"`` if they are values of clients; None without."""
        return self.features if self.data is None else "given"

    @property
    def learns_features(self) -> bool:
        """Whether features may be learned from updates."""
        return self.source in ("auto", "output")

    @property
    def plain(self) -> Regression:
        """The settings alone: without the values of features."""
        return replace(self, features=self.source)

    def _with_classes(self, counts: Callable[[], NDArray[np.integer]]) -> Regression:
        """Return the settings with the shares of classes as features, if they want them."""
        if self.source != "classes":
            return self
        samples = counts()
        return replace(self, features=samples / np.maximum(samples.sum(axis=1, keepdims=True), 1))

    def _check_layout(self, layout: Layout) -> None:
        """Refuse updates without the array that features are learned from."""
        output_of(self, layout)

    def _memory(
        self, importance: ArrayLike, zeros: Array, *, layout: Layout, n_given: int, seed: int
    ) -> Estimator:
        return RegressionEstimator(
            self, importance, zeros, layout=layout, n_given=n_given, seed=seed
        )


def output_of(settings: Regression, layout: Layout) -> slice | None:
    """Return the slice of the update that features are learned from; None if there is none.

    Raises
    ------
    AggregationError
        If the settings ask for an array that the updates do not have.
    """
    if not settings.learns_features:
        return None
    place, name = layout.output(settings.output), settings.output
    if place is not None or (name is None and settings.features == "auto"):
        return place
    wanted = "a one-dimensional array" if name is None else f"the array {name!r}"
    raise AggregationError(
        f"Regression: needs {wanted} to learn features from; updates have {layout.shapes}. "
        f"Name another one in output=, or pass features=None."
    )


class Block(NamedTuple):
    """A slice of the flat update, and the number of the trust that it has."""

    place: slice
    group: int


def blocks_of(places: list[slice]) -> list[Block]:
    """Give every array a trust of its own; small arrays share one.

    >>> blocks_of([slice(0, 5), slice(5, 4005), slice(4005, 4006)])[1:]
    [Block(place=slice(5, 4005, None), group=1), Block(place=slice(4005, 4006, None), group=0)]
    """
    ordered = sorted(places, key=lambda place: place.start)
    is_small = [place.stop - place.start < SMALL_BLOCK for place in ordered]
    large = iter(range(int(any(is_small)), len(ordered) + 1))
    groups = [0 if small else next(large) for small in is_small]
    return [Block(place, group) for place, group in zip(ordered, groups, strict=True)]


class _Frozen(NamedTuple):
    """The quantities that are fixed during a round."""

    #: The features of clients that have none, and the mean by p of all; both with a leading 1.
    usual: NDArray[np.float64]
    mean: NDArray[np.float64]
    #: (A + R)^-1, shape (r, r): B is this times C.
    inverse: NDArray[np.float64]
    #: Trusts in prediction and residual of each group of blocks, shape (groups, 2).
    trusts: NDArray[np.float64]


@final
class RegressionEstimator(Estimator):
    r"""Predict every update from a few features of its client.

    .. math:: h_i = \bar x B + b_1 (x_i - \bar x) B + b_2 e_i

    * :math:`x_i`: a 1, and the features of client i. A client without features has the mean of
      the others.
    * :math:`B = (A + R)^{-1} C`: least squares of past updates on x. After each round with
      answers A becomes .97 A + X'X and C becomes .97 C + X'D.
    * :math:`e_i`: what x did not explain of the client's updates, averaged over its visits.
    * :math:`b_1, b_2`: a pair for every large array of the model: least squares of past deviations
      from the cohort's mean on those of the two parts as they were used. The mean's part is not
      shrunk: weights that do not sum to 1 need it whole.

    The aggregate is computed without the rows of h, block by block:

    .. math:: v = \sum_i w_i \Delta_i + (1 - W) \bar x B + b_1 (W \bar x - \sum_i w_i x_i) B
        + b_2 (\sum_j p_j e_j - \sum_i w_i e_i), \quad W = \sum_i w_i

    Parameters
    ----------
    settings
        Those of the estimator.
    importance, zeros
        Those of :class:`Estimator`.
    layout
        The arrays of an update.
    n_given
        The number of given features, without the leading 1.
    seed
        That of the projection of many features.
    """

    def __init__(
        self,
        settings: Regression,
        importance: ArrayLike,
        zeros: Array,
        *,
        layout: Layout,
        n_given: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(importance, zeros)
        #: The slice of the update that features are learned from, and its projection.
        self._output, self._mixed = output_of(settings, layout), None
        if self._output is not None:
            n_given = self._output.stop - self._output.start
            self._mixed = projection(n_given, seed)
            n_given = min(n_given, MOST_FEATURES)
        self._blocks = blocks_of(
            [own.place for own in layout.parts.values() if own.place is not None]
        )
        self._rest: ClientRows | None = None
        if settings.keep is not None:
            self._rest = rows_of(settings.keep, settings.rank, importance, zeros)
        r, groups = 1 + n_given, 1 + max(block.group for block in self._blocks)
        self._arrays |= {
            "features": np.zeros((self.n_clients, n_given)),
            "known": np.zeros(self.n_clients, dtype=bool),
            "gram": np.zeros((r, r)),
            "cross": zero_rows(zeros[None], r),
            "taught": np.zeros(1, dtype=np.int64),
            "squares": np.zeros((groups, 2, 2)),
            "products": np.zeros((groups, 2)),
            "norms": np.zeros(REMEMBERED_NORMS),
            "heard": np.zeros(1, dtype=np.int64),
        }
        self._now: _Frozen | None = None
        #: ``usual`` and ``mean`` of :class:`_Frozen`: sums over all clients.
        self._centres: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def n_features(self) -> int:
        """The number of features of a client, without the leading 1."""
        return int(self._arrays["features"].shape[1])

    @property
    def trusts(self) -> NDArray[np.float64]:
        """The trusts in prediction and residual of each group of blocks, shape (groups, 2)."""
        return self._frozen().trusts.copy()

    def know(self, given: Encoded) -> None:
        """Set the given features, and express what was learned in their encoding.

        A feature starts from zero if its old values would be far beyond those that it can have now:
        they would drown what is learned of the others.
        """
        values, known, source, factor, shift = given
        gram, old = self._arrays["gram"], self._arrays["cross"]
        with np.errstate(over="ignore", invalid="ignore"):  # such features start from zero
            size = factor**2 * np.diagonal(gram)[source] + shift**2 * gram[0, 0]
        is_old = (source >= 0) & (size <= FEATURE_CLIP**2 * gram[0, 0])
        source = np.where(is_old, source, -1)
        turn = np.zeros((len(gram), len(source)))
        turn[source, np.arange(len(source))] = np.where(is_old, factor, 0.0)
        turn[0] += np.where(is_old, shift, 0.0)
        self._arrays["gram"] = turn.T @ gram @ turn
        is_same = np.array_equal(source, np.arange(len(old)))
        new = old if is_same else zero_rows(old, len(source))
        # Row by row: a product of matrices would round differently in numpy and in torch.
        for j, k in enumerate(source.tolist()):
            a, b = float(factor[j]), float(shift[j])
            if k >= 0 and not (is_same and (a, b) == (1.0, 0.0)):
                new[j] = a * old[k] + b * old[0]
        self._arrays |= {"features": values, "known": known, "cross": new}
        self._forget_cached()

    # The estimate

    def _frozen(self) -> _Frozen:
        """Return what is fixed until something is recorded, or p changes."""
        if self._centres is None:
            features, known = self._arrays["features"], self._arrays["known"]
            usual = features[known].mean(axis=0) if known.any() else np.zeros(self.n_features)
            shares = np.where(known, self._importance, 0.0)
            mean = shares @ features + (1 - shares.sum()) * usual
            self._centres = np.r_[1, usual], np.r_[1, mean]
        if self._now is None:
            gram = self._arrays["gram"]
            ridge = RIDGE * min(np.trace(gram) / len(gram), gram[0, 0]) or 1.0
            inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
            self._now = _Frozen(*self._centres, inverse, self._trusts())
        return self._now

    def _x(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the features of clients with a leading 1, shape (len(clients), r)."""
        found = np.tile(self._frozen().usual, (len(clients), 1))
        known = self._arrays["known"][clients]
        found[known, 1:] = self._arrays["features"][clients[known]]
        return found

    def _trusts(self) -> NDArray[np.float64]:
        """Return b1 and b2 of each group of blocks, shape (groups, 2)."""
        squares, products = self._arrays["squares"], self._arrays["products"]
        # Shrink to the whole model's trusts: add its sums, scaled to the size of each group's.
        size = np.trace(squares, axis1=1, axis2=2)
        share = SHARED_TRUST * size / (size.sum() or 1.0)
        squares = squares + share[:, None, None] * squares.sum(axis=0)
        products = products + share[:, None] * products.sum(axis=0)
        found = np.stack([_solved(s, c) for s, c in zip(squares, products, strict=True)])
        # After k rounds the first trusts weigh 5 * .95^k, the learned 1 + ... + .95^(k - 1).
        left = TRUST_FADING ** int(self._arrays["taught"][0])
        first, learned = FIRST_ROUNDS * left, (1 - left) / (1 - TRUST_FADING)
        total = first * self._first_trusts() + learned * found.clip(*TRUST_BOUNDS)
        return np.asarray(total / (first + learned))

    def _first_trusts(self) -> NDArray[np.float64]:
        """Return the trusts before any was taught: b1 is lower with more features per update."""
        n_updates, n_features = self._arrays["gram"][0, 0], self.n_features
        return np.array([n_updates / (n_updates + 2 * n_features or 1), FIRST_REST_TRUST])

    def aggregate(
        self, clients: NDArray[np.int64], weights: NDArray[np.float64], updates: Array
    ) -> Array:
        """Return v, shape (dimension,); ``updates`` has one row for each of ``clients``."""
        positions, given = self._checked_cohort(clients, weights, updates)
        now, total = self._frozen(), float(given.sum())
        turn, rest = total * now.mean - given @ self._x(positions), None
        if self._rest is not None:
            rest = self._rest.expected()
            if len(positions):
                rest = rest - like(given, rest) @ self._rest.of(positions)
        found = like(given, updates) @ updates
        self._add(found[None], (1 - total) * now.mean[None], turn[None], rest)
        return found

    def of(self, clients: NDArray[np.int64]) -> Array:
        """Return h of these clients, shape (len(clients), dimension)."""
        found, mean = zero_rows(self.zeros[None], len(clients)), self._frozen().mean
        rest = None if self._rest is None else self._rest.of(clients)
        self._add(found, mean[None], self._x(clients) - mean, rest)
        return found

    def expected(self) -> Array:
        """Return H, the sum of p h over all clients, shape (dimension,)."""
        found, mean = zero_rows(self.zeros[None], 1), self._frozen().mean[None]
        rest = None if self._rest is None else self._rest.expected()
        self._add(found, mean, 0 * mean, rest)
        return found[0]

    def _add(
        self, to: Array, base: NDArray[np.float64], x: NDArray[np.float64], rest: Array | None
    ) -> None:
        """Add base B + b1 x B + b2 rest to rows, block by block."""
        now, cross = self._frozen(), self._arrays["cross"]
        for place, group in self._pieces(len(to)):
            one, two = now.trusts[group].tolist()
            to[:, place] += like((base + one * x) @ now.inverse, cross) @ cross[:, place]
            if rest is not None:
                to[:, place] += two * rest[..., place]

    def _predicted(self, x: NDArray[np.float64]) -> Array:
        """Return x B, one row for each of x."""
        return like(x @ self._frozen().inverse, self.zeros) @ self._arrays["cross"]

    # Learning

    def record_kept(self, clients: NDArray[np.int64], kept: Array, *, round_: int) -> None:
        """Learn from valid updates, one row per client."""
        if not len(clients):
            return
        rows = self._bounded(kept)
        if rows is None:
            return
        if len(clients) >= NEEDED_ANSWERS:
            self._teach(clients, rows)
        if self._output is not None:
            self._learn_features(clients, rows)
        self._now = None
        self._regress(self._x(clients), rows)
        self._now = None
        if self._rest is not None:
            fresh = rows - self._predicted(self._x(clients))
            is_old = (self._rest.last_seen[clients] >= 0)[:, None]
            share = like(np.where(is_old, OLD_SHARE, 0.0), fresh)
            fresh = share * self._rest.of(clients) + (1 - share) * fresh
            self._rest.record_kept(clients, fresh, round_=round_)

    def _bounded(self, updates: Array) -> Array | None:
        """Shorten updates that are far longer than usual, so that one client cannot spoil B.

        Return None while too few norms are known to tell what is usual.
        """
        # In pieces: a float64 copy of large updates may not fit into memory.
        parts = [row_norms(updates[:, place]) for place, _ in self._pieces(len(updates))]
        norms, heard = np.linalg.norm(parts, axis=0), int(self._arrays["heard"][0])
        past = self._arrays["norms"][: min(heard, REMEMBERED_NORMS)]
        positive = np.concatenate([past[past > 0], norms[norms > 0]])
        places = (heard + np.arange(len(norms))) % REMEMBERED_NORMS
        self._arrays["norms"][places] = norms
        self._arrays["heard"] += len(norms)
        if len(positive) < NEEDED_NORMS:
            return None
        most = LONGEST * float(np.median(positive))
        factors = np.minimum(1.0, most / np.maximum(norms, np.finfo(np.float64).tiny))
        return updates * like(factors, updates)[:, None] if (factors < 1).any() else updates

    def _teach(self, clients: NDArray[np.int64], rows: Array) -> None:
        """Add the squares and products of deviations from the cohort's mean to the sums."""
        now, cross = self._frozen(), self._arrays["cross"]
        coefficients = like((self._x(clients) - now.mean) @ now.inverse, cross)
        rest = None if self._rest is None else self._rest.of(clients)
        found, groups = [], []
        with np.errstate(over="ignore", invalid="ignore"):  # squares may overflow in float32
            for place, group in self._pieces(3 * len(rows)):
                predicted = coefficients @ cross[:, place]
                kept = predicted * 0 if rest is None else rest[:, place]
                centred = [
                    (part - part.mean(0)).reshape(-1) for part in (predicted, kept, rows[:, place])
                ]
                stacked = joined(centred, stacked=True)
                found.append(double(stacked @ stacked.T))
                groups.append(group)
        grams = as_numpy(joined(found, stacked=True))
        if not np.isfinite(grams).all():
            return
        for name, part in (("squares", grams[:, :2, :2]), ("products", grams[:, :2, 2])):
            self._arrays[name] *= TRUST_FADING
            np.add.at(self._arrays[name], groups, part)
        self._arrays["taught"] += 1

    def _pieces(self, n_rows: int) -> Iterator[Block]:
        """Yield the blocks in pieces: n rows of a piece fit into a small buffer."""
        step = max(1, BLOCK_ENTRIES // max(n_rows, len(self._arrays["gram"])))
        for place, group in self._blocks:
            for start in range(place.start, place.stop, step):
                yield Block(slice(start, min(start + step, place.stop)), group)

    def _learn_features(self, clients: NDArray[np.int64], rows: Array) -> None:
        """Average the direction of the output layer's update over each client's visits."""
        fresh = as_numpy(double(rows[:, self._output]))
        if self._mixed is not None:
            fresh = fresh @ self._mixed
        norms = np.linalg.norm(fresh, axis=1, keepdims=True)
        fresh = np.divide(fresh, norms, out=np.zeros_like(fresh), where=norms > 0)
        features, known = self._arrays["features"], self._arrays["known"]
        share = np.where(known[clients], OLD_SHARE, 0.0)[:, None]
        features[clients] = share * features[clients] + (1 - share) * fresh
        known[clients] = True
        self._centres = None

    def _regress(self, x: NDArray[np.float64], rows: Array) -> None:
        """Add the round to the sums of squares and products."""
        self._arrays["gram"] = FADING * self._arrays["gram"] + x.T @ x
        cross, across = self._arrays["cross"], like(x.T, rows)
        for place, _ in self._pieces(len(rows)):
            cross[:, place] *= FADING
            cross[:, place] += like(across @ rows[:, place], cross)

    # Moving and saving

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        return super().nbytes + (0 if self._rest is None else self._rest.nbytes)

    @property
    def nbytes_at_most(self) -> int:
        """Bytes in use once every client was seen."""
        return super().nbytes + (0 if self._rest is None else self._rest.nbytes_at_most)

    def _forget_cached(self) -> None:
        self._now = self._centres = None
        if self._rest is not None:
            self._rest.reweigh(self._importance)

    def _rearrange(self, order: NDArray[np.int64]) -> None:
        for name in ("features", "known"):
            self._arrays[name] = reordered(self._arrays[name], order)
        if self._rest is not None:
            self._rest.rearrange(order)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as numpy arrays."""
        rest = {} if self._rest is None else self._rest.state()
        return super().state() | with_prefix("rest.", rest)

    def _read(self, state: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
        rest = {} if self._rest is None else self._rest._read(without_prefix("rest.", state))
        return super()._read(state) | with_prefix("rest.", rest)

    def _adopt(self, arrays: dict[str, Array]) -> None:
        if self._rest is not None:
            self._rest._adopt(without_prefix("rest.", arrays))
        super()._adopt({name: arrays[name] for name in self._arrays})


def _solved(squares: NDArray[np.float64], products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve two equations; a part that never varied has the trust 0."""
    scale = np.sqrt(np.diagonal(squares))
    inverse = np.divide(1.0, scale, out=np.zeros(2), where=scale > 0)
    scaled = squares * np.outer(inverse, inverse) + TRUST_RIDGE * np.eye(2)
    return np.asarray(inverse * np.linalg.solve(scaled, inverse * products))
