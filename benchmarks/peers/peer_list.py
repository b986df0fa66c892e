"""Who stands side by side."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """A framework that does the work.

    Attributes
    ----------
    name
        On the command line, and of the requirement files.
    shown
        In tables.
    package
        Whose version stands in the table.
    own_environment
        Whether it is installed for this comparison; else it runs in fedcohort's environment.
    """

    name: str
    shown: str
    package: str
    own_environment: bool = True

    @property
    def module(self) -> str:
        """The script that does the work."""
        return f"peers.with_{self.name}"


#: fedcohort comes first: the others are measured against it.
PEERS = (
    Peer("fedcohort", "fedcohort", "fedcohort", own_environment=False),
    Peer("pytorch", "plain PyTorch loop", "torch", own_environment=False),
    Peer("pfl", "pfl", "pfl"),
    Peer("fluke", "fluke", "fluke-fl"),
    Peer("fedjax", "FedJAX", "fedjax"),
    Peer("flower", "Flower simulation", "flwr"),
)
