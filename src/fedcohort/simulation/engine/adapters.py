"""Low-rank adapters: train a few numbers beside a frozen model that all clients share."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from fedcohort._arguments import MOST, KindNeed, ListNeed, NumberNeed, TextNeed, WholeNeed, brief
from fedcohort._fields import checks
from fedcohort.errors import SimulationError
from fedcohort.simulation.engine.models import replaced

EXAMPLE = "Pass for example lora(small_transformer(), rank=4)."


@checks(
    SimulationError,
    model=KindNeed(kind=nn.Module, way_out=EXAMPLE),
    rank=WholeNeed(least=1, most=MOST, way_out=EXAMPLE),
    alpha=NumberNeed(above=0, way_out=EXAMPLE),
    layers=ListNeed(item=TextNeed(way_out=EXAMPLE), least=1, optional=True, way_out=EXAMPLE),
)
def lora(
    model: nn.Module,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    layers: Sequence[str] | None = None,
) -> nn.Module:
    r"""Return a model with frozen parameters and a trained low-rank adapter at each linear layer.

    A layer with weights :math:`W` computes :math:`x W^\top + b + \frac{\alpha}{r} (x A^\top)
    B^\top`. A has r rows, drawn at random. B has r columns of zeros, so that the model starts as
    the given one. Only A and B are trained, sent, remembered and saved. The frozen parameters keep
    their memory: the given model, every adapted one and all clients of a simulation share it.

    Parameters
    ----------
    model
        The model to adapt; it stays as it is.
    rank, alpha
        r and :math:`\alpha`.
    layers
        Adapt only ``nn.Linear`` layers with these names, or with these last parts of names;
        None: all of them.

    Raises
    ------
    SimulationError
        If the model has no such layer.

    References
    ----------
    E. J. Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022.

    Examples
    --------
    >>> base = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    >>> adapted = lora(base, rank=2)
    >>> sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    620
    """
    # A layer in two places has two names, and one adapter.
    places = model.named_modules(remove_duplicate=False)
    linear = [name for name, module in places if type(module) is nn.Linear]
    chosen = [
        name
        for name in linear
        if layers is None or name in layers or name.rpartition(".")[2] in layers
    ]
    if not chosen:
        raise SimulationError(
            f"lora: needs linear layers to adapt; the model has {', '.join(linear) or None}, and "
            f"layers is {brief(layers)}. Name some of these, or pass another model."
        )
    frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    adapted = copy.deepcopy(model, dict(frozen))
    found = {name: adapted.get_submodule(name) for name in chosen}
    layers_of = {id(own): own for own in found.values()}
    adapters = {key: _Adapter(own, rank, alpha / rank) for key, own in layers_of.items()}
    return replaced(adapted, {name: adapters[id(own)] for name, own in found.items()})


@final
class _Adapter(nn.Module):
    """A frozen linear layer and its adapter."""

    def __init__(self, linear: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear)  # for mypy: lora chooses these
        self.linear, self._scale = linear, scale
        own = linear.weight
        self.first = nn.Parameter(own.new_empty(rank, linear.in_features))
        self.second = nn.Parameter(own.new_zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.first, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs and the adapter's, added."""
        outputs: Tensor = self.linear(x)
        return outputs + x @ self.first.T @ self.second.T * self._scale
