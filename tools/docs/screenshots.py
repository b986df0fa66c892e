"""Makes the pictures in docs/screenshots: of the site, and of the report of results/figure1.

``python tools/docs/screenshots.py``, after ``make docs``, with chromium; half a minute. They are
there to be looked at: no test compares them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from chromium import started_browser

TARGET = ROOT / "docs" / "screenshots"
#: Pages of the site, by the name of their picture.
PAGES = {
    "home": "index.html",
    "design": "reference/designs/tournament.html",
    "maths": "explanation/tournament.html",
    "api": "reference/api/diagnostics.html",
}
WIDTHS = {"desktop": (1280, 960), "phone": (390, 844)}
COLOURS = 128


def main() -> None:
    """Take all pictures."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        report = Path(folder) / "report.html"
        command = ["report", str(ROOT / "results" / "figure1"), "--out", str(report)]
        subprocess.run([sys.executable, "-m", "fedcohort", *command], check=True)
        pages = {name: ROOT / "site" / path for name, path in PAGES.items()}
        for name, page in {**pages, "report": report}.items():
            for kind, size in WIDTHS.items():
                take(browser, page, size, TARGET / f"{name}-{kind}.png")


def take(browser: Browser, page: Path, size: tuple[int, int], target: Path) -> None:
    """Take one picture, with few colours so that it stays small."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_timeout(1500)  # plots are drawn after the page is there
    picture = Image.open(io.BytesIO(tab.screenshot()))
    few = picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    few.save(target, optimize=True)
    context.close()


if __name__ == "__main__":
    main()
