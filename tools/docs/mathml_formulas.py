r"""Formulas: MathML on the site, which a browser draws without any script; words in the sources."""

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

from repository_links import CODE

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

#: A formula of its own, perhaps in a list or in a quotation; and one in a line.
BLOCK = re.compile(r"^((?: |> )*)\$\$(.+?)\$\$ *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<![\\$])\$(?!\$)([^$]+)\$(?!\$)")
#: Repository pages take the backslash before a sign away, so that it becomes another command.
WORDS = {
    r"\|": r"\Vert",
    r"\{": r"\lbrace",
    r"\}": r"\rbrace",
    r"\,": r"\thinspace",
    r"\;": r"\thickspace",
    r"\!": r"\negthinspace",
}


def repository_formulas(text: str) -> str:
    r"""Write the formulas of a page so that a repository shows them as the site does.

    >>> repository_formulas("$$a$$\n\nIn $\\|x\\|$, not in `$\\|$`.")
    '```math\na\n```\n\nIn $\\Vert x\\Vert$, not in `$\\|$`.'
    """
    parts = CODE.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = BLOCK.sub(lambda found: _fenced(found[1], found[2]), parts[place])
    parts = CODE.split("".join(parts))
    for place in range(0, len(parts), 2):
        parts[place] = INLINE.sub(lambda found: in_line(found[1]), parts[place])
    return "".join(parts)


def _fenced(before: str, tex: str) -> str:
    lines = [line.removeprefix(before.rstrip()).strip() for line in tex.strip().splitlines()]
    return "\n".join(before + line for line in ["```math", *lines, "```"])


def in_line(tex: str) -> str:
    """Return a formula in the line, with words instead of signs."""
    for sign, word in WORDS.items():
        tex = re.sub(rf"{re.escape(sign)} *(?=[A-Za-z])", f"\\{word} ", tex).replace(sign, word)
    return f"${tex.strip()}$"


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
