"""Chains of layers, and dropout that is the same on every device."""

from __future__ import annotations

import copy
import math
from typing import final

import torch
from torch import Tensor, float32, nn
from torch.func import functional_call


def layers_of(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return every layer with its name, in order; a layer that is used twice comes twice."""
    return [(name, module) for name, module in model._modules.items() if module is not None]


def is_plain_chain(model: nn.Module) -> bool:
    """Whether a model is a chain of layers, without anything that the layers do not show.

    That is: no hooks, and no parameter that is shared, frozen, reparametrised or not float32.
    """
    if type(model) is not nn.Sequential or len(model) == 0:
        return False
    layers = layers_of(model)
    own = {
        f"{name}.{key}"
        for name, module in layers
        for key, parameter in module._parameters.items()
        if parameter is not None
    }
    named = dict(model.named_parameters())
    return (
        set(named) == own
        and all(p.requires_grad and p.dtype == float32 for p in named.values())
        and not any(_has_hooks(module) for module in model.modules())
    )


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def keyed_dropout(x: Tensor, p: float, key: Tensor) -> Tensor:
    """Zero entries of ``x`` with probability ``p``, by a hash of key and place; scale the rest.

    ``key`` holds 32-bit words and broadcasts against ``x``. Places number the entries along the
    axes on which ``key`` has size 1. The same key gives the same mask on every device.
    """
    if p == 0:
        return x
    if p == 1:
        return x * 0
    own = [n for n, k in zip(x.shape, _aligned(key, x.dim()), strict=True) if k == 1]
    places = torch.arange(math.prod(own), device=x.device, dtype=torch.int32)
    # Places are well mixed before the key comes in: two more multiplications suffice.
    words = _mixed(places).view(own) ^ key
    words = words * _FIRST
    words = (words ^ (words >> 15 & 0x1FFFF)) * _SECOND
    # As signed integers the words are uniform on [-2^31, 2^31).
    threshold = min(round(p * 2**32), 2**32 - 1) - 2**31
    return torch.where(words >= threshold, x, 0.0) * (1 / (1 - p))


#: Odd multipliers: those of MurmurHash3's finaliser and the golden ratio, as signed integers.
_FIRST, _SECOND, _GOLDEN = -2048144789, -1028477387, -1640531535


def _aligned(key: Tensor, n_axes: int) -> tuple[int, ...]:
    return (1,) * (n_axes - key.dim()) + tuple(key.shape)


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
        offset = _signed(self.calls * _GOLDEN)
        self.calls += 1
        return keyed_dropout(x, self.p, self.key + offset)


def _signed(number: int) -> int:
    """Wrap an integer around to 32 bits."""
    return (number + 2**31) % 2**32 - 2**31


@final
class KeyedModel:
    """A copy of a model with keys for its ``nn.Dropout`` modules, called with its parameters."""

    def __init__(self, model: nn.Module, *, dropout: bool) -> None:
        self._model, self._names = with_keyed_dropout(model)
        self._model.train(dropout)
        self._keyed = [m for m in self._model.modules() if isinstance(m, KeyedDropout)]
        self.n_keys = len(self._names)

    def __call__(self, parameters: dict[str, Tensor], keys: Tensor, x: Tensor) -> Tensor:
        """Return the outputs for one lane's parameters and keys, shape (n_keys,)."""
        for module in self._keyed:
            module.calls = 0
        words = dict(zip(self._names, keys.unbind(), strict=True)) if self._names else {}
        outputs: Tensor = functional_call(self._model, {**parameters, **words}, (x,))
        return outputs


def with_keyed_dropout(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Copy a model with its ``nn.Dropout`` modules replaced; return it and its keys' names."""
    copied = copy.deepcopy(model)
    if type(copied) is nn.Dropout:
        return KeyedDropout(copied.p), ["key"]
    keys = []
    # With duplicates: a module in two places gets a key for each.
    for name, module in list(copied.named_modules(remove_duplicate=False)):
        if type(module) is nn.Dropout:
            parent, _, child = name.rpartition(".")
            setattr(copied.get_submodule(parent), child, KeyedDropout(module.p))
            keys.append(f"{name}.key")
    return copied, keys
