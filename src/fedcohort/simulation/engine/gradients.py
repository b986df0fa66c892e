"""A step of many clients at once: data and parameters, the ways to compute gradients, and SGD."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedcohort.errors import SimulationError
from fedcohort.simulation.data.datasets import Dataset
from fedcohort.simulation.data.text import IGNORED
from fedcohort.simulation.engine.convolutions import StackedConvolutionGradients
from fedcohort.simulation.engine.models import KeyedModel, Stacked, plain_layers

log = logging.getLogger(__name__)


@final
class ResidentData:
    """Inputs and labels as tensors; inputs become float32 when they are taken.

    With ``integers`` they become int64 instead, for a model that takes integers.
    """

    def __init__(self, dataset: Dataset, device: torch.device, *, integers: bool = False) -> None:
        self.x, self.test_x = (tensor_of(part).to(device) for part in (dataset.x, dataset.test_x))
        self.y, self.test_y = (tensor_of(part).to(device) for part in (dataset.y, dataset.test_y))
        #: Whether a sample has a sequence of labels.
        self.has_sequences = dataset.length is not None
        self._kind = torch.int64 if integers else torch.float32
        self._scale, self._shift = dataset.scale, dataset.shift

    def buffer(self, n: int) -> Tensor:
        """Return memory for ``n`` samples that :meth:`take` can fill."""
        return torch.empty((n, *self.x.shape[1:]), dtype=self._kind, device=self.x.device)

    def take(self, x: Tensor, positions: Tensor, into: Tensor | None = None) -> Tensor:
        """Return the samples at ``positions`` (any shape), ready for a model.

        ``into`` is a :meth:`buffer` with enough rows; reusing it is faster than new memory.
        """
        flat = positions.reshape(-1)
        if into is not None and x.dtype == into.dtype:
            rows = torch.index_select(x, 0, flat, out=into[: len(flat)])
        else:
            found = x.index_select(0, flat)
            rows = found.to(self._kind) if into is None else into[: len(found)].copy_(found)
        if self._scale != 1.0:
            rows *= self._scale
        if self._shift != 0.0:
            rows += self._shift
        return rows.view(*positions.shape, *x.shape[1:])


def tensor_of(array: NDArray[np.generic]) -> Tensor:
    """Copy an array into a tensor; torch can compute with one type of unsigned integers only."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int32 if array.dtype.itemsize == 2 else np.int64)
    return torch.from_numpy(array.copy())


def rows_at(x: Tensor, positions: Tensor) -> Tensor:
    """Return the rows of ``x`` at ``positions``, which may have any shape."""
    return x.index_select(0, positions.reshape(-1)).view(*positions.shape, *x.shape[1:])


@final
class ParameterLayout:
    """The positions of a model's trained parameters in a flat row."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.size = sum(math.prod(shape) for shape in self.shapes.values())

    def views(self, flat: Tensor) -> Stacked:
        """Return views by name into flat rows, shape (lanes, size)."""
        parts = flat.split([math.prod(shape) for shape in self.shapes.values()], dim=1)
        return {
            name: part.view(len(flat), *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def stacked(self, flat: Tensor) -> Stacked:
        """Copy flat rows into one contiguous tensor per parameter.

        Batched products need contiguous tensors; into views of a row they go lane by lane.
        """
        return {name: view.contiguous().clone() for name, view in self.views(flat).items()}

    def flat(self, parameters: Stacked) -> Tensor:
        """Put stacked parameters end to end, shape (lanes, size)."""
        rows = [parameters[name].reshape(len(parameters[name]), -1) for name in self.shapes]
        return torch.cat(rows, dim=1)


def gradients_of(
    model: nn.Module, device: torch.device, *, dropout: bool = True, sequences: bool = False
) -> Gradients:
    """Return the fastest way for this model on this device.

    On a CPU, small operations cost little and convolutions of several clients at once take twice
    as long, so clients go one by one. On a GPU it is the other way round. With ``sequences``,
    samples have sequences of labels.
    """
    if StackedLinearGradients.fits(model) and not sequences:
        return StackedLinearGradients(model)  # type: ignore[arg-type]
    if device.type == "cpu":
        return LanewiseGradients(model, dropout=dropout)
    if StackedConvolutionGradients.fits(model) and not sequences:
        return StackedConvolutionGradients(model, dropout=dropout)  # type: ignore[arg-type]
    return VmappedGradients(model, dropout=dropout)


class Gradients(Protocol):
    """A way to compute all lanes' gradients.

    It maps stacked parameters, inputs (lanes, batch, ...), labels (lanes, batch), sample weights
    (lanes, batch) and random words (lanes, n_keys) to the gradients, stacked as the parameters, of

        sum_b weight_b * cross_entropy(model(x_b), y_b).

    With labels (lanes, batch, length), :func:`label_weights` take the place of the sample weights.
    """

    #: Random words that a lane needs in a step.
    n_keys: int

    def __call__(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Stacked:
        """Return the gradients, stacked as the parameters are."""


def label_weights(y: Tensor, weights: Tensor) -> Tensor:
    """Spread the weights of samples, shape (..., batch), evenly over the labels that count.

    Samples of one weight then give this weight's multiple of the mean over all their labels. A
    sample has one label, or a sequence with -1 where a position does not count.
    """
    if y.dim() == weights.dim():
        return weights
    spread = weights.unsqueeze(-1) * (y != IGNORED)
    counted = spread.sum(dim=(-2, -1))
    share = torch.where(counted > 0, weights.sum(dim=-1) / counted, 0.0)
    return spread * share[..., None, None]


def weighted_loss(outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return one lane's loss: the cross entropy of its labels, summed up with their weights."""
    losses = cross_entropy(
        outputs.flatten(0, -2), y.flatten(), reduction="none", ignore_index=IGNORED
    )
    return losses @ label_weights(y, weights).flatten()


