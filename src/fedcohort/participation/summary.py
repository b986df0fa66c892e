"""The audit of a run: what it found, in numbers and in words."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedcohort._arguments import (
    brief,
    checked_flag,
    checked_number,
    checked_path,
    checked_whole,
    is_list,
)
from fedcohort._display import counted, fixed, html_table, per_cent, short_repr, small_share
from fedcohort._lazy import frame_of
from fedcohort._whole_file import write_whole
from fedcohort.client_files.formats import Source
from fedcohort.designs import Recipe
from fedcohort.errors import InputError
from fedcohort.participation.findings import ALONE, FAMILIES, Finding, Tests
from fedcohort.participation.law import Floats, Law, drawn_weights, final_weights, law_of
from fedcohort.participation.replay import Replay, effective_number, replays_of, shares_of
from fedcohort.participation.table import Participation, read_participation

#: The share of audits of faultless runs that raise an alarm: at most this.
ALPHA = 0.01
#: The columns of the table of clients, and how each is written.
COLUMNS: dict[str, Callable[[Any], str]] = {
    "client": str,
    "group": str,
    "size": "{:,.0f}".format,
    "asked": "{:,.0f}".format,
    "expected": "{:,.1f}".format,
    "answered": "{:,.0f}".format,
    "failed": "{:,.0f}".format,
    "last_answer": "{:.0f}".format,
    "silent_rounds": "{:,.0f}".format,
    "share": small_share,
    "intended_share": small_share,
    "finding": str,
}


def number(value: float) -> str:
    """Write a number of clients: ``5.03``, ``3,620``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@final
@dataclass(frozen=True)
class Bias:
    """The distance of the realised shares from the shares of samples, and where it comes from.

    ``total`` is the sum over clients of ``|realised share - share of samples|``, from 0 to 2. It is
    the sum of the four parts, each of which counts where it adds to the distance: ``design``, the
    design's own expectation if everyone is always there; ``absence``, that clients could not be
    asked; ``luck``, the draws that were made instead of their expectation; ``dropouts``, the drawn
    clients that did not answer.
    """

    total: float
    design: float
    absence: float
    luck: float
    dropouts: float


