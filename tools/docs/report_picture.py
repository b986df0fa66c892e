"""The picture of a report on the site's first page.

``PYTHONPATH=tests python tools/docs/report_picture.py`` writes the report of results/figure1 and
takes a picture of it with Chromium.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from chromium import CHROMIUM, started_browser
from fedcohort.cli.app import main as fedcohort

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "figures" / "report.png"
#: The part of the page that the picture shows, from its top, in pixels.
SIZE = {"width": 1280, "height": 1300}


def main() -> None:
    """Write the report, open it, and keep what a reader sees first."""
    if CHROMIUM is None:
        sys.exit("report_picture: needs Chromium, which is not installed.")
    with TemporaryDirectory() as folder, started_browser() as browser:
        report = Path(folder) / "report.html"
        fedcohort(["report", str(ROOT / "results" / "figure1"), "--out", str(report)])
        page = browser.new_page(viewport=SIZE)
        page.goto(report.as_uri())
        page.wait_for_selector(".main-svg")
        page.wait_for_timeout(500)
        shot = Image.open(BytesIO(page.screenshot()))
    # A page has few colours: 128 of them take half of the bytes, and keep those of the lines.
    PICTURE.parent.mkdir(exist_ok=True)
    shot.convert("RGB").quantize(128).save(PICTURE, optimize=True)
    sys.stdout.write(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
