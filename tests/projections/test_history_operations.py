"""The operations history and last of the API: pages and streams that lose and repeat nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from handmadelogs import HandMade, publish
from indexedlogs import as_log

from cli.web.api.message_answers import HistoryParams, LastParams, history, last
from cli.web.api.operation import Call, Item, StreamMark
from cli.web.web_log_client import WebLogClient
from eventstore.errors import UsageError
from eventstore.reading.log_source import LogSource

TOPICS = ["b", "a", "c/d", "a", "b", "e,f", "a", "c/d"]


class Growing(HandMade):
    """A log of which first only some records are there."""

    def __init__(self, there: int, first: int = 1) -> None:
        super().__init__([publish(b"%d" % n, topic=topic) for n, topic in enumerate(TOPICS)], first)
        self.last = there

    async def bounds(self) -> tuple[int, int]:
        return self.first, self.last


class Link:
    """A connection to brokers with some logs."""

    def __init__(self, **logs: HandMade) -> None:
        self.held = logs if len(logs) > 1 else {"": next(iter(logs.values()))}

    async def logs(self) -> list[str]:
        return [*self.held]

    @contextlib.asynccontextmanager
    async def log(self, name: str) -> AsyncIterator[LogSource]:
        yield as_log(self.held[name])

    sources = WebLogClient.sources


def call_of(link: Link, start: str | None = None) -> Call:
    return Call(cast("Any", link), cast("Any", SimpleNamespace()), payloads=True, start=start)


async def pages(operation: Any, link: Link, size: int, **given: Any) -> list[str]:
    """Return the payloads of all items, in pages of some size."""
    kind = LastParams if operation is last else HistoryParams
    params = kind.model_validate({"limit": size, **given})
    found, place = list[str](), None
    while True:
        count = 0
        async for item in operation(call_of(link, place), params):
            if not isinstance(item, Item):
                continue
            if count == size:
                break
            found.append(item.value["payload"])
            place, count = item.place, count + 1
        else:
            return found


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_pages_have_each_message_once(size: int) -> None:
    link = Link(only=Growing(8))
    everything = [str(n) for n in range(8)]
    for given, expected in (
        ({}, everything),
        ({"order": "newest"}, everything[::-1]),
        ({"filter": "a"}, ["1", "3", "6"]),
        ({"from": "3"}, everything[3:]),
        ({"to": "@4"}, everything[:4]),
        ({"from": "last"}, ["6", "4", "7", "5"]),
        ({"from": "last", "to": "4"}, ["3", "0", "2"]),
    ):
        assert await pages(history, link, size, **given) == expected, given
    assert await pages(last, link, size) == ["6", "4", "7", "5"]


@pytest.mark.parametrize("order", ["oldest", "newest"])
@pytest.mark.parametrize("size", [1, 2, 100])
async def test_pages_of_several_logs(size: int, order: str) -> None:
    link = Link(p0=Growing(8), p1=Growing(5))
    found = await pages(history, link, size, order=order)
    expected = sorted([*range(8), *range(5)], reverse=order == "newest")
    assert [*map(int, found)] == expected


async def followed(link: Link, start: str | None, count: int, **given: Any) -> list[Any]:
    """Return the first entries of a stream; the log grows when all was read."""
    params = HistoryParams.model_validate({"follow": True, **given})
    found: list[Any] = []
    entries = history(call_of(link, start), params)
    async with asyncio.timeout(60):
        async for entry in entries:
            found.append(entry)
            if isinstance(entry, StreamMark) and entry.event == "live":
                next(iter(link.held.values())).last = 8
            if len(found) == count:
                break
    await cast("Any", entries).aclose()
    return found


def shown(entries: list[Any]) -> list[str]:
    return [one.value["payload"] if isinstance(one, Item) else one.event for one in entries]


@pytest.mark.parametrize("given", [{"from": "all"}, {"from": "last"}, {"from": "new"}])
async def test_a_stream_goes_on_where_it_was_interrupted(given: dict[str, str]) -> None:
    beginning, total = {
        "all": (["0", "1", "2", "3"], 9),
        "last": (["3", "0", "2"], 8),
        "new": ([], 5),
    }[given["from"]]

    whole = await followed(Link(only=Growing(4)), None, total, **given)
    assert shown(whole) == [*beginning, "live", "4", "5", "6", "7"]
    for number, entry in enumerate(whole):
        if isinstance(entry, Item):
            rest = [one for one in whole[number + 1 :] if isinstance(one, Item)]
            if rest:
                link = Link(only=Growing(8))
                again = await followed(link, entry.place, len(rest), **given)
                assert shown(again) == shown(rest)


async def test_what_was_deleted_is_said() -> None:
    link = Link(only=Growing(8, first=4))
    (gap, *_) = await followed(link, None, 2, **{"from": "@1"})
    assert gap == StreamMark("gap", {"first": "4.0"})
    (gap, first) = await followed(link, "2.0", 2)
    assert (gap, first.value["position"]) == (StreamMark("gap", {"first": "4.0"}), "4.0")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"from": "x"}, "from: not a moment"),
        ({"to": "new"}, "to: not a moment"),
        ({"from": "@5", "to": "@4"}, "from: is later than to"),
        ({"filter": "a/#/b"}, "is not a whole level"),
        ({"follow": True, "to": "@4"}, "follow: cannot be combined"),
        ({"follow": True, "order": "newest"}, "follow: cannot be combined"),
    ],
)
async def test_refused_parameters(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        await pages(history, Link(only=Growing(8)), 9, **given)
