"""What all tables of an experiment file have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: Clients, steps, rounds, units of a layer: no machine holds or computes more of anything.
MOST = 10**9
Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
#: A seed is a 64-bit signed integer in tables.
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Samples or bytes a second: within these a client's time is finite, however far devices spread.
Rate = Annotated[float, Field(ge=1e-9, le=1e18)]
Label = Annotated[str, Field(min_length=1, max_length=200)]
#: A data set, a model, a recipe or a file, by name.
Name = Annotated[str, Field(max_length=500)]


class Table(BaseModel):
    """One table of the file: unknown keys are refused, types are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
