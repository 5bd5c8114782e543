"""Fewer garbage collections during bulk reads."""

import contextlib
import gc
from collections.abc import Iterator

_YOUNG = 50_000


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage less often.

    Reading a log creates many small, short-lived objects that form no cycles: the search for cycles
    among them takes a sixth of the time and finds none.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
