"""Lists of running brokers, in pages that begin where the one before ended.

The last rows of a list are kept here, so that a page can be requested again.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

from cli.logs.broker_client import Refused
from cli.web.broker_lists import BrokerList, OpenLists
from cli.web.web_log_client import WebLogClient
from eventstore.errors import NotFound

_MAX_LISTS: Final = 64
_LONGEST_NUMBER: Final = 18
_KEPT: Final = 2000
"""Rows of a list that are kept."""


class ListExpired(NotFound):
    """A list is no longer known: it was begun too long ago."""

    def __init__(self) -> None:
        super().__init__("this list has expired: request it again, without next")


def row_number(text: str) -> int | None:
    """Return the number of a row in a place; None for other text."""
    is_number = len(text) <= _LONGEST_NUMBER and text.isascii() and text.isdigit()
    return int(text) if is_number else None


class LiveLists:
    """The lists that were begun."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._lists = OpenLists[BrokerList](_MAX_LISTS)

    async def parts(
        self,
        endpoint: str,
        selection: dict[str, Any],
        start: str | None,
        log: str | None,
        *,
        of_all: bool = False,
    ) -> AsyncIterator[list[tuple[dict[str, Any], str]]]:
        """Yield the rows of a list in parts, each with the place where the list continues.

        ``start`` is such a place, None: at the beginning. ``of_all``: the list has the rows of all
        logs, else every log has all of them. Raises ListExpired, NoLiveBroker and Refused.
        """
        key = endpoint, sorted(selection.items(), key=str), log
        name, _, number = (start or ".0").rpartition(".")
        count, broker_list = row_number(number), self._lists.find(name, key)
        if start is None:
            broker_list = BrokerList(key)
            broker_list.begin(await self._first_rows(endpoint, selection, log, of_all=of_all))
        if broker_list is None or count is None:
            raise ListExpired
        self._lists.keep(broker_list)
        while True:
            async with broker_list.lock:
                if count < broker_list.first:
                    raise ListExpired
                if count >= broker_list.first + len(broker_list.rows) and not await self._fill(
                    broker_list
                ):
                    return
                rows = broker_list.rows[count - broker_list.first :]
            yield [(row, f"{broker_list.name}.{at}") for at, row in enumerate(rows, count + 1)]
            count += len(rows)

    async def _first_rows(
        self, endpoint: str, selection: dict[str, Any], log: str | None, *, of_all: bool
    ) -> list[tuple[str, dict[str, Any]]]:
        link = self._link
        if log and link.names:
            return [(log, await link.ask_log(log, endpoint, **selection))]
        if of_all:
            return await link.ask_each(endpoint, **selection)
        return [await link.ask_any(endpoint, **selection)]

    async def _fill(self, held: BrokerList) -> bool:
        """Request more rows; return False if there are none."""
        spare = len(held.rows) - _KEPT
        try:
            more = await held.read_on(self._link)
        except Refused:
            raise ListExpired from None
        if more and spare > 0:
            del held.rows[:spare]
            held.first += spare
        return more
