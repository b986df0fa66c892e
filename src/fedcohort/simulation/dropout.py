"""Dropout whose masks come from a key, not from a generator's state."""

import copy
import math

import torch
from torch import Tensor, nn


def keyed_dropout(x: Tensor, p: float, key: Tensor) -> Tensor:
    """Zero entries of ``x`` with probability ``p``, and scale the rest, by a hash of key and place.

    ``key`` holds 32-bit words and broadcasts against ``x``; entries are numbered within the axes
    that it has size 1 in. The same key gives the same mask on every device.
    """
    if p == 0:
        return x
    if p == 1:
        return x * 0
    own = [n for n, k in zip(x.shape, _aligned(key, x.dim()), strict=True) if k == 1]
    places = torch.arange(math.prod(own), device=x.device, dtype=torch.int32)
    # Places are mixed well for themselves; with the key two multiplications do.
    words = _mixed(places).view(own) ^ key
    words = words * _FIRST
    words = (words ^ (words >> 15 & 0x1FFFF)) * _SECOND
    # As signed integers the words are uniform on [-2^31, 2^31).
    return torch.where(words >= round(p * 2**32) - 2**31, x, 0.0) * (1 / (1 - p))


#: Odd multipliers: those of MurmurHash3's finaliser and the golden ratio, as signed integers.
_FIRST, _SECOND, _GOLDEN = -2048144789, -1028477387, -1640531535


def _aligned(key: Tensor, n_axes: int) -> tuple[int, ...]:
    return (1,) * (n_axes - key.dim()) + tuple(key.shape)


def _mixed(word: Tensor) -> Tensor:
    """Mix the bits of 32-bit integers; shifts are made logical by masking the sign bits away."""
    word = word * _GOLDEN
    word = (word ^ (word >> 16 & 0xFFFF)) * _FIRST
    word = (word ^ (word >> 13 & 0x7FFFF)) * _SECOND
    return word ^ (word >> 16 & 0xFFFF)


class KeyedDropout(nn.Module):
    """``nn.Dropout`` with a key, a buffer: in a batch of clients every client has its own."""

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("key", torch.zeros((), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mask of the current key, in training only."""
        return keyed_dropout(x, self.p, self.key) if self.training else x


def with_keyed_dropout(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Copy a model with its ``nn.Dropout`` modules replaced; return it and its keys' names.

    Other sources of randomness inside a model (``F.dropout``, ``nn.Dropout2d``) stay as they are:
    they draw from torch's generator, so that a client's update then depends on its lane.
    """
    copied = copy.deepcopy(model)
    if isinstance(copied, nn.Dropout):
        return KeyedDropout(copied.p), ["key"]
    keys = []
    for name, module in list(copied.named_modules()):
        if type(module) is nn.Dropout:
            parent, _, child = name.rpartition(".")
            setattr(copied.get_submodule(parent), child, KeyedDropout(module.p))
            keys.append(f"{name}.key")
    return copied, keys
