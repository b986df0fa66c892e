"""Data sets: find their files or download them, and read them."""

import gzip
import logging
import math
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import (
    WholeNeed,
    as_array,
    brief,
    checked_path,
    did_you_mean,
)
from fedcohort._display import short_repr
from fedcohort._fields import Record, declared, number
from fedcohort._lazy import import_extra
from fedcohort._whole_file import write_whole
from fedcohort.errors import DataError
from fedcohort.simulation.data.text import (
    LENGTH,
    N_CHARACTERS,
    TEST_EVERY,
    next_characters,
    shakespeare_roles,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a data set: its place, its published MD5, and where to download it."""

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
    """Return the file's path below ``folder``; download it if it is missing.

    A download is checked before it gets its name; a broken one is discarded. The error message
    names ``owner`` and the files that it has ``needed``.
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
        except Exception as error:  # try the next address, whatever went wrong
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
        raise _broken(archive, f"is broken ({error})") from error


def _broken(path: Path, why: str) -> DataError:
    return DataError(f"{path}: {why}. Delete it and try again.")


class _Bar:
    """Show a download's progress on a terminal; pooch sets ``total`` and calls the methods."""

    total = 0

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(name, total=None)

    def update(self, size: int) -> None:
        self._progress.start()
        self._progress.update(self._task, total=self.total, advance=size)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()


#: An image of CIFAR-10: a label, then three planes of 32 x 32.
CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes: images or labels of the MNIST family."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(path, f"is broken ({error})") from error
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise _broken(path, "is not an IDX file of bytes")
    n_axes = content[3]
    start = 4 + 4 * n_axes
    if len(content) < start:
        raise _broken(path, "ends in its header")
    shape = struct.unpack(f">{n_axes}I", content[4:start])
    size = len(content) - start
    if size != math.prod(shape):
        raise _broken(path, f"must hold {' x '.join(map(str, shape))} bytes; got {size}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read one of the official binary CIFAR-10 files: images (n, 3, 32, 32) and labels (n,)."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise _broken(path, f"cannot be read ({error})") from error
    if content.size == 0 or content.size % CIFAR_RECORD:
        need = f"must hold records of {CIFAR_RECORD} bytes"
        raise _broken(path, f"{need}; got {content.size} bytes")
    records = content.reshape(-1, CIFAR_RECORD)
    if records[:, 0].max() > 9:
        raise _broken(path, "has labels beyond 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset(Record):
    """Inputs and labels; a batch's inputs become ``x * scale + shift``.

    Attributes
    ----------
    x, test_x
        Inputs, first axis samples. Integers without scale and shift stay integers for a model
        that takes them (``nn.Embedding`` does); other models get float32.
    y, test_y
        Labels from 0 to ``n_classes - 1``: one per sample, or one per position of a sequence,
        shape (samples, length). There, -1 marks a position that does not count. Losses and
        accuracies are means over the labels that count.
    clients, test_clients
        The client of every sample, where the data set knows it; for the natural partition.
    """

    _owner = "data"
    _error = DataError

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    test_x: NDArray[np.generic]
    test_y: NDArray[np.int64]
    n_classes: int = declared(WholeNeed())
    scale: float = number(1.0)
    shift: float = number(0.0)
    clients: NDArray[np.generic] | None = None
    test_clients: NDArray[np.generic] | None = None

    def _check(self) -> None:
        for x, y in (("x", "y"), ("test_x", "test_y")):
            inputs, labels = checked_arrays(getattr(self, x), getattr(self, y))
            self._put(**{x: inputs, y: labels})
        if len(self.test_x) and self.test_x.shape[1:] != self.x.shape[1:]:
            raise DataError(
                f"data: test inputs must be shaped as training inputs, {self.x.shape[1:]}; got "
                f"{self.test_x.shape[1:]}."
            )
        owners = (self.clients, self.test_clients)
        labelled = tuple(None if own is None else as_array(own).shape for own in owners)
        if labelled not in ((None, None), ((len(self.x),), (len(self.test_x),))):
            raise DataError(
                f"data: clients must name one for each of {len(self.x)} training and "
                f"{len(self.test_x)} test samples, or be left out; got shapes {labelled[0]} "
                f"and {labelled[1]}. Name all."
            )
        if len(self.test_y) and self.test_y.shape[1:] != self.y.shape[1:]:
            raise DataError(
                f"data: a test sample needs as many labels as a training sample, shape "
                f"{self.y.shape[1:]}; got {self.test_y.shape[1:]}. Label them alike."
            )

    @property
    def length(self) -> int | None:
        """How many labels a sample has, if it is a sequence; None: one label for the sample."""
        return None if self.y.ndim == 1 else self.y.shape[1]

    @property
    def has_integers(self) -> bool:
        """Whether the inputs are integers that neither scale nor shift turns into floats."""
        parts = [self.x, *([self.test_x] if len(self.test_x) else [])]
        are_whole = all(part.dtype.kind in "iu" for part in parts)
        return are_whole and self.scale == 1 and self.shift == 0

    def __repr__(self) -> str:
        shape = tuple(self.x.shape[1:])
        parts = {"train": len(self.x), "test": len(self.test_x), "shape": shape}
        return short_repr(self, **parts, n_classes=int(self.n_classes))


def checked_arrays(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Validate inputs, first axis samples, and the labels of each sample: one, or a sequence."""
    inputs, labels = as_array(x), as_array(y)
    whole = labels.ndim in (1, 2) and labels.dtype.kind in "iu"
    if inputs.ndim == 0 or not whole or len(inputs) != len(labels):
        raise DataError(
            f"data: needs one whole-number label per sample; got inputs of shape "
            f"{inputs.shape} and labels {labels.dtype} of shape {labels.shape}."
        )
    labels = labels.astype(np.int64, copy=False)
    if labels.size and labels.min() < (least := 1 - labels.ndim):
        ignored = "" if least == 0 else ", or -1 where a position does not count"
        raise DataError(f"data: labels must be 0 or more{ignored}; got {labels.min()}.")
    if inputs.dtype.kind not in "iufb":
        raise DataError(f"data: inputs must be numbers; got {inputs.dtype}.")
    # Floats as float32, integers in this machine's byte order.
    kind = np.float32 if inputs.dtype.kind == "f" else inputs.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):
        inputs = inputs.astype(kind, copy=False)
    invalid = 0 if inputs.dtype.kind != "f" else inputs.size - np.isfinite(inputs).sum()
    if invalid:
        raise DataError(
            f"data: inputs must be finite in float32; {invalid} of {inputs.size} numbers are not. "
            f"Fill in what is missing, or leave those samples out."
        )
    return inputs, labels


def load_dataset(name: str, folder: str | Path | None = None) -> Dataset:
    """Load a data set; ``folder`` is ``FEDCOHORT_DATA`` or the user's cache by default.

    Raises
    ------
    DataError
        If there is no data set of this name, or its files can be neither found nor fetched.

    Examples
    --------
    >>> load_dataset("digits").x.shape
    (1442, 1, 8, 8)
    """
    if not isinstance(name, str) or name not in DATASETS:
        raise DataError(
            f"load_dataset: unknown data set {brief(name)}; known are {', '.join(DATASETS)}."
            f"{did_you_mean(name, DATASETS)}"
        )
    if folder is None:
        return DATASETS[name](data_folder())
    return DATASETS[name](checked_path("load_dataset", "folder", folder, error=DataError))


def _digits(folder: Path) -> Dataset:
    """Split scikit-learn's 8 x 8 digits: every fifth sample of a class is for testing."""
    sklearn = import_extra("sklearn.datasets", extra="sim", owner="data set digits")
    images, labels = sklearn.load_digits(return_X_y=True)
    order = np.argsort(labels, kind="stable")
    x, y = images[order].astype(np.uint8).reshape(-1, 1, 8, 8), labels[order].astype(np.int64)
    nth = np.arange(len(y)) - np.searchsorted(y, y)
    test = nth % 5 == 4
    return Dataset(x[~test], y[~test], x[test], y[test], n_classes=10, scale=1 / 16)


IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


@dataclass(frozen=True, slots=True)
class _IdxFamily:
    """A data set of four IDX files."""

    name: str
    md5: tuple[str, str, str, str]
    addresses: tuple[str, ...]

    def __call__(self, folder: Path) -> Dataset:
        arrays: list[NDArray[Any]] = []
        needed = [f"{self.name}/{each}" for each in IDX_FILES]
        for name, path, md5 in zip(IDX_FILES, needed, self.md5, strict=True):
            file = RemoteFile(path, md5, tuple(a + name for a in self.addresses))
            found = fetch(file, folder, needed=needed, owner=f"data set {self.name}")
            arrays.append(read_idx(found))
        x, y, test_x, test_y = arrays
        for images, labels in ((x, y), (test_x, test_y)):
            labelled = images.ndim == 3 and labels.shape == (len(images),)
            if not labelled or not len(labels) or labels.max() > 9:
                raise DataError(
                    f"data set {self.name}: needs images and as many labels from 0 to 9; got "
                    f"{images.shape} and {labels.shape}. Delete the files and try again."
                )
        return Dataset(x[:, None], y, test_x[:, None], test_y, n_classes=10, scale=1 / 255)


CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = (
    *(f"{CIFAR_FOLDER}/data_batch_{k}.bin" for k in range(1, 6)),
    f"{CIFAR_FOLDER}/test_batch.bin",
)
CIFAR_ARCHIVE = RemoteFile(
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)


def _cifar10(folder: Path) -> Dataset:
    if not all((folder / name).exists() for name in CIFAR_FILES):
        archive = fetch(CIFAR_ARCHIVE, folder, needed=CIFAR_FILES, owner="data set cifar10")
        unpack(archive, CIFAR_FILES, folder)
    *train, test = (read_cifar(folder / name) for name in CIFAR_FILES)
    x = np.concatenate([images for images, _ in train])
    y = np.concatenate([labels for _, labels in train])
    return Dataset(x, y, *test, n_classes=10, scale=2 / 255, shift=-1.0)


def _shakespeare(folder: Path) -> Dataset:
    """Divide every role's text into sequences; its last fifth is for testing, at least one.

    A role with one sequence only trains.
    """
    roles = shakespeare_roles()
    sequences = [next_characters(text, LENGTH) for text in roles.values()]
    sizes = [len(x) for x, _ in sequences]
    cuts = [n - max(1, n // TEST_EVERY) if n > 1 else n for n in sizes]
    test = np.concatenate([np.arange(n) >= cut for n, cut in zip(sizes, cuts, strict=True)])
    x, y = (np.concatenate(part) for part in zip(*sequences, strict=True))
    clients = np.repeat(list(roles), sizes)
    return Dataset(
        x[~test], y[~test], x[test], y[test], N_CHARACTERS,
        clients=clients[~test], test_clients=clients[test],
    )  # fmt: skip


#: Every data set, by its name.
DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "digits": _digits,
    "mnist": _IdxFamily(
        "mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
    ),
    "fashion-mnist": _IdxFamily(
        "fashion-mnist",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    ),
    "cifar10": _cifar10,
    "shakespeare": _shakespeare,
}

#: The files of each data set below the data folder. ``digits`` comes with scikit-learn, and
#: ``shakespeare`` with fedcohort.
FILES: dict[str, tuple[str, ...]] = {
    "digits": (),
    "shakespeare": (),
    **{name: tuple(f"{name}/{file}" for file in IDX_FILES) for name in ("mnist", "fashion-mnist")},
    "cifar10": CIFAR_FILES,
}


def is_present(name: str, folder: Path) -> bool:
    """Whether all files of a data set lie in ``folder``, so that no download is needed."""
    return all((folder / file).exists() for file in FILES[name])
