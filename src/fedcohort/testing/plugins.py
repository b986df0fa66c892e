"""The contract of plug-ins: a scripted federation, played by a plug-in and by a selector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import brief
from fedcohort.designs import (
    Multinomial,
    Poisson,
    Recipe,
    SimilarityClustered,
    SizeClustered,
    Tournament,
)
from fedcohort.errors import ContractError
from fedcohort.memory import Regression
from fedcohort.selector import Selector
from fedcohort.selector.settings import SelectorKeywords

#: How an asked client can fail. It reports an error, answers after the deadline, or sends a model
#: with a number that is not finite or with another shape.
Failure = Literal["error", "late", "nan", "shape"]
#: The length of the model, one vector in float32.
DIMENSION = 6
#: The clients and their samples.
SIZES = {"Brest": 20, "Caen": 50, "Lyon": 30, "Metz": 10, "Nice": 70, "Pau": 40}
#: Clients add and average in float32: at most this many roundings of the largest number.
ROUNDINGS = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class ScriptedFederation:
    """A federation to play: the selector's settings, the clients, and the first model.

    Attributes
    ----------
    recipe, seed, settings
        The arguments of :class:`fedcohort.Selector`; ``settings`` are others by name.
    sizes
        Samples by client; the clients report them, or you pass them to the server.
    model
        The first model: a vector in float32.
    """

    recipe: Recipe
    seed: int = 3
    settings: SelectorKeywords = field(default_factory=SelectorKeywords)
    sizes: Mapping[str, int] = field(default_factory=lambda: dict(SIZES))
    model: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros(DIMENSION, dtype=np.float32)
    )

    def __str__(self) -> str:
        settings = [f"{name}={value!r}" for name, value in self.settings.items()]
        return ", ".join([self.recipe.name, *settings])


@final
@dataclass(frozen=True, slots=True, eq=False)
class ScriptedRound:
    """The script of one round.

    Attributes
    ----------
    number
        The round, from 0 over all servers.
    there
        The clients that are connected.
    failing
        How clients fail in this round if they are asked.
    updates
        What each client adds to the model that it is sent.
    """

    number: int
    there: tuple[str, ...]
    failing: Mapping[str, Failure]
    updates: Mapping[str, NDArray[np.float32]]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlayedRound:
    """The record of one round of a plug-in.

    Attributes
    ----------
    drawn
        How often each client was drawn; the log file's ``drawn``.
    asked
        The clients that were sent the model to train, replacements included.
    weights
        The weights of those that answered; the log file's ``weights``.
    model
        The model after the round.
    """

    drawn: Mapping[str, int]
    asked: frozenset[str]
    weights: Mapping[str, float]
    model: NDArray[np.floating]


class ScriptedPlugin(Protocol):
    """A plug-in with clients that follow the script."""

    def play(self, rounds: Sequence[ScriptedRound]) -> Sequence[PlayedRound]:
        """Start a server, play these rounds, and stop it; the next call is a server's restart."""


def check_plugin(make_plugin: Callable[[ScriptedFederation], ScriptedPlugin]) -> None:
    """Check a plug-in for a framework; raise :class:`ContractError` if it breaks the contract.

    Clients join, leave and come back. They report errors, answer too late and send nonsense. In
    some rounds all fail, or none is connected, and the server is restarted. In every round the
    plug-in must draw, ask, weigh and move the model as a :class:`fedcohort.Selector` in a plain
    loop does. It plays nine federations: designs that do and do not learn, all estimators, all
    failure rules, weights that make up for absence, and clients that rest.

    Parameters
    ----------
    make_plugin
        Makes the plug-in of a federation, with a place of its own for its checkpoint and log.
    """
    for federation in FEDERATIONS:
        plugin = make_plugin(federation) if callable(make_plugin) else None
        if not callable(getattr(plugin, "play", None)):
            raise ContractError(
                f"check_plugin: make_plugin must be a function that returns a plug-in with play; "
                f"got {brief(make_plugin)}. Derive yours from ScriptedPlugin."
            )
        _check(federation, plugin)


#: The federations that :func:`check_plugin` plays.
FEDERATIONS = (
    ScriptedFederation(SizeClustered(3)),
    ScriptedFederation(Multinomial(3), settings={"on_failure": "redraw"}),
    ScriptedFederation(Tournament(3), settings={"on_failure": "renormalise"}),
    ScriptedFederation(SimilarityClustered(3)),
    ScriptedFederation(Multinomial(3), settings={"estimator": "difference"}),
    # Frameworks divide a model into arrays of their own: learned features would differ.
    ScriptedFederation(Multinomial(3), settings={"estimator": Regression(features=None)}),
    ScriptedFederation(Poisson(2)),
    ScriptedFederation(
        SizeClustered(3), settings={"presence": "estimated", "min_separation": 2, "rest": 1}
    ),
    ScriptedFederation(
        Multinomial(2), settings={"presence": "estimated", "estimator": "difference"}
    ),
)
EVERYONE = tuple(SIZES)
#: The connected clients, and which of the asked ones fail: "first" of the cohort, "all", or none.
SCRIPT: tuple[tuple[tuple[str, ...], str, Failure], ...] = (
    (EVERYONE[:4], "", "error"),
    (EVERYONE, "", "error"),
    (EVERYONE, "first", "error"),
    (EVERYONE, "first", "nan"),
    (EVERYONE[2:], "", "error"),
    (EVERYONE[1:], "first", "late"),
    (EVERYONE, "all", "error"),
    # A new server starts here. It does not ask for sizes that it has.
    (EVERYONE, "", "error"),
    (EVERYONE, "first", "shape"),
    ((), "", "error"),
    (EVERYONE[3:], "first", "late"),
    (EVERYONE, "", "error"),
)
RESTART = 7


