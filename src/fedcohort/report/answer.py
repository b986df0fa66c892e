"""The answer of a run in words: the best design, by how much, and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedcohort._arguments import listed
from fedcohort._display import decimals_of, fixed, shortened
from fedcohort.designs.catalogue import RECIPES, make_recipe
from fedcohort.designs.signals import ASKED
from fedcohort.errors import FedcohortError
from fedcohort.experiments.results import (
    DesignSummary,
    Interval,
    PanelSummary,
    Results,
    interval,
    summarise,
)
from fedcohort.experiments.settings import DesignEntry, Panel
from fedcohort.experiments.units import PlannedRun
from fedcohort.selector import Selector

#: A bias below this is rounding.
ROUNDING = 1e-9
#: The most clients of the federation on which a design of the library is judged.
ENOUGH_CLIENTS = 1000
#: The most designs that a sentence names.
MOST_NAMED = 5
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


def state_sentence(results: Results) -> str:
    """Describe the progress of a run. Return an empty string if it is complete."""
    progress = results.folder.progress()
    if progress.state == "complete":
        return ""
    return (
        f"The run is not finished ({progress.state}): {progress.done} of {progress.total} rounds, "
        f"counted over all its designs and seeds, are done."
    )


def panel_sentences(results: Results, panel: Panel) -> list[str]:
    """Describe the result of a panel. The first sentence is the answer."""
    if not panel.design:
        return ["No training was asked for: the data are divided among the clients, no more."]
    summary = summarise(results, panel)
    if summary is None:
        return [f"No seed has a round of every design yet; {panel.rounds} rounds are planned."]
    return summary_sentences(summary, panel, unbiased_designs(results, panel))


def unbiased_designs(results: Results, panel: Panel) -> dict[str, bool | None]:
    """Return for each design whether it is unbiased; None if that is not known.

    A finished run has recorded the bias. Without the record, build the design if it is one of the
    library's; a user's own code is not executed.
    """
    return {entry.label: _is_unbiased(results, panel, entry) for entry in panel.design}


def _is_unbiased(results: Results, panel: Panel, entry: DesignEntry) -> bool | None:
    runs = [PlannedRun(panel.label, entry.label, seed) for seed in panel.seeds]
    recorded = np.concatenate([results.column("laws", run, "bias") for run in runs])
    if len(recorded) and not np.isnan(recorded).any():
        return bool((np.abs(recorded) < ROUNDING).all())
    if entry.recipe not in RECIPES:
        return None
    sizes = results.class_counts(panel.label, panel.seeds[0]).sum(axis=1)[:ENOUGH_CLIENTS]
    try:
        recipe = make_recipe(
            entry.recipe, min(entry.draws(panel), len(sizes)), entry.hyperparameters
        )
        selector = Selector(recipe, sizes, groups=np.arange(len(sizes)) % 2, seed=0)
        answers = {str(name): np.ones(len(sizes)) for name in ASKED if name in recipe.signals}
        return bool((np.abs(selector.next_design(answers).bias()) < ROUNDING).all())
    except FedcohortError:
        return None


def summary_sentences(
    summary: PanelSummary, panel: Panel, unbiased: dict[str, bool | None]
) -> list[str]:
    """Name the best design, compare it with the baseline, and state each design's speed."""
    diverged = [
        f"{each.label} {each.divergence}: its model, or all updates of a round, were not finite. "
        f"Lower lr or server_lr."
        for each in summary.designs
        if each.divergence
    ]
    if all(map(is_unknown, summary.designs)):
        return [_nothing_known(summary, panel), *diverged]
    contest = _Contest.of(summary, panel, unbiased)
    sentences = [
        _headline(contest),
        _other_sizes(contest),
        _against_baseline(summary, contest.best),
        _speed_sentence(summary),
    ]
    return [each for each in (*sentences, *diverged) if each]


def _nothing_known(summary: PanelSummary, panel: Panel) -> str:
    """Say why no design has a final loss."""
    why = f"the loss was not measured in the last {_rounds(summary.window)}"
    if all(each.divergence for each in summary.designs):
        why = "every design diverged"
    elif any(each.divergence for each in summary.designs):
        why += ", or the design diverged"
    return f"{_extent(summary, panel)} there is no final loss to compare: {why}."


def loss_decimals(summary: PanelSummary) -> int:
    """Return the decimals of all losses of a panel: three, or three digits of the smallest one."""
    return max(3, decimals_of(_mean_loss(each) for each in summary.designs))


def spread(values: np.ndarray, decimals: int) -> str:
    """Format a mean and, with several seeds, the standard deviation, with equal decimals."""
    mean = fixed(float(np.mean(values)), decimals)
    if len(values) < 2 or np.isnan(values).any():
        return mean
    return f"{mean} {PLUS_MINUS} {fixed(float(np.std(values, ddof=1)), decimals)}"


def spread_per_cent(shares: np.ndarray) -> str:
    """Format shares in per cent: ``81.5 ± 2.2 %``."""
    text = spread(100 * shares, 1)
    return text if np.isnan(shares).any() else f"{text} %"


