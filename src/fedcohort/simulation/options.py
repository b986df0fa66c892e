"""What the server does beside drawing."""

from dataclasses import dataclass

import torch

from fedcohort._arguments import brief
from fedcohort._display import record_repr
from fedcohort.errors import SimulationError
from fedcohort.simulation.local_training import LARGEST


@dataclass(frozen=True, slots=True)
class Options:
    """What the server does beside drawing.

    Attributes
    ----------
    server_lr
        The server's learning rate.
    measure_every
        Measure loss and accuracy after every so many rounds, and after the last.
    oracle_every
        Train all clients in every so many rounds, to compare with full participation; None never.
    sketch
        Numbers that the memory keeps of an update; None keeps it whole.
    rows_every
        Note who shares a distribution with whom in every so many rounds; None never.
    overlap
        Build the next round's design while the clients train, from updates up to the round before.
    device
        ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
    """

    server_lr: float = 1.0
    measure_every: int = 1
    oracle_every: int | None = None
    sketch: int | None = None
    rows_every: int | None = None
    overlap: bool = False
    device: str = "auto"

    def __repr__(self) -> str:
        return record_repr(self)

    def __post_init__(self) -> None:
        for name in ("measure_every", "oracle_every", "sketch", "rows_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise SimulationError(
                    f"Options: {name} must be a whole number (int) of at least 1; got {value!r}."
                )
        is_number = isinstance(self.server_lr, (int, float)) and type(self.server_lr) is not bool
        if not is_number or not 0 <= self.server_lr <= LARGEST:
            raise SimulationError(
                f"Options: server_lr must be at least 0 and at most 3.4e38, the largest float32; "
                f"got {brief(self.server_lr)}. 1.0 takes the step as it is."
            )
        if self.device not in ("auto", "cpu", "cuda"):
            raise SimulationError(
                f"Options: device must be auto, cpu or cuda; got {brief(self.device)}."
            )

    def torch_device(self) -> torch.device:
        """Return the device, or say that there is none."""
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise SimulationError("Options: device 'cuda' is not available here. Use 'cpu'.")
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")
