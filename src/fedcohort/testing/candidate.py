"""A design on trial: how it is built, its law, and what it claims."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.designs import Design
from fedcohort.errors import ContractError
from fedcohort.population import Population
from fedcohort.testing.laws import Law, importance, law_of_rows

#: Fewer than a thousand roundings of 2^-53 stand between any exact number and its float.
ROUNDING = 1000 * 2.0**-53

Builder = Callable[[Population, int, np.random.Generator], Design]


@dataclass(frozen=True)
class Candidate:
    """What the clauses of the contract are held against.

    Attributes
    ----------
    name
        For messages.
    build
        Makes the design from a population, a cohort size and a generator for ties.
    law
        The probability of every cohort, written out: a slow twin of the design. Row designs need
        none: their plan says it.
    distinct
        Needs at least as many clients of positive size as draws.
    fixed_size
        Draws exactly ``cohort_size`` times in every round.
    in_floats
        Chances are floats, so that the enumerated law's means hold up to rounding.
    thinner
        Draws slowly: statistical clauses draw so many times fewer cohorts, and see biases that
        are larger by this number's root.
    """

    name: str
    build: Builder
    law: Callable[[Any], Law] = law_of_rows
    distinct: bool = False
    fixed_size: bool = True
    in_floats: bool = False
    thinner: int = 1

    def fits(self, population: Population, cohort_size: int) -> bool:
        """Say whether the design can be built so."""
        return not self.distinct or cohort_size <= int(np.count_nonzero(population.sizes))

    def demand(self, held: bool, sentence: str, design: Design | None = None) -> None:
        """Raise where the contract does not hold; the design says on what it was built."""
        if not held:
            on = ""
            if design is not None and design.population.n_clients < 10:
                on = f" (sizes {design.population.sizes.tolist()}, {design.cohort_size} draws)"
            raise ContractError(f"{self.name}{on}: {sentence}")

    def demand_close(
        self,
        design: Design,
        what: str,
        found: Sequence[float] | NDArray[np.floating],
        exact: Sequence[Fraction],
    ) -> None:
        """Demand a number for every client, up to rounding."""
        self.demand(
            np.shape(found) == (len(exact),),
            f"{what} must be one number per client; got shape {np.shape(found)}.",
            design,
        )
        for client, (number, right) in enumerate(zip(found, exact, strict=True)):
            self.demand(
                close(number, right),
                f"{what} of client {client} must be {float(right):.6g}, as the law has it; got "
                f"{number:.6g}. Mend the formula, or the law.",
                design,
            )

    def demand_unbiased(self, design: Design, mean_weights: list[Fraction]) -> None:
        """Demand E[w] = p where the design claims it: exactly, unless its chances are floats."""
        shares = importance(design.population)
        for client, (mean, share) in enumerate(zip(mean_weights, shares, strict=True)):
            equal = close(float(mean), share) if self.in_floats else mean == share
            self.demand(
                not design.unbiased or equal,
                f"unbiased is True, so client {client}'s mean weight must be {share}; got {mean}. "
                f"Mend the law, or say unbiased = False.",
                design,
            )


def close(value: float, exact: Fraction, scale: float = 1.0) -> bool:
    """Say whether a float is an exact number up to rounding; NaN never is."""
    return bool(abs(value - float(exact)) <= ROUNDING * max(scale, abs(float(exact))))


def refuses(c: Candidate, kind: type[Exception], sentence: str, act: Callable[[], object]) -> None:
    """Demand an error of this kind whose message matches ``sentence``."""
    try:
        act()
    except kind as error:
        c.demand(
            re.search(sentence, str(error)) is not None,
            f"the error must say {sentence!r}; it says {str(error)!r}. Let the base class check.",
        )
    except Exception as error:
        c.demand(
            False,
            f"must raise {kind.__name__} ({sentence!r}); raised {type(error).__name__}: {error}.",
        )
    else:
        c.demand(False, f"must raise {kind.__name__} ({sentence!r}); raised nothing. Refuse it so.")