def rounds_needed(design: DesignSummary) -> str:
    """Format the rounds that a design needed to reach the level: ``93 rounds`` or ``never``."""
    reached = design.rounds_needed[~np.isnan(design.rounds_needed)]
    n_seeds = len(design.rounds_needed)
    if not len(reached):
        return "never"
    text = _rounds(round(float(np.mean(reached))))
    return text if len(reached) == n_seeds else f"{text} (in {len(reached)} of {n_seeds} seeds)"


def is_unknown(design: DesignSummary) -> bool:
    """Return whether there is no final loss: it was not measured, or the design diverged."""
    return bool(design.divergence or np.isnan(np.mean(design.final_loss)))


def _mean_loss(design: DesignSummary) -> float:
    return float(np.mean(design.final_loss))


def _extent(summary: PanelSummary, panel: Panel) -> str:
    """Return the start of a sentence: how many rounds and seeds the result is based on."""
    planned, done = len(panel.seeds), len(summary.seeds)
    part = f" of {panel.rounds}" if summary.rounds < panel.rounds else ""
    rounds = f"{summary.rounds}{part} round{'s' if panel.rounds != 1 else ''}"
    if planned == 1:
        return f"After {rounds} with one seed"
    some = f"{done} of {planned} seeds" if done < planned else f"{done} seeds"
    return f"After {rounds} with {some}"


@dataclass(frozen=True, slots=True, eq=False)
class _Contest:
    """The designs of a panel, divided by whether their losses can be compared fairly.

    ``fair`` are the unbiased designs with the panel's cohort size, ``rivals`` the others; designs
    that diverged are in neither. ``best`` has the lowest loss of the fair ones, or of all if there
    are none.
    """

    summary: PanelSummary
    panel: Panel
    unbiased: dict[str, bool | None]
    fair: list[DesignSummary]
    rivals: list[DesignSummary]
    best: DesignSummary

    @classmethod
    def of(cls, summary: PanelSummary, panel: Panel, unbiased: dict[str, bool | None]) -> _Contest:
        working = [each for each in summary.designs if not is_unknown(each)]
        fair = [
            each
            for each in working
            if unbiased[each.label] and panel.entry(each.label).draws(panel) == panel.cohort_size
        ]
        rivals = [each for each in working if each not in fair]
        return cls(summary, panel, unbiased, fair, rivals, min(fair or working, key=_mean_loss))

    def rules(self) -> str:
        """Return how the fair designs differ from other unbiased ones; nothing if they are all."""
        names = [label for label, yes in self.unbiased.items() if yes]
        found = {self.panel.entry(label).draws(self.panel) for label in names}
        same = found == {self.panel.cohort_size}
        draws = "" if same else f" with {self.panel.cohort_size} draws a round"
        unbiased = [each for each in self.summary.designs if each.label in names]
        has_diverged = any(each.divergence for each in unbiased)
        return f"{draws} that did not diverge" if has_diverged else draws

    def named(self, some: list[DesignSummary]) -> str:
        """List designs with the reason why they are not fair rivals, their loss and accuracy."""
        decimals = loss_decimals(self.summary)
        texts = [
            f"{each.label} ({self._why(each.label)}; loss {spread(each.final_loss, decimals)}"
            f"{_accuracy(each, ', accuracy ')})"
            for each in some
        ]
        return listed(shortened(texts, MOST_NAMED))

    def _why(self, label: str) -> str:
        if self.unbiased[label] is None:
            return "not known to be unbiased"
        draws = self.panel.entry(label).draws(self.panel)
        return f"{draws} draws a round" if self.unbiased[label] else "biased"


def _headline(contest: _Contest) -> str:
    """Name the best of the unbiased designs, and the designs that are ahead of it."""
    summary, best, fair = contest.summary, contest.best, contest.fair
    figures = f"{spread(best.final_loss, loss_decimals(summary))}{_accuracy(best)}"
    start = _extent(summary, contest.panel)
    if len(summary.designs) == 1:
        return f"{start}, {best.label}, the only design, has a final loss of {figures}."
    if not fair:
        if len(contest.rivals) == 1:
            only = "the only design that did not diverge"
            return f"{start}, {best.label}, {only}, has a final loss of {figures}."
        has_diverged = any(each.divergence for each in summary.designs)
        some = f"{len(contest.rivals)} designs{' that did not diverge' if has_diverged else ''}"
        of = f"of {some}, none of them known to be unbiased"
        return f"{start}, {best.label} has the lowest final loss {of}: {figures}."
    if len(fair) == 1:
        only = f"the only unbiased design{contest.rules()}"
        what = f"{best.label}, {only}, has a final loss of {figures}"
    else:
        of = f"of the {len(fair)} unbiased designs{contest.rules()}"
        what = f"{best.label} has the lowest final loss {of}: {figures}"
    more = [_more_accurate(best, fair), *_ahead(contest)]
    return "; ".join([f"{start}, {what}", *filter(None, more)]) + "."


