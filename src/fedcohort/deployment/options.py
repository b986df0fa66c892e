"""The settings that all plug-ins share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from fedcohort._arguments import MOST, brief
from fedcohort._fields import whole
from fedcohort.deployment.directory import checked_sizes
from fedcohort.deployment.limits import Limits
from fedcohort.deployment.plugin import Plugin
from fedcohort.population import Label, Population
from fedcohort.selector import Selector
from fedcohort.selector.settings import SelectorKeywords, SelectorSettings
from fedcohort.streams import Seed


class PluginKeywords(SelectorKeywords, total=False):
    """The settings as keyword arguments; :class:`SelectorOptions` declares them."""

    seed: Seed
    sizes: Mapping[Any, int] | Population | None
    groups: Mapping[Any, Label | None] | None
    chances: Mapping[Any, float] | None
    limits: Limits | None
    log_file: str | Path | None
    audit_every: int | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorOptions(SelectorSettings):
    """The settings of a plug-in's selector, checked when the plug-in is made.

    The others are those of :class:`fedcohort.Selector`.

    Attributes
    ----------
    plugin
        The plug-in that the settings belong to.
    seed
        Seeds the draws and the order of ties: one seed gives one sequence of cohorts.
    sizes
        Samples by client, or a population such as :func:`fedcohort.read_clients` returns, with its
        groups; None asks the clients.
    groups
        Labels by client, for recipes that draw by group; clients without one form the group
        ``"unlabelled"``.
    chances
        The chance of each client to be there in a round, for ``presence="known"``; a client
        without one is not drawn.
    limits
        What the server accepts from clients.
    log_file
        Where to write a JSON line for every round; None writes none.
    audit_every
        Every this many rounds, log who has taken part and warn of clients that are missing
        beyond chance; None does so at the end only.
    """

    plugin: Plugin
    seed: Seed = None
    sizes: Mapping[Any, int] | Population | None = None
    groups: Mapping[Any, Label | None] | None = None
    chances: Mapping[Any, float] | None = None
    limits: Limits | None = None
    log_file: str | Path | None = None
    audit_every: int | None = whole(None, least=1, most=MOST)

    def _check(self) -> None:
        SelectorSettings._check(self)  # super() does not work in a class with slots
        plugin = self.plugin
        for each in fields(self):
            if each.name in plugin.lacks and getattr(self, each.name) != each.default:
                raise plugin.refusal(
                    f"{each.name} is not available here; got {brief(getattr(self, each.name))}. "
                    f"Leave it out."
                )
        self._put(limits=plugin.record("limits", self.limits, Limits))
        known = self.sizes
        if isinstance(known, Population) and self.groups is None and known.groups is not None:
            self._put(groups=dict(zip(known.ids, known.groups, strict=True)))
        if self.sizes is not None:
            self._put(sizes=checked_sizes(plugin, self.sizes))
        for name, what in (("groups", "labels"), ("chances", "numbers")):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Mapping):
                raise plugin.refusal(
                    f"{name} must map {plugin.clients} to {what}; got {brief(given)}. Pass a "
                    f"dictionary, or None."
                )
            if given is not None:
                self._put(**{name: {str(client): value for client, value in given.items()}})
        if self.log_file is not None:
            self._put(log_file=plugin.path("log_file", self.log_file))

    @property
    def bounds(self) -> Limits:
        """The limits; the default ones where none are given."""
        assert self.limits is not None  # for mypy: replaced when the record is made
        return self.limits

    def selector(self) -> Selector:
        """Return a selector without clients; refuse settings that cannot work together."""
        selector = Selector(
            self.recipe,
            {},
            seed=self.seed,
            groups=self.groups,
            chances=self.chances,
            log=self.log_file or True,
            **self.keywords(),
        )
        self.bounds.check_cohort(self.plugin, self.recipe.cohort_size + self.extra)
        return selector
