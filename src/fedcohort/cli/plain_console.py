"""A console that prints what it is given."""

import shutil

from rich.console import Console

#: Tables are made for this many columns; a narrower window wraps their lines.
COLUMNS = 80


def plain_console() -> Console:
    """Return a console without markup, emoji codes and colours of numbers, 80 columns or wider."""
    width = max(COLUMNS, shutil.get_terminal_size((COLUMNS, 24)).columns)
    return Console(markup=False, emoji=False, highlight=False, width=width)
