"""Assembly of turns from the parts in several records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventstore.format.records import Record


class TurnAssembler:
    """Holds the parts of a turn back until the last one is read.

    A reader that begins in the middle of a log passes ``anywhere``: a turn whose first part is
    before the reader's beginning then counts as complete.
    """

    def __init__(self, *, anywhere: bool = False) -> None:
        self._held: list[Record] = []
        self._anywhere = anywhere

    def take(self, record: Record) -> tuple[list[Record], list[Record]]:
        """Process the next record; return (void parts, parts of a complete turn)."""
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
        """Return the parts of the incomplete turn."""
        return self._held
