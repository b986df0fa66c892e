"""The name of a plug-in: in errors, in the log, and in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import Logger, getLogger
from pathlib import Path
from typing import TypeVar, final

from fedcohort._arguments import brief, checked_number, checked_path, checked_whole
from fedcohort.errors import DeploymentError

_Record = TypeVar("_Record")
LOGGER = getLogger("fedcohort")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """How a plug-in names itself.

    Attributes
    ----------
    framework
        The framework, as in checkpoints; the library's package has the same name.
    owner
        The class that users make, as in errors.
    error
        The error to raise.
    logger
        Where log lines go.
    clients
        What the framework calls clients, as in log lines.
    lacks
        Settings of a selector that the plug-in does not have: their defaults always hold.

    Examples
    --------
    >>> Plugin(framework="mine", owner="MyServer").refusal("needs a model. Pass one.")
    DeploymentError('MyServer: needs a model. Pass one.')
    """

    framework: str
    owner: str
    error: type[DeploymentError] = DeploymentError
    logger: Logger = LOGGER
    clients: str = "clients"
    lacks: tuple[str, ...] = ("overlap",)

    def refusal(self, message: str) -> DeploymentError:
        """Return the plug-in's error with a message."""
        return self.error(f"{self.owner}: {message}")

    def path(self, name: str, value: object) -> Path:
        """Validate a path."""
        return checked_path(self.owner, name, value, error=self.error)

    def count(self, name: str, value: object) -> int:
        """Validate a positive integer."""
        return checked_whole(self.owner, name, value, least=1, error=self.error)

    def number(self, name: str, value: object, *, least: float) -> float:
        """Validate a number."""
        return checked_number(self.owner, name, value, least=least, error=self.error)

    def record(self, name: str, value: object, kind: type[_Record]) -> _Record:
        """Validate a record of settings; None gives the default one."""
        if value is not None and not isinstance(value, kind):
            raise self.refusal(
                f"{name} must be {kind.__name__}(...); got {brief(value)}. Import it from "
                f"fedcohort.{self.framework}."
            )
        return kind() if value is None else value

    def log_failures(
        self, failed: Mapping[str, str], doing: str, n_asked: int, who: str | None = None
    ) -> None:
        """Log why clients failed, each reason once; ``who`` replaces the word for them."""
        clients: dict[str, list[str]] = {}
        for name, reason in failed.items():
            clients.setdefault(reason, []).append(name)
        for reason, names in clients.items():
            self.logger.warning(
                "%s: %d of %d %s failed (%.200s): %.200s",
                *(doing, len(names), n_asked, who or self.clients, ", ".join(names), reason),
            )
