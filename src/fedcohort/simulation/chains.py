"""Which models are plain chains, so that their layers can be computed by hand."""

from torch import float32, nn


def layers_of(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return every layer with its name, in order; one that is used twice comes twice."""
    return [(name, module) for name, module in model._modules.items() if module is not None]


def is_plain_chain(model: nn.Module) -> bool:
    """Whether a model is layers one after the other, and nothing that layers alone do not show.

    No hooks, no parameter that is shared, frozen, reparametrised or not float32.
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
