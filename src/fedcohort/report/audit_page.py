"""Write the page of an audit: words, a picture of presence, shares, a timeline, the clients."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort._display import counted, per_cent, small_share
from fedcohort._whole_file import write_whole
from fedcohort.participation import Audit
from fedcohort.participation.law import Floats
from fedcohort.report.page_parts import own_file, script_json, table_html, watch_script

#: With more clients, a row of the picture is the mean of many, and shares are points.
MOST_ROWS, MOST_BARS = 400, 60
BANDS, MOST_COLUMNS = 200, 1000
#: Codes of the picture: not asked, not there, and from FAILED (all failed) to FAILED + 10.
NOT_ASKED, ABSENT, FAILED = 0, 1, 10


def write_audit(audit: Audit, path: str | Path) -> None:
    """Write the page. A failed write leaves no partial file."""
    write_whole(Path(path), audit_html(audit).encode())


def audit_html(audit: Audit, *, watched: str | None = None) -> str:
    """Return the page as HTML. With its version ``watched``, it asks a server for a newer one."""
    own = audit.participation
    has_clients = own.counts is None and own.n_clients > 0
    order = _order(audit)
    named = {client for each in audit.findings for client in each.clients}
    found = order[[own.ids[k] in named for k in order]] if len(order) > MOST_ROWS else order
    data = {
        "clients": _clients(audit),
        "rank": _rank(audit).tolist(),
        "presence": _presence(audit, order) if has_clients else None,
        "found": _presence(audit, found) if 0 < len(found) < len(order) else None,
    }
    return Template(own_file("audit.html")).substitute(
        title=escape(f"Who took part: {Path(own.source).name}"),
        css=own_file("page.css") + own_file("audit.css"),
        answer="\n".join(_sentences(audit)),
        shares=_shares(audit, order) if has_clients else "",
        timeline=_timeline(audit),
        replays=_replays(audit),
        method="\n".join(
            f'<p class="note">{escape(each)}</p>' for each in (*own.notes, audit.method())
        ),
        no_clients="" if has_clients else "hidden",
        no_replays="" if audit.replays else "hidden",
        data=script_json(data),
        tables=own_file("tables.js"),
        script=own_file("audit.js"),
        watch="" if watched is None else watch_script(watched),
        connect="" if watched is None else "connect-src 'self';",
    )


def _sentences(audit: Audit) -> list[str]:
    """Return the findings, and then the numbers."""
    texts = audit.sentences()
    n = max(1, len(audit.findings))
    found = [f'<p class="answer finding">{escape(each)}</p>' for each in texts[:n]]
    return [*found, *(f'<p class="answer">{escape(each)}</p>' for each in texts[n:])]


def _order(audit: Audit) -> NDArray[np.int64]:
    """Return the clients by group, and in a group the largest first."""
    own = audit.participation
    labels = np.array(own.groups if own.groups is not None else [""] * own.n_clients)
    sizes = audit.intended if own.sizes is not None else np.zeros(own.n_clients)
    return np.lexsort((-sizes, labels))


def _presence(audit: Audit, order: NDArray[np.int64]) -> dict[str, Any]:
    """Return the picture of some clients: a code for each of them, or band, and round or bin."""
    own = audit.participation
    n, n_rounds = len(order), own.n_rounds
    n_rows = n if n <= MOST_ROWS else BANDS
    n_columns = min(n_rounds, MOST_COLUMNS)
    band = np.full(own.n_clients, -1)
    band[order] = np.arange(n) * n_rows // n
    column = np.arange(n_rounds) * n_columns // n_rounds
    chosen = band[own.client] >= 0
    cell = band[own.client[chosen]] * n_columns + column[own.row[chosen]]
    shape, cells = (n_rows, n_columns), n_rows * n_columns
    asked = np.bincount(cell, minlength=cells).reshape(shape)
    came = np.bincount(cell, own.answered[chosen], cells).reshape(shape)
    codes = np.full(shape, NOT_ASKED, dtype=np.uint8)
    if own.available is not None:
        there = np.zeros(shape)
        for k in range(n_rounds):
            there[:, column[k]] += np.bincount(band[order], own.available[k, order], n_rows)
        codes[there == 0] = ABSENT
    some = asked > 0
    codes[some] = FAILED + np.round(10 * came[some] / asked[some]).astype(np.uint8)
    starts = np.searchsorted(np.arange(n) * n_rows // n, np.arange(n_rows + 1))
    names = [_row_name(audit, order[a:b]) for a, b in pairwise(starts)]
    first = np.searchsorted(column, np.arange(n_columns))
    return {
        "rows": names,
        "rounds": own.rounds[first].tolist(),
        "codes": b64encode(codes.tobytes()).decode(),
        "asked": asked.ravel().tolist() if cells <= 40_000 else None,
        "lastRound": int(own.rounds[-1]),
    }


def _row_name(audit: Audit, members: NDArray[np.int64]) -> str:
    own = audit.participation
    group = "" if own.groups is None else f" ({own.groups[members[0]]})"
    if len(members) == 1:
        return f"{own.ids[members[0]]}{group}"
    if own.sizes is None:
        return f"{len(members)} clients from {own.ids[members[0]]}{group}"
    sizes = np.nan_to_num(own.sizes[members])
    return f"{len(members)} clients with {sizes.min():,.0f} to {sizes.max():,.0f} samples{group}"


def _shares(audit: Audit, order: NDArray[np.int64]) -> str:
    """Return realised against intended shares: bars for few clients, else points."""
    return _bars(audit, order) if len(order) <= MOST_BARS else _points(audit)


def _bars(audit: Audit, order: NDArray[np.int64]) -> str:
    own, top = audit.participation, max(1e-12, audit.realised.max(), audit.intended.max())
    lines = []
    for k in order.tolist():
        real, meant = audit.realised[k], audit.intended[k]
        said = f"{small_share(float(real))} of {small_share(float(meant))}"
        lines.append(
            f'<li><span class="who">{escape(own.ids[k])}</span><span class="track" role="img" '
            f'aria-label="{escape(said)}"><span class="real" style="width:{100 * real / top:.2f}%">'
            f"</span>"
            f'<span class="meant" style="left:{100 * meant / top:.2f}%"></span></span>'
            f'<span class="much">{said}</span></li>'
        )
    note = "Bar: realised share of the aggregate. Mark: share of all samples."
    return f'<ul class="bars">{"".join(lines)}</ul><p class="note">{note}</p>'


def _points(audit: Audit) -> str:
    """Return a cloud of points on logarithmic axes; clients without a share lie at the bottom."""
    some = audit.intended > 0
    meant, real = audit.intended[some], audit.realised[some]
    positive = real[real > 0]
    low = float(min(meant.min(), positive.min() if len(positive) else meant.min()))
    high = float(max(meant.max(), real.max()))
    scale = max(np.log10(high / low), 1e-9)
    x = 40 + 940 * np.log10(meant / low) / scale
    y = np.where(real > 0, 560 - 540 * np.log10(np.maximum(real, low) / low) / scale, 590)
    path = "".join(f"M{a:.0f} {b:.0f}h0" for a, b in zip(x, y, strict=True))
    n_zero = int((real <= 0).sum())
    note = (
        "A point for each client: to the right its share of all samples, upward its realised "
        f"share of the aggregate; both from {small_share(low)} to {small_share(high)}, "
        "logarithmic. On the line both are equal; the row at the bottom are "
        f"{counted(n_zero, 'client')} that never contributed."
    )
    return (
        '<svg class="cloud" viewBox="0 0 1000 600" preserveAspectRatio="none" role="img" '
        'aria-label="Realised against intended shares"><path class="equal" d="M40 560L980 20"/>'
        f'<path class="points" d="{path}"/></svg><p class="note">{escape(note)}</p>'
    )


def _timeline(audit: Audit) -> str:
    """Return answers and losses of every round as stacked bars."""
    own = audit.participation
    if own.counts is None:
        asked, came = own.per_round(), own.per_round(own.answered)
    else:
        asked, came = own.counts.asked, own.counts.answered
    n = min(len(asked), MOST_COLUMNS // 2)
    part = np.arange(len(asked)) * n // max(1, len(asked))
    size = np.maximum(np.bincount(part, minlength=n), 1)
    came = np.bincount(part, came, n) / size
    lost = np.maximum(np.bincount(part, asked, n) / size - came, 0)
    top = max(1.0, float((came + lost).max(initial=1)))
    return (
        f'<p class="axis">{top:,.0f} asked</p><svg class="timeline" viewBox="0 0 {max(n, 1)} 100" '
        f'preserveAspectRatio="none" role="img" aria-label="Answers and losses of every round">'
        f'<path class="came" d="{_columns(100 - 100 * came / top, 100 * came / top)}"/>'
        f'<path class="lost" d="{_columns(100 - 100 * (came + lost) / top, 100 * lost / top)}"/>'
        f'</svg><p class="axis ends"><span>round {own.rounds[0]}</span>'
        f"<span>round {own.rounds[-1]}</span></p>"
    )


def _columns(tops: Floats, heights: Floats) -> str:
    pairs = zip(tops.tolist(), heights.tolist(), strict=True)
    return "".join(f"M{k} {y:.1f}h1v{h:.1f}h-1z" for k, (y, h) in enumerate(pairs) if h > 0)


def _replays(audit: Audit) -> str:
    """Return the table of replays."""
    if not audit.replays or audit.bias is None:
        return ""
    rows = [
        ("as it was", per_cent(audit.bias.total / 2), f"{audit.effective_clients:,.1f}", "", "")
    ]
    for each in audit.replays:
        is_exact = each.repeats == 1
        away = per_cent(each.bias.mean / 2)
        n = f"{each.effective.mean:,.1f}"
        if not is_exact:
            away += f" ({per_cent(each.bias.low / 2)} to {per_cent(each.bias.high / 2)})"
            n += f" ({each.effective.low:,.1f} to {each.effective.high:,.1f})"
        repeats = "exact" if is_exact else str(each.repeats)
        rows.append((escape(each.name), away, n, per_cent(max(0.0, each.kept.mean)), repeats))
    headings = (
        "design, rule for failures", "away from the samples", "effective clients", "weight "
        "lost", "replays",
    )  # fmt: skip
    return table_html(headings, rows, name="Replays", kind="designs")


def _clients(audit: Audit) -> dict[str, list[Any]]:
    """Return the table of clients by column, numbers with five digits."""
    found = {}
    for name, values in audit.columns().items():
        found[name] = [_short(value) for value in values]
    return found


def _rank(audit: Audit) -> NDArray[np.int64]:
    """Return the place of each client: in the order of findings, then by distance to its share."""
    own = audit.participation
    finding = np.full(own.n_clients, len(audit.findings))
    place = {each: k for k, each in enumerate(own.ids)}
    for k, each in reversed(list(enumerate(audit.findings))):
        finding[[place[client] for client in each.clients]] = k
    off = np.abs(audit.realised - audit.intended)
    return np.argsort(np.lexsort((-off, finding)))


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return None if not np.isfinite(value) else float(f"{value:.5g}")
    return value or None if isinstance(value, str) else value
