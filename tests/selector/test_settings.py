"""One record declares the settings; keyword arguments, signatures and descriptions follow it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

from fedcohort import Multinomial, Selector, SizeClustered
from fedcohort.errors import ArgumentError, SelectorError
from fedcohort.selector.settings import KEYWORDS, SelectorKeywords, SelectorSettings


def test_keywords_have_the_names_and_types_of_the_record() -> None:
    declared = get_type_hints(SelectorSettings)

    assert get_type_hints(SelectorKeywords) == {name: declared[name] for name in KEYWORDS}
    assert tuple(each.name for each in fields(SelectorSettings))[1:] == KEYWORDS


def test_a_signature_lists_every_setting_with_its_default() -> None:
    own = inspect.signature(Selector).parameters
    declared = {each.name: each.default for each in fields(SelectorSettings)}

    assert {name: own[name].default for name in KEYWORDS} == {
        name: declared[name] for name in KEYWORDS
    }
    assert {own[name].kind for name in KEYWORDS} == {inspect.Parameter.KEYWORD_ONLY}


def test_every_setting_is_described() -> None:
    text = inspect.getdoc(Selector) or ""

    assert all(f"\n{name}\n    " in text for name in KEYWORDS)
    assert "{settings}" not in text


def test_an_unknown_setting_gets_a_suggestion() -> None:
    with pytest.raises(ArgumentError, match=r"^Selector: unknown argument 'max_nrom'; .* Did you"):
        Selector(SizeClustered(2), [1, 2], max_nrom=3)  # type: ignore[call-arg]


def test_a_selector_is_made_from_what_another_was_made_with() -> None:
    settings = SelectorSettings(Multinomial(2), estimator="difference", max_norm=3, tries=2)
    again = SelectorSettings(Multinomial(2), **settings.keywords())

    assert again == settings
    assert Selector(Multinomial(2), [1, 2], seed=0, **settings.keywords()).max_norm == 3.0


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(SelectorError, match=r"^Selector: extra must be 0 with on_failure='redraw'"):
        SelectorSettings(Multinomial(2), on_failure="redraw", extra=1)
