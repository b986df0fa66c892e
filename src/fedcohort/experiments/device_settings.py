"""The table ``[devices]`` of an experiment file: what the clients train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedcohort.errors import DataError, ExperimentError
from fedcohort.experiments.settings_table import Name, Positive, Rate, Seed, Table
from fedcohort.simulation import Devices, read_devices
from fedcohort.simulation.devices import LINE, SPEED

Spread = Annotated[float, Field(ge=0, le=10)]

#: Below a run folder: where the files of devices are kept.
KEPT = "devices"


class EqualDevices(Table):
    """``equal``: every client has the same device, and is always there.

    Attributes
    ----------
    kind
        ``equal``.
    speed
        Samples that a client processes in a second of training.
    down, up
        Bytes a second to and from a client.
    jitter
        In every round a client's computing takes exp(jitter * z) times as long, z standard normal.
    """

    kind: Literal["equal"] = "equal"
    speed: Rate = SPEED
    down: Rate = LINE
    up: Rate = LINE
    jitter: Spread = 0.0

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's own record; None for the simulator's default."""
        if self == EqualDevices():
            return None
        options = self.model_dump(exclude={"kind"})
        return Devices.equal(n_clients, **options)


class GeneratedDevices(Table):
    """``generated``: log-normal speeds and lines, and a share of each day.

    See :meth:`fedcohort.simulation.Devices.generated`.

    Attributes
    ----------
    kind
        ``generated``.
    seed
        Holds the devices fixed; without it every seed of the experiment has its own.
    jitter
        In every round a client's computing takes exp(jitter * z) times as long, z standard normal.
    """

    kind: Literal["generated"]
    speed: Rate = SPEED
    speed_spread: Spread = 1.0
    down: Rate = LINE
    up: Rate = LINE
    line_spread: Spread = 1.0
    awake: Annotated[float, Field(ge=1e-9, le=1)] = 1.0
    day: Positive = 86_400.0
    jitter: Spread = 0.0
    seed: Seed | None = None

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's own record."""
        options = self.model_dump(exclude={"kind", "seed"})
        return Devices.generated(n_clients, seed if self.seed is None else self.seed, **options)


class DeviceFile(Table):
    """``file``: from a CSV file beside or below the experiment file.

    See :func:`fedcohort.simulation.read_devices`. The run folder keeps a copy.

    Attributes
    ----------
    kind
        ``file``.
    file
        Its path, from where the experiment file is.
    jitter
        In every round a client's computing takes exp(jitter * z) times as long, z standard normal.
    """

    kind: Literal["file"]
    file: Annotated[Name, Field(min_length=1)]
    jitter: Spread = 0.0

    def devices(self, n_clients: int, seed: int, folder: Path) -> Devices | None:
        """Return the simulator's own record; ``folder`` holds the file."""
        path = device_file(folder, self.file)
        try:
            return read_devices(path, n_clients, jitter=self.jitter)
        except DataError as error:
            # The copy may be gone when this is read.
            raise ExperimentError(str(error).replace(str(path), self.file)) from error


DeviceTable = Annotated[EqualDevices | GeneratedDevices | DeviceFile, Field(discriminator="kind")]


def device_file(folder: Path, path: str) -> Path:
    """Return the file beside the experiment, or among those that its run folder keeps."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise ExperimentError(
            f"device file {path}: must lie beside or below the experiment file, which names it "
            f"from there. Copy it."
        )
    own, kept = folder / path, folder / KEPT / path
    found = kept if kept.is_file() and not own.is_file() else own
    if not found.is_file():
        raise ExperimentError(f"device file {path}: is not there. Put it beside the experiment.")
    return found


def device_files(tables: list[EqualDevices | GeneratedDevices | DeviceFile]) -> list[str]:
    """Return the files that these tables name."""
    return sorted({table.file for table in tables if isinstance(table, DeviceFile)})
