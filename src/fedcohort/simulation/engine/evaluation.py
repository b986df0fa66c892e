"""How good a model is on the clients' own samples, and a step against full participation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedcohort._display import record_repr, short_repr
from fedcohort._updates import as_numpy
from fedcohort.cohort import NOBODY
from fedcohort.designs import Design, MultinomialDesign
from fedcohort.memory import Estimator
from fedcohort.selector.max_norm import factors_of
from fedcohort.simulation.data.partitions import FederatedData, Indices
from fedcohort.simulation.data.text import IGNORED
from fedcohort.simulation.engine.gradients import (
    ParameterLayout,
    ResidentData,
    StackedLinearGradients,
    gradients_of,
)
from fedcohort.simulation.engine.models import KeyedModel, has_batch_norm
from fedcohort.streams import Stream, stream

#: Labels in a batch: on the CPU few enough for the cache.
BATCH = {"cpu": 512, "cuda": 8192}
#: Train as many clients together as have this many bytes of models.
YARDSTICK_BYTES = 2**30
#: Labels whose gradients are computed at a time.
LABELS_AT_ONCE = 20_000
#: Numbers of what an estimator leaves that are compared at a time.
NUMBERS_AT_ONCE = 2**26


class Train(Protocol):
    """Trains clients, listed run by run; returns each run's updates, one row per client.

    ``seeds`` are the runs' seeds of batches and dropout; None: their own.
    """

    def __call__(
        self,
        clients: Sequence[NDArray[np.int64]],
        round_: int,
        seeds: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Train in a round."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A global model, judged on the clients' own samples.

    ``loss`` is sum p_i L_i, L_i the mean loss of client i's training samples; ``accuracy`` and
    ``accuracy_spread`` are the p-weighted mean and standard deviation of the clients' test
    accuracies (of those that have test samples). ``worst_accuracy`` is the plain mean over the
    tenth of them with the lowest accuracy, at least one client; NaN in rounds that an older version
    recorded. If only a sample of clients is measured, these are estimates, and ``loss_error`` is
    the standard error of the loss; otherwise it is 0.
    """

    loss: float
    accuracy: float
    accuracy_spread: float
    worst_accuracy: float = math.nan
    loss_error: float = 0.0

    __repr__ = record_repr


@dataclass(frozen=True, slots=True, eq=False)
class ClientQuality:
    """A global model, judged on the samples of each client alone.

    ``loss`` (training samples) and ``accuracy`` (test samples) have shape (n_clients,); NaN where
    a client has no such samples.
    """

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    def __repr__(self) -> str:
        return short_repr(self, n_clients=len(self.loss))


