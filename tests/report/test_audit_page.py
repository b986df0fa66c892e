"""The page of an audit: complete in itself, readable for few clients and for many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chromium import CHROMIUM, started_browser
from fedcohort import audit
from fedcohort.report.audit_page import audit_html, write_audit
from participation.runs import run

EVIL = "</script><b>x</b> & \"'$y"
#: Narrow and wide windows.
WIDTHS = (390, 1280)


def seven() -> Any:
    rows = [
        {"round": r, "client": c, "status": "failed" if c == EVIL and r > 9 else "ok"}
        for r in range(40)
        for c in ("Nice", "Lyon", "Brest", "Metz", "Caen", "Lille", EVIL)
    ]
    sizes = {"Nice": 90, "Lyon": 80, "Brest": 70, "Metz": 60, "Caen": 50, "Lille": 40, EVIL: 30}
    return audit(rows, sizes)


def many() -> Any:
    own = run(n_clients=1000, n_rounds=50, cohort_size=100, groups=tuple("ab" * 500))
    return audit(own, replay=False)


def test_names_cannot_end_a_tag() -> None:
    page = audit_html(seven())

    assert "<b>x</b>" not in page
    assert page.count("</script>") == page.count("<script")


def test_the_page_needs_no_other_file() -> None:
    page = audit_html(seven())

    assert not re.search(r"(src|href)=\"https?:", page)
    assert "default-src 'none'" in page


def test_a_log_of_counts_has_no_clients() -> None:
    written = Path(__file__).parents[1] / "participation" / "written" / "flower.txt"

    page = audit_html(audit(written))

    assert "36 of 40 answers came" in page
    assert '<section id="clients" aria-labelledby="clients-title" hidden>' in page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    pytest.importorskip("playwright", reason="playwright is not installed")
    with started_browser() as found:
        yield found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [seven, many])
def test_the_page_works_in_a_browser(make: Any, width: int, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    write_audit(make(), path)
    page = browser.new_page(viewport={"width": width, "height": 800})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())

    canvas = page.evaluate("[document.querySelector('#presence').width, presence.height]")
    page.hover("#presence", position={"x": 5, "y": 5})
    readout = page.inner_text("#presence-readout")
    first = page.inner_text("#client-table tbody tr:first-child")
    page.click("#client-table thead th:nth-child(2) button")
    page.fill("#client-search", "no such client")
    nobody = page.inner_text("#clients-shown")
    page.click("#theme")
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.close()

    n_rows = 7 if make is seven else 200
    assert canvas == ([40, n_rows] if make is seven else [50, n_rows])
    assert re.search(r", round 0: (answered|\d+ % answered|not asked|failed)", readout)
    assert make is many or EVIL in first
    assert nobody == "No client fits."
    assert overflow <= 0
    assert said == []


def test_of_many_clients_those_with_a_finding_have_a_picture(browser: Any, tmp_path: Path) -> None:
    own = run(n_clients=1000, n_rounds=50, fault=lambda r, c, rng: c in (7, 8, 9) and r > 20)
    path = tmp_path / "audit.html"
    write_audit(audit(own, replay=False), path)
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(path.as_uri())

    rows = "[presence.height, document.querySelectorAll('#presence-names span').length]"
    few = page.evaluate(rows)
    page.click("#found-only")
    every = page.evaluate(rows)
    page.close()

    assert few == [3, 3]
    assert every == [200, 0]


def test_the_picture_shows_what_happened() -> None:
    from base64 import b64decode

    from fedcohort.report.audit_page import _order, _presence

    found = seven()
    picture = _presence(found, _order(found))

    codes = np.frombuffer(b64decode(picture["codes"]), np.uint8).reshape(-1, 40)
    own = dict(zip((name for name in picture["rows"]), codes, strict=True))
    assert own[EVIL].tolist() == [20] * 10 + [10] * 30
    assert own["Nice"].tolist() == [20] * 40
