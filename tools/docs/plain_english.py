"""Find stilted phrases and names, and long sentences, in pages and Python modules.

``python tools/docs/plain_english.py [-v] [PATH ...]`` counts them for every file; ``-v`` lists them
with their lines. The prose of a module is its docstrings, comments, log lines and error messages.
Code, tables, formulas, citations and generated text are left out.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "results", "examples", "notebooks")
#: Methods of a logger.
LOGS = ("debug", "info", "warning", "error", "exception")
#: A sentence may have this many words.
LONGEST = 30
#: Phrases that a plainer one can always replace. The tests keep them out of pages and modules.
STILTED = {
    "nobody": r"\b(no|some)body\b",
    "so many": r"\bso many\b(?! that)",
    "is no": r"(?<!there )\b(is|are|was|were) no\b(?! (longer|more|less|better|worse)\b)",
    "of one's own": r"\b(of )?one's (own|self)\b|\bone sees\b",
    "old word": r"\b(be it|anew|thus|hence|whoever|whence|whereby|thereby|lest|ere)\b",
    "what becomes of": r"\bwhat becomes of\b|\bin the place of\b",
    "nor is": r"\bnor (is|are|do|does|did|has|have|can|will|was|were|need)\b",
    "where there is none": r"\bwhere there (is|are) (none|no)\b",
    "which then is": r"\bwhich (\w+ )?then (is|are)\b|\bwhich \w+ then is\b",
    "what it is": r"\bwhat (it|they|the [\w-]+|an? [\w-]+) (is|are|was|were|does|do)[.;)]",
    "idiom": r"\b(for want of|in vain|feign\w*|or the like|nobody's but \w+)\b",
    "whom": r"(?<!from )(?<!for )(?<!meets )\bwhom\b",
    "hear": r"\bhears?\b|\bheard (of|how|that)\b",
    "let through": r"\blets? [^.;,]{1,60} through\b",
    "give a name": r"\bgives? (it|them|each) (its|their) name\b",
    "beside it": r"\bbeside (it|itself|them|these)\b|\bbeside[.,;]",
    "what calls": r"\bwhat (calls|came|comes|asks|starts|runs)\b(?! (out|from|first))",
}
#: Words that no name of a module, class, function, argument or variable has.
STILTED_NAME = "stilted name"
NAME_WORDS = {
    *("anew", "beside", "buried", "bury", "feign", "forth", "hence", "riding", "strangers"),
    *("takers", "thus", "vain", "whom"),
}
#: Habits that are fine now and then: they are counted, and kept few.
HABITS = {
    "Where ...,": r"^Where\b[^?]*$",
    "What ... is": r"^(What|Who|Whom)\b(?! is this)[^?]*$",
    "inversion": r"^(Neither|Nor|Not(?! included| run)|Nowhere|Never|Only (then|where))\b[^?]*$",
    "passive opening": r"^(It|This|They|These) (is|are|was|were) (?!(un)?biased)\w+(ed|en)\b",
}
#: What is not prose, in Markdown and in docstrings: each match is blanked, its lines stay.
_NOT_PROSE = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"<!-- ([\w-]+): (?:(?!<!-- \1: (?!end))[\s\S])+?<!-- (\1: )?end\b.*-->",  # generated text
        r"<!--[\s\S]*?-->|\$\$[\s\S]*?\$\$",  # comments and formulas
        r"^( *)(```+|~~~+)[\s\S]*?^\1\2.*$",  # blocks of code
        r"^ *>>>.*(\n *\S.*)*",  # doctests
        r"(?<=::\n)\n(?:(?: {4,}.*)?\n)+",  # literal blocks of a docstring
        r"^( *)\.\. .*(\n\1 +\S.*|\n(?=\n))*",  # directives
        r"^ *(References|Examples)\n *-+\n[\s\S]*",  # the end of a docstring
        r"^## (Sources?|References)$[\s\S]*?(?=^## |\Z)",  # citations
        r"^ *(#+ |\||!\[|:::|\S+ :|[-=]{3,}|@|<\w|\[\^?\w+\]:).*$",  # titles, tables, pictures
    )
]
_ITEM = re.compile(r"^\s*([-*+>]|\d+\.)(\s+|$)")
_SENTENCE = re.compile(r"(?<! al\.)(?<!\b[A-Z]\.)(?<!\.\.\.)(?<=[.!?])[\"')*_]*\s+")


class Hit(NamedTuple):
    """One finding: its line, its kind, and the sentence."""

    line: int
    kind: str
    sentence: str


def find_hits(path: Path) -> list[Hit]:
    """Return the findings in one page, or in the prose and the names of one module."""
    text, is_python = path.read_text(encoding="utf-8"), path.suffix == ".py"
    texts = _python_texts(text) if is_python else [(1, text)]
    names = _names(path.stem, text) if is_python else ()
    return [Hit(line, STILTED_NAME, name) for line, name in names if _is_stilted(name)] + [
        Hit(line, kind, sentence)
        for start, part in texts
        for line, sentence in _sentences(part, start)
        for kind in _kinds(sentence)
    ]


def _names(stem: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield the names that a module gives, its own included, with their lines."""
    yield 1, stem
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def _is_stilted(name: str) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return not NAME_WORDS.isdisjoint(word.lower() for word in words)


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings, comments and messages of a module with their first lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text
        yield from _messages(node)
    comments = {
        token.start[0]: re.sub(r"^#:?\s*(type:.*|noqa.*)?", "", token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for first in (line for line in comments if line - 1 not in comments):
        block = itertools.takewhile(comments.__contains__, itertools.count(first))
        yield first, "\n".join(comments[line] for line in block)


def _messages(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the texts of a log line, and of an error that is raised or made; values are CODE."""
    if not isinstance(node, ast.Call) or not node.args:
        return
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name not in LOGS and not name.endswith(("Error", "_error")) and name != "error":
        return
    text = node.args[0]
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    if all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts):
        words = (
            getattr(part, "value", "") if isinstance(part, ast.Constant) else "`x`"
            for part in parts
        )
        yield text.lineno, " ".join("".join(map(str, words)).split())


def _sentences(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a text with the lines on which they begin."""
    for pattern in _NOT_PROSE:
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    words: list[tuple[int, str]] = []  # of one paragraph, each with its line
    for number, line in enumerate([*text.split("\n"), ""], start):
        if not line.strip() or _ITEM.match(line):
            numbers = iter([each for each, _ in words])
            for sentence in _SENTENCE.split(" ".join(word for _, word in words)):
                lines = [next(numbers) for _ in sentence.split()]
                yield from ((first, sentence) for first in lines[:1])
            words = []
        words += [(number, word) for word in _ITEM.sub("", line).split()]


def _kinds(sentence: str) -> Iterator[str]:
    """Yield what is stilted about a sentence."""
    plain = re.sub(r"``[^`]+``|`[^`]+`|\$[^$]+\$", "CODE", sentence)
    plain = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", plain).strip("\"'(*_ ")
    for kind, pattern in {**STILTED, **HABITS}.items():
        flags = 0 if kind in HABITS else re.IGNORECASE
        yield from (kind for _ in re.finditer(pattern, plain, flags))
    if len(re.findall(r"[\w']+(?:[-./]\w+)*", plain)) > LONGEST:
        yield "long"


def files(paths: list[Path]) -> list[Path]:
    """Return the pages and modules among these files and below these folders."""
    found = [path for each in paths for path in (sorted(each.rglob("*")) or [each])]
    return [path for path in found if path.suffix in (".md", ".py")]


def main() -> None:
    """Print the counts, and with ``-v`` every finding."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / page for page in PAGES])
    parser.add_argument("-v", "--verbose", action="store_true", help="list every finding")
    arguments, total = parser.parse_args(), Counter[str]()
    for path in files(arguments.paths):
        hits = find_hits(path)
        total.update(hit.kind for hit in hits)
        if hits:
            sys.stdout.write(f"{path}: {len(hits)}\n")
        for hit in hits if arguments.verbose else ():
            sys.stdout.write(f"  {hit.line}: {hit.kind}: {hit.sentence}\n")
    counts = ", ".join(f"{kind} {n}" for kind, n in total.most_common())
    sys.stdout.write(f"total {total.total()}: {counts}\n")


if __name__ == "__main__":
    main()
