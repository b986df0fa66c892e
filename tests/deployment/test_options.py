"""The settings that plug-ins share: one record, one default, one description."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, Unpack

import pytest

from fedcohort import Selector, SizeClustered
from fedcohort.deployment import Limits, Plugin, SelectorOptions
from fedcohort.deployment.options import PluginKeywords
from fedcohort.errors import DeploymentError, FedcohortError
from fedcohort.selector.settings import unpacks

MINE = Plugin(framework="mine", owner="MyServer")
DEFAULTS = {each.name: each.default for each in fields(SelectorOptions)}


def test_defaults_are_those_of_the_selector() -> None:
    own = inspect.signature(Selector).parameters
    shared = DEFAULTS.keys() & own.keys() - {"recipe"}

    assert {name: own[name].default for name in shared} == {name: DEFAULTS[name] for name in shared}
    assert {"seed", "groups", "estimator", "sketch", "on_failure", "tries", "extra"} <= shared


@pytest.mark.skipif(find_spec("flwr") is None, reason="the extra 'flower' is not installed")
def test_flowers_defaults_and_descriptions_are_those_of_the_record() -> None:
    from fedcohort.flower import CohortStrategy

    own = inspect.signature(CohortStrategy).parameters
    shared = PluginKeywords.__annotations__.keys() - {"overlap"}

    assert {name: own[name].default for name in shared} == {name: DEFAULTS[name] for name in shared}
    assert "overlap" not in own
    described = inspect.getdoc(CohortStrategy) or ""
    assert "{settings}" not in described
    assert all(f"\n{name}\n" in described for name in shared)


def test_a_settings_own_description_comes_first() -> None:
    own = set(PluginKeywords.__annotations__) - {"sizes", "tries", "log_file"}

    @unpacks(SelectorOptions, without=own)
    class Server:
        """Serve.

        Parameters
        ----------
        {settings}
        sizes
            Known sizes.
        """

        def __init__(self, recipe: Any, **settings: Unpack[PluginKeywords]) -> None: ...

    assert list(inspect.signature(Server).parameters) == ["recipe", "tries", "sizes", "log_file"]
    assert inspect.getdoc(Server) == (
        "Serve.\n\nParameters\n----------\nrecipe\n    How clients are drawn.\ntries\n"
        '    How often ``"redraw"`` can replace one draw.\nlog_file\n    Where to write a JSON '
        "line for every round; None writes none.\nsizes\n    Known sizes."
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"groups": [1]}, r"^MyServer: groups must map clients to labels; got"),
        ({"sizes": {"Lyon": -1}}, "^MyServer: the size of client 'Lyon' must be"),
        ({"limits": 3}, r"^MyServer: limits must be Limits\(...\); got 3. Import it from"),
        ({"log_file": 3}, "^MyServer: log_file must be a path"),
        ({"limits": Limits(min_replies=3)}, "^MyServer: min_replies must be at most the 2 draws"),
        ({"on_failure": "hope"}, "on_failure must be"),
        ({"seed": -1}, "seed must be"),
        ({"overlap": True}, "^MyServer: overlap is not available here; got True. Leave it out"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_when_it_is_made(
    setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedcohortError, match=message):
        SelectorOptions(SizeClustered(2), plugin=MINE, **setting).selector()


def test_an_error_is_the_plugins() -> None:
    class MyError(DeploymentError):
        """Mine."""

    mine = Plugin(framework="mine", owner="MyServer", error=MyError)

    with pytest.raises(MyError, match="limits must be"):
        SelectorOptions(plugin=mine, recipe=SizeClustered(2), limits=3)  # type: ignore[arg-type]
