"""State the result in words: the best design, its speed, and whether it may be chance."""

from __future__ import annotations

import math

import numpy as np

from fedcohort.experiments.results import DesignSummary, Interval, PanelSummary, Results, summarise
from fedcohort.experiments.settings import Panel


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
    """Describe the result of a panel."""
    if not panel.design:
        return ["No training was asked for: the data are divided among the clients, no more."]
    summary = summarise(results, panel)
    if summary is None:
        return [f"No seed has a round of every design yet; {panel.rounds} rounds are planned."]
    return summary_sentences(summary, panel)


def summary_sentences(summary: PanelSummary, panel: Panel) -> list[str]:
    """Name the best design, compare it with the baseline, and state each design's speed."""
    measured = [each for each in summary.designs if not _is_unknown(each)]
    if not measured:
        return [
            f"{_extent(summary, panel)}, but the loss was not measured in the last "
            f"{_rounds(summary.window)}, so there is no final loss to compare."
        ]
    working = [each for each in measured if not each.divergence] or measured
    best = min(working, key=lambda each: float(np.mean(each.final_loss)))
    sentences = [_best_sentence(summary, panel, best), _against_baseline(summary, best)]
    sentences += [_speed_sentence(summary), *_divergence_sentences(summary)]
    return [each for each in sentences if each]


def _divergence_sentences(summary: PanelSummary) -> list[str]:
    """Name the designs whose training diverged."""
    return [
        f"{each.label} {each.divergence}: updates that are not finite count as lost. Lower lr or "
        f"server_lr."
        for each in summary.designs
        if each.divergence
    ]


def number(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"


def rounds_needed(design: DesignSummary) -> str:
    """Format the rounds that a design needed to reach the level: ``93 rounds`` or ``never``."""
    reached = design.rounds_needed[~np.isnan(design.rounds_needed)]
    n_seeds = len(design.rounds_needed)
    if not len(reached):
        return "never"
    text = _rounds(round(float(np.mean(reached))))
    return text if len(reached) == n_seeds else f"{text} (in {len(reached)} of {n_seeds} seeds)"


def _is_unknown(design: DesignSummary) -> bool:
    return bool(np.isnan(np.mean(design.final_loss)))


def _extent(summary: PanelSummary, panel: Panel) -> str:
    """Return the start of a sentence: how many rounds and seeds the result is based on."""
    planned, done = len(panel.seeds), len(summary.seeds)
    part = f" of {panel.rounds}" if summary.rounds < panel.rounds else ""
    rounds = f"{summary.rounds}{part} round{'s' if panel.rounds != 1 else ''}"
    if planned == 1:
        return f"After {rounds} with one seed"
    some = f"{done} of {planned} seeds" if done < planned else f"{done} seeds"
    return f"After {rounds} with {some}"


def _best_sentence(summary: PanelSummary, panel: Panel, best: DesignSummary) -> str:
    loss = number(float(np.mean(best.final_loss)))
    spread = ""
    if len(summary.seeds) > 1:
        spread = f"; standard deviation over seeds {number(_deviation(best.final_loss))}"
    if len(summary.designs) == 1:
        what = f"{best.label}, the only design, has a final loss of {loss}"
    else:
        what = f"{best.label} has the lowest final loss of {len(summary.designs)} designs: {loss}"
    window = "the last round" if summary.window == 1 else f"the last {summary.window} rounds"
    return f"{_extent(summary, panel)}, {what} (mean over {window}{spread})."


def _deviation(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _against_baseline(summary: PanelSummary, best: DesignSummary) -> str:
    """Compare the best design with the baseline. If that is the best, compare it with the next."""
    others = [each for each in summary.designs if each.difference and not _is_unknown(each)]
    if not others:
        return ""
    if best.difference is not None:
        return _judgement("That is", best.difference, f" than {summary.baseline}, the baseline")
    nearest = min(others, key=lambda each: float(np.mean(each.final_loss)))
    if nearest.difference is None:
        return ""
    return _judgement(
        f"It is the baseline itself; the next, {nearest.label}, is", nearest.difference
    )


def _judgement(before: str, difference: Interval, after: str = "") -> str:
    """State a difference, and whether it is larger than the spread over seeds."""
    is_lower = difference.mean < 0
    amount = f"{number(abs(difference.mean))} {'lower' if is_lower else 'higher'}"
    said = f"{before} {amount}{after}"
    if math.isinf(difference.low):
        return f"{said}; with one seed there is no interval, so this may be chance."
    # The sentence gives a positive amount, so flip the interval if the difference is negative.
    low, high = difference.low, difference.high
    ends = (-high, -low) if is_lower else (low, high)
    verdict = "no more than the spread over seeds, so it may be chance"
    if difference.excludes_zero:
        verdict = "more than the spread over seeds"
    interval = f"95 % interval {number(ends[0])} to {number(ends[1])}"
    return f"{said} (paired by seed, {interval}): {verdict}."


def _speed_sentence(summary: PanelSummary) -> str:
    """List the rounds each design needed. Sort by seeds that reached the level, then by speed."""
    if math.isnan(summary.level):
        return ""
    reached = [each for each in summary.designs if not np.isnan(each.rounds_needed).all()]
    never = [each.label for each in summary.designs if np.isnan(each.rounds_needed).all()]
    reached.sort(key=lambda e: (np.isnan(e.rounds_needed).sum(), np.nanmean(e.rounds_needed)))
    goal = f"the loss of {number(summary.level)}, where {summary.baseline} ends"
    parts = [f"{each.label} after {rounds_needed(each)}" for each in reached]
    if not parts:
        return f"No design's rolling mean reached {goal}."
    found = f"The rolling mean reached {goal}: {_listed(parts)}"
    return f"{found}; {_listed(never)} never did." if never else f"{found}."


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
