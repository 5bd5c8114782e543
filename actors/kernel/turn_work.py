"""Long work of a turn, done in steps between which the turn may be split."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from actors.kernel.actor import LoopActor

_STEP = object()
_AT_ONCE = 64


class TurnWork(LoopActor):
    """Does work in the turn in which it was begun, one piece of work after the other.

    ``failed`` is called with the error of work that fails: half-finished work must not continue.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self._failed = failed
        self._pieces: deque[Iterator[object]] = deque()
        self.at_once = _AT_ONCE
        """Number of receivers that a step serves; the kernel reads the clock after a few steps."""

    @property
    def pending(self) -> bool:
        """Whether work is left. Work that must not overtake it must be added with ``begin``."""
        return bool(self._pieces)

    def begin(self, work: Iterator[object]) -> None:
        """Add work, an iterator that does one step for each item."""
        if not self._pieces:
            self.kernel.tell(self, _STEP)
        self._pieces.append(work)

    def on_receive(self, _message: Any) -> None:
        """Do a step."""
        try:
            next(self._pieces[0])
        except StopIteration:
            self._pieces.popleft()
        except Exception as error:  # noqa: BLE001 - whatever it is, the turn cannot be completed
            self._pieces.popleft()
            self._failed(error)
        if self._pieces:
            self.kernel.tell(self, _STEP)
