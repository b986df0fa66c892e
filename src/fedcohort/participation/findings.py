"""Faults against chance: who is asked too rarely, who fails too often, what they have in common.

Every test is exact, given what it takes as known, or says how it is computed:

* ``asked``: how often a client is asked, under the claimed design; and how long it has not been.
* ``fails``: a client's failures, if all that were asked fail equally often (hypergeometric).
* ``silent``: its failures at the end, if its failures may fall on any of the times it was asked.
* ``round``: the failures of a round, if all that were asked fail equally often (hypergeometric).
* ``set``: the failures of a group, or of a quarter of the clients by size (hypergeometric).
* ``together``, ``cut-off``: whether the number of failures varies more, or less, from round to
  round than if each client's failures fell on any of its times (999 random orders).
* ``sampler``: whether the draws prefer large or small clients, or a group (normal law).

Each family gets an equal part of ``alpha``, divided by its number of tests (Bonferroni). So a run
without any fault raises an alarm in at most a share ``alpha`` of audits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import hypergeom, mannwhitneyu, norm, rankdata

from fedcohort._display import counted, per_cent, shortened, times
from fedcohort.participation.law import Floats, Law
from fedcohort.participation.table import Participation

#: The families of tests, each with an equal part of alpha.
FAMILIES = ("asked", "fails", "silent", "round", "set", "together", "cut-off", "sampler")
#: Orders that the tests of ``together`` and ``cut-off`` draw, and entries that these use at most.
#: They stop once this number of orders are as even, and as uneven, as the run itself.
ORDERS, MOST_ENTRIES, ENOUGH = 999, 20_000, 20
#: The chance below which something that failing clients have in common is named.
COMMON = 0.01
#: Names that a sentence lists.
NAMED = 5
#: From this share on, the weight of a round sits on one client.
ALONE = 0.9
Mask = NDArray[np.bool_]


@final
@dataclass(frozen=True)
class Finding:
    """A sentence about the run.

    Attributes
    ----------
    kind
        What was tested: one of ``FAMILIES``, or a fact: ``absent``, ``outage``.
    text
        The sentence.
    clients, rounds
        The clients and the rounds that it is about; all if none are named.
    chance
        The chance of such a thing anywhere in a run without faults, corrected for the number of
        clients; None for a fact.
    """

    kind: str
    text: str
    clients: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()
    chance: float | None = None


def chance_text(chance: float) -> str:
    """Write a small chance in words.

    Examples
    --------
    >>> chance_text(0.0), chance_text(0.004), chance_text(1e-9)
    ('cannot be chance', 'chance 1 in 250', 'chance below 1 in a million')
    """
    if chance <= 0:
        return "cannot be chance"
    if chance < 1e-6:
        return "chance below 1 in a million"
    return f"chance 1 in {1 / chance:,.0f}" if chance < 0.1 else f"chance {chance:.2f}"


def named(ids: Iterable[str]) -> str:
    """List some names."""
    return ", ".join(shortened(list(ids), NAMED))


@final
class Tests:
    """The tests of one participation; :meth:`findings` runs all."""

    def __init__(self, own: Participation, law: Law, alpha: float, seed: int) -> None:
        self.own, self.law, self.level = own, law, alpha / len(FAMILIES)
        self._rng = np.random.default_rng(seed)
        self.asked = own.per_client()
        self.failed = own.per_client(~own.answered).astype(np.int64)
        self.drawn = own.per_client(own.count > 0).astype(np.int64)
        self._p = self.share_of_samples()
        self._flagged: Mask = np.zeros(own.n_clients, dtype=bool)

    def share_of_samples(self) -> Floats:
        """Return each client's share of all samples; equal shares if sizes are unknown."""
        sizes = self.own.known_sizes()
        return sizes / sizes.sum() if sizes.sum() > 0 else sizes

    def findings(self) -> list[Finding]:
        """Return what is wrong, the most important first."""
        if self.own.counts is not None:
            return [*self._failing_by_counts(), *self._bad_rounds()]
        failing, even = self._failing(), self._evenness()
        said = any(each.kind == "cut-off" for each in even)
        return [
            *failing,
            *([] if said else self._cut_off()),
            *self._absent(),
            *self._asked(),
            *self._sets(),
            *self._bad_rounds(),
            *even,
            *self._sampler(),
        ]

    # Who fails

    def _fail_chances(self, among: Mask) -> Floats:
        """Return the chance of at least this many failures, if all of ``among`` fail equally."""
        total, lost = int(self.asked[among].sum()), int(self.failed[among].sum())
        found = np.ones(self.own.n_clients)
        some = among & (self.failed > 0)
        pairs = np.stack([self.asked[some], self.failed[some]], axis=1)
        if len(pairs):
            different, place = np.unique(pairs, axis=0, return_inverse=True)
            tails = np.asarray(hypergeom.sf(different[:, 1] - 1, total, lost, different[:, 0]))
            found[some] = tails[place.ravel()]
        return found

    def _silent(self) -> tuple[NDArray[np.int64], Floats]:
        """Return how often each client failed at the end, and the chance of that in its order."""
        own, n = self.own, self.own.n_clients
        last = np.full(n, -1)
        np.maximum.at(last, own.client[own.answered], own.row[own.answered])
        since = own.per_client(own.row > last[own.client]).astype(np.int64)
        a, f, g = (each.astype(float) for each in (self.asked, self.failed, since))
        log_chance = _log_choose(a - g, f - g) - _log_choose(a, f)
        return since, np.where(g >= 2, np.exp(np.minimum(log_chance, 0.0)), 1.0)

    def _failing(self) -> list[Finding]:
        """Find clients that fail too often, and those that stopped answering."""
        own, n = self.own, max(1, self.own.n_clients)
        among, best = self.asked > 0, np.ones(own.n_clients)
        while True:  # those that are found hide the others: leave them out, and look again
            chances = self._fail_chances(among) * n
            new = among & (chances <= self.level)
            best[new] = chances[new]
            if not new.any():
                break
            among &= ~new
        often = best <= self.level
        since, chances = self._silent()
        chances = chances * n
        gone = (chances <= self.level) | (often & (since >= 3) & (self.failed < self.asked))
        # A client that fails now and then, and by chance also at the end, is not gone.
        gone &= (chances <= COMMON) & (since >= 2)
        self._flagged = often | gone
        if not self._flagged.any():
            return []
        best = np.minimum(best, np.where(gone, chances, 1.0)) * len(FAMILIES)
        never = self._flagged & (self.failed == self.asked) & ~gone
        texts = [
            *self._gone(gone, best),
            *self._one_kind(never, best, "never answered"),
            *self._one_kind(
                self._flagged & ~gone & ~never, best, "failed far more often than others"
            ),
        ]
        return [*texts, *self._in_common(self._flagged, gone)]

    def _gone(self, gone: Mask, chance: Floats) -> list[Finding]:
        """Say since when clients have not answered; those that left within two rounds together."""
        own, found = self.own, []
        first = np.full(own.n_clients, own.n_rounds)
        last = np.full(own.n_clients, -1)
        np.maximum.at(last, own.client[own.answered], own.row[own.answered])
        late = own.row > last[own.client]
        np.minimum.at(first, own.client[late], own.row[late])
        places = np.flatnonzero(gone)
        places = places[np.argsort(first[places], kind="stable")]
        for part in np.split(places, np.flatnonzero(np.diff(first[places]) > 2) + 1):
            if not len(part):
                continue
            since = int(own.rounds[first[part].min()])
            how = "has" if len(part) == 1 else "have"
            ids = [own.ids[k] for k in part]
            text = (
                f"{len(part)} of {counted(own.n_clients, 'client')} {how} not answered since round "
                f"{since}: {self._samples(part)} ({named(ids)}; "
                f"{chance_text(float(chance[part].min()))})."
            )
            found.append(Finding("silent", text, tuple(ids), (since,), float(chance[part].min())))
        return found

    def _one_kind(self, which: Mask, chance: Floats, what: str) -> list[Finding]:
        own, places = self.own, np.flatnonzero(which)
        if not len(places):
            return []
        ids = [own.ids[k] for k in places]
        lost, asked = int(self.failed[places].sum()), int(self.asked[places].sum())
        others = ~which
        rest = self.failed[others].sum() / max(1, self.asked[others].sum())
        text = (
            f"{len(places)} of {counted(own.n_clients, 'client')} {what}, {self._samples(places)}: "
            f"{lost:,} failures in {asked:,} times asked, where the others fail in "
            f"{per_cent(rest)} ({named(ids)}; {chance_text(float(chance[places].max()))})."
        )
        return [Finding("fails", text, tuple(ids), (), float(chance[places].max()))]

    def _samples(self, places: NDArray[np.int64]) -> str:
        """Write the share of samples of some clients."""
        share = float(self._p[places].sum())
        text = per_cent(share, 0 if share >= 0.1 else 1)
        return f"{text} of all {'clients' if self.own.sizes is None else 'samples'}"

    # What they have in common

    def _in_common(self, which: Mask, gone: Mask) -> list[Finding]:
        """Say what failing clients have in common: group, size, speed, hours, rounds."""
        ids = tuple(self.own.ids[k] for k in np.flatnonzero(which))
        found = [
            *self._common_group(which),
            *self._common_rank(which, self.own.sizes, "large", "small", "By size"),
            *self._common_rank(which, self._speeds(), "slow", "fast", "By speed"),
            *self._common_hours(which),
            *self._common_start(which & ~gone),
            *self._common_rounds(which),
        ]
        return [Finding("fails", text, ids, (), chance) for text, chance in found]

    def _cut_off(self) -> list[Finding]:
        """Say that in every round equally many answers came: a fact, not a test."""
        came, asked = self.own.per_round(self.own.answered), self.own.per_round()
        if len(came) < 5 or np.ptp(came) or (came >= asked).any() or not self._flagged.any():
            return []
        text = (
            f"In every round exactly {int(came[0])} answers came: a server that goes on after so "
            f"many, by a setting such as min_clients, leaves out the slowest."
        )
        return [Finding("cut-off", text)]

    def _comparable(self, which: Mask) -> Mask:
        """Return those that would have been found too if they had failed as often."""
        return np.asarray(which | (self.asked >= self.asked[which].min()))

    def _common_group(self, which: Mask) -> list[tuple[str, float]]:
        labels = self.own.groups
        if labels is None:
            return []
        among = self._comparable(which)
        n, k = int(among.sum()), int(which.sum())
        groups = np.array(labels)
        found = []
        names = sorted(set(groups[which].tolist()))
        for name in names:
            own = groups == name
            hits = int((own & which).sum())
            chance = float(hypergeom.sf(hits - 1, n, int((own & among).sum()), k)) * len(
                set(labels)
            )
            if hits >= 2 and chance <= COMMON:
                share = "all" if hits == k else f"{hits} of the {k}"
                text = (
                    f"By group: {share} of them belong to {name}, which has "
                    f"{counted(int(own.sum()), 'client')} ({chance_text(chance)})."
                )
                found.append((text, chance))
        return found

    def _common_rank(
        self, which: Mask, values: Floats | None, high: str, low: str, what: str
    ) -> list[tuple[str, float]]:
        if values is None:
            return []
        among = self._comparable(which) & np.isfinite(values)
        one, other = values[among & which], values[among & ~which]
        if len(one) < 2 or len(other) < 2:
            return []
        result = mannwhitneyu(one, other, method="exact" if len(one) + len(other) <= 60 else "auto")
        side = result.statistic > len(one) * len(other) / 2
        word = high if side else low
        edge = (one.min() > other.max()) if side else (one.max() < other.min())
        text = (
            f"{what}: they are the {len(one)} {word}est"
            if edge
            else f"{what}: they are {word}er than the others"
        )
        # Of a few clients, all of them the largest, that is worth a word, whatever its chance.
        if result.pvalue > COMMON and not edge:
            return []
        text = text.replace("largeest", "largest").replace("largeer", "larger")
        return [(f"{text} ({chance_text(float(result.pvalue))}).", float(result.pvalue))]

    def _speeds(self) -> Floats | None:
        """Return the mean rank of the times of each client's answers; NaN without one.

        Ranks, because the mean of a few times, most of them short, is not like that of many.
        """
        own, known = self.own, np.isfinite(self.own.seconds) & self.own.answered
        if not known.any():
            return None
        n = np.bincount(own.client[known], minlength=own.n_clients)
        total = np.bincount(own.client[known], rankdata(own.seconds[known]), own.n_clients)
        return np.where(n > 0, total / np.maximum(n, 1), np.nan)

    def _common_hours(self, which: Mask) -> list[tuple[str, float]]:
        """Say between which hours they answer, if they fail at others."""
        own = self.own
        if own.hours is None:
            return []
        chosen = which[own.client] & np.isfinite(own.hours[own.row])
        hours, came = own.hours[own.row[chosen]], own.answered[chosen]
        if came.sum() < 5 or (~came).sum() < 5:
            return []
        window = _window(hours[came])
        inside = (hours - window[0]) % 24 <= (window[1] - window[0]) % 24
        n, k, lost = len(hours), int(inside.sum()), int((~came).sum())
        within = int((inside & ~came).sum())
        chance = float(hypergeom.cdf(within, n, lost, k)) * 24 * 24  # as many windows
        if (n - k) < 5 or chance > COMMON:
            return []
        begin, end = (f"{int(h):02d}:{round(h % 1 * 60) % 60:02d}" for h in window)
        text = (
            f"By hour: they answer between {begin} and {end} only; outside they failed all "
            f"{n - k} times ({chance_text(chance)})."
        )
        return [(text, chance)]

    def _common_start(self, which: Mask) -> list[tuple[str, float]]:
        """Say since which round they fail: many that are asked rarely each show it together only.

        The round is the one that divides their failures best. It may be any, so the chance is
        multiplied by the number of rounds.
        """
        own, chosen = self.own, which[self.own.client]
        asked = np.bincount(own.row[chosen], minlength=own.n_rounds)
        lost = np.bincount(own.row[chosen], ~own.answered[chosen], own.n_rounds)
        after = np.cumsum(asked[::-1])[::-1]
        lost_after = np.cumsum(lost[::-1])[::-1].astype(np.int64)
        if which.sum() < 2 or not 0 < lost_after[0] < after[0]:
            return []
        chances = hypergeom.sf(lost_after - 1, after[0], lost_after[0], after) * own.n_rounds
        # Of equally small chances the one with the largest difference.
        excess = lost_after - after * (lost_after[0] / after[0])
        at = int(np.lexsort((-excess, np.asarray(chances)))[0])
        chance = float(chances[at])
        before = after[0] - after[at]
        if chance > COMMON or not before:
            return []
        rate = (lost_after[0] - lost_after[at]) / before
        text = (
            f"By time: since round {int(own.rounds[at])} they failed {lost_after[at]:,} of "
            f"{after[at]:,} times, before in {per_cent(rate)} ({chance_text(min(1.0, chance))})."
        )
        return [(text, chance)]

    def _common_rounds(self, which: Mask) -> list[tuple[str, float]]:
        """Find clients that fail together; leave out rounds in which nearly all failed."""
        own = self.own
        rate = own.per_round(~own.answered) / np.maximum(own.per_round(), 1)
        some = np.flatnonzero(which & (self.failed < self.asked))[:200]
        if len(some) < 2:
            return []
        fine = (rate < ALONE)[own.row] & np.isin(own.client, some)
        asked = np.zeros((len(some), own.n_rounds))
        lost = np.zeros_like(asked)
        place = np.searchsorted(some, own.client[fine])
        asked[place, own.row[fine]] = 1
        lost[place, own.row[fine]] = ~own.answered[fine]
        both, common = asked @ asked.T, lost @ lost.T
        first = lost @ asked.T
        chance = np.asarray(hypergeom.sf(common - 1, both, first, first.T))
        n_pairs = len(some) * (len(some) - 1) / 2
        linked = (chance * n_pairs <= COMMON) & (common >= 3)
        # Nearly always: one of them rarely fails without the other.
        linked &= common >= 0.8 * np.minimum(first, first.T)
        np.fill_diagonal(linked, val=False)
        found, left = [], set(range(len(some)))
        while left:
            part, front = set[int](), {left.pop()}
            while front:
                part |= front
                front = {int(b) for a in front for b in np.flatnonzero(linked[a])} - part
            left -= part
            if len(part) >= 2:
                ids = [own.ids[some[k]] for k in sorted(part)]
                inside = [k for k in part if linked[k].any()]
                worst = float(max(chance[a][linked[a]].max() for a in inside) * n_pairs)
                text = f"Together: {named(ids)} fail in the same rounds ({chance_text(worst)})."
                found.append((text, worst))
        return sorted(found, key=lambda each: each[1])[:NAMED]

    # Who is asked

    def _absent(self) -> list[Finding]:
        """Say who has not been available for long: a fact, if the log lists who was."""
        own = self.own
        if own.available is None or not own.n_rounds:
            return []
        gap = np.argmax(own.available[::-1], axis=0)
        gap = np.where(own.available.any(axis=0), gap, own.n_rounds)
        earlier = _longest_gap(own.available, gap)
        long = (gap >= max(3, own.n_rounds / 10)) & (gap > 2 * earlier) & (self._p > 0)
        found = []
        first = own.n_rounds - gap
        places = np.flatnonzero(long)
        places = places[np.argsort(first[places], kind="stable")]
        for part in np.split(places, np.flatnonzero(np.diff(first[places]) > 2) + 1):
            if not len(part):
                continue
            ids, at = [own.ids[k] for k in part], int(first[part].min())
            when = "in any round" if at == 0 else f"since round {int(own.rounds[at])}"
            how = "was" if len(part) == 1 else "were"
            text = (
                f"{len(part)} of {counted(own.n_clients, 'client')} {how} not available {when}: "
                f"{self._samples(part)} ({named(ids)})."
            )
            found.append(
                Finding("absent", text, tuple(ids), (int(own.rounds[min(at, own.n_rounds - 1)]),))
            )
        return found

    def _asked(self) -> list[Finding]:
        """Find clients that are asked too rarely or too often for the design."""
        own, law = self.own, self.law
        if not own.n_clients or not law.is_known:
            return []
        n_tests = 3 * own.n_clients
        last = np.full(own.n_clients, -1)
        is_draw = own.count > 0
        np.maximum.at(last, own.client[is_draw], own.row[is_draw])
        rarely, often = law.too_few(self.drawn), law.too_many(self.drawn)
        ended = law.too_few(np.zeros_like(self.drawn), last + 1)
        found: list[Finding] = []
        seen = np.zeros(own.n_clients, dtype=bool)
        cases = (
            (rarely, self.drawn == 0, "{n} never asked"),
            (ended, self.drawn > 0, "{n} not asked any more since round {since}"),
            (rarely, self.drawn > 0, "{n} asked too rarely"),
            (often, self.drawn > 0, "{n} asked too often"),
        )
        expected = law.expected_rounds()
        for chances, among, what in cases:
            which = among & ~seen & (chances * n_tests <= self.level)
            places = np.flatnonzero(which)
            if not len(places):
                continue
            seen |= which
            worst = float(min(1.0, chances[places].max() * n_tests * len(FAMILIES)))
            ids = [own.ids[k] for k in places]
            since = (
                own.rounds[min(int(last[places].min()) + 1, own.n_rounds - 1)]
                if own.n_rounds
                else 0
            )
            were = "was" if len(places) == 1 else "were"
            how = f"{len(places)} of {counted(own.n_clients, 'client')} {were}"
            text = (
                f"{what.format(n=how, since=since)}, {self._samples(places)}: in "
                f"{int(self.drawn[places].sum()):,} rounds where the design expects "
                f"{expected[places].sum():,.1f} ({named(ids)}; {chance_text(worst)})."
            )
            found.append(Finding("asked", text, tuple(ids), (), worst))
        return found

    def _sampler(self) -> list[Finding]:
        """Find draws that prefer large or small clients, or a group."""
        own, found = self.own, list[Finding]()
        features: dict[str, Floats] = {}
        if own.sizes is not None and len(np.unique(self._p)) > 1:
            order = np.argsort(np.argsort(self._p, kind="stable"), kind="stable")
            features["large clients"] = order / own.n_clients - 0.5
        labels = sorted(set(own.groups)) if own.groups is not None else []
        if 2 <= len(labels) <= 50:
            groups = np.array(own.groups)
            features |= {
                f"the group {name}": (groups == name) - np.mean(groups == name) for name in labels
            }
        counts = own.dense(own.count, 0) if features else None
        for name, feature in features.items():
            assert counts is not None  # for mypy: there are features
            moments = [_moments(s, feature) for s in self.law.strata]
            if any(each is None for each in moments):
                return found
            excess, variance = 0.0, 0.0
            for stratum, known in zip(self.law.strata, moments, strict=True):
                assert known is not None  # for mypy: checked above
                excess += (
                    float((counts[stratum.rounds] @ feature).sum()) - len(stratum.rounds) * known[0]
                )
                variance += len(stratum.rounds) * known[1]
            if variance <= 1e-9:
                continue
            z = excess / math.sqrt(variance)
            chance = float(2 * norm.sf(abs(z))) * len(features)
            if chance > self.level:
                continue
            way = "for" if z > 0 else "against"
            text = (
                f"The draws are biased {way} {name} ({abs(z):.1f} standard deviations from the "
                f"design; {chance_text(chance * len(FAMILIES))})."
            )
            found.append(Finding("sampler", text, (), (), min(1.0, chance * len(FAMILIES))))
        return found

    # Rounds, and sets of clients

    def _bad_rounds(self) -> list[Finding]:
        """Find rounds with too many failures; neighbouring ones are one finding."""
        own = self.own
        if own.counts is None:
            asked, lost = own.per_round(), own.per_round(~own.answered)
        else:
            asked, lost = own.counts.asked, own.counts.asked - own.counts.answered
        lost = np.clip(lost, 0, asked).astype(np.int64)
        if not asked.sum():
            return []
        chances = np.asarray(hypergeom.sf(lost - 1, asked.sum(), lost.sum(), asked)) * len(asked)
        places = np.flatnonzero((chances <= self.level) & (lost > 0))
        found = []
        for part in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            if not len(part):
                continue
            numbers = [int(each) for each in own.rounds[part]]
            chance = float(chances[part].max()) * len(FAMILIES)
            when = (
                f"round {numbers[0]}" if len(part) == 1 else f"rounds {numbers[0]} to {numbers[-1]}"
            )
            text = (
                f"In {when}, {lost[part].sum():,} of {asked[part].sum():,} that were asked did not "
                f"answer, far more than in others ({chance_text(chance)})."
            )
            found.append(Finding("round", text, (), tuple(numbers), chance))
        return found

    def _sets(self) -> list[Finding]:
        """Find groups, and quarters by size, whose other clients fail too often."""
        own, among = self.own, ~self._flagged & (self.asked > 0)
        total, lost = int(self.asked[among].sum()), int(self.failed[among].sum())
        sets: dict[str, Mask] = {}
        if own.groups is not None and len(set(own.groups)) > 1:
            groups = np.array(own.groups)
            sets |= {f"the group {name}": groups == name for name in sorted(set(own.groups))}
        if own.sizes is not None and among.sum() >= 8 and len(np.unique(self._p[among])) > 1:
            edges = np.quantile(self._p[among], [0.25, 0.75])
            sets |= {
                "the smallest quarter": self._p <= edges[0],
                "the largest quarter": self._p >= edges[1],
            }
        found = []
        for name, which in sets.items():
            chosen = which & among
            if chosen.sum() < 2 or chosen.sum() == among.sum():
                continue
            a, f = int(self.asked[chosen].sum()), int(self.failed[chosen].sum())
            chance = float(hypergeom.sf(f - 1, total, lost, a)) * len(sets)
            if f and chance <= self.level:
                ids = tuple(own.ids[k] for k in np.flatnonzero(chosen))
                rest = (lost - f) / max(1, total - a)
                text = (
                    f"Clients of {name} fail in {per_cent(f / a)} of {a:,} times asked, the "
                    f"others in {per_cent(rest)} ({counted(len(ids), 'client')}, "
                    f"{self._samples(np.flatnonzero(chosen))}; "
                    f"{chance_text(chance * len(FAMILIES))})."
                )
                found.append(Finding("set", text, ids, (), min(1.0, chance * len(FAMILIES))))
        return found

    def _evenness(self) -> list[Finding]:
        """Find failures that fall on the same rounds, or are equally many in every round."""
        own = self.own
        mixed = (self.failed > 0) & (self.failed < self.asked)
        chosen = np.flatnonzero(mixed[own.client])
        if mixed.sum() < 2 or not len(chosen):
            return []
        if len(chosen) > MOST_ENTRIES:  # as many clients as fit, at random
            order = self._rng.permutation(np.flatnonzero(mixed))
            kept = order[np.cumsum(self.asked[order]) <= MOST_ENTRIES]
            chosen = np.flatnonzero(np.isin(own.client, kept))
        client, row, lost = own.client[chosen], own.row[chosen], ~own.answered[chosen]
        n_asked = np.bincount(row, minlength=own.n_rounds)
        rate = lost.sum() / len(lost)
        order = np.argsort(client, kind="stable")
        client, row, lost = client[order], row[order], lost[order]

        def spread(of: Mask) -> float:
            per_round = np.bincount(row[of], minlength=own.n_rounds)
            return float(((per_round - rate * n_asked) ** 2).sum())

        seen = spread(lost)
        counts = np.bincount(client, lost).astype(np.int64)[client]
        starts = np.searchsorted(client, client)
        # Within a client, the first ``failed`` places of a random order.
        is_first, n_orders, more, less = np.arange(len(client)) - starts < counts, 0, 1, 1
        while n_orders < ORDERS and min(more, less) <= ENOUGH:
            other = np.zeros(len(client), dtype=bool)
            other[np.argsort(client + self._rng.random(len(client)))] = is_first
            value, n_orders = spread(other), n_orders + 1
            more += value >= seen
            less += value <= seen
        found = []
        for number, kind in ((more, "together"), (less, "cut-off")):
            chance = number / (n_orders + 1)
            if chance <= self.level:
                found.append(
                    Finding(kind, self._evenness_text(kind, chance), (), (), chance * len(FAMILIES))
                )
        return found

    def _evenness_text(self, kind: str, chance: float) -> str:
        own, said = self.own, chance_text(chance * len(FAMILIES))
        if kind == "together":
            return (
                f"Failures come together: clients fail in the same rounds, not one by one ({said})."
            )
        came, asked = own.per_round(own.answered), own.per_round()
        values, n = np.unique(came, return_counts=True)
        usual = int(values[n.argmax()])
        return (
            f"The server goes on after {usual} answers: {times(int(n.max()))} in "
            f"{counted(own.n_rounds, 'round')} exactly {usual} of {int(np.median(asked))} came, "
            "and the others count as failed. Look for a minimum of answers such as min_clients "
            f"({said})."
        )

    def _failing_by_counts(self) -> list[Finding]:
        """Find failing clients where a log names only those: draws are assumed to be uniform."""
        own, counts = self.own, self.own.counts
        assert counts is not None  # for mypy: the caller has checked it
        lost = np.clip(counts.asked - counts.answered, 0, None)
        n = max(int(counts.connected.max(initial=1)), own.n_clients)
        chance = np.minimum(1.0, lost / np.maximum(counts.connected, 1))
        rate = np.broadcast_to(chance[:, None], (own.n_rounds, max(1, own.n_clients)))
        from fedcohort.participation.law import cumulative

        ones = np.ones((rate.shape[1], own.n_rounds), dtype=np.int64)
        if not own.n_clients:
            return []
        tails = np.clip(1 - cumulative(self.failed - 1, np.array(rate), ones), 0, 1) * n
        which = tails <= self.level
        self._p = np.full(own.n_clients, 1 / n)
        found = []
        if which.any():
            places = np.flatnonzero(which)
            ids = tuple(own.ids[k] for k in places)
            worst = float(tails[places].max()) * len(FAMILIES)
            text = (
                f"{counted(len(ids), 'client')} failed far more often than others: "
                f"{int(self.failed[places].sum())} of {int(lost.sum())} failures ({named(ids)}; "
                f"{chance_text(worst)})."
            )
            found.append(Finding("fails", text, ids, (), worst))
        return found


