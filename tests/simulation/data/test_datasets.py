"""Data sets from their original files, present, absent, broken and downloaded."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from fedcohort.errors import DataError
from fedcohort.simulation import load_dataset
from fedcohort.simulation.data import datasets as module
from fedcohort.simulation.data.datasets import (
    CIFAR_FILES,
    IDX_FILES,
    RemoteFile,
    _IdxFamily,
    data_folder,
)
from populations import rng


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def idx_files(n: int = 12, n_test: int = 4) -> dict[str, bytes]:
    arrays = (
        rng(0).integers(256, size=(n, 28, 28)),
        rng(1).integers(10, size=n),
        rng(2).integers(256, size=(n_test, 28, 28)),
        rng(3).integers(10, size=n_test),
    )
    return {name: idx(array) for name, array in zip(IDX_FILES, arrays, strict=True)}


def cifar_files(n: int = 3) -> dict[str, bytes]:
    def batch(seed: int) -> bytes:
        records = rng(seed).integers(256, size=(n, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        return records.tobytes()

    return {name: batch(seed) for seed, name in enumerate(CIFAR_FILES)}


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_digits_need_no_download_and_no_sample_is_in_both_parts() -> None:
    data = load_dataset("digits", Path("/nowhere"))

    assert (data.x.shape, data.test_x.shape) == ((1442, 1, 8, 8), (355, 1, 8, 8))
    assert len(data.x) + len(data.test_x) == 1797
    assert np.bincount(data.test_y).min() >= 34
    assert data.x.max() * data.scale == 1.0


def test_idx_files_are_read_as_they_are(tmp_path: Path) -> None:
    put(tmp_path / "mnist", idx_files())

    data = load_dataset("mnist", tmp_path)

    assert (data.x == rng(0).integers(256, size=(12, 28, 28))[:, None]).all()
    assert (data.test_y == rng(3).integers(10, size=4)).all()
    assert data.x.dtype == np.uint8
    assert (data.scale, data.shift) == (1 / 255, 0.0)


def test_the_binary_cifar_files_are_read_as_they_are(tmp_path: Path) -> None:
    files = cifar_files()
    put(tmp_path, files)

    data = load_dataset("cifar10", tmp_path)

    first = np.frombuffer(files[CIFAR_FILES[0]], dtype=np.uint8)
    assert data.x.shape == (15, 3, 32, 32)
    assert data.test_x.shape == (3, 3, 32, 32)
    assert (data.y[0], data.x[0, 0, 0, 0], data.x[0, 1, 0, 0]) == (first[0], first[1], first[1025])
    assert (data.scale * 255 + data.shift, data.shift) == (1.0, -1.0)


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "not gzip": lambda content: b"<html>not found</html>",
    "empty": lambda content: b"",
    "not idx": lambda content: gzip.compress(b"hello world"),
    "header only": lambda content: gzip.compress(b"\x00\x00\x08\x03\x00\x00"),
    "short": lambda content: gzip.compress(gzip.decompress(content)[:-1]),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_idx_file_is_named(how: str, tmp_path: Path) -> None:
    files = idx_files()
    files[IDX_FILES[2]] = BROKEN[how](files[IDX_FILES[2]])
    put(tmp_path / "mnist", files)

    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz: .*Delete it and try again"):
        load_dataset("mnist", tmp_path)


def test_images_without_their_labels_are_refused(tmp_path: Path) -> None:
    files = idx_files()
    files[IDX_FILES[1]] = idx(np.zeros(3))
    put(tmp_path / "mnist", files)

    with pytest.raises(DataError, match="needs images and as many labels"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 3072, b"\x0b" + b"\x00" * 3072])
def test_a_broken_cifar_file_is_named(content: bytes, tmp_path: Path) -> None:
    files = cifar_files()
    files[CIFAR_FILES[5]] = content
    put(tmp_path, files)

    with pytest.raises(DataError, match=r"test_batch\.bin: .*Delete it and try again"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"<html>", b"", gzip.compress(b"no archive"), None],
    ids=["html", "empty", "no archive", "no files"],  # a gzip header holds the time
)
def test_a_broken_archive_is_named(content: bytes | None, tmp_path: Path) -> None:
    """Also one that lacks a file."""
    if content is None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz"):
            pass
        content = buffer.getvalue()
    put(tmp_path, {"cifar-10-binary.tar.gz": content})

    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: is broken .*Delete it"):
        load_dataset("cifar10", tmp_path)


def test_files_without_samples_are_refused(tmp_path: Path) -> None:
    files = idx_files()
    files[IDX_FILES[0]], files[IDX_FILES[1]] = idx(np.zeros((0, 28, 28))), idx(np.zeros(0))
    put(tmp_path / "mnist", files)

    with pytest.raises(DataError, match="needs images and as many labels"):
        load_dataset("mnist", tmp_path)


def test_an_unknown_data_set_gets_a_suggestion() -> None:
    with pytest.raises(DataError, match=r"unknown data set 'mnits'; .*Did you mean 'mnist'\?"):
        load_dataset("mnits")


def test_the_folder_is_the_environments_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCOHORT_DATA", "/some/where")
    assert data_folder() == Path("/some/where")

    monkeypatch.delenv("FEDCOHORT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder() == Path("/cache/fedcohort")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A local web server: its folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        # A server that looks seldom whether it is to stop makes every test wait.
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{http.server_address[1]}/"
        http.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base names it so


def family(files: dict[str, bytes], *addresses: str) -> _IdxFamily:
    md5 = tuple(hashlib.md5(files[name]).hexdigest() for name in IDX_FILES)
    return _IdxFamily("mnist", md5, addresses)  # type: ignore[arg-type]


def test_missing_files_are_downloaded_checked_and_kept(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = server
    files = idx_files()
    put(folder, files)

    data = family(files, address)(tmp_path / "data")
    put(folder, dict.fromkeys(files, b"changed"))
    again = family(files, address)(tmp_path / "data")

    assert len(data.x) == 12
    assert (again.x == data.x).all()
    assert sorted(p.name for p in (tmp_path / "data" / "mnist").iterdir()) == sorted(IDX_FILES)


def test_a_download_that_is_not_the_published_file_is_discarded_and_the_next_address_tried(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = server
    files = idx_files()
    put(folder, {f"good/{name}": content for name, content in files.items()})
    put(folder, {f"bad/{name}": content[:-9] for name, content in files.items()})

    data = family(files, f"{address}bad/", f"{address}good/")(tmp_path / "data")

    assert len(data.x) == 12


def test_what_cannot_be_had_is_one_sentence_and_nothing_is_left_behind(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = server
    files = idx_files()
    put(folder, {name: content[:-9] for name, content in files.items()})

    with pytest.raises(
        DataError, match=r"data set mnist: mnist/train-images.* must lie in .*set FEDCOHORT_DATA"
    ):
        family(files, f"{address}none/", address)(tmp_path / "data")
    assert list((tmp_path / "data" / "mnist").iterdir()) == []


def test_offline_and_absent_says_which_files_to_put_where(tmp_path: Path) -> None:
    files = idx_files()

    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz must lie in .*by hand"):
        family(files, "http://127.0.0.1:9/")(tmp_path)


def test_cifar_comes_as_an_archive_and_only_its_six_files_are_taken(
    server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = server
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in {**cifar_files(), "../escape": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    put(folder, {"cifar.tar.gz": archive.getvalue()})
    md5 = hashlib.md5(archive.getvalue()).hexdigest()
    remote = RemoteFile("cifar-10-binary.tar.gz", md5, (f"{address}cifar.tar.gz",))
    monkeypatch.setattr(module, "CIFAR_ARCHIVE", remote)

    data = load_dataset("cifar10", tmp_path / "data")

    assert data.x.shape == (15, 3, 32, 32)
    assert not (tmp_path / "escape").exists()


def test_the_real_mnist_is_read() -> None:
    folder = Path(os.environ.get("FEDCOHORT_DATA", ""))
    if not (folder / "mnist" / IDX_FILES[0]).exists():
        pytest.skip("FEDCOHORT_DATA has no MNIST")

    data = load_dataset("mnist", folder)

    assert (data.x.shape, data.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert np.bincount(data.y).tolist()[5] == 5421
    assert np.bincount(data.test_y).tolist()[5] == 892
    for name, md5 in zip(IDX_FILES, module.DATASETS["mnist"].md5, strict=True):  # type: ignore[attr-defined]
        assert hashlib.md5((folder / "mnist" / name).read_bytes()).hexdigest() == md5
