"""The arguments of a controller, which a job writes as JSON: read, checked, written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nvflare.app_common.workflows.fedavg import FedAvg

from fedcohort._arguments import brief
from fedcohort.deployment.directory import plain
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.options import PluginKeywords
from fedcohort.deployment.plugin import Plugin
from fedcohort.designs import RECIPES, Recipe, make_recipe
from fedcohort.errors import FedcohortError, NvflareError
from fedcohort.memory import EstimatorName, EstimatorSettings
from fedcohort.memory.difference import estimator_from_fields
from fedcohort.optimizers import OPTIMIZERS, ServerOptimizer

FLARE = Plugin(
    framework="nvflare",
    owner="CohortController",
    error=NvflareError,
    lacks=("overlap", "extra"),
)
#: The shared settings that the constructor passes on as they are.
PASSED_ON = PluginKeywords.__annotations__.keys() - {"estimator", "limits", "log_file"}


def recipe_from(recipe: object) -> Recipe:
    """Return a recipe; a mapping has the name of one of the library's, and its fields.

    Examples
    --------
    >>> recipe_from({"name": "size", "cohort_size": 10})
    SizeClustered(cohort_size=10)
    """
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, Mapping) or not {"name", "cohort_size"} <= recipe.keys():
        raise FLARE.refusal(
            f"recipe must be a Recipe, or its name and fields; got {brief(recipe)}. Pass "
            f"for example {{'name': 'size', 'cohort_size': 10}}."
        )
    options = {key: value for key, value in recipe.items() if key not in ("name", "cohort_size")}
    return make_recipe(recipe["name"], recipe["cohort_size"], options)


def estimator_from(estimator: object) -> EstimatorName | EstimatorSettings:
    """Return an estimator; a mapping has its name and its fields."""
    if isinstance(estimator, Mapping):
        try:
            return estimator_from_fields(estimator)
        except (KeyError, TypeError) as error:
            raise FLARE.refusal(
                f"estimator must be its name, or its name and fields; got {brief(estimator)}. Pass "
                f"for example {{'name': 'difference', 'keep': 'int8'}}."
            ) from error
    return estimator  # type: ignore[return-value]  # the selector checks it


def as_plain(settings: object) -> Any:
    """Return a recipe, an estimator or an optimiser of the library by name and fields, for JSON.

    All else stays as it is: the name of an estimator, None, and a recipe of the user's.
    """
    if isinstance(settings, Recipe) and RECIPES.get(settings.name) is type(settings):
        return {"name": settings.name, **asdict(settings)}
    if isinstance(settings, EstimatorSettings | ServerOptimizer):
        return plain({"name": type(settings).__name__.lower(), **asdict(settings)})
    return settings


def optimizer_from(optimizer: Any) -> ServerOptimizer | None:
    """Return a server optimiser; a mapping has its name and its fields.

    Examples
    --------
    >>> optimizer_from({"name": "sgd", "momentum": 0.9})
    SGD(lr=1.0, momentum=0.9, damped=False, nesterov=False)
    """
    if optimizer is None or isinstance(optimizer, ServerOptimizer):
        return optimizer
    try:
        fields = dict(optimizer)
        return OPTIMIZERS[fields.pop("name")](**fields)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FedcohortError):
            raise
        raise FLARE.refusal(
            f"server_optimizer must be one of fedcohort.optimizers, or its name and "
            f"fields; got {brief(optimizer)}. Names are {', '.join(OPTIMIZERS)}."
        ) from error


def limits_from(limits: Any) -> Limits:
    """Return limits; a mapping has their fields."""
    try:
        return limits if isinstance(limits, Limits) else Limits(**(limits or {}))
    except TypeError as error:
        raise FLARE.refusal(
            f"limits must be Limits(...), or its fields; got {brief(limits)}. Import it "
            f"from fedcohort.nvflare."
        ) from error


def check_kind(controller: object) -> None:
    """Refuse a controller that does not play the rounds of FedAvg."""
    if not isinstance(controller, FedAvg):
        raise FLARE.refusal(
            f"{type(controller).__name__} must inherit FLARE's FedAvg, whose rounds it "
            f"plays. Write class {type(controller).__name__}(CohortSelection, FedAvg)."
        )


def check_controller(controller: Any, *, is_plain: bool) -> None:
    """Refuse controllers and arguments that do not go together with the selection.

    ``is_plain`` says whether the model moves as in FedAvg, without a state of its own.
    """
    name, has_checkpoint = type(controller).__name__, controller.checkpoint is not None
    refused = {
        f"an aggregator takes the place of the weights that make the aggregate unbiased; got "
        f"{type(controller.aggregator).__name__}. Leave it out.": controller.aggregator is not None,
        "exclude_vars, aggregation_weights and enable_tensor_disk_offload belong to FedAvg's own "
        "aggregation. Leave them out.": controller.exclude_vars
        or controller.aggregation_weights
        or controller.enable_tensor_disk_offload,
        "a checkpoint needs a persistor, which says what the model is made of; got model=. Leave "
        "model out, or the checkpoint.": has_checkpoint and controller.model is not None,
        f"{name} keeps a state of its own between rounds, which a checkpoint would lose. Leave "
        f"checkpoint out.": has_checkpoint and not is_plain,
        f"{name} moves the model by an optimiser of its own; got a server_optimizer too. Leave it "
        f"out.": controller.server_optimizer is not None and not is_plain,
        "resume needs a checkpoint; got none. Pass its file.": controller.resume
        and not has_checkpoint,
    }
    for message, is_refused in refused.items():
        if is_refused:
            raise FLARE.refusal(message)
