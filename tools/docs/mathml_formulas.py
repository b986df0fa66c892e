r"""Formulas become MathML when the site is built: a browser draws them without any script."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

log = getLogger(__name__)

TAG = re.compile(r"\\tag\{([^}]*)\}")
#: What docutils does not know, in words that it knows.
SPELLINGS = (
    (r"\\dots\b", r"\\ldots"),
    (r"\\([dt]?)frac(\d)(\d)", r"\\\1frac{\2}{\3}"),
    (r"\\[bB]ig+(?:l(?![a-z]))? ?([(\[]|\\lfloor|\\\{)", r"\\left\1"),
    (r"\\[bB]ig+(?:r(?![a-z]))? ?([)\]]|\\rfloor|\\\})", r"\\right\1"),
    (r"\\[bB]ig+(?![a-zA-Z]) ?/", r"/"),
    (r"\\[bB]ig+(?![a-zA-Z]) ?\|", r"\\mid "),
    (r"\\[bB]ig+[lr]? ?\\\|(.*?)\\[bB]ig+[lr]? ?\\\|", r"\\left\|\1\\right\|"),
    (r"'(_(?:\{[^}]*\}|\w))?", r"\1^{\\prime}"),
)
#: What browsers would stretch or space otherwise than TeX does.
REPAIRS = (
    (r"<mo>([‖⌊⌋⌈⌉⟨⟩|])</mo>", r'<mo stretchy="false">\1</mo>'),
    (r"<mo maxsize", r'<mo stretchy="true" maxsize'),
    (r"<mo((?: movablelimits=\"true\")?)>([a-z]+)</mo>", r'<mo lspace="0" rspace="0"\1>\2</mo>'),
    (r"(<mo>&ApplyFunction;</mo>)(?!<mo)", r'\1<mspace width="0.17em"/>'),
    (r"(?<=</m[ni]>)(<mi>ln</mi>)", r'<mspace width="0.17em"/>\1'),
)


def mathml(tex: str, *, as_block: bool = False) -> str:
    r"""Return MathML, in one line.

    >>> mathml("x")
    '<math><mi>x</mi></math>'
    >>> mathml(r"\nonsense")
    Traceback (most recent call last):
    ValueError: formula '\\nonsense': Unknown LaTeX command "\nonsense".
    """
    known = tex.strip()
    for pattern, spelling in SPELLINGS:
        known = re.sub(pattern, spelling, known, flags=re.DOTALL)
    try:
        made = tex2mathml(known, as_block=as_block)
    except MathError as error:
        raise ValueError(f"formula {tex!r}: {error}") from error
    made = re.sub(r"\n\s*| xmlns=\"[^\"]*\"", "", made)
    for pattern, repair in REPAIRS:
        made = re.sub(pattern, repair, made)
    return made


def displayed(tex: str) -> str:
    r"""Return a formula of its own: its parts between ``\qquad`` go below each other if they must.

    >>> displayed(r"a, \qquad b \tag{1}").count("<math")
    2
    """
    number = TAG.search(tex)
    parts = "".join(mathml(part, as_block=True) for part in _parts(TAG.sub("", tex)))
    beside = f'<span class="formula-number">({escape(number[1])})</span>' if number else ""
    return f'<div class="formula"><div class="formula-parts">{parts}</div>{beside}</div>'


def _parts(tex: str) -> list[str]:
    r"""Split at blank lines, and at every ``\qquad`` outside braces and environments."""
    parts = [""]
    for piece in re.split(r"\\qquad\b|\n\s*\n", tex):
        parts[-1] += piece
        is_whole = parts[-1].count("{") == parts[-1].count("}")
        if is_whole and parts[-1].count(r"\begin") == parts[-1].count(r"\end"):
            parts.append("")
        else:
            parts[-1] += r"\qquad "
    return [part for part in parts if part.strip()]


def visit_math(self: Any, node: nodes.math) -> None:
    """Write a formula in the line."""
    _write(self, node, mathml)


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula of its own."""
    _write(self, node, displayed)


def _write(translator: Any, node: nodes.Element, make: Callable[[str], str]) -> None:
    """Write a formula; say where one is that cannot be made."""
    try:
        translator.body.append(make(node.astext()))
    except ValueError as error:
        log.warning("%s", error, location=node)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx know the renderer."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
