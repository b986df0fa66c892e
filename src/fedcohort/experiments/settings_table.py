"""What all tables of an experiment file have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Label = Annotated[str, Field(min_length=1)]


class Table(BaseModel):
    """One table of the file: unknown keys are refused, types are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
