"""Reading the tables that examples and notebooks print."""

import re

#: The numbers at the end of a line, by what stands before them.
Table = dict[str, list[float]]


def read_table(text: str) -> Table:
    """Read the lines that are a name and numbers."""
    lines = [re.match(r"(\S.*?)\s+((?:[\d.]+%?\s*)+)$", line) for line in text.splitlines()]
    return {
        line[1]: [float(number.rstrip("%")) for number in line[2].split()] for line in lines if line
    }


def words(text: str) -> list[str]:
    """Return what is no number: the same on every machine."""
    return re.findall(r"[^\W\d]+", text)