@final
@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What :func:`audit` found. ``print`` shows it; ``to_frame`` and ``save`` give the clients.

    Attributes
    ----------
    participation, law
        What was read, and the claimed design.
    findings
        Faults and facts, the most important first. Empty: nothing that chance does not explain.
    bias
        The bias of the aggregate in four parts; None for logs without clients.
    intended, drawn, realised
        Shares of the aggregate, shape (n_clients,): by samples, of the draws, of the answers.
    weights
        The weight of each entry of the participation in the aggregate.
    replays
        What other rules and designs would have given.
    alpha
        The share of faultless runs with a finding that names a chance: at most this.
    """

    participation: Participation
    law: Law
    findings: tuple[Finding, ...]
    bias: Bias | None
    intended: Floats
    drawn: Floats
    realised: Floats
    weights: Floats
    replays: tuple[Replay, ...]
    alpha: float

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that chance does not explain."""
        return tuple(each for each in self.findings if each.chance is not None)

    @property
    def effective_clients(self) -> float:
        """The effective number of clients of the realised aggregate, 1 / sum of squared shares."""
        return effective_number(self.realised)

    def lonely_rounds(self) -> NDArray[np.int64]:
        """Return the rounds in which one client had at least 90 % of the weight."""
        own = self.participation
        largest = np.zeros(own.n_rounds)
        np.maximum.at(largest, own.row, self.weights)
        return own.rounds[(largest >= ALONE * own.per_round(self.weights)) & (largest > 0)]

    def last_answers(self) -> NDArray[np.int64]:
        """Return the position of the last round that each client answered; -1: none."""
        own = self.participation
        last = np.full(own.n_clients, -1)
        np.maximum.at(last, own.client[own.answered], own.row[own.answered])
        return last

    def longest_silence(self) -> NDArray[np.int64]:
        """Return the most rounds in a row without an answer of each client."""
        own = self.participation
        order = np.flatnonzero(own.answered)
        order = order[np.lexsort((own.row[order], own.client[order]))]
        client, row = own.client[order], own.row[order]
        longest = own.n_rounds - 1 - self.last_answers()
        is_first = np.append(True, np.diff(client) > 0) if len(client) else np.zeros(0, dtype=bool)
        before = np.where(is_first, -1, np.append(-1, row[:-1]))
        np.maximum.at(longest, client, row - before - 1)
        return longest

    def columns(self) -> dict[str, Sequence[Any]]:
        """Return the table of clients by column."""
        own = self.participation
        last = self.last_answers()
        named: dict[str, str] = {}
        for each in self.findings:
            for client in each.clients:
                named.setdefault(client, each.kind)
        found: dict[str, Sequence[Any]] = {"client": own.ids}
        if own.groups is not None:
            found["group"] = own.groups
        if own.sizes is not None:
            found["size"] = [None if np.isnan(size) else size for size in own.sizes.tolist()]
        found |= {
            "asked": own.per_client().tolist(),
            "expected": self.law.expected_rounds().tolist(),
            "answered": own.per_client(own.answered).astype(int).tolist(),
            "failed": own.per_client(~own.answered).astype(int).tolist(),
            "last_answer": [int(own.rounds[k]) if k >= 0 else None for k in last.tolist()],
            "silent_rounds": (own.n_rounds - 1 - last).tolist(),
            "share": self.realised.tolist(),
            "intended_share": self.intended.tolist(),
            "finding": [named.get(each, "") for each in own.ids],
        }
        return found

    def to_frame(self) -> Any:
        """Return the clients as a pandas data frame, or a dictionary of columns without pandas."""
        return frame_of(self.columns())

    def save(self, path: str | Path) -> None:
        """Write the table of clients as CSV."""
        file_path = checked_path("Audit.save", "path", path, error=InputError)
        columns = self.columns()
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        write_whole(file_path, file.getvalue().encode())

    def sentences(self) -> list[str]:
        """Return what the audit says, in words: the findings first."""
        return [*self._headline(), *self._numbers()]

    def _headline(self) -> list[str]:
        own = self.participation
        if not self.findings:
            said = f"Nothing that chance does not explain, in {counted(own.n_rounds, 'round')}"
            said += f" with {counted(own.n_clients, 'client')}" if own.counts is None else ""
            return [f"{said}."]
        return [each.text for each in self.findings]

    def _numbers(self) -> list[str]:
        own = self.participation
        if own.counts is not None:
            lost = int(np.clip(own.counts.asked - own.counts.answered, 0, None).sum())
            return [
                f"{int(own.counts.answered.sum()):,} of {int(own.counts.asked.sum()):,} answers "
                f"came in {counted(own.n_rounds, 'round')}; {lost:,} failed."
            ]
        unknown = 0 if own.sizes is None else int(np.isnan(own.sizes).sum())
        mean = f"Unknown size: {counted(unknown, 'client')}, counted as average."
        return [
            *([mean] if unknown else []),
            *self._unused(), self._answers(), *self._objective(), *self._silence(), *self._lonely(),
            *self._other_rules(),
        ]  # fmt: skip

    def _unused(self) -> list[str]:
        """Say who was never used, and how many never would be by chance."""
        own = self.participation
        unused = np.flatnonzero((own.per_client(own.answered) == 0) & (self.intended > 0))
        if not len(unused):
            return []
        rate = float(own.answered.mean()) if len(own.row) else 1.0
        misses = np.zeros(own.n_clients)
        for stratum in self.law.strata:
            with np.errstate(divide="ignore"):
                misses += len(stratum.rounds) * np.log1p(-rate * (stratum.low + stratum.high) / 2)
        expected = float(np.exp(misses)[self.intended > 0].sum())
        share = per_cent(float(self.intended[unused].sum()))
        what = "clients" if own.sizes is None else "samples"
        return [
            f"{counted(len(unused), 'client')} never contributed: {share} of all {what}. By "
            f"chance, {fixed(expected, 1)} would not."
        ]

    def _answers(self) -> str:
        own = self.participation
        came, asked = int(own.answered.sum()), len(own.row)
        reasons = ", ".join(f"{why} ({n:,})" for why, n in own.reasons.most_common(3))
        why = f" Reasons: {reasons}." if reasons else ""
        return (
            f"{came:,} of {asked:,} answers came in {counted(own.n_rounds, 'round')} "
            f"({per_cent(came / max(1, asked))}).{why}"
        )

    def _objective(self) -> list[str]:
        if self.bias is None:
            return []
        b = self.bias
        off = self.realised - self.intended
        ends = [(int(np.argmin(off)), "least"), (int(np.argmax(off)), "most")]
        who = "; ".join(
            f"{self.participation.ids[k]} counts {small_share(float(self.realised[k]))} instead of "
            f"{small_share(float(self.intended[k]))}"
            for k, _ in ends
            if abs(off[k]) > 5e-4 or abs(off[k]) > 0.5 * max(self.intended[k], self.realised[k])
        )
        n, full = self.effective_clients, effective_number(self.intended)
        return [
            f"The aggregate is {per_cent(b.total / 2)} away from all clients' samples (half the "
            f"sum of |realised - intended|): {per_cent(b.design / 2)} by the design, "
            f"{per_cent(b.absence / 2)} by absence, {per_cent(b.dropouts / 2)} by dropouts, "
            f"{per_cent(b.luck / 2)} by the luck of "
            f"the draw." + (f" {who}." if who else ""),
            f"Effective number of clients: {number(n)}; {number(full)} if all counted by their "
            "samples.",
        ]

    def _silence(self) -> list[str]:
        own, longest = self.participation, self.longest_silence()
        if not own.n_clients:
            return []
        k = int(np.argmax(longest))
        return [
            f"A client was not heard of for {counted(int(np.median(longest)), 'round')} in the "
            f"median, at most {int(longest[k]):,} ({own.ids[k]})."
        ]

    def _lonely(self) -> list[str]:
        lonely = self.lonely_rounds()
        if not len(lonely):
            return []
        some = ", ".join(map(str, lonely[:5].tolist()))
        more = f" and {len(lonely) - 5} more" if len(lonely) > 5 else ""
        return [
            f"In {counted(len(lonely), 'round')} one client had at least 90 % of the weight: "
            f"{some}{more}."
        ]

    def _other_rules(self) -> list[str]:
        if not self.replays or self.bias is None:
            return []
        best = min(self.replays, key=lambda each: each.bias.mean)
        if best.bias.high > self.bias.total - 0.02:
            return []
        way = "with" if best.is_same_draw else "in replays of"
        return [
            f"Another rule or design would have been nearer on the same presences: {way} "
            f"{best.name}, "
            f"{per_cent(best.bias.mean / 2)} away instead of {per_cent(self.bias.total / 2)}."
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the table of clients, for JSON."""
        own = self.participation
        return {
            "source": own.source,
            "kind": own.kind,
            "n_rounds": own.n_rounds,
            "n_clients": own.n_clients,
            "claim": self.law.claim,
            "alpha": self.alpha,
            "findings": [asdict(each) for each in self.findings],
            "bias": None if self.bias is None else asdict(self.bias),
            "effective_clients": self.effective_clients,
            "lonely_rounds": self.lonely_rounds().tolist(),
            "reasons": dict(own.reasons),
            "replays": [asdict(each) for each in self.replays],
            "sentences": self.sentences(),
            "notes": [*own.notes, self.method()],
        }

    def method(self) -> str:
        """Say against which design the audit tests, and how often it is wrong."""
        exact = (
            "" if self.law.is_exact or self.participation.counts else " (bounds, not exact chances)"
        )
        return (
            f"Design: {self.law.claim}{exact}. A run without faults gives a finding with a "
            "chance in at "
            f"most {per_cent(self.alpha, 0)} of audits, over all {len(FAMILIES)} kinds of tests."
        )

    def __repr__(self) -> str:
        return short_repr(self, faults=len(self.faults), participation=self.participation)

    def __str__(self) -> str:
        return "\n".join([*self.sentences(), *self.participation.notes, self.method()])

    def _repr_html_(self) -> str:
        rows = [(each,) for each in self.sentences()]
        return html_table(
            f"Audit of {self.participation.source}", (), rows, n_rows=len(rows), most=20
        )


def audit(
    participation: Source | Participation | Iterable[Mapping[str, Any]],
    sizes: Any = None,
    *,
    groups: Any = None,
    recipe: Recipe | None = None,
    designs: Sequence[Recipe] = (),
    alpha: float = ALPHA,
    replay: bool = True,
    seed: int = 0,
) -> Audit:
    """Say who took part in a run, whether that is chance or a fault, and what it did.

    Parameters
    ----------
    participation
        A log of a selector or a plug-in; a table of rounds and clients, with a status, a weight, a
        number of examples, seconds, a group (CSV, Excel, JSON, JSON lines, a data frame, a list of
        mappings); the server's log or the workspace of a FLARE job; the log of a Fed-BioMed
        researcher or of a Flower server.
    sizes, groups
        Samples of each client: a file, a mapping by id, a list in the order of ids. Without sizes
        all clients count equally. Groups by id, or in the order of ids.
    recipe
        The design that the run claims to use; by default the one in the log, or else what Flower,
        FLARE and Fed-BioMed do: uniform draws, or everyone.
    designs
        More designs to replay on the same presences; by default clustered sampling by size.
    alpha
        The share of runs without faults in which the audit may find one.
    replay
        Whether to replay other rules and designs, which takes most of the time.
    seed
        Of the replays and of random orders.

    Examples
    --------
    >>> rows = [{"round": r, "client": c, "status": "failed" if c == "C" and r > 9 else "ok"}
    ...         for r in range(40) for c in "ABCDEFG"]
    >>> found = audit(rows, replay=False)
    >>> found.faults[0].clients, found.faults[0].rounds
    (('C',), (10,))
    """
    alpha = checked_number("audit", "alpha", alpha, above=0, error=InputError)
    if alpha > 0.5:
        raise InputError(f"audit: alpha must be at most 0.5; got {alpha}. Take for example 0.01.")
    if recipe is not None and not isinstance(recipe, Recipe):
        raise InputError("audit: recipe must be a Recipe. Pass for example SizeClustered(10).")
    if not is_list(designs) or not all(isinstance(each, Recipe) for each in designs):
        raise InputError(
            f"audit: designs must be a list of recipes; got {brief(designs)}. Pass for example "
            f"[SizeClustered(10)]."
        )
    replay = checked_flag("audit", "replay", replay, error=InputError)
    seed = checked_whole("audit", "seed", seed, least=0, error=InputError)
    own = read_participation(participation, sizes, groups)
    if not own.n_rounds:
        raise InputError(f"audit: {own.source} has no round. Audit it when a round has ended.")
    return audit_of(own, law_of(own, recipe), alpha, designs=designs, replay=replay, seed=seed)


def audit_of(
    own: Participation,
    law: Law,
    alpha: float = ALPHA,
    *,
    designs: Sequence[Recipe] = (),
    replay: bool = False,
    seed: int = 0,
) -> Audit:
    """Audit a participation under a law that was built before."""
    tests = Tests(own, law, alpha, seed)
    intended = tests.share_of_samples()
    as_drawn = drawn_weights(own, law)
    weights = final_weights(own, as_drawn)
    drawn, realised = (shares_of(own.per_client(each)) for each in (as_drawn, weights))
    bias = None
    if own.counts is None and own.n_clients and own.presence == "ignore":
        bias = _bias(law, intended, drawn, realised)
    replays = replays_of(own, law, as_drawn, designs=designs, seed=seed) if replay else []
    return Audit(
        own,
        law,
        tuple(tests.findings()),
        bias,
        intended,
        drawn,
        realised,
        weights,
        tuple(replays),
        alpha,
    )


def _bias(law: Law, intended: Floats, drawn: Floats, realised: Floats) -> Bias:
    """Split the sum of absolute differences: each part counts along the sign of the whole."""
    designed, present = law.expected_everyone, law.expected_weights()
    designed = np.where(np.isfinite(designed), designed, intended)
    present = np.where(np.isfinite(present), present, designed)
    designed, present = shares_of(designed), shares_of(present)
    sign = np.sign(realised - intended)
    steps = (designed - intended, present - designed, drawn - present, realised - drawn)
    design, absence, luck, dropouts = (float(sign @ each) for each in steps)
    total = float(np.abs(realised - intended).sum())
    return Bias(total, design, absence, luck, dropouts)
