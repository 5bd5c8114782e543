"""The interface for progress reports of long work."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Shows the progress of a piece of work."""

    def __call__(
        self, what: str, total: int, unit: str = "records", /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a piece of work called ``what``, of ``total`` records or another unit.

        The context returns a function that is called with the number of finished units.
        """


@contextlib.contextmanager
def silent(_what: str, _total: int, _unit: str = "records", /) -> Iterator[Callable[[int], None]]:
    """Show nothing."""
    yield lambda _done: None


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
