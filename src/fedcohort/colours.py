"""Colours of designs and classes, shared by the page and the figures."""

import colorsys
from collections.abc import Iterable

#: Colour-blind readers can tell them apart. Contrast with white and near-black: at least 3 : 1.
DESIGNS = (
    "#0077bb",
    "#d55e00",
    "#009270",
    "#c0679a",
    "#b98600",
    "#3797cf",
    "#8673c9",
    "#7d7d7d",
    "#a12ad6",
    "#cc0030",
    "#786048",
)
#: The line style changes when the colours repeat. Lengths of strokes and gaps, in line widths.
DASHES: dict[str, tuple[int, ...]] = {
    "solid": (),
    "dash": (4, 2),
    "dot": (1, 1),
    "dashdot": (4, 1, 1, 1),
}
CLASSES = (
    "#5566aa",
    "#88ccee",
    "#44aa99",
    "#117733",
    "#999933",
    "#ddcc77",
    "#cc6677",
    "#882255",
    "#aa4499",
    "#ee8866",
)
#: Golden angle in degrees. It keeps the hues of neighbouring classes far apart.
TURN = 137.508


def design_colours(labels: Iterable[str]) -> dict[str, str]:
    """Return the colour of every design."""
    return {label: DESIGNS[place % len(DESIGNS)] for place, label in enumerate(labels)}


def design_dashes(labels: Iterable[str]) -> dict[str, str]:
    """Return the line style of every design: solid until the colours repeat."""
    names = list(DASHES)
    rounds = ((label, place // len(DESIGNS)) for place, label in enumerate(labels))
    return {label: names[turn % len(names)] for label, turn in rounds}


def class_colours(n_classes: int) -> list[str]:
    """Return a colour for every class."""
    if n_classes <= len(CLASSES):
        return list(CLASSES[:n_classes])
    return [_hue(number * TURN % 360, number % 3) for number in range(n_classes)]


def _hue(degrees: float, shade: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(degrees / 360, (0.42, 0.56, 0.7)[shade], 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
