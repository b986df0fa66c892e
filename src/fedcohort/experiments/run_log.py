"""The log of a run folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class _QuietFile(logging.FileHandler):
    """A log that a full disk cannot stop a run with."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, if that is possible."""
        with suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        """Close the file, though what is left of it cannot be written."""
        with suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """Drop the line."""


class _NothingTwice(logging.Filter):
    """Designs are built in every round: what they say of themselves is written once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Let warnings through, and a message that was not there before."""
        if record.levelno > logging.INFO:
            return True
        message = record.getMessage()
        is_new = message not in self._said
        self._said.add(message)
        return is_new


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write what the package says into a file, while a run goes on."""
    package = logging.getLogger("fedcohort")
    handler = _QuietFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(_NothingTwice())
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()
