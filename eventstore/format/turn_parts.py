"""Turns put together again from the parts in which records hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.format import Record


class TurnAssembler:
    """Holds the parts of a turn back until its last one is there.

    A reader that begins in the middle of a log passes ``anywhere``: parts whose first one lies
    before its beginning then count as complete.
    """

    def __init__(self, *, anywhere: bool = False) -> None:
        self._held: list[Record] = []
        self._anywhere = anywhere

    def take(self, record: Record) -> tuple[list[Record], list[Record]]:
        """Take the next record; return (parts that are void, parts of a turn that is complete)."""
        void: list[Record] = []
        if record.part == 0 and self._held:
            void, self._held = self._held, []
        self._held.append(record)
        if not record.last:
            return void, []
        complete, self._held = self._held, []
        if complete[0].part and not self._anywhere:
            return [*void, *complete], []
        self._anywhere = False
        return void, complete

    def rest(self) -> list[Record]:
        """Return the parts of the turn that is not complete yet."""
        return self._held
