"""Text as numbers: characters and words, sequences to predict, and Shakespeare's roles."""

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedcohort._arguments import TextNeed, as_array, brief
from fedcohort.errors import DataError

#: The characters with a number of their own, from 1. 0 is any other character, and padding.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
#: Numbers of characters, for a model's embedding and its outputs.
N_CHARACTERS = len(CHARACTERS) + 1
#: The number of each character of Latin-1.
_NUMBERS = np.zeros(256, dtype=np.uint8)
_NUMBERS[[ord(each) for each in CHARACTERS]] = np.arange(1, N_CHARACTERS)
TEXT = TextNeed(way_out="Pass a string.")
#: A label that losses and metrics ignore.
IGNORED = -1
#: Characters of a sequence of Shakespeare's, and the share of a role's last sequences for testing.
LENGTH, TEST_EVERY = 80, 5
#: A word of a text, or a mark.
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")
#: Words without a number of their own are 1; 0 is padding.
UNKNOWN = 1


def encode_text(text: str) -> NDArray[np.uint8]:
    r"""Return the numbers of a text's characters: 1 to 96, and 0 for any outside of ASCII.

    Examples
    --------
    >>> encode_text("Who's\n")
    array([57, 74, 81,  9, 85,  1], dtype=uint8)
    """
    TEXT.check("encode_text", "text", text, DataError)
    # Each character beyond Latin-1 becomes one byte, whose number is 0.
    latin = "".join(each if ord(each) < 256 else "\x00" for each in text)
    return _NUMBERS[np.frombuffer(latin.encode("latin-1"), dtype=np.uint8)]


def decode_text(numbers: ArrayLike) -> str:
    """Return the text of these numbers; 0 becomes a question mark in a diamond.

    Examples
    --------
    >>> decode_text(encode_text("To be, or not"))
    'To be, or not'
    """
    found = as_array(numbers)
    is_known = found.dtype.kind in "iu" and found.size and 0 <= found.min() <= found.max()
    if found.size and not (is_known and found.max() < N_CHARACTERS):
        raise DataError(
            f"decode_text: numbers must be whole and from 0 to {N_CHARACTERS - 1}; got "
            f"{brief(numbers)}. Pass what encode_text returned."
        )
    letters = "\ufffd" + CHARACTERS
    return "".join(letters[number] for number in found.ravel().tolist())


def next_characters(text: str, length: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Divide a text into sequences, and label each character with the next one.

    Both arrays have shape (sequences, length). The last sequence is filled up with 0, labelled -1.

    Examples
    --------
    >>> x, y = next_characters("abcde", 3)
    >>> [decode_text(row[row > 0]) for row in x], y[1].tolist()
    (['abc', 'd'], [71, -1, -1])
    """
    numbers = encode_text(text)
    n_labels = max(len(numbers) - 1, 0)
    n_sequences = -(-n_labels // length)
    x = np.zeros(n_sequences * length, dtype=np.uint8)
    y = np.full(n_sequences * length, IGNORED, dtype=np.int64)
    x[:n_labels], y[:n_labels] = numbers[:-1], numbers[1:]
    return x.reshape(-1, length), y.reshape(-1, length)


def characters_of(texts: Sequence[str], length: int) -> NDArray[np.uint8]:
    """Return the last characters of every text, shape (texts, length), with 0 before short ones."""
    x = np.zeros((len(texts), length), dtype=np.uint8)
    for row, text in zip(x, texts, strict=True):
        last = encode_text(text[-length:])
        row[length - len(last) :] = last
    return x


def vocabulary(texts: Iterable[str], n_words: int) -> dict[str, int]:
    """Return the most frequent words of some texts, with their numbers from 2."""
    times = Counter(word for text in texts for word in WORD.findall(text.lower()))
    # Ties by the word itself, so that the order of the texts does not matter.
    most = sorted(times, key=lambda word: (-times[word], word))[:n_words]
    return {word: number for number, word in enumerate(most, start=UNKNOWN + 1)}


def words_of(texts: Sequence[str], known: Mapping[str, int], length: int) -> NDArray[np.int64]:
    """Return the first words of every text, shape (texts, length), with 0 after short ones."""
    x = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(x, texts, strict=True):
        first = [known.get(word, UNKNOWN) for word in WORD.findall(text.lower())[:length]]
        row[: len(first)] = first
    return x


@cache
def shakespeare_roles() -> Mapping[str, str]:
    """Return what each role says, by ``play/ROLE``."""
    packed = files("fedcohort.simulation.data").joinpath("shakespeare.json.xz").read_bytes()
    found: dict[str, str] = json.loads(lzma.decompress(packed))
    return found
