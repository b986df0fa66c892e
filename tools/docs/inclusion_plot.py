"""A picture of every client's chance to be in the cohort: an SVG file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: In the picture's own unit: a phone shows it at three quarters of this width.
WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 32, 2, 8, 36
STYLE = (
    "rect{fill:#5aa198}.page{fill:#fff}.grid{stroke:#ddd}"
    ".reference{stroke:#000;stroke-width:1.5}text{fill:#555;font:9.5px sans-serif}"
)


def inclusion_plot(
    name: str,
    chances: NDArray[np.float64],
    reference: NDArray[np.float64],
    sizes: Sequence[int],
) -> str:
    """Draw a bar for every client's chance, and a line where multinomial sampling has it.

    >>> import xml.etree.ElementTree as tree
    >>> svg = inclusion_plot("size", np.array([1.0, 0.5]), np.array([0.7, 0.4]), [6, 2])
    >>> [(bar.get("height"), bar[0].text) for bar in tree.fromstring(svg) if len(bar)]
    [('186.0', 'client 1, size 6: 1.000'), ('93.0', 'client 2, size 2: 0.500')]
    """
    described = f"Chance to be in the cohort under {name}, for each of {len(sizes)} clients"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{1.3 * WIDTH:g}" '
        f'height="{1.3 * HEIGHT:g}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{described}">',
        f'<style>{STYLE}</style><rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        *_axis(),
        *_clients(chances, reference, sizes),
        f'<text class="title" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 5}" '
        f'text-anchor="middle">client size</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _height(chance: float) -> float:
    return float(chance) * (HEIGHT - TOP - BOTTOM)


def _axis() -> list[str]:
    lines = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = HEIGHT - BOTTOM - _height(tick)
        lines.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    return lines


def _clients(
    chances: NDArray[np.float64], reference: NDArray[np.float64], sizes: Sequence[int]
) -> list[str]:
    step = (WIDTH - LEFT - RIGHT) / len(sizes)
    base = HEIGHT - BOTTOM
    drawn = []
    for client, (chance, other, size) in enumerate(zip(chances, reference, sizes, strict=True)):
        x, y = LEFT + (client + 0.5) * step, base - _height(other)
        drawn.append(
            f'<rect x="{x - 0.36 * step:.1f}" y="{base - _height(chance):.1f}" '
            f'width="{0.72 * step:.1f}" height="{_height(chance):.1f}">'
            f"<title>client {client + 1}, size {size}: {chance:.3f}</title></rect>"
            f'<path class="reference" d="M{x - 0.46 * step:.1f} {y:.1f}h{0.92 * step:.1f}"/>'
            f'<text x="{x:.1f}" y="{base + 14}" text-anchor="middle">{size}</text>'
        )
    return drawn