@final
class VmappedGradients:
    """Any module, by ``torch.func``: one batch dimension more in every operation.

    A module that cannot have it goes one lane after the other, and the log says so. Recurrent
    networks do at once: cuDNN computes all positions of one lane in one call.

    Modules with random numbers of their own (``F.dropout``, ``nn.Dropout2d``) are refused: a CUDA
    graph could not repeat them.
    """

    def __init__(self, model: nn.Module, *, dropout: bool = True) -> None:
        self._model = KeyedModel(model, dropout=dropout)
        self.n_keys = self._model.n_keys
        self._gradients = vmap(grad(self._loss), randomness="error")
        self._source, self._dropout = model, dropout
        self._lanewise: LanewiseGradients | None = None
        recurrent = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
        if dropout and any(module.dropout for module in recurrent):
            raise SimulationError(OWN_RANDOMNESS)
        if recurrent:
            self._lanewise = self._one_by_one("recurrent networks are faster so")

    def _loss(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Tensor:
        return weighted_loss(self._model(parameters, x, keys, weights != 0), y, weights)

    def __call__(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Stacked:
        """Return the gradients, stacked as the parameters are."""
        if self._lanewise is not None:
            return self._lanewise(parameters, x, y, weights, keys)
        try:
            gradients: Stacked = self._gradients(parameters, x, y, weights, keys)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "random" in str(error):
                raise SimulationError(OWN_RANDOMNESS) from error
            return self._first_lanewise(error, parameters, x, y, weights, keys)
        return gradients

    def _first_lanewise(self, error: RuntimeError, *step: Any) -> Stacked:
        """Go lane by lane from now on, since all lanes at once raised this error."""
        lanewise = LanewiseGradients(self._source, dropout=self._dropout, seeded=False)
        before = _random_states()
        gradients = lanewise(*step)
        if any(map(_differ, before, _random_states())):
            raise SimulationError(OWN_RANDOMNESS) from error
        self._lanewise = self._one_by_one(str(error).splitlines()[0])
        return gradients

    def _one_by_one(self, reason: str) -> LanewiseGradients:
        say_once(f"model: its clients train one after the other ({reason})")
        return LanewiseGradients(self._source, dropout=self._dropout, seeded=False)


OWN_RANDOMNESS = (
    "model: draws random numbers other than those of nn.Dropout, which cannot be repeated on a "
    "GPU. Use nn.Dropout modules, or device 'cpu'."
)


@cache
def say_once(message: str) -> None:
    """Log a message the first time that it comes."""
    log.warning(message)


def _random_states() -> list[Tensor]:
    """Return the states of torch's generators."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.random.get_rng_state(), *states]


def _differ(before: Tensor, after: Tensor) -> bool:
    return not torch.equal(before, after)


@final
class LanewiseGradients:
    """Any module, one lane after the other, by autograd.

    Random numbers of a module come from torch's generator, which is seeded for every lane and step
    from the lane's own stream, and restored. This and leaving out padding read numbers from the
    device; without ``seeded`` neither happens, so that a CUDA graph can record a step.
    """

    def __init__(self, model: nn.Module, *, dropout: bool = True, seeded: bool = True) -> None:
        self._model, self._seeded = KeyedModel(model, dropout=dropout), seeded
        self.n_keys = self._model.n_keys + seeded

    def __call__(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Stacked:
        """Return the gradients, stacked as the parameters are."""
        gradients = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
        lanes, batch = weights.shape
        if not self._seeded:
            for k in range(lanes):
                self._add(gradients, parameters, k, x[k], y[k], weights[k], keys[k])
            return gradients
        # Padding comes last; it would be half of the work for clients of few samples.
        places = torch.arange(1, batch + 1, device=weights.device)
        lengths = ((weights != 0) * places).amax(dim=1).tolist()
        with torch.random.fork_rng(devices=[]):
            for k, (n, seed) in enumerate(zip(lengths, keys[:, -1].tolist(), strict=True)):
                # torch.manual_seed also formats a stack trace for each kind of GPU: a millisecond.
                torch.default_generator.manual_seed(seed)
                if n:
                    own = (x[k, :n], y[k, :n], weights[k, :n], keys[k, :-1])
                    self._add(gradients, parameters, k, *own)
        return gradients

    def _add(
        self,
        gradients: Stacked,
        parameters: Stacked,
        k: int,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        keys: Tensor,
    ) -> None:
        """Write the gradients of lane k; a parameter that its loss does not reach keeps 0."""
        own = {name: tensor[k].detach().requires_grad_() for name, tensor in parameters.items()}
        with torch.enable_grad():
            loss = weighted_loss(self._model(own, x, keys, weights != 0), y, weights)
        slopes = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        for name, slope in zip(own, slopes, strict=True):
            if slope is not None:
                gradients[name][k] = slope


@final
class StackedLinearGradients:
    """Chains of linear layers and ReLUs: batched matrix products, gradients by hand.

    On a CPU this takes two thirds of autograd's time for the paper's MLP, and ``descend``, which
    adds the products to the parameters as it goes, a tenth less again.
    """

    n_keys = 0

    def __init__(self, model: nn.Sequential) -> None:
        layers = plain_layers(model)
        self._layers = [name for name, module in layers if type(module) is not nn.Flatten]
        self._linear = {name for name, module in layers if type(module) is nn.Linear}

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether the model is such a chain, the last layer linear; it may flatten first.

        A chain that does not flatten needs flat samples; ``check_outputs`` sees to that.
        """
        modules = [module for _, module in plain_layers(model)]
        first = modules[0] if modules else None
        if isinstance(first, nn.Flatten):
            if (first.start_dim, first.end_dim) != (1, -1):
                return False
            modules = modules[1:]
        kinds = [type(module) for module in modules]
        return kinds[-1:] == [nn.Linear] and set(kinds) <= {nn.Linear, nn.ReLU}

    def __call__(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, keys: Tensor
    ) -> Stacked:
        """Return the gradients, stacked as the parameters are."""
        gradients: Stacked = {}

        def keep(name: str, slope: Tensor, inputs: Tensor) -> None:
            gradients[f"{name}.weight"] = torch.bmm(slope.transpose(1, 2), inputs)
            if f"{name}.bias" in parameters:
                gradients[f"{name}.bias"] = slope.sum(dim=1)

        self._walk(parameters, x, y, weights, keep)
        return gradients

    def descend(
        self, parameters: Stacked, x: Tensor, y: Tensor, weights: Tensor, lr: float
    ) -> None:
        """Take a plain SGD step in place: the products go straight into the parameters."""

        def move(name: str, slope: Tensor, inputs: Tensor) -> None:
            parameters[f"{name}.weight"].baddbmm_(slope.transpose(1, 2), inputs, alpha=-lr)
            if f"{name}.bias" in parameters:
                parameters[f"{name}.bias"].sub_(slope.sum(dim=1), alpha=lr)

        self._walk(parameters, x, y, weights, move)

    def outputs(self, parameters: Stacked, x: Tensor) -> Tensor:
        """Return the models' outputs, shape (lanes, batch, classes)."""
        return self._hidden(parameters, x)[-1]

    def _hidden(self, parameters: Stacked, x: Tensor) -> list[Tensor]:
        """Return the inputs of every layer, and the last one's outputs."""
        hidden = [x.flatten(2)]
        for name in self._layers:
            below, is_linear = hidden[-1], name in self._linear
            hidden.append(_linear(parameters, name, below) if is_linear else below.relu())
        return hidden

    def _walk(
        self,
        parameters: Stacked,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        visit: Callable[[str, Tensor, Tensor], None],
    ) -> None:
        """Go forward and back; ``visit`` every linear layer with its slope and its inputs."""
        *inputs, outputs = self._hidden(parameters, x)
        slope = _cross_entropy_slope(outputs, y, weights)
        for number in range(len(self._layers) - 1, -1, -1):
            name = self._layers[number]
            if name not in self._linear:
                slope = torch.ops.aten.threshold_backward(slope, inputs[number], 0)
                continue
            # Before the visit, which may change the layer.
            below = torch.bmm(slope, parameters[f"{name}.weight"]) if number > 0 else slope
            visit(name, slope, inputs[number])
            slope = below


def _linear(parameters: Stacked, name: str, x: Tensor) -> Tensor:
    # As (W x^T)^T: on a CPU a sixth faster than x W^T for one model and hundreds of samples.
    kernel, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    columns = x.transpose(1, 2)
    if bias is None:
        return torch.bmm(kernel, columns).transpose(1, 2)
    return torch.baddbmm(bias.unsqueeze(2), kernel, columns).transpose(1, 2)


def _cross_entropy_slope(outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Return the derivative of the weighted cross entropy: (softmax - one hot) * weight."""
    slope = outputs - outputs.amax(dim=2, keepdim=True)
    slope.exp_()
    slope /= slope.sum(dim=2, keepdim=True)
    slope.scatter_add_(2, y.unsqueeze(2), torch.full_like(slope[..., :1], -1.0))
    return slope.mul_(weights.unsqueeze(2))


class LocalOptimizer(ABC):
    """An optimiser of every lane, with weight decay and FedProx's pull towards the start."""

    def __init__(self, start: Stacked, *, weight_decay: float) -> None:
        self._start, self._weight_decay = start, weight_decay

    @abstractmethod
    def reset(self) -> None:
        """Forget the earlier steps."""

    @abstractmethod
    def _begin(self, lr: Tensor) -> Tensor:
        """Begin a step: return the lanes' factors of :meth:`_direction`."""

    @abstractmethod
    def _direction(self, name: str, slope: Tensor) -> Tensor:
        """Return how to move against a slope, before the factor."""

    def step(self, parameters: Stacked, gradients: Stacked, lr: Tensor, mu: float | Tensor) -> None:
        """Move every lane against its gradient.

        ``lr`` has shape (lanes,), 0 where a lane rests; ``mu`` is one number, or has this shape.
        Without the last lanes, these rest.
        """
        factor = self._begin(lr)
        for name, parameter in parameters.items():
            slope, start = gradients[name], self._start[name][: len(parameter)]
            if self._weight_decay:
                slope = slope.add(parameter, alpha=self._weight_decay)
            per_lane = (-1, *[1] * (parameter.dim() - 1))
            if isinstance(mu, Tensor):
                slope = slope.addcmul(parameter - start, mu.view(per_lane))
            elif mu:
                slope = slope.add(parameter - start, alpha=mu)
            parameter.addcmul_(self._direction(name, slope), factor.view(per_lane), value=-1)


@final
class Sgd(LocalOptimizer):
    """``torch.optim.SGD``."""

    def __init__(self, start: Stacked, *, momentum: float, weight_decay: float) -> None:
        super().__init__(start, weight_decay=weight_decay)
        self._momentum = momentum
        self._velocity = {
            name: torch.zeros_like(tensor) for name, tensor in start.items() if momentum
        }

    def reset(self) -> None:
        """Forget the momentum."""
        for velocity in self._velocity.values():
            velocity.zero_()

    def _begin(self, lr: Tensor) -> Tensor:
        return lr

    def _direction(self, name: str, slope: Tensor) -> Tensor:
        if not self._momentum:
            return slope
        return self._velocity[name][: len(slope)].mul_(self._momentum).add_(slope)


@final
class Adam(LocalOptimizer):
    """``torch.optim.Adam``. All lanes begin together, so one count of steps serves all."""

    def __init__(
        self, start: Stacked, *, beta1: float, beta2: float, eps: float, weight_decay: float
    ) -> None:
        super().__init__(start, weight_decay=weight_decay)
        self._beta1, self._beta2, self._eps = beta1, beta2, eps
        self._mean, self._square = (
            {name: torch.zeros_like(tensor) for name, tensor in start.items()} for _ in range(2)
        )
        # On the device, where a CUDA graph counts. In float64: 1 - beta2 is small.
        device = next(iter(start.values())).device
        self._taken = torch.zeros((), dtype=torch.float64, device=device)
        self._root = torch.ones_like(self._taken)

    def reset(self) -> None:
        """Forget both moments and the number of steps."""
        for moment in (*self._mean.values(), *self._square.values(), self._taken):
            moment.zero_()

    def _begin(self, lr: Tensor) -> Tensor:
        self._taken.add_(1)
        self._root = (1 - self._beta2**self._taken).sqrt()
        return lr / (1 - self._beta1**self._taken)

    def _direction(self, name: str, slope: Tensor) -> Tensor:
        mean, square = (part[name][: len(slope)] for part in (self._mean, self._square))
        mean.lerp_(slope, 1 - self._beta1)
        square.mul_(self._beta2).addcmul_(slope, slope, value=1 - self._beta2)
        return mean / square.sqrt().div_(self._root).add_(self._eps)
