"""Archives: arrays come back as they were, and any other file is refused with its reason."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from fedcohort import Difference, Multinomial, Selector, UpdateMemory
from fedcohort._archive import json_array, json_value, read_archive, write_archive
from fedcohort.errors import FedcohortError

KIND = "test 3"


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {"a/b.c": np.array("text"), "none": np.empty((0, 3)), "f": np.ones((2, 3), order="F")}

    write_archive(tmp_path / "file", KIND, arrays)

    found = read_archive(tmp_path / "file", KIND)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert (found[name] == array).all()


def test_a_json_value_can_be_part_of_a_state() -> None:
    value = {"names": ["Nîmes", 3, None], "rate": 0.1}

    assert json_value(json_array(value)) == value


def test_arrays_with_objects_are_neither_written_nor_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        write_archive(tmp_path / "file", KIND, {"a": np.array([object()])})
    assert files_in(tmp_path) == []


def test_only_the_owner_may_read_an_archive(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_archive(tmp_path / "file", KIND, {})
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("test 4", "its version is 3; this fedcohort reads 4"),
        ("selector 3", "it is the state of a test, not of a selector"),
    ],
)
def test_an_archive_of_another_kind_or_version_is_refused(
    kind: str, reason: str, tmp_path: Path
) -> None:
    write_archive(tmp_path / "file", KIND, {"a": np.zeros(2)})

    with pytest.raises(ValueError, match=f"^{reason}$"):
        read_archive(tmp_path / "file", kind)


def test_a_selector_and_a_memory_do_not_load_each_other(tmp_path: Path) -> None:
    memory, selector = tmp_path / "memory", tmp_path / "selector"
    UpdateMemory(2, 3).save(memory)
    Selector(Multinomial(1), [1, 2], seed=0, estimator=Difference()).save(selector)

    with pytest.raises(FedcohortError, match=r"\(it is the state of a selector, not of a memory"):
        UpdateMemory.load(selector)
    with pytest.raises(FedcohortError, match=r"\(it is the state of a memory of updates, not of"):
        Selector.load(memory)


def test_a_folder_is_not_an_archive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^is a directory$"):
        read_archive(tmp_path, KIND)
