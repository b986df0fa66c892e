"""Read whole numbers as people write them: 5146, 5,146, 5 146, 5'146, 5146.0."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from fedcohort._arguments import brief
from fedcohort.errors import InputError

#: A space, and those without a break: U+00A0, figure, thin and narrow.
SPACES = " \u00a0\u2007\u2009\u202f"
#: The thousands marks of ``--thousands``: the characters that each stands for.
THOUSANDS = {".": ".", ",": ",", "'": "'\u2019", " ": SPACES}
SCIENTIFIC = re.compile(r"\+?[0-9]+(?:\.[0-9]*)?[eE][+-]?[0-9]{1,3}")
#: 5.146 is 5146 to some people and a fraction to others.
UNCLEAR = re.compile(r"\+?[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]*)?")
NUMBER_LIKE = re.compile(rf"[+-]?[0-9][0-9.,'\u2019{SPACES}]*(?:[eE][+-]?[0-9]+)?")

NOT_FINITE = {"nan", "inf", "-inf"}
#: How programs write that a value is missing.
MISSING = NOT_FINITE | {"na", "n/a", "#n/a", "null", "none", "-"}


def _pattern(thousands: str, decimal: str) -> re.Pattern[str]:
    """Match a whole number; its digits are group 1. Only zeros may follow the decimal mark."""
    grouped = rf"[0-9]{{1,3}}([{thousands}])[0-9]{{3}}(?:\2[0-9]{{3}})*"
    return re.compile(rf"\+?({grouped}|[0-9]+)(?:[{decimal}]0*)?")


#: Without ``--thousands``, a column is read in the first of these ways that fits all its cells.
#: In the second, the comma is a decimal mark: 5,0 is 5.
READINGS = (_pattern(",'\u2019" + SPACES, "."), _pattern("'\u2019" + SPACES, ","))


def check_thousands(thousands: str | None) -> None:
    """Refuse an unknown thousands mark."""
    if thousands is not None and thousands not in THOUSANDS:
        raise InputError(
            f"--thousands must be a point, a comma, an apostrophe or a space; got "
            f"{brief(thousands)}. Write --thousands . or --thousands ' '."
        )


def is_number(cell: Any) -> bool:
    """Return whether a cell looks like a number, also one that cannot be a size."""
    if not isinstance(cell, str):
        return isinstance(cell, (int, float))
    text = cell.strip()
    return bool(NUMBER_LIKE.fullmatch(text)) or text.lower() in NOT_FINITE


def is_grouped(text: str, thousands: str | None) -> bool:
    """Return whether a text is one number with the thousands mark that the user named."""
    return thousands is not None and _number(text, _readings(thousands)[0]) is not None


def whole_numbers(
    cells: Sequence[Any],
    name: str,
    *,
    place: Callable[[int], str],
    thousands: str | None = None,
) -> list[int]:
    """Return the sizes in a column, or name the first cell that is none.

    Parameters
    ----------
    cells
        Text, or numbers from JSON or Excel.
    name
        The column's name, for messages.
    place
        Where the cell of a client stands, for messages.
    thousands
        The thousands mark, if the user named it.
    """
    if (fast := _digits_only(cells)) is not None:
        return fast
    if thousands is None:
        _refuse_unclear(cells, name, place)
    found = [_numbers(cells, reading) for reading in _readings(thousands)]
    for numbers in found:
        if len(numbers) == len(cells):
            return numbers
    bad = len(found[0])
    raise InputError(f"{place(bad)}: {_complaint(name, cells[bad], thousands)}")


def _digits_only(cells: Sequence[Any]) -> list[int] | None:
    """Return the numbers of cells that are ASCII digits only, fast; None if some are not."""
    try:
        text = "".join(cells)
        return list(map(int, cells)) if text.isascii() and text.isdecimal() else None
    except (TypeError, ValueError):  # numbers; an empty cell; thousands of digits
        return None


def _readings(thousands: str | None) -> tuple[re.Pattern[str], ...]:
    if thousands is None:
        return READINGS
    return (_pattern(THOUSANDS[thousands], ".,".replace(thousands, "")),)


def _numbers(cells: Sequence[Any], reading: re.Pattern[str]) -> list[int]:
    """Return the sizes up to the first cell that is none."""
    numbers: list[int] = []
    for cell in cells:
        if (number := _number(cell, reading)) is None:
            break
        numbers.append(number)
    return numbers


def _number(cell: Any, reading: re.Pattern[str]) -> int | None:
    """Return a size, or None for anything else."""
    if isinstance(cell, str):
        text = cell.strip()
        if match := reading.fullmatch(text):
            return _integer(match[1])
        cell = float(text) if SCIENTIFIC.fullmatch(text) else None
    if isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None
    is_size = isinstance(cell, int) and not isinstance(cell, bool) and cell >= 0
    return cell if is_size else None


def _integer(text: str) -> int | None:
    try:
        return int(re.sub("[^0-9]", "", text))
    except ValueError:  # Python refuses thousands of digits
        return None


def _refuse_unclear(cells: Sequence[Any], name: str, place: Callable[[int], str]) -> None:
    """Refuse 5.146, which is a number of samples only if the point separates thousands."""
    unclear = [
        k
        for k, cell in enumerate(cells)
        if isinstance(cell, str) and UNCLEAR.fullmatch(cell.strip())
    ]
    if unclear:
        more = f" (and {len(unclear) - 1} more)" if len(unclear) > 1 else ""
        raise InputError(
            f"{place(unclear[0])}: {name} must be a whole number; got {cells[unclear[0]]!r}{more}, "
            f"which may be thousands or a fraction. Add --thousands . for thousands, or write the "
            f"numbers without a point."
        )


def _complaint(name: str, cell: Any, thousands: str | None) -> str:
    """Say why a cell cannot be a size, and what to do."""
    way_out = "Give 0 if the client has no samples, or drop the client."
    text = "" if cell is None else str(cell).strip()
    if not text:
        return f"{name} must be a whole number; it is empty. {way_out}"
    if text.lower() in MISSING:
        return f"{name} must be a whole number; got {brief(cell)}. {way_out}"
    if text.startswith("-") and is_number(cell):
        return f"{name} must not be negative; got {brief(cell)}. {way_out}"
    marked = "" if thousands is None else f" with the thousands mark {thousands!r}"
    fix = "Round it" if is_number(cell) and re.search("[.,]", text) else "Correct it"
    return (
        f"{name} must be a whole number{marked}; got {brief(cell)}. {fix}, or name the column of "
        f"sizes with --size-column."
    )
