"""Dropout whose masks come from a key, not from a generator's state."""

import copy
import math

import torch
from torch import Tensor, nn


class KeyedDropout(nn.Module):
    """Zero entries with probability ``p``, and scale the rest, by a hash of key and position.

    The key is a buffer, so that in a batch of clients every client has its own. The hash is the
    finaliser of MurmurHash3 on 32-bit integers: the same on every device.
    """

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("key", torch.zeros((), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the mask of the current key, in training only."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0
        positions = torch.arange(math.prod(x.shape), device=x.device, dtype=torch.int32)
        bits = _mixed(positions * -1640531535 ^ self.key).view(x.shape)
        # As signed integers the hashes are uniform on [-2^31, 2^31).
        kept = bits >= round(self.p * 2**32) - 2**31
        return x * kept / (1 - self.p)


def _mixed(word: Tensor) -> Tensor:
    """Mix the bits of 32-bit integers; shifts are made logical by masking the sign bits away."""
    word = word ^ (word >> 16 & 0xFFFF)
    word = word * -2048144789
    word = word ^ (word >> 13 & 0x7FFFF)
    word = word * -1028477387
    return word ^ (word >> 16 & 0xFFFF)


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
