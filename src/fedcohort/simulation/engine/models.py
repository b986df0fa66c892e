"""Models: the paper's, checks of a user's own, and dropout with keys."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedcohort._arguments import MOST, WholeNeed, brief
from fedcohort._fields import checks
from fedcohort.errors import SimulationError
from fedcohort.simulation.data.datasets import Dataset
from fedcohort.streams import Stream, stream

ModelSource = nn.Module | Callable[[], nn.Module]
#: One tensor per parameter of the model, shape (lanes, *shape).
Stacked = dict[str, Tensor]
WIDTH = WholeNeed(least=1, most=MOST, way_out="Pass how many numbers the layer has.")


@checks(SimulationError, inputs=WIDTH, hidden=WIDTH, classes=WIDTH)
def mlp(inputs: int = 784, hidden: int = 50, classes: int = 10) -> nn.Sequential:
    """Return the paper's model for MNIST: one hidden layer, 39,760 parameters.

    Parameters
    ----------
    hidden
        Units of the hidden layer.
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


@checks(SimulationError, classes=WIDTH)
def cnn(classes: int = 10) -> nn.Sequential:
    """Return the paper's model for CIFAR-10: three convolutions, 122,570 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Conv2d(64, 64, 3),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def make_model(source: ModelSource, *, seed: int) -> nn.Module:
    """Return a checked model: the given module, or a new one from the seed.

    A function that makes a model is called with torch's generator set from the seed; the generator
    is restored. A module keeps its parameters.
    """
    model: object = source
    if not isinstance(source, nn.Module) and callable(source):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, use=Stream.MODEL).integers(2**63)))
            model = source()
    if not isinstance(model, nn.Module):
        raise SimulationError(
            f"model: needs an nn.Module or a function that makes one; got {brief(model)}. Pass "
            f"mlp, cnn or your own."
        )
    _check_model(model)
    return model


def initial_models(source: ModelSource, seeds: Sequence[int]) -> tuple[nn.Module, Tensor]:
    """Return a model, and the initial parameters for every seed, shape (seeds, size).

    All seeds share the model's untrained parts; seeds that differ in them are refused.
    """
    first = make_model(source, seed=seeds[0])
    starts, untrained = {seeds[0]: flat_parameters(first)}, _untrained(first)
    for seed in dict.fromkeys(seeds[1:]):  # one at a time: their frozen parts may be large
        model = make_model(source, seed=seed)
        if any(not torch.equal(part, untrained[name]) for name, part in _untrained(model).items()):
            raise SimulationError(
                "model: frozen parameters or buffers differ between seeds. Make them the same in "
                "every model, train them, or make a simulation for each seed."
            )
        starts[seed] = flat_parameters(model)
    return first, torch.stack([starts[seed] for seed in seeds])


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "track_running_stats", False):
            kind = "batch norm" if isinstance(module, BATCH_NORM) else "a norm with running means"
            raise SimulationError(
                f"model: {name or type(module).__name__} is {kind}, whose running means have no "
                f"unbiased average over clients. Use nn.GroupNorm, nn.LayerNorm or "
                f"track_running_stats=False."
            )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise SimulationError(
            "model: has a lazy layer, whose parameters are not made yet. Give its size, as "
            "nn.Linear(64, 10) does."
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SimulationError("model: has no parameters to train. Pass an nn.Module with layers.")


def takes_integers(model: nn.Module, dataset: Dataset) -> bool:
    """Whether the model gets this data set's inputs as integers: it has integers, and takes them.

    A model with an embedding does; any other is tried.
    """
    if not dataset.has_integers or len(dataset.x) == 0:
        return False
    if any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module in model.modules()):
        return True
    try:
        _tried(model, _examples(dataset, integers=True))
    except Exception:
        return False
    return True


def check_outputs(model: nn.Module, dataset: Dataset, *, integers: bool) -> None:
    """Try the model: it must return a number for every class, at every label of a sample.

    On integers it tries the smallest and the largest of every position, which are not to be beyond
    an embedding. Call it on the CPU: on a GPU such a number ends the program.
    """
    samples = _examples(dataset, integers=integers)
    try:
        outputs = _tried(model, samples)
        shape = tuple(outputs.shape)
    except Exception as error:
        kind = f"integers from {samples.min()} to {samples.max()}" if integers else "inputs"
        raise SimulationError(
            f"model: does not take {kind} of shape {tuple(samples.shape[1:])} "
            f"({str(error).splitlines()[0]}). Fit its first layers to the data."
        ) from error
    length = () if dataset.length is None else (dataset.length,)
    if shape[1:-1] != length or len(shape) < 2 or shape[-1] < dataset.n_classes:
        needed = ", ".join(map(str, ("batch", *length, dataset.n_classes)))
        raise SimulationError(
            f"model: must give ({needed}) outputs, one per class; got shape {shape}. "
            f"Fit its last layer to the data."
        )


def _tried(model: nn.Module, samples: Tensor) -> Tensor:
    """Return the outputs of samples, computed where the model's parameters are."""
    device = next(model.parameters()).device
    # As in training: what is trained is float32, whatever type the rest has.
    own = {n: p.detach().float() for n, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        return KeyedModel(model, dropout=False)(own, samples.to(device))


def _examples(dataset: Dataset, *, integers: bool) -> Tensor:
    """Return samples to try: the first; of integers the least and the largest, place by place."""
    if not integers:
        first = torch.from_numpy(dataset.x[:1].astype(np.float32))
        return first * dataset.scale + dataset.shift
    parts = [part for part in (dataset.x, dataset.test_x) if len(part)]
    least = np.min([part.min(axis=0) for part in parts], axis=0)
    largest = np.max([part.max(axis=0) for part in parts], axis=0)
    return torch.from_numpy(np.stack([least, largest]).astype(np.int64))


def flat_parameters(model: nn.Module) -> Tensor:
    """Return the model's trainable parameters end to end, in float32."""
    parts = [p.detach().reshape(-1).float() for p in model.parameters() if p.requires_grad]
    return torch.cat(parts)


def architecture(model: nn.Module) -> list[object]:
    """Return layers, shapes and untrained numbers, for a fingerprint."""
    shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
    # As bytes: numpy has no bfloat16.
    parts = [part.contiguous().flatten().cpu() for part in _untrained(model).values()]
    return [repr(model), shapes, *(part.view(torch.uint8).numpy() for part in parts)]


def _untrained(model: nn.Module) -> dict[str, Tensor]:
    frozen = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {**frozen, **dict(model.named_buffers())}


def plain_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the named layers of a chain, in order; none if the layers do not show everything.

    That is: no hooks, and no parameter that is shared, frozen, reparametrised or not float32. A
    layer that is used twice appears twice.
    """
    if type(model) is not nn.Sequential:
        return []
    layers = [(name, module) for name, module in model._modules.items() if module is not None]
    own = {
        f"{name}.{key}"
        for name, module in layers
        for key, parameter in module._parameters.items()
        if parameter is not None
    }
    named = dict(model.named_parameters())
    is_plain = (
        set(named) == own
        and all(p.requires_grad and p.dtype == torch.float32 for p in named.values())
        and not any(_has_hooks(module) for module in model.modules())
    )
    return layers if is_plain else []


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


#: Odd multipliers: those of MurmurHash3's finaliser and the golden ratio, as signed integers.
_FIRST, _SECOND, _GOLDEN = -2048144789, -1028477387, -1640531535


def keyed_dropout(x: Tensor, p: float, key: Tensor) -> Tensor:
    """Zero entries of ``x`` with probability ``p``, by a hash of key and place; scale the rest.

    ``key`` holds 32-bit words and broadcasts against ``x``. Places number the entries along the
    axes on which ``key`` has size 1. The same key gives the same mask on every device.
    """
    if p == 0:
        return x
    if p == 1:
        return x * 0
    aligned = (1,) * (x.dim() - key.dim()) + tuple(key.shape)
    own = [n for n, k in zip(x.shape, aligned, strict=True) if k == 1]
    places = torch.arange(math.prod(own), device=x.device, dtype=torch.int32)
    # Places are well mixed before the key comes in: two more multiplications suffice.
    words = _mixed(places).view(own) ^ key
    words = words * _FIRST
    words = (words ^ (words >> 15 & 0x1FFFF)) * _SECOND
    # As signed integers the words are uniform on [-2^31, 2^31).
    threshold = min(round(p * 2**32), 2**32 - 1) - 2**31
    return torch.where(words >= threshold, x, 0.0) * (1 / (1 - p))


def _mixed(word: Tensor) -> Tensor:
    """Mix the bits of 32-bit integers; masks make the shifts logical."""
    word = word * _GOLDEN
    word = (word ^ (word >> 16 & 0xFFFF)) * _FIRST
    word = (word ^ (word >> 13 & 0x7FFFF)) * _SECOND
    return word ^ (word >> 16 & 0xFFFF)


class KeyedDropout(nn.Module):
    """``nn.Dropout`` with a key in a buffer: every client of a batch has its own."""

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.calls = p, 0
        self.register_buffer("key", torch.zeros((), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the key's next mask, in training only; every call has a mask of its own."""
        if not self.training:
            return x
        offset = (self.calls * _GOLDEN + 2**31) % 2**32 - 2**31  # wrapped around to 32 bits
        self.calls += 1
        return keyed_dropout(x, self.p, self.key + offset)


BATCH_NORM = nn.modules.batchnorm._BatchNorm


class MaskedBatchNorm(nn.Module):
    """A batch norm without running statistics, over the samples of a batch without its padding."""

    used: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self._eps = norm.weight, norm.bias, norm.eps
        # 1 for the samples that are used, 0 for padding; shape (batch,).
        self.register_buffer("used", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (batch, channels, ...) by the mean and variance of every channel."""
        if len(self.used) not in (1, len(x)):
            raise SimulationError(
                f"model: a batch norm needs one row for each of the {len(self.used)} samples of a "
                f"batch; got {len(x)}. Give it (batch, channels, length), or use nn.LayerNorm."
            )
        axes, channels = [0, *range(2, x.dim())], (1, -1, *[1] * (x.dim() - 2))
        used = self.used.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        n = used.sum(axes, keepdim=True).clamp(min=1)  # without any, no division by 0
        centred = x - (x * used).sum(axes, keepdim=True) / n
        variance = (centred**2 * used).sum(axes, keepdim=True) / n
        outputs = centred * (variance + self._eps).rsqrt()
        if self.weight is None:
            return outputs
        return outputs * self.weight.view(channels) + self.bias.view(channels)


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a sample's outputs depend on the other samples of its batch."""
    return any(isinstance(module, BATCH_NORM) for module in model.modules())


@final
class KeyedModel:
    """A copy of a model, called with its parameters.

    Its ``nn.Dropout`` modules have keys, and its batch norms leave padding out. Frozen parameters
    are shared, not copied.
    """

    def __init__(self, model: nn.Module, *, dropout: bool) -> None:
        self._model, self._names = with_keyed_dropout(model)
        norms = [(n, m) for n, m in _places(self._model) if isinstance(m, BATCH_NORM)]
        self._model = replaced(self._model, {name: MaskedBatchNorm(norm) for name, norm in norms})
        self._used = [f"{name}.used".lstrip(".") for name, _ in norms]
        self._model.train(dropout)
        for module in self._model.modules():
            if isinstance(module, nn.RNNBase) and not module.dropout:
                module.train()  # it computes the same, and cuDNN has gradients in training only
        self._keyed = [m for m in self._model.modules() if isinstance(m, KeyedDropout)]
        self.n_keys = len(self._names)

    def __call__(
        self,
        parameters: dict[str, Tensor],
        x: Tensor,
        keys: Tensor | None = None,
        used: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs for one lane's parameters.

        ``keys``, shape (n_keys,), are needed with dropout. ``used``, shape (batch,), is 0 for
        padding; by default there is none.
        """
        for module in self._keyed:
            module.calls = 0
        words = {} if keys is None else dict(zip(self._names, keys.unbind(), strict=True))
        if used is not None:
            words |= dict.fromkeys(self._used, used)
        outputs: Tensor = functional_call(self._model, {**parameters, **words}, (x,))
        return outputs


def with_keyed_dropout(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Copy a model with its ``nn.Dropout`` modules replaced; return it and its keys' names.

    Frozen parameters are shared with the copy.
    """
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    copied = copy.deepcopy(model, frozen)
    found = {n: KeyedDropout(m.p) for n, m in _places(copied) if type(m) is nn.Dropout}
    return replaced(copied, found), [f"{name}.key".lstrip(".") for name in found]


def _places(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return modules by name, a module in two places twice: each is to be replaced by its own."""
    return list(model.named_modules(remove_duplicate=False))


def replaced(model: nn.Module, found: Mapping[str, nn.Module]) -> nn.Module:
    """Replace modules by name, in place; return the model, which may be one of them."""
    for name, module in found.items():
        if not name:
            return module
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module)
    return model
