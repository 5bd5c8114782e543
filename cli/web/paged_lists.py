"""Paged lists of the broker that stay the same when a page is requested again.

Their rows are cached here for a while, so that a browser can go back and reload.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.logs.broker_client import NoLiveBroker, Refused
from cli.web.broker_lists import BrokerList, OpenLists
from cli.web.web_log_client import WebLogClient
from eventstore.display import clock

PAGE_ROWS = 100
_MAX_ROWS = 10_000
"""Maximum number of cached rows of a list."""
_MAX_LISTS = 8
_TOPS = (500, 50, 5, 1)
"""Numbers of highest rows to request at once, fewer if names are long."""
_IN_EVERY_LOG = frozenset({"retained"})
"""Lists of what every log has: that of one is shown."""
MAX_SORTED = 5_000
"""Maximum number of rows sorted here, where the broker does not sort."""


@dataclass(frozen=True, slots=True)
class Order:
    """A sort key of the page, not of the broker."""

    name: str
    key: Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of a list."""

    rows: list[dict[str, Any]]
    about: dict[str, Any]
    """The broker's data about the whole list."""
    first: int
    """Number of the first row, from 1."""
    page: int
    more: bool
    """Whether there is a next page."""
    id: str | None
    """Name of the list in requests for other pages; None: there are none."""
    as_of: str
    order: str | None
    """The sort key applied by the page, or None."""
    problem: str | None


@dataclass(slots=True)
class _PagedList(BrokerList):
    """A list, as the page shows it."""

    about: dict[str, Any] = field(default_factory=dict)
    """The broker's data about the whole list."""
    as_of: str = field(default_factory=lambda: clock(round(time.time() * 1000)))
    order: str | None = None


class Listings:
    """The cached lists."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._lists = OpenLists[_PagedList](_MAX_LISTS)

    async def find(
        self,
        endpoint: str,
        selection: dict[str, Any],
        order: Order | str | None,
        name: str | None,
        page: int,
    ) -> Listed:
        """Return a page of a list of the broker; ``name`` is that of the list, None: a new one.

        With a figure as ``order``, these are the rows with the highest values. Other lists are
        sorted here if they are not too long. Raises NoLiveBroker and Refused.
        """
        named = order.name if isinstance(order, Order) else order
        key = (endpoint, sorted(selection.items(), key=str), named)
        broker_list = self._lists.find(name or "", key)
        problem = None
        if broker_list is None:
            if name is not None:
                problem = "The previous list has expired; this is a new one."
            broker_list, name, page = await self._begin(key, endpoint, selection, order), None, 0
        if not await self._fill(broker_list, (page + 1) * PAGE_ROWS + 1):
            problem = "This list has expired on the broker: start again."
        start = page * PAGE_ROWS
        more = len(broker_list.rows) > start + PAGE_ROWS
        if len(broker_list.rows) >= _MAX_ROWS and not more:
            problem = f"Only the first {_MAX_ROWS:,} rows are shown: narrow the search."
        if isinstance(order, Order) and broker_list.order is None and problem is None:
            problem = (
                f"Only lists of up to {MAX_SORTED:,} rows can be sorted: search for a part of "
                "the name."
            )
        kept = more or name is not None
        if kept:
            self._lists.keep(broker_list)
        return Listed(
            broker_list.rows[start : start + PAGE_ROWS],
            broker_list.about,
            start + 1,
            page,
            more,
            broker_list.name if kept else None,
            broker_list.as_of,
            broker_list.order,
            problem,
        )

    async def _begin(
        self, key: object, endpoint: str, selection: dict[str, Any], order: Order | str | None
    ) -> _PagedList:
        link, rows = self._link, None
        if isinstance(order, str):
            rows, answers = await link.ask_highest(endpoint, _TOPS, order, selection)
        elif endpoint in _IN_EVERY_LOG:
            answers = [await link.ask_any(endpoint, **selection)]
        else:
            answers = await link.ask_each(endpoint, **selection)
        held = _PagedList(key, about=_about_all(answers))
        held.begin(answers)
        if rows is not None:
            held.rows = rows
        elif isinstance(order, Order):
            await self._put_in_order(held, selection, order)
        return held

    async def _put_in_order(
        self, held: _PagedList, selection: dict[str, Any], order: Order
    ) -> None:
        """Read and sort a complete list, unless it is too long."""
        if not selection and held.about.get("total", 0) > MAX_SORTED:
            return  # a partial list cannot be sorted
        if await self._fill(held, MAX_SORTED) and not held.cursors:
            held.rows.sort(key=order.key)
            held.order = order.name

    async def _fill(self, held: _PagedList, count: int) -> bool:
        """Load rows up to a number; return False if the list has expired on the broker."""
        while len(held.rows) < min(count, _MAX_ROWS) and held.cursors:
            log = held.cursors[0][0]
            try:
                await held.read_on(self._link)
            except (Refused, NoLiveBroker) as error:
                if isinstance(error, NoLiveBroker) and not log:
                    raise
                held.cursors.clear()
                return False
        return True


def _about_all(answers: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the brokers' data about whole lists; numbers of rows are added up."""
    whole: dict[str, Any] = {}
    for log, answer in answers:
        about = {key: value for key, value in answer.items() if key not in ("rows", "cursor")}
        if about.get("retained") is not None:  # every log has it
            about["retained"] = {**about["retained"], "log": log}
        total = whole.get("total", 0) + about.get("total", 0)
        whole |= {key: value for key, value in about.items() if whole.get(key) is None}
        if "total" in about:
            whole["total"] = total
    return whole
