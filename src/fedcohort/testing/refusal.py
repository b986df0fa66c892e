"""Demanding that something is refused, with one sentence that says what is needed."""

import re
from collections.abc import Callable

from fedcohort.testing.candidate import Candidate


def refuses(c: Candidate, kind: type[Exception], sentence: str, act: Callable[[], object]) -> None:
    """Demand an error of this kind whose message matches ``sentence``."""
    try:
        act()
    except kind as error:
        c.demand(
            re.search(sentence, str(error)) is not None,
            f"the error must say {sentence!r}; it says {str(error)!r}. Let the base class check.",
        )
    except Exception as error:
        c.demand(
            False,
            f"must raise {kind.__name__} ({sentence!r}); raised {type(error).__name__}: {error}.",
        )
    else:
        c.demand(False, f"must raise {kind.__name__} ({sentence!r}); raised nothing. Refuse it so.")
