"""What clients claim to have, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

log = getLogger("flwr.fedcohort")

#: Where nothing else is asked for and so many clients have samples, a client's own word counts up
#: to this share of all samples.
MANY, LARGEST_SHARE = 10, 0.5
#: With fewer clients a share beyond this is worth a warning.
ALARMING_SHARE = 0.9


@final
@dataclass(frozen=True, slots=True)
class Claims:
    """Sizes that are not to be trusted yet.

    Attributes
    ----------
    keys, sizes
        The clients, and how many samples each is said to have.
    is_own_word
        Whether the client says so itself; else the server knows.
    """

    keys: Sequence[str]
    sizes: Sequence[int]
    is_own_word: Sequence[bool]

    def bounded(self, *, max_size: int | None, max_share: float | None) -> NDArray[np.int64]:
        """Return the sizes that count, and log whom a bound concerns.

        Explicit bounds hold for everybody; where ``max_share`` is None, clients' own word is
        bounded by half of all samples if ten clients or more have samples.
        """
        claimed = np.array(self.sizes, dtype=object)  # a sum of claims must not wrap around
        sizes = claimed if max_size is None else np.minimum(claimed, max_size)
        sizes = self._believed(sizes) if max_share is None else cut_to_share(sizes, max_share)
        for place in np.flatnonzero(sizes < claimed).tolist():
            log.warning(
                "client %r claims %d samples; it counts as %d",
                self.keys[place],
                claimed[place],
                sizes[place],
            )
        return sizes.astype(np.int64)

    def _believed(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """Bound what clients say of themselves where there are many; elsewhere only warn."""
        own_word = np.array(self.is_own_word, dtype=bool)
        n_positive, total = np.count_nonzero(sizes), int(sizes.sum())
        if n_positive >= MANY:
            return np.where(own_word, cut_to_share(sizes, LARGEST_SHARE, own_word), sizes)
        for place in np.flatnonzero(own_word & (sizes > ALARMING_SHARE * total)).tolist():
            if n_positive > 1:
                log.warning(
                    "client %r claims %d of all %d samples: it will be drawn nearly always. Bound "
                    "max_share if that cannot be",
                    self.keys[place],
                    sizes[place],
                    total,
                )
        return sizes


def cut_to_share(
    sizes: NDArray[Any], share: float, is_bounded: NDArray[np.bool_] | bool = True
) -> NDArray[Any]:
    """Cut sizes at the largest number that is at most ``share`` of what they then sum to.

    Where so few clients cannot have so small a share, all count the same. Sizes that are not
    bounded count in the sum as they are.
    """
    low, high = 0, int(sizes.max(initial=0))
    if high <= share * int(sizes.sum()):
        return sizes
    while low < high:
        middle = (low + high + 1) // 2
        total = int(np.where(is_bounded, np.minimum(sizes, middle), sizes).sum())
        low, high = (middle, high) if middle <= share * total else (low, middle - 1)
    return np.asarray(np.minimum(sizes, max(low, 1)))
