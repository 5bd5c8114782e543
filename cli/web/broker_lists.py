"""Lists of running brokers, read a part at a time.

A broker sends a list once, from beginning to end. With several logs, a list has the rows of all;
each row names its ``log``.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cli.web.web_log_client import WebLogClient

_List = TypeVar("_List", bound="BrokerList")


@dataclass(slots=True)
class BrokerList:
    """A list that was begun; its key is what was asked for."""

    key: object
    name: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    rows: list[dict[str, Any]] = field(default_factory=list)
    cursors: list[tuple[str, str]] = field(default_factory=list)
    """The logs that have more rows, with the cursors of their lists."""
    first: int = 0
    """Number of the first row that is kept."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def begin(self, answers: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Take the first rows of each log."""
        for log, answer in answers:
            self.rows += [{**row, "log": log} for row in answer["rows"]]
            if answer["cursor"] is not None:
                self.cursors.append((log, answer["cursor"]))

    async def read_on(self, link: WebLogClient) -> bool:
        """Request more rows; return False if there are none.

        Raises Refused if the list has expired on the broker, and NoLiveBroker.
        """
        while self.cursors:
            log, cursor = self.cursors.pop(0)
            answer = await link.ask_log(log, "page", cursor=cursor)
            if answer["cursor"] is not None:
                self.cursors.insert(0, (log, answer["cursor"]))
            self.rows += [{**row, "log": log} for row in answer["rows"]]
            if answer["rows"]:
                return True
        return False


class OpenLists(Generic[_List]):
    """Lists by name; the least recently used are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[str, _List] = OrderedDict()

    def find(self, name: str, key: object) -> _List | None:
        """Return a list; None if it is no longer known, or another one."""
        held = self._held.get(name)
        return held if held is not None and held.key == key else None

    def keep(self, held: _List) -> None:
        """Keep a list that is used."""
        self._held[held.name] = held
        self._held.move_to_end(held.name)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