def _moments(stratum: object, feature: Floats) -> tuple[float, float] | None:
    """Return mean and variance of the sum of a feature over a cohort's draws; None if unknown."""
    from fedcohort.participation.law import Stratum

    assert isinstance(stratum, Stratum)
    design, p = stratum.design, stratum.high
    if design is None:
        some = p > 0
        n = int(some.sum())
        if not np.array_equal(stratum.low, p) or not n or np.ptp(p[some]) > 1e-12:
            return None
        m = float(p.sum())  # uniform, without replacement
        return float(p @ feature), m * (1 - m / n) * float(np.var(feature[some])) * n / max(
            n - 1, 1
        )
    if not design.exact_counts or not (design.exact_moments or design.lasts):
        return None
    weight = design.weight_per_draw()
    if not design.exact_moments:
        return None
    scaled = np.divide(feature, weight, out=np.zeros_like(feature), where=weight > 0)
    return float(design.expected_counts() @ feature), design.aggregate_spread(scaled[:, None])


def _log_choose(n: Floats, k: Floats) -> Floats:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _window(hours: Floats) -> tuple[float, float]:
    """Return the shortest part of the day that holds all hours."""
    line = np.unique(hours)
    gaps = np.diff(line, append=line[0] + 24)
    at = int(gaps.argmax())
    return float(line[(at + 1) % len(line)]), float(line[at])


def _longest_gap(available: Mask, last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each client's longest absence before its last one."""
    longest = np.zeros(available.shape[1], dtype=np.int64)
    run = np.zeros_like(longest)
    for k, there in enumerate(available):
        run = np.where(there | (k >= len(available) - last), 0, run + 1)
        longest = np.maximum(longest, run)
    return longest
