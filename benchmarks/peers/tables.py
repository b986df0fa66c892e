"""Recorded runs as Markdown tables."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from peers.peer_list import PEERS, Peer

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
MODES = {"train": False, "train and evaluate": True}
Run = dict[str, Any]


def steady_ms(run: Run) -> float:
    """Return the median round without the first, which warms up, and the last, which closes."""
    return 1e3 * float(median(run["round_seconds"][1:-1]))


def cpu_ms(run: Run) -> float:
    """Return the CPU time of such a round, of all processes together."""
    return 1e3 * float(run["cores"]) * fmean(run["round_seconds"][1:-1])


def ratios(results: dict[str, Any], name: str, *, evaluate: bool) -> list[float]:
    """Return a peer's steady round over fedcohort's, repetition by repetition."""
    ours = {run["seed"]: run for run in _runs(results, "fedcohort", evaluate)}
    return [
        steady_ms(run) / steady_ms(ours[run["seed"]])
        for run in _runs(results, name, evaluate)
        if run["seed"] in ours
    ]


def block(results: dict[str, Any]) -> str:
    """Return everything that a page says about the recorded runs."""
    machine, workload = results["machine"], results["workload"]
    lines = [
        f"Measured on {machine['date']}: {machine['cores']} cores of {machine['cpu']}, Python "
        f"{machine['python']}; data: {workload['data']}; {workload['rounds']} rounds, "
        f"{workload['repetitions']} repetitions, all peers in turns; load average before the first "
        f"run {machine['load_before']:.2f}.",
        "",
        "Time of a round over fedcohort's: median of the repetitions (smallest to largest).",
        "",
        "| | version | train | train and evaluate |",
        "| --- | --- | --- | --- |",
        *(_ratio_row(results, peer) for peer in _measured(results)),
        "",
        *_verdict(results),
        "",
        "Details, as medians; training alone unless evaluation is named.",
        "",
        "| | round, ms | round and evaluation, ms | CPU time of a round, ms | cores busy | "
        "first round, ms | import and set up, s | peak memory, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_detail_row(results, peer) for peer in _measured(results)),
        "",
        "Check that all did the same work (smallest to largest of all runs, "
        f"{workload['rounds']} rounds):",
        "",
        "| | local steps | training loss | test accuracy | distance from the initial model |",
        "| --- | --- | --- | --- | --- |",
        *(_work_row(results, peer) for peer in _measured(results)),
    ]
    return "\n".join([*lines, *_failures(results)])


def put_into(page: str, text: str) -> str:
    """Replace what stands between the markers of a page."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page needs the lines {BEGIN} and {END}, in this order.")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _runs(results: dict[str, Any], name: str, evaluate: bool) -> list[Run]:
    runs: list[Run] = results["peers"].get(name, {}).get("runs", [])
    return [run for run in runs if run["evaluate"] == evaluate and "error" not in run]


def _measured(results: dict[str, Any]) -> list[Peer]:
    """Return the peers that have runs of both kinds beside fedcohort's."""
    return [
        peer
        for peer in PEERS
        if all(ratios(results, peer.name, evaluate=mode) for mode in MODES.values())
    ]


def _ratio_row(results: dict[str, Any], peer: Peer) -> str:
    cells = []
    for evaluate in MODES.values():
        found = ratios(results, peer.name, evaluate=evaluate)
        spread = f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        cells.append("1" if peer.name == "fedcohort" else spread)
    version = _runs(results, peer.name, False)[0]["versions"][peer.package]
    return f"| {peer.shown} | {version} | {' | '.join(cells)} |"


def _detail_row(results: dict[str, Any], peer: Peer) -> str:
    plain, judged = (_runs(results, peer.name, mode) for mode in MODES.values())
    cells = [
        f"{median(map(steady_ms, plain)):.0f}",
        f"{median(map(steady_ms, judged)):.0f}",
        f"{median(map(cpu_ms, plain)):.0f}",
        f"{median(run['cores'] for run in plain):.2f}",
        f"{1e3 * median(run['round_seconds'][0] for run in plain):.0f}",
        f"{median(run['import_seconds'] + run['setup_seconds'] for run in plain):.1f}",
        f"{median(run['peak_mb'] for run in plain):.0f}",
    ]
    return f"| {peer.shown} | {' | '.join(cells)} |"


def _work_row(results: dict[str, Any], peer: Peer) -> str:
    runs = [run for mode in MODES.values() for run in _runs(results, peer.name, mode)]
    digits = {"local_steps": ".0f", "loss": ".2f", "accuracy": ".2f", "moved": ".2f"}
    cells = []
    for what, form in digits.items():
        ends = [format(end(run[what] for run in runs), form) for end in (min, max)]
        cells.append(" to ".join(dict.fromkeys(ends)))
    return f"| {peer.shown} | {' | '.join(cells)} |"


def _verdict(results: dict[str, Any]) -> list[str]:
    """Say plainly who is faster than fedcohort."""
    faster = [
        f"{peer.shown} ({mode}: {median(found):.2f})"
        for peer in _measured(results)
        for mode, evaluate in MODES.items()
        if (found := ratios(results, peer.name, evaluate=evaluate)) and median(found) < 1
    ]
    return [f"Faster than fedcohort, by the median: {'; '.join(faster) or 'none of them'}."]


def _failures(results: dict[str, Any]) -> list[str]:
    """List what could not be installed, did not run, or did other work."""
    found = []
    for peer in PEERS:
        said = results["peers"].get(peer.name, {})
        if "not_installed" in said:
            found.append(f"- {peer.shown} could not be installed: {said['not_installed']}.")
        problems = [run["error"] for run in said.get("runs", []) if "error" in run]
        problems += [each for run in said.get("runs", []) for each in run.get("doubts", [])]
        found += [f"- {peer.shown}: {each}." for each in dict.fromkeys(problems)]
    return ["", "Not as planned:", "", *found] if found else []