@dataclass(frozen=True, slots=True, eq=False)
class _Expected:
    """The record of one round of the selector."""

    drawn: dict[str, int]
    asked: frozenset[str]
    weights: dict[str, float]
    step: NDArray[np.float64]


def _check(federation: ScriptedFederation, plugin: ScriptedPlugin) -> None:
    script = list(_by_selector(federation))
    before: NDArray[np.floating] = federation.model
    for part in (script[:RESTART], script[RESTART:]):
        played = plugin.play([round_ for round_, _ in part])
        if len(played) != len(part):
            raise ContractError(
                f"{federation}: must play {len(part)} rounds from round {part[0][0].number} on; "
                f"it played {len(played)}. A round in which all fail or none is connected counts."
            )
        for (round_, expected), found in zip(part, played, strict=True):
            _compare(f"{federation}, round {round_.number}", expected, found, before)
            before = found.model


def _compare(
    where: str, expected: _Expected, found: PlayedRound, before: NDArray[np.floating]
) -> None:
    """Raise if a plug-in differs from the selector."""
    if dict(found.drawn) != expected.drawn:
        raise ContractError(
            f"{where}: must draw {expected.drawn}; it drew {dict(found.drawn)}. Pass to draw "
            f"exactly those that are connected, save the selector with the model, and end every "
            f"round once."
        )
    if found.asked != expected.asked:
        raise ContractError(
            f"{where}: must send the model to {sorted(expected.asked)}; it sent it to "
            f"{sorted(found.asked)}. Ask the cohort and the clients that redraw returns once."
        )
    if not _close(found.weights, expected.weights):
        raise ContractError(
            f"{where}: must weigh {expected.weights}; it weighed {dict(found.weights)}. Pass to "
            f"settle, or to aggregate, those whose answer can be used."
        )
    moved = before.astype(np.float64) + expected.step
    bound = ROUNDINGS * float(np.finfo(np.float32).eps) * (1 + float(np.abs(moved).max()))
    off = float(np.abs(found.model - moved).max())
    if not off <= bound:  # NaN is not
        raise ContractError(
            f"{where}: must move the model by {expected.step.round(4).tolist()}; it moved it by "
            f"{(found.model - before).round(4).tolist()}. Add the step of aggregate to the model "
            f"that was sent; with another average use for_average."
        )


def _close(found: Mapping[str, float], expected: Mapping[str, float]) -> bool:
    return found.keys() == expected.keys() and all(
        abs(found[each] - weight) <= 1e-9 for each, weight in expected.items()
    )


def _by_selector(federation: ScriptedFederation) -> Iterator[tuple[ScriptedRound, _Expected]]:
    """Play the script with a selector in a plain loop; clients join when they first come."""
    selector = Selector(federation.recipe, {}, seed=federation.seed, **federation.settings)
    members: dict[str, int] = {}
    for number, (there, who, how) in enumerate(SCRIPT):
        members |= {each: federation.sizes[each] for each in there}
        if selector.clients != members:
            selector.clients = members
        cohort = selector.draw(list(there))
        drawn = dict(zip(map(str, cohort.ids), cohort.counts.tolist(), strict=True))
        chosen = {"": (), "first": list(drawn)[:1], "all": EVERYONE}[who]
        failing = dict.fromkeys(map(str, chosen), how)
        round_ = ScriptedRound(number, there, failing, _updates(number))
        while selector.redraw([each for each in selector.asked if each in failing]):
            pass
        yield round_, _settled(selector, round_, drawn)


def _settled(selector: Selector, round_: ScriptedRound, drawn: dict[str, int]) -> _Expected:
    asked = [str(each) for each in selector.asked]
    answered = [each for each in asked if each not in round_.failing]
    settled = selector.settle(answered)
    weights = dict(zip(map(str, settled.ids), settled.weights.tolist(), strict=True))
    step = selector.aggregate({each: round_.updates[each] for each in answered})
    vector = np.broadcast_to(np.asarray(step, dtype=np.float64), DIMENSION)
    return _Expected(drawn, frozenset(asked), weights, vector)


def _updates(number: int) -> dict[str, NDArray[np.float32]]:
    """Return vectors without ties: rounding does not change which are the most similar."""
    rng = np.random.default_rng(number)
    return {each: rng.normal(size=DIMENSION).astype(np.float32) for each in EVERYONE}
