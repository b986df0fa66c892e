"""What becomes of the weight of drawn clients that fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, get_args

import numpy as np

from fedcohort.designs import Design
from fedcohort.errors import FlowerError
from fedcohort.population import Population

OnFailure = Literal["keep", "redraw", "renormalise"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)


def check_redraw(design: Design) -> None:
    """Let designs through whose every draw weighs 1 / m: only there a draw replaces a draw."""
    weights = design.weight_per_draw[design.population.sizes > 0]
    if not np.array_equal(weights, np.full(len(weights), 1 / design.cohort_size)):
        raise FlowerError(
            f"CohortStrategy: on_failure='redraw', extra and wrappers for privacy need a design "
            f"whose draws weigh the same; {design.name}'s do not. Use size or multinomial."
        )


def check_draws(design: Design, most: int) -> None:
    """Let designs through that draw no client more than ``most`` times in a round."""
    counts = design.max_count()
    client = int(np.argmax(counts))
    if counts[client] > most:
        raise FlowerError(
            f"CohortStrategy: max_draws is {most}, and {design.name} can draw client "
            f"{design.population.ids[client]} {counts[client]} times in a round. Bound max_share, "
            f"or use a design that repeats less, such as size."
        )


def refuse_other_loops(*, is_difference: bool) -> None:
    """Say why only our own loop can draw again, take the first answers, or remember updates."""
    if is_difference:
        raise FlowerError(
            "CohortStrategy: the difference estimator needs its own start: under a wrapper for "
            "privacy around it a client's last update would move the model in every later round, "
            "which no noise accounts for. Call CohortStrategy's start, or use estimator='plain'."
        )
    raise FlowerError(
        "CohortStrategy: on_failure='redraw' and extra need its own start; a wrapper around it "
        "runs another loop, sees nothing of redrawn clients and would not clip their updates. Put "
        "the wrapper inside, CohortStrategy(Wrapper(FedAvg()), ...), or use on_failure='keep'."
    )


def renormalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Spread the lost weight over those that answered, as Flower does: biased."""
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()} if total else dict(weights)


def redrawn(
    counts: Mapping[str, int],
    population: Population,
    ask: Callable[[list[str]], Collection[str]],
    *,
    tries: int,
    rng: np.random.Generator,
) -> dict[str, int]:
    r"""Replace every lost draw by a draw from p over all clients, until one answers.

    Given the set R of clients that can be reached, a replacement is client i with chance
    :math:`p_i / p(R)`, and so is a draw that was not lost: :math:`E[w_i | R] = p_i / p(R)` for
    every design with :math:`E[c_i] = m p_i`.

    Parameters
    ----------
    counts
        How often each client was drawn.
    ask
        Asks clients to train and returns those that answered; asked only of clients that were not
        asked before. First it is asked for nobody: who of the drawn ones answered?
    tries
        How often to draw again; what is lost then stays lost.
    """
    answered = set(ask([]))
    kept = {key: count for key, count in counts.items() if key in answered}
    lost = sum(counts.values()) - sum(kept.values())
    asked = set(counts)
    ends = np.cumsum(population.sizes)
    for _ in range(tries):
        if not lost:
            break
        places = np.searchsorted(ends, rng.integers(population.total, size=lost), side="right")
        drawn = [str(population.ids[place]) for place in places]
        strangers = [key for key in dict.fromkeys(drawn) if key not in asked]
        asked.update(strangers)
        if strangers:
            answered.update(ask(strangers))
        for key in drawn:
            if key in answered:
                kept[key] = kept.get(key, 0) + 1
                lost -= 1
    return kept
