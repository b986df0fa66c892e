"""A model of a user's own, as an experiment file names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedcohort.errors import ExperimentError
from fedcohort.experiments.own_code import own_function
from fedcohort.experiments.settings_table import Name
from fedcohort.simulation import Dataset
from fedcohort.simulation.models import ModelSource


class OwnModel(BaseModel):
    """``file.py:function``: what the function makes of the data set is the model.

    All other keys are keyword arguments of the function.

    Attributes
    ----------
    name
        A file and a function in it, as ``my_model.py:make``.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: Name

    def source(self, dataset: Dataset, folder: Path) -> ModelSource:
        """Return what makes the model for this data set; the file lies in ``folder``."""
        make = own_function("model", self.name, folder)

        def made() -> Any:
            try:
                return make(dataset, **(self.model_extra or {}))
            except (Exception, SystemExit) as error:
                raise ExperimentError(
                    f"model {self.name!r}: cannot be made ({type(error).__name__}: {error}). "
                    f"Mend it."
                ) from error

        return made