@final
class Evaluator:
    """Evaluates models on one federation, dropout off, every sample once.

    Clients count by ``importance``, shape (n_clients,).
    With ``sample`` it measures a sample of the clients: that many draws by importance, with
    replacement and a fixed seed. The mean over the draws is unbiased.
    """

    def __init__(
        self,
        model: nn.Module,
        data: ResidentData,
        federation: FederatedData,
        *,
        importance: NDArray[np.float64],
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        self._model, self._layout = KeyedModel(model, dropout=False), ParameterLayout(model)
        self._data = data
        # Samples of batch norms are judged in batches of one client each.
        self._alone = has_batch_norm(model)
        fits = StackedLinearGradients.fits(model) and not data.has_sequences
        self._chain = StackedLinearGradients(model) if fits else None  # type: ignore[arg-type]
        self._parts, self._federation, self._sample = federation.train, federation, sample
        self._weights = importance
        measured = np.arange(federation.n_clients)
        if sample is not None:
            rng = stream(seed, use=Stream.EVALUATION)
            counts = rng.multinomial(sample, self._weights)
            measured = np.flatnonzero(counts)
            self._weights = counts[measured] / sample
        self._measured = measured
        train, test = (
            tuple(each[client] for client in measured)
            for each in (federation.train, federation.test)
        )
        self._train, self._test = self._train_samples(train), self._test_samples(test)

    def quality(self, flat: Tensor) -> Quality:
        """Judge the model with these parameters, shape (size,)."""
        losses = self._train.means(self._over(flat, self._train, _losses))
        loss = float(self._weights @ losses)
        error = self._standard_error(losses - loss)
        accuracies = self._test.means(self._over(flat, self._test, _hits))
        tested = self._test.counted > 0
        weight = self._weights * tested
        if weight.sum() == 0:
            return Quality(loss, math.nan, math.nan, loss_error=error)
        weight = weight / weight.sum()
        mean = float(weight @ accuracies)
        spread = float(np.sqrt(weight @ (accuracies - mean) ** 2))
        return Quality(loss, mean, spread, _lowest_tenth(accuracies[tested]), error)

    def _standard_error(self, deviations: NDArray[np.float64]) -> float:
        """Return the standard error of a mean over the sample; 0 if all clients are measured."""
        if self._sample is None:
            return 0.0
        variance = float(self._weights @ deviations**2)
        return math.sqrt(variance / (self._sample - 1)) if self._sample > 1 else math.nan

    def client_quality(self, flat: Tensor) -> ClientQuality:
        """Judge the model on each measured client's own samples; NaN for all others."""
        found = []
        for samples, judge in ((self._train, _losses), (self._test, _hits)):
            own = samples.means(self._over(flat, samples, judge))
            values = np.full(self._federation.n_clients, math.nan)
            values[self._measured] = np.where(samples.counted > 0, own, math.nan)
            found.append(values)
        return ClientQuality(*found)

    def losses_of(
        self, flat: Tensor, clients: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean and the root mean square of these clients' training losses.

        Both have shape (len(clients),); a client without samples has 0.
        """
        parts = tuple(self._parts[client] for client in clients)
        samples = self._train_samples(parts)
        losses = self._over(flat, samples, _losses)
        return samples.means(losses), np.sqrt(samples.means(losses**2))

    def _train_samples(self, parts: Indices) -> _Samples:
        return _Samples(parts, self._data.x, self._data.y, alone=self._alone)

    def _test_samples(self, parts: Indices) -> _Samples:
        return _Samples(parts, self._data.test_x, self._data.test_y, alone=self._alone)

    @torch.no_grad()
    def _over(
        self, flat: Tensor, samples: _Samples, judge: Callable[[Tensor, Tensor], Tensor]
    ) -> NDArray[np.float64]:
        """Judge every label of the used samples once, in large batches; shaped as the labels.

        A label that does not count has 0.
        """
        x, y, positions = samples.x, samples.y, samples.positions
        if len(positions) == 0:
            return np.empty((0, *y.shape[1:]))
        outputs = self._outputs(flat)
        batches = samples.batches()
        buffer = self._data.buffer(max(map(len, batches)))
        judged = []
        for batch in batches:
            labels = y[batch]
            scores = outputs(self._data.take(x, batch, buffer)).flatten(0, -2)
            own = judge(scores, labels.flatten().clamp(min=0)).view(labels.shape)
            # Not own * 0: a model may give its padding a loss of infinity.
            judged.append(torch.where(labels != IGNORED, own, 0.0))
        return np.asarray(torch.cat(judged).cpu(), dtype=np.float64)

    def _outputs(self, flat: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the model with these parameters, dropout off, as a function."""
        parameters, chain = self._layout.views(flat[None]), self._chain
        if chain is not None:
            return lambda x: chain.outputs(parameters, x[None])[0]
        own = {name: view[0] for name, view in parameters.items()}
        return lambda x: self._model(own, x)


def _lowest_tenth(values: NDArray[np.float64]) -> float:
    """Average the lowest tenth of the values, rounded up to at least one."""
    n_worst = math.ceil(len(values) / 10)
    return float(np.partition(values, n_worst - 1)[:n_worst].mean())


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    # As cross_entropy(reduction="none"), which is several times slower for few classes.
    return outputs.logsumexp(dim=1) - outputs.gather(1, labels.unsqueeze(1)).squeeze(1)


def _hits(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == labels).float()


class _Samples:
    """The samples that clients use, each once, and who uses which.

    With ``alone``, a sample is in a batch with samples of one client only, and once for each client
    that uses it.
    """

    def __init__(self, parts: Indices, x: Tensor, y: Tensor, *, alone: bool) -> None:
        self.x, self.y, self._alone = x, y, alone
        self.sizes = np.array([len(part) for part in parts], dtype=np.int64)
        #: How many labels a sample has.
        self.length = 1 if y.dim() == 1 else y.shape[1]
        # If all clients share their samples, one client stands for all.
        own = parts[:1] if all(part is parts[0] for part in parts) else parts
        entries = np.concatenate(own) if own else np.empty(0, dtype=np.int64)
        used, self._entry = entries, np.arange(len(entries))
        if not alone:
            used, self._entry = np.unique(entries, return_inverse=True)
        self._n_own = len(own)
        self._client = np.repeat(np.arange(len(own)), self.sizes[: len(own)])
        self.positions = torch.from_numpy(used).to(x.device)
        #: How many labels of every client count.
        self.counted = self.sizes
        if y.dim() > 1:
            labels = (y[self.positions] != IGNORED).sum(dim=1).cpu().numpy()
            self.counted = np.broadcast_to(self._sums(labels), self.sizes.shape).astype(np.int64)

    def batches(self) -> Sequence[Tensor]:
        """Divide the used samples into batches."""
        if self._alone:
            sizes = self.sizes[: self._n_own]
            return torch.split(self.positions, sizes[sizes > 0].tolist())
        return torch.split(self.positions, max(1, BATCH[self.x.device.type] // self.length))

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average a value per label over every client's labels that count; 0 without any.

        Labels that do not count must have 0.
        """
        sums = self._sums(values if values.ndim == 1 else values.sum(axis=1))
        means = np.asarray(sums / np.maximum(self.counted[: self._n_own], 1), dtype=np.float64)
        return np.broadcast_to(means, self.sizes.shape).copy()

    def _sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Add up a value per used sample for every client with samples of its own."""
        sums = np.bincount(self._client, values[self._entry], minlength=self._n_own)
        return np.asarray(sums, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Yardstick:
    r"""One round against full participation, where every client trains.

    Batches and dropout are random: a client's update is :math:`\Delta_i = \mu_i + \epsilon_i`, with
    noise of variance :math:`\sigma_i^2 = E\|\epsilon_i\|^2` around its mean. An estimator fixes h
    before clients train, so h does not know the noise. B of what it leaves is, on average over
    batches,

    .. math:: E[B(\Delta - h)] = B(\mu - h) + \sum_i E[(w_i - p_i)^2] \, \sigma_i^2 .

    The sum is the **noise floor** of the design: :math:`h = \mu` reaches it, and no estimator goes
    below it. The share of B that an estimator could still remove is :math:`(B - floor) / (B_{MD} -
    floor_{MD})`. In a single round B can be below the floor by chance. The floor does not hold for
    designs that ask for the norms of updates before the draw: they know the noise.

    Attributes
    ----------
    squared_error
        :math:`\|\sum w_i \Delta_i - \sum p_i \Delta_i\|^2` of the cohort that was drawn.
    design_variance
        Its expectation under the design, B (squared bias included); with an
        estimator B of what h leaves; NaN where the design has no formula for it, and with an
        estimator that has other weights than the design.
    multinomial_variance
        Its expectation under multinomial sampling and plain aggregation, B_MD.
    beta_squared
        Of Assumption 3 with :math:`\kappa = 0`:
        :math:`\sum p_i \|g_i\|^2 / \|\sum p_i g_i\|^2`, :math:`g_i` the clients' gradients.
    kappa_squared
        Of Assumption 3 with :math:`\beta = 1`:
        :math:`\sum p_i \|g_i\|^2 - \|\sum p_i g_i\|^2`.
    design_floor
        An unbiased estimate of the design's floor, from clients that trained twice; NaN where
        none did, or where the design has no formula for the variance of its weights.
    multinomial_floor
        The same of multinomial sampling, :math:`\sum p_i (1 - p_i) \sigma_i^2 / m`.
    """

    squared_error: float
    design_variance: float
    multinomial_variance: float
    beta_squared: float
    kappa_squared: float
    design_floor: float = math.nan
    multinomial_floor: float = math.nan

    __repr__ = record_repr

    @property
    def is_finite(self) -> bool:
        """Whether every client's training and gradient was finite."""
        return not math.isnan(self.squared_error)


@dataclass(frozen=True, slots=True, eq=False)
class SecondTraining:
    r"""A sample of clients that trained again from the same model, with other batches.

    ``updates`` has one row :math:`\Delta_i'` for each of ``clients``. With k draws by importance,
    of which :math:`c_i` are of client i, ``factors`` are :math:`c_i / (k p_i)`: then

    .. math:: \sum_i a_i \sigma_i^2 \approx
        \sum_i \frac{c_i}{k p_i} a_i \tfrac12 \|\Delta_i - \Delta_i'\|^2

    is unbiased, since :math:`E\|\Delta_i - \Delta_i'\|^2 = 2 \sigma_i^2`.
    """

    clients: NDArray[np.int64]
    factors: NDArray[np.float64]
    updates: NDArray[np.float32]

    def floor(self, design: Design, updates: NDArray[np.float32]) -> float:
        """Estimate the noise floor; ``updates`` are all clients' first ones."""
        if not design.exact_weights:
            return math.nan
        own = self.clients
        change = updates[own].astype(np.float64) - self.updates
        noise = np.einsum("ij,ij->i", change, change) / 2
        moments = design.weight_variance()[own] + design.bias()[own] ** 2
        return float((self.factors * moments) @ noise)


def sample_again(
    rng: np.random.Generator, importance: NDArray[np.float64], draws: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Choose the clients of a :class:`SecondTraining`; return them and their factors."""
    everyone = np.flatnonzero(importance)
    if draws >= len(everyone):
        return everyone, np.ones(len(everyone))
    counts = rng.multinomial(draws, importance)
    drawn = np.flatnonzero(counts)
    return drawn, counts[drawn] / (draws * importance[drawn])


class Gradients(NamedTuple):
    r"""Sums over all clients' gradients: :math:`\|\sum p_i g_i\|^2`, :math:`\sum p_i \|g_i\|^2`."""

    square_of_mean: float
    mean_of_squares: float


def yardstick(
    design: Design,
    aggregate: NDArray[np.float32],
    updates: NDArray[np.float32],
    gradients: Gradients,
    remembered: NDArray[np.float32] | None = None,
    second: SecondTraining | None = None,
) -> Yardstick:
    """Compare a cohort's aggregate with the mean over all clients' updates.

    ``updates`` and ``remembered`` (h of an estimator) have shape (n_clients, size), ``aggregate``
    (size,). If a client's update or gradient is not finite, every number is NaN. Without a
    ``second`` training of some clients, or if it is not finite, the floors are NaN.
    """
    importance = design.population.importance
    if not (np.isfinite(updates).all() and np.isfinite(gradients).all()):
        return Yardstick(*[math.nan] * len(fields(Yardstick)))
    error = aggregate.astype(np.float64) - importance @ updates
    of_mean, squares = gradients
    multinomial = MultinomialDesign(design.population, design.cohort_size)
    floors = {}
    if second is not None and np.isfinite(second.updates).all():
        floors["design_floor"] = second.floor(design, updates)
        floors["multinomial_floor"] = second.floor(multinomial, updates)
    return Yardstick(
        squared_error=float(error @ error),
        design_variance=_variance_left(design, updates, remembered),
        multinomial_variance=multinomial.aggregate_variance(updates),
        beta_squared=squares / of_mean if of_mean > 0 else float("inf"),
        kappa_squared=max(squares - of_mean, 0.0),
        **floors,
    )


def _variance_left(
    design: Design, updates: NDArray[np.float32], remembered: NDArray[np.float32] | None
) -> float:
    """Return B of what an estimator leaves, some columns at a time; NaN without a formula."""
    if not design.exact_moments:
        return math.nan
    if remembered is None:
        return design.aggregate_variance(updates)
    n_clients, size = updates.shape
    step = max(1, NUMBERS_AT_ONCE // n_clients)
    columns = (slice(start, start + step) for start in range(0, size, step))
    return math.fsum(
        design.aggregate_variance(updates[:, some] - remembered[:, some]) for some in columns
    )


class Drawn(NamedTuple):
    """What a run did in a round: where it drew from, its step, its estimator and its bound.

    ``own_weights``: the weights are not those of the design, which then says nothing about B.
    """

    design: Design
    step: Tensor
    estimator: Estimator | None
    max_norm: float | None
    own_weights: bool = False


@final
class FullParticipation:
    """Compares rounds with rounds in which all available clients take part.

    ``federations`` and ``seeds`` have one entry per run. ``floor_clients`` is the number of draws
    for the noise floor.
    """

    def __init__(
        self,
        federations: Sequence[FederatedData],
        model: nn.Module,
        data: ResidentData,
        train: Train,
        pool: Executor,
        *,
        seeds: Sequence[int],
        floor_clients: int,
    ) -> None:
        self._parts = [each.train for each in federations]
        self._seeds, self._floor_clients = seeds, floor_clients
        self._gradients = gradients_of(
            model, data.x.device, dropout=False, sequences=data.has_sequences
        )
        self._layout, self._data = ParameterLayout(model), data
        self._train, self._pool = train, pool
        #: Whether the samples of a client can be divided among batches.
        self._splits = data.has_sequences and not has_batch_norm(model)

    def yardsticks(
        self, models: Tensor, rounds: Sequence[Drawn | None], round_: int
    ) -> list[Yardstick | None]:
        """Return every run's yardstick; None where nothing was drawn.

        ``models`` and ``rounds`` have one entry per run.
        """
        found: dict[int, Yardstick] = {}
        drawn = {k: own for k, own in enumerate(rounds) if own is not None}
        for some in self._fitting(models, list(drawn)):
            group = {k: drawn[k] for k in some}
            first = self._everyones_updates(models, group, round_)
            second = self._second_trainings(group, round_)
            waiting = {}
            for k, (design, step, estimator, *_) in group.items():
                h = None if estimator is None else as_numpy(estimator.of(np.arange(len(first[k]))))
                gradients = self._gradients_of(models[k], self._parts[k], design)
                facts = (design, step.cpu().numpy(), first.pop(k), gradients, h, second.get(k))
                waiting[k] = self._pool.submit(yardstick, *facts)
            # The next group's updates need the memory.
            for k, each in waiting.items():
                found[k] = each.result()
                if group[k].own_weights:
                    found[k] = replace(found[k], design_variance=math.nan, design_floor=math.nan)
        return [found.get(k) for k in range(len(rounds))]

    def _fitting(self, models: Tensor, which: list[int]) -> Iterator[list[int]]:
        """Divide runs, in order, into groups whose clients' models fit ``YARDSTICK_BYTES``."""
        some: list[int] = []
        for k in which:
            held = sum(len(self._parts[each]) for each in [*some, k])
            if some and 4 * held * models.shape[1] > YARDSTICK_BYTES:
                yield some
                some = []
            some.append(k)
        if some:
            yield some

    def _everyones_updates(
        self, models: Tensor, group: Mapping[int, Drawn], round_: int
    ) -> dict[int, NDArray[np.float32]]:
        """Train all clients of these runs; shape (n_clients, size) each, 0 without samples."""
        clients = [
            np.flatnonzero([k in group and len(part) for part in parts])
            for k, parts in enumerate(self._parts)
        ]
        trained = self._train(clients, round_)
        found = {}
        for k, own in group.items():
            found[k] = np.zeros((len(self._parts[k]), models.shape[1]), dtype=np.float32)
            found[k][clients[k]] = _bounded(trained[k], own.max_norm)
        return found

    def _second_trainings(
        self, group: Mapping[int, Drawn], round_: int
    ) -> dict[int, SecondTraining]:
        """Train a sample of the clients of these runs again, with other batches and dropout.

        The stream ``FLOOR`` of the run's seed and the round gives the second training's own seed,
        then the sample. Runs with one seed and the same available clients share both.
        """
        if not self._floor_clients:
            return {}
        seeds, clients, factors = [*self._seeds], [NOBODY] * len(self._seeds), {}
        for k, own in group.items():
            rng = stream(self._seeds[k], round_=round_, use=Stream.FLOOR)
            seeds[k] = int(rng.integers(2**63))
            importance = own.design.population.importance
            clients[k], factors[k] = sample_again(rng, importance, self._floor_clients)
        trained = self._train(clients, round_, seeds)
        return {
            k: SecondTraining(clients[k], factors[k], _bounded(trained[k], own.max_norm))
            for k, own in group.items()
        }

    def _gradients_of(self, flat: Tensor, parts: Indices, design: Design) -> Gradients:
        """Sum up the gradients of all clients at the parameters ``flat``."""
        importance = torch.from_numpy(design.population.importance).to(flat.device)
        longest = max(map(len, parts))
        length = math.prod(self._data.y.shape[1:])
        at_once = max(1, LABELS_AT_ONCE // (longest * length))
        mean = torch.zeros_like(flat, dtype=torch.float64)
        squares = mean.new_zeros(())
        for start in range(0, len(parts), at_once):
            some = parts[start : start + at_once]
            positions = np.zeros((len(some), longest), dtype=np.int64)
            weights = np.zeros((len(some), longest), dtype=np.float32)
            for k, part in enumerate(some):
                positions[k, : len(part)] = part
                weights[k, : len(part)] = 1 / max(len(part), 1)
            gradients = self._gradients_at(flat, positions, weights).double()
            share = importance[start : start + at_once]
            mean += share @ gradients
            squares += share @ gradients.square().sum(dim=1)
        return Gradients(float(mean @ mean), float(squares))

    def _gradients_at(
        self, flat: Tensor, positions: NDArray[np.int64], weights: NDArray[np.float32]
    ) -> Tensor:
        """Return the gradients of one batch per client, both of shape (clients, samples)."""
        device, n_keys = flat.device, self._gradients.n_keys
        where, shares = (torch.from_numpy(part).to(device) for part in (positions, weights))
        models = self._layout.views(flat.expand(len(positions), -1).contiguous())
        # No dropout, so that the keys are never read.
        keys = torch.zeros((len(positions), n_keys), dtype=torch.int32, device=device)
        at_once = self._samples_at_once(*positions.shape)
        pieces = zip(where.split(at_once, 1), self._pieces(where, shares, at_once), strict=True)
        parts = (
            self._gradients(models, self._data.take(self._data.x, own), self._data.y[own], w, keys)
            for own, w in pieces
        )
        return reduce(torch.add, (self._layout.flat(part) for part in parts))

    def _samples_at_once(self, n_clients: int, longest: int) -> int:
        """Return how many samples of each client to take at a time."""
        if not self._splits:
            return max(longest, 1)
        return max(1, LABELS_AT_ONCE // (n_clients * math.prod(self._data.y.shape[1:])))

    def _pieces(self, where: Tensor, shares: Tensor, at_once: int) -> Sequence[Tensor]:
        """Split sample weights, so that each label of a sequence has its weight in the whole."""
        pieces = torch.split(shares, at_once, 1)
        if len(pieces) == 1:
            return pieces
        labels = (self._data.y[where] != IGNORED).sum(dim=2) * (shares > 0)
        share = labels / labels.sum(dim=1, keepdim=True).clamp(min=1)
        return [
            (own > 0) * (of.sum(dim=1) / (own > 0).sum(dim=1).clamp(min=1))[:, None]
            for own, of in zip(pieces, share.split(at_once, 1), strict=True)
        ]


def _bounded(updates: Tensor, max_norm: float | None) -> NDArray[np.float32]:
    """Scale updates down to a norm, as the selector does; None scales none."""
    if max_norm is not None:
        norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
        factors = torch.from_numpy(factors_of(norms.cpu().numpy(), max_norm))
        updates = updates * factors.to(updates)[:, None]
    return updates.cpu().numpy()
