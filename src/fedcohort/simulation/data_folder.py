"""Where data sets lie, and how they come there."""

import logging
import os
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedcohort._extras import import_extra
from fedcohort._whole_file import write_whole
from fedcohort.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a data set: where it belongs, its MD5 as published, and where it can be had."""

    path: str
    md5: str
    addresses: tuple[str, ...]


def data_folder() -> Path:
    """Return ``FEDCOHORT_DATA``, or the user's cache folder."""
    if given := os.environ.get("FEDCOHORT_DATA"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "fedcohort"


def fetch(file: RemoteFile, folder: Path, *, needed: Iterable[str], owner: str) -> Path:
    """Return the file's path below ``folder``; where it is missing, download it and check it.

    A download is written beside its place, checked, and put there whole; what a broken one left
    is discarded. ``needed`` and ``owner`` are for the sentence that says which files to put where.
    """
    target = folder / file.path
    if target.exists():
        return target
    pooch = import_extra("pooch", extra="sim", owner=f"{owner}, to download it,")
    for address in file.addresses:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            pooch.get_logger().setLevel("WARNING")
            pooch.retrieve(
                url=address,
                known_hash=f"md5:{file.md5}",
                path=target.parent,
                fname=target.name,
                downloader=pooch.HTTPDownloader(progressbar=_Bar(target.name), timeout=30),
            )
        except Exception as error:  # whatever the network does, the next address is tried
            log.warning("%s: %s: %s", owner, address, error)
        else:
            return target
    raise DataError(
        f"{owner}: {', '.join(needed)} must lie in {folder}, and {file.path} could not be "
        f"downloaded. Put the files there by hand, or set FEDCOHORT_DATA to where they are."
    )


def unpack(archive: Path, names: Iterable[str], folder: Path) -> None:
    """Take the named members out of an archive, each written whole."""
    try:
        with tarfile.open(archive, "r:gz") as members:
            for name in names:
                member = members.extractfile(name)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(folder / name, b"" if member is None else member.read())
    except (tarfile.TarError, EOFError, KeyError, OSError, zlib.error) as error:
        raise DataError(f"{archive}: is broken ({error}). Delete it and try again.") from error


class _Bar:
    """Show a download's progress on a terminal, as pooch asks for it."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(name, total=None)
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        self._progress.start()
        self._progress.update(self._task, total=total)

    def update(self, size: int) -> None:
        self._progress.update(self._task, advance=size)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
