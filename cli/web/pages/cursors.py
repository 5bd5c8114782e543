"""Lists of the broker, a page at a time: a page that is asked for again is the same.

The broker gives a list once, from its beginning to its end. What it gave is kept here for a
while, so that one can turn pages back and load one again.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.common import clock
from cli.live import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from cli.web.live import LogLink

PAGE_ROWS = 100
_MOST_ROWS = 10_000
"""Rows of a list that are kept; who looks for more looks for something better put in words."""
_MOST_LISTS = 8
_TOPS = (500, 50, 5, 1)
"""How many of the highest are asked for at once, if names are long."""
MOST_SORTED = 5_000
"""Rows that are read to put them in order: the broker has them in none."""


@dataclass(frozen=True, slots=True)
class Order:
    """An order that the page makes, not the broker."""

    name: str
    key: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of a list."""

    rows: list[dict[str, Any]]
    about: dict[str, Any]
    """What the broker says of the whole list."""
    first: int
    """Number of the first row, from 1."""
    page: int
    more: bool
    """There is a next page."""
    id: str | None
    """By which the other pages are asked for; None: there are none."""
    as_of: str
    order: str | None
    """The order that the page made; None: it made none."""
    problem: str | None


@dataclass(slots=True)
class _HeldCursor:
    key: object
    about: dict[str, Any]
    rows: list[dict[str, Any]]
    cursor: str | None
    as_of: str
    order: str | None = None


class Listings:
    """Lists that pages show; the least recently used are forgotten."""

    def __init__(self, link: LogLink) -> None:
        self._link = link
        self._held: OrderedDict[str, _HeldCursor] = OrderedDict()

    async def find(
        self,
        endpoint: str,
        wanted: dict[str, Any],
        order: Order | str | None,
        given: str | None,
        page: int,
    ) -> Listed:
        """Return a page of what the broker lists; ``given`` names the list, None: a new one.

        With the name of a figure as ``order`` it is the highest ones by that. Other lists are put
        into their order if they are not too long. Raises NoLiveBroker and Refused.
        """
        named = order.name if isinstance(order, Order) else order
        key = (endpoint, sorted(wanted.items(), key=str), named)
        held = self._held.get(given or "")
        problem = None
        if held is None or held.key != key:
            if given is not None:
                problem = "The list that was shown here is forgotten; this is a new one."
            held, given, page = await self._begin(key, endpoint, wanted, order), None, 0
        if not await self._fill(held, (page + 1) * PAGE_ROWS + 1):
            problem = "The broker has forgotten how this list goes on: begin again."
        start = page * PAGE_ROWS
        more = len(held.rows) > start + PAGE_ROWS
        if len(held.rows) >= _MOST_ROWS and not more:
            problem = f"No more than {_MOST_ROWS:,} rows are shown: look for something narrower."
        if isinstance(order, Order) and held.order is None and problem is None:
            problem = (
                f"No more than {MOST_SORTED:,} are put in order, and there are more: look for a "
                "part of the name."
            )
        if more and given is None:
            given = secrets.token_urlsafe(9)
        if given is not None:
            self._keep(given, held)
        rows = held.rows[start : start + PAGE_ROWS]
        return Listed(
            rows, held.about, start + 1, page, more, given, held.as_of, held.order, problem
        )

    async def _begin(
        self, key: object, endpoint: str, wanted: dict[str, Any], order: Order | str | None
    ) -> _HeldCursor:
        if isinstance(order, str):
            answer, _ = await self._link.ask_less(
                endpoint, _TOPS, lambda count: {**wanted, "top": {"by": order, "count": count}}
            )
        else:
            answer = await self._link.ask(endpoint, **wanted)
        rows, cursor = answer.pop("rows"), answer.pop("cursor")
        held = _HeldCursor(key, answer, rows, cursor, clock(round(time.time() * 1000)))
        if isinstance(order, Order):
            await self._put_in_order(held, wanted, order)
        return held

    async def _put_in_order(self, held: _HeldCursor, wanted: dict[str, Any], order: Order) -> None:
        """Read all of a list and sort it, unless it is too long for that."""
        if not wanted and held.about.get("total", 0) > MOST_SORTED:
            return  # reading the first ones would not help
        if await self._fill(held, MOST_SORTED) and held.cursor is None:
            held.rows.sort(key=order.key)
            held.order = order.name

    async def _fill(self, held: _HeldCursor, count: int) -> bool:
        """Load rows up to a number; return False if the broker has forgotten the list."""
        while len(held.rows) < min(count, _MOST_ROWS) and held.cursor is not None:
            cursor, held.cursor = held.cursor, None
            try:
                answer = await self._link.ask("page", cursor=cursor)
            except Refused:
                return False
            held.rows += answer["rows"]
            held.cursor = answer["cursor"]
        return True

    def _keep(self, key: str, held: _HeldCursor) -> None:
        self._held[key] = held
        self._held.move_to_end(key)
        while len(self._held) > _MOST_LISTS:
            self._held.popitem(last=False)
