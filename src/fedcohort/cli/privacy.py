"""``fedcohort privacy``: the epsilon that noise on the aggregate gives, by design."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, get_args

from fedcohort._arguments import checked_number
from fedcohort._display import plain_table
from fedcohort._lazy import import_extra
from fedcohort.cli.options import (
    AsJson,
    CohortSize,
    Seed,
    Sizes,
    option,
    plain_console,
    read_clients,
    reads_clients,
    some_designs,
)
from fedcohort.client_files.table import Reading
from fedcohort.comparison.rows import BASELINES, GROUPED, SIZES_ONLY, first_design
from fedcohort.designs import Recipe
from fedcohort.designs.base import Relation
from fedcohort.designs.catalogue import named_recipe
from fedcohort.diagnostics import epsilon
from fedcohort.errors import DesignError, InputError
from fedcohort.population import Population

DESIGNS_HELP = "Which designs; they are listed below. Default: all that need only sizes."
NOISE_HELP = (
    "Standard deviation of the noise on a round's aggregate, divided by the largest weight of a "
    "client times the clipping norm."
)
DELTA_HELP = "Probability that the guarantee leaves out; well below 1 / number of clients."
MOST_HELP = "Draw a client in at most this many rounds."
APART_HELP = "Draw a client again at least this many rounds after it was drawn."
RELATIONS: tuple[Relation, ...] = get_args(Relation)
KINDS = ("known", "secret")
LEGEND = """
epsilon after {rounds} rounds with delta {delta:g}, by dp-accounting
noise: {noise:g} * largest weight * clipping norm, on the aggregate of each round
zero-out: compared to a federation where one client's updates are zero
replace-one: compared to a federation where one client's updates are any others
client is in: the most rounds in which one client can be
known: anyone may know the cohorts; secret: only the server does (amplification)
-: theory has no amplification for this design and relation"""


@reads_clients
def privacy(
    sizes: Sizes,
    cohort_size: CohortSize,
    rounds: Annotated[int, option("--rounds", "N", "Rounds of training.", least=1)],
    noise: Annotated[float, option("--noise", "X", NOISE_HELP, default=True)] = 1.0,
    delta: Annotated[float, option("--delta", "P", DELTA_HELP, default=True)] = 1e-5,
    designs: Annotated[
        str | None, option("--designs -d", "DESIGN,...", DESIGNS_HELP, complete=some_designs)
    ] = None,
    max_participations: Annotated[
        int | None, option("--max-participations", "K", MOST_HELP, least=1)
    ] = None,
    min_separation: Annotated[
        int, option("--min-separation", "B", APART_HELP, least=1, default=True)
    ] = 1,
    seed: Seed = 0,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Show the epsilon that noise on the aggregate gives, by design. Needs the extra dp.

    Someone else clips the updates and adds the noise. Sizes, groups and weights are public. The
    accountants are those of dp-accounting.
    """
    import_extra("dp_accounting", extra="dp", owner="privacy")
    checked_number("privacy", "--noise", noise, above=0, error=InputError)
    checked_number("privacy", "--delta", delta, above=0, below=1, error=InputError)
    clients = read_clients(sizes, reading)
    population, _ = clients.population.in_order_of_ids()
    default = [*SIZES_ONLY, *BASELINES, "round-robin", "shuffled"]
    default += GROUPED if population.groups is not None else ()
    labels = default if designs is None else [each.strip() for each in designs.split(",")]
    asked = {label: named_recipe(label, cohort_size) for label in labels}
    rows, left_out, known = [], {}, dict[Any, float]()
    most = None
    if max_participations is not None or min_separation > 1:
        most = min(max_participations or rounds, -(-rounds // min_separation))
    for label, recipe in asked.items():
        try:
            found = _row(recipe, population, (noise, rounds, delta), seed, known, most)
        except DesignError as error:
            left_out[label] = str(error).partition(": ")[2]
            continue
        rows.append({"design": label, **found})
    if not rows:
        label, reason = next(iter(left_out.items()))
        raise InputError(f"privacy: design {label!r} has no epsilon: {reason}")
    if as_json:
        about = {"rounds": rounds, "noise": noise, "delta": delta}
        about |= {"cohort_size": cohort_size, "n_clients": population.n_clients}
        missing = [{"design": name, "reason": reason} for name, reason in left_out.items()]
        print(json.dumps({**about, "designs": rows, "left_out": missing}, indent=2))
        return
    _print(rows, LEGEND.format(rounds=rounds, noise=noise, delta=delta))
    for label, reason in left_out.items():
        print(f"{label}: {reason}", file=sys.stderr)


def _row(
    recipe: Recipe,
    population: Population,
    settings: tuple[float, int, float],
    seed: int,
    known: dict[Any, float],
    most: int | None,
) -> dict[str, Any]:
    """Return a design's numbers.

    ``known`` keeps the epsilon of each event; ``most`` are the rounds that a client can be in, if
    the server limits them.
    """
    noise, rounds, delta = settings
    if recipe.reads:
        raise DesignError(f"{recipe.name}: chooses by {recipe.reads}, which the choice reveals.")
    design = first_design(recipe, population, seed=seed)
    found: dict[str, Any] = {
        "largest_weight": design.over_rounds().largest_weight(),
        "participations": design.participations(rounds) if most is None else most,
        "epsilon": {},
    }
    for relation in RELATIONS:
        plain, amplified = (
            design.privacy_event(
                noise,
                rounds=rounds,
                relation=relation,
                amplified=is_amplified,
                participations=most,
            )
            for is_amplified in (False, True)
        )
        for event in (plain, amplified):
            if (event, relation) not in known:
                known[event, relation] = epsilon(event, delta, relation)
        secret = None if amplified == plain else known[amplified, relation]
        found["epsilon"][relation] = dict(zip(KINDS, (known[plain, relation], secret), strict=True))
    return found


def _short(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def _print(rows: list[dict[str, Any]], legend: str) -> None:
    headings = [f"{relation}\n{kind}" for relation in RELATIONS for kind in KINDS]
    table = plain_table("\ndesign", "largest\nweight", "client\nis in", *headings, min_width=15)
    for row in rows:
        cells = [each for by_kind in row["epsilon"].values() for each in by_kind.values()]
        shown = ["-" if each is None else _short(each) for each in cells]
        table.add_row(
            row["design"], f"{row['largest_weight']:.3g}", str(row["participations"]), *shown
        )
    console = plain_console()
    console.print(table)
    console.print(legend)
