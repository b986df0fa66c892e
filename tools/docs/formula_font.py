"""Makes docs/_static/formula.woff2, the font of formulas, from STIX Two Math.

``python tools/docs/formula_font.py STIXTwoMath-Regular.ttf``, with fonttools and brotli. The
font is cut to what formulas need, under another name, as its licence asks.
"""

import sys
from pathlib import Path

from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

TARGET = Path(__file__).parents[2] / "docs" / "_static" / "formula.woff2"
NAME = "Formula"
#: First and last of: Latin, accents, Greek, punctuation, letters, arrows, operators, fences,
#: and italic, bold, script, double-struck letters.
RANGES = (
    (0x20, 0x7E),
    (0xA0, 0xA0),
    (0xAF, 0xB7),
    (0xD7, 0xD7),
    (0xF7, 0xF7),
    (0x2C6, 0x2C7),
    (0x2D8, 0x2DD),
    (0x302, 0x308),
    (0x338, 0x338),
    (0x391, 0x3C9),
    (0x3D1, 0x3D5),
    (0x3F5, 0x3F5),
    (0x2013, 0x2016),
    (0x2020, 0x2026),
    (0x2032, 0x2034),
    (0x203E, 0x2044),
    (0x2061, 0x2064),
    (0x2102, 0x2124),
    (0x2190, 0x2194),
    (0x21A6, 0x21A6),
    (0x21D0, 0x21D4),
    (0x2200, 0x222E),
    (0x2234, 0x2248),
    (0x2254, 0x2254),
    (0x2260, 0x226B),
    (0x227A, 0x228B),
    (0x2295, 0x2299),
    (0x22A4, 0x22A5),
    (0x22C0, 0x22C6),
    (0x22EE, 0x22F1),
    (0x2308, 0x230B),
    (0x23DE, 0x23DF),
    (0x27E8, 0x27E9),
    (0x2A7D, 0x2A7E),
    (0x1D400, 0x1D467),
    (0x1D49C, 0x1D4B5),
    (0x1D538, 0x1D551),
    (0x1D6A4, 0x1D6A5),
    (0x1D6FC, 0x1D71B),
)


def main(source: str) -> None:
    """Cut, rename and write the font."""
    font = TTFont(source)
    options = Options(layout_features=["ssty", "dtls", "flac"], hinting=False)
    options.name_IDs = ["*"]
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=[code for first, last in RANGES for code in range(first, last + 1)])
    subsetter.subset(font)
    for name_id in (1, 3, 4, 6, 16):
        if font["name"].getDebugName(name_id):
            font["name"].setName(NAME, name_id, 3, 1, 0x409)
    font.flavor = "woff2"
    font.save(TARGET)


if __name__ == "__main__":
    main(sys.argv[1])
