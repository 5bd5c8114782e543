"""Lists of running brokers, in pages that begin where the one before ended.

A broker sends a list once, from beginning to end. The last rows of a list are kept here, so that a
page can be requested again.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from cli.logs.broker_client import Refused
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


@dataclass(slots=True)
class _OpenList:
    key: object
    name: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    rows: list[dict[str, Any]] = field(default_factory=list)
    first: int = 0
    """Number of the first row that is kept."""
    cursors: list[tuple[str, str]] = field(default_factory=list)
    """The logs that have more rows, with the cursors of their lists."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LiveLists:
    """The lists that were begun; the least recently used are dropped."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._open: OrderedDict[str, _OpenList] = OrderedDict()

    async def parts(
        self,
        endpoint: str,
        wanted: dict[str, Any],
        start: str | None,
        log: str | None,
        *,
        of_all: bool = False,
    ) -> AsyncIterator[list[tuple[dict[str, Any], str]]]:
        """Yield the rows of a list in parts, each with the place where the list continues.

        ``start`` is such a place, None: at the beginning. ``of_all``: the list has the rows of all
        logs, else every log has all of them. Raises ListExpired, NoLiveBroker and Refused.
        """
        key = endpoint, sorted(wanted.items(), key=str), log
        if start is None:
            held, done = await self._begin(key, endpoint, wanted, log, of_all=of_all), 0
        else:
            held, done = self._at(key, start)
        self._open[held.name] = held
        self._open.move_to_end(held.name)
        while len(self._open) > _MAX_LISTS:
            self._open.popitem(last=False)
        while True:
            async with held.lock:
                if done < held.first:
                    raise ListExpired
                if done >= held.first + len(held.rows) and not await self._fill(held):
                    return
                rows = held.rows[done - held.first :]
            yield [(row, f"{held.name}.{done + at}") for at, row in enumerate(rows, 1)]
            done += len(rows)

    def _at(self, key: object, start: str) -> tuple[_OpenList, int]:
        name, _, number = start.rpartition(".")
        held = self._open.get(name)
        if (
            held is None
            or held.key != key
            or not (len(number) <= _LONGEST_NUMBER and number.isascii() and number.isdigit())
        ):
            raise ListExpired
        return held, int(number)

    async def _begin(
        self,
        key: object,
        endpoint: str,
        wanted: dict[str, Any],
        log: str | None,
        *,
        of_all: bool,
    ) -> _OpenList:
        link = self._link
        if log and link.names:
            answers = [(log, await link.ask_log(log, endpoint, **wanted))]
        elif of_all:
            answers = await link.ask_each(endpoint, **wanted)
        else:
            answers = [await link.ask_any(endpoint, **wanted)]
        held = _OpenList(key)
        for name, answer in answers:
            self._add(held, name, answer)
        return held

    async def _fill(self, held: _OpenList) -> bool:
        """Request more rows; return False if there are none."""
        while held.cursors:
            log, cursor = held.cursors.pop(0)
            try:
                answer = await self._link.ask_log(log, "page", cursor=cursor)
            except Refused:
                raise ListExpired from None
            count = len(held.rows)
            self._add(held, log, answer, front=True)
            if len(held.rows) > count:
                return True
        return False

    @staticmethod
    def _add(held: _OpenList, log: str, answer: dict[str, Any], *, front: bool = False) -> None:
        held.rows += [{**row, "log": log} for row in answer["rows"]]
        spare = len(held.rows) - len(answer["rows"]) - _KEPT
        if spare > 0:
            del held.rows[:spare]
            held.first += spare
        if answer["cursor"] is not None:
            held.cursors.insert(0 if front else len(held.cursors), (log, answer["cursor"]))
