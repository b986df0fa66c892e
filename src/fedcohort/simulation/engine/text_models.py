"""Models for text: a small causal transformer, and recurrent networks."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from fedcohort._arguments import FlagNeed, NumberNeed
from fedcohort._fields import checks
from fedcohort.errors import SimulationError
from fedcohort.simulation.engine.models import WIDTH


@checks(
    SimulationError,
    tokens=WIDTH,
    classes=WIDTH,
    length=WIDTH,
    width=WIDTH,
    layers=WIDTH,
    heads=WIDTH,
    dropout=NumberNeed(least=0, below=1),
    last=FlagNeed(),
)
def small_transformer(
    tokens: int = 80,
    classes: int = 80,
    *,
    length: int = 80,
    width: int = 128,
    layers: int = 4,
    heads: int = 4,
    dropout: float = 0.0,
    last: bool = False,
) -> nn.Module:
    """Return a causal transformer: each position sees itself and those before it.

    Layer norms come before attention and before the two linear layers; positions are learned. With
    the defaults it has 824,144 parameters.

    Parameters
    ----------
    tokens
        How many different integers the inputs have, counted from 0.
    classes
        How many different labels there are.
    length
        The longest sequence.
    width, layers, heads
        Numbers per position, blocks, and attention heads of a block.
    dropout
        After the embedding and at the end of every branch.
    last
        Whether to give the outputs of the last position only: for samples with one label.
    """
    if width % heads:
        raise SimulationError(
            f"small_transformer: width must be a multiple of heads; got width={width} and "
            f"heads={heads}. Change one of them."
        )
    blocks = [_Block(width, heads, dropout) for _ in range(layers)]
    return _Transformer(tokens, classes, length, width, blocks, dropout, last=last)


@checks(
    SimulationError,
    tokens=WIDTH,
    classes=WIDTH,
    embedding=WIDTH,
    hidden=WIDTH,
    layers=WIDTH,
    last=FlagNeed(),
)
def gru(
    tokens: int = 80,
    classes: int = 80,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    last: bool = False,
) -> nn.Module:
    """Return a recurrent network of gated recurrent units; 620,240 parameters.

    Parameters
    ----------
    tokens, classes, last
        As in :func:`small_transformer`.
    embedding, hidden, layers
        Numbers of a token and of a state, and how many units are stacked.
    """
    return _Recurrent(tokens, classes, nn.GRU(embedding, hidden, layers, batch_first=True), last)


@checks(
    SimulationError,
    tokens=WIDTH,
    classes=WIDTH,
    embedding=WIDTH,
    hidden=WIDTH,
    layers=WIDTH,
    last=FlagNeed(),
)
def lstm(
    tokens: int = 80,
    classes: int = 80,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    last: bool = False,
) -> nn.Module:
    """Return LEAF's model for Shakespeare: two LSTM layers; 819,920 parameters.

    Parameters
    ----------
    tokens, classes, last
        As in :func:`small_transformer`.
    embedding, hidden, layers
        Numbers of a token and of a state, and how many units are stacked.
    """
    return _Recurrent(tokens, classes, nn.LSTM(embedding, hidden, layers, batch_first=True), last)


@final
class _Transformer(nn.Module):
    """Embedding and positions, blocks, a norm and a linear layer."""

    def __init__(
        self,
        tokens: int,
        classes: int,
        length: int,
        width: int,
        blocks: list[_Block],
        dropout: float,
        *,
        last: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.empty(length, width))
        for table in (self.embedding.weight, self.positions):
            nn.init.normal_(table, std=0.02)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, classes)
        self._last = last

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, classes); of the last position only, (batch, classes)."""
        hidden = self.embedding(x) + self.positions[: x.shape[1]]
        hidden = self.blocks(self.dropout(hidden))
        outputs: Tensor = self.output(self.norm(hidden[:, -1] if self._last else hidden))
        return outputs


@final
class _Block(nn.Module):
    """Causal attention, then two linear layers, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self._heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the input's shape, (batch, length, width)."""
        split = self.attention(self.before_attention(x)).unflatten(-1, (3, self._heads, -1))
        query, key, value = (part.transpose(-2, -3) for part in split.unbind(-3))
        seen = causal_attention(query, key, value).transpose(-2, -3).flatten(-2)
        x = x + self.dropout(self.merge(seen))
        outputs: Tensor = x + self.dropout(self.down(gelu(self.up(self.before_layers(x)))))
        return outputs


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend to the same position and those before it; all of shape (batch, heads, length, size).

    torch's fused kernel takes half the time on a CPU, where clients go one by one. On a GPU all
    clients are one batch, for which it has no rule in every version: there, plain products.
    """
    if query.device.type == "cpu":
        return scaled_dot_product_attention(query, key, value, is_causal=True)
    return plain_causal_attention(query, key, value)


def plain_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute :func:`causal_attention` by its formula."""
    length = query.shape[-2]
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    scores: Tensor = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.masked_fill(later, float("-inf")).softmax(dim=-1).matmul(value)


@final
class _Recurrent(nn.Module):
    """An embedding, a recurrent network and a linear layer."""

    def __init__(self, tokens: int, classes: int, network: nn.RNNBase, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, network.input_size)
        self.network, self.output = network, nn.Linear(network.hidden_size, classes)
        self._last = last

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, length, classes); of the last position only, (batch, classes)."""
        states = self.network(self.embedding(x))[0]
        outputs: Tensor = self.output(states[:, -1] if self._last else states)
        return outputs