def _accuracy(design: DesignSummary, before: str = ", with an accuracy of ") -> str:
    is_known = not np.isnan(design.final_accuracy).any()
    return f"{before}{spread_per_cent(design.final_accuracy)}" if is_known else ""


def _more_accurate(best: DesignSummary, fair: list[DesignSummary]) -> str:
    """Name the most accurate design, if it is not the one with the lowest loss."""
    known = [each for each in fair if not np.isnan(each.final_accuracy).any()]
    most = max(known, key=lambda each: float(np.mean(each.final_accuracy)), default=best)
    first, second = spread_per_cent(most.final_accuracy), spread_per_cent(best.final_accuracy)
    return "" if first == second else f"{most.label} has the highest accuracy, {first}"


def _ahead(contest: _Contest) -> list[str]:
    """Say which designs that are not known to be unbiased are ahead, or that no biased one is."""
    rivals = [each for each in contest.rivals if not contest.unbiased[each.label]]
    parts = _lower(contest, rivals, than="it")
    is_biased = {each.label for each in rivals if contest.unbiased[each.label] is False}
    is_lower = {each.label for each in rivals if _mean_loss(each) < _mean_loss(contest.best)}
    if is_biased and not is_biased & is_lower:
        parts.append("no biased design is ahead of it")
    return parts


def _other_sizes(contest: _Contest) -> str:
    """Say which unbiased designs are ahead that draw another number of clients."""
    rivals = [each for each in contest.rivals if contest.unbiased[each.label]]
    parts = _lower(contest, rivals, than=contest.best.label) if contest.fair else []
    return f"{'; '.join(parts)}." if parts else ""


def _lower(contest: _Contest, rivals: list[DesignSummary], *, than: str) -> list[str]:
    """Say which rivals have a lower loss, and whether by more than the spread over seeds."""
    best = contest.best
    lower = sorted((r for r in rivals if _mean_loss(r) < _mean_loss(best)), key=_mean_loss)
    gains = {each.label: interval(each.final_loss - best.final_loss) for each in lower}
    clearly = [e for e in lower if gains[e.label].excludes_zero or len(best.final_loss) == 1]
    slightly = [each for each in lower if each not in clearly]
    parts = []
    for some, how in ((clearly, ""), (slightly, " by no more than the spread over seeds")):
        if some:
            verb = "is" if len(some) == 1 else "are"
            parts.append(f"{contest.named(some)} {verb} ahead of {than}{how}")
    return parts


def _against_baseline(summary: PanelSummary, best: DesignSummary) -> str:
    """Compare the best design with the baseline. If that is the best, compare it with the next."""
    known = [each for each in summary.designs if not is_unknown(each)]
    others = [(each.label, each.difference) for each in known if each.difference is not None]
    if not others or math.isnan(summary.level):
        return ""
    decimals = loss_decimals(summary)
    if best.difference is not None:
        after = f" than that of {summary.baseline}, the baseline"
        return _judgement(f"The loss of {best.label} is", best.difference, decimals, after)
    label, difference = min(others, key=lambda other: other[1].mean)
    before = f"{best.label} is the baseline itself; the next, {label}, is"
    if difference.mean < 0:
        before = f"{best.label} is the baseline itself; {label} is"
    return _judgement(before, difference, decimals)


def _judgement(before: str, difference: Interval, decimals: int, after: str = "") -> str:
    """State a difference, and whether it is larger than the spread over seeds."""
    is_lower = difference.mean < 0
    direction = "lower" if is_lower else "higher"
    text = f"{before} {fixed(abs(difference.mean), decimals)} {direction}{after}"
    if math.isinf(difference.low):
        return f"{text}; with one seed there is no interval, so this may be chance."
    # The sentence gives a positive amount, so flip the interval if the difference is negative.
    low, high = difference.low, difference.high
    ends = (-high, -low) if is_lower else (low, high)
    chance = "no more than the spread over seeds, so it may be chance"
    verdict = "more than the spread over seeds" if difference.excludes_zero else chance
    span = " to ".join(fixed(end, decimals) for end in ends)
    return f"{text} (paired by seed, 95 % interval {span}): {verdict}."


def _speed_sentence(summary: PanelSummary) -> str:
    """List the rounds each design needed. Sort by seeds that reached the level, then by speed."""
    if math.isnan(summary.level):
        return ""
    working = [each for each in summary.designs if not each.divergence]
    reached = [each for each in working if not np.isnan(each.rounds_needed).all()]
    never = [each.label for each in working if np.isnan(each.rounds_needed).all()]
    reached.sort(key=lambda e: (np.isnan(e.rounds_needed).sum(), np.nanmean(e.rounds_needed)))
    level = fixed(summary.level, loss_decimals(summary))
    goal = f"{level}, where {summary.baseline} ends"
    if not reached:
        return f"No design's smoothed loss reached {goal}."
    parts = [f"{each.label} after {rounds_needed(each)}" for each in reached]
    rest = f"; {listed(shortened(never, MOST_NAMED - 1))} never did" if never else ""
    return f"The smoothed loss reached {goal}: {listed(shortened(parts, MOST_NAMED))}{rest}."


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
