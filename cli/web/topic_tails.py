"""The latest messages on the topics of a filter, from a trace that runs while a page shows them."""

import asyncio
import contextlib
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final

from cli.logs.broker_client import NoLiveBroker
from cli.logs.topic_flags import check_filter
from cli.web.web_log_client import WebLogClient
from eventstore.errors import UsageError
from eventstore.format.events import LOG_SESSION
from protocol.errors import FoldmqError

MAX_TAILS: Final = 4
MAX_LINES: Final = 100
_RATE: Final = 100
"""Maximum lines per second from the broker."""
_TIMEOUT: Final = 10.0
"""Seconds after the last request until a trace ends."""
_FIRST: Final = 2.0
"""Seconds that the first request waits for the trace."""


@dataclass(slots=True)
class TopicTail:
    """The latest messages, newest first."""

    lines: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    skipped: int = 0
    """Lines that the broker skipped above the rate."""
    max_wait: asyncio.Timeout | None = None
    """Ends the trace after some time without a request."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class TopicTails:
    """Tails by filter, a few at a time."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._held: OrderedDict[str, TopicTail] = OrderedDict()

    async def find(self, topic_filter: str) -> TopicTail:
        """Return the tail of a filter; it begins with the first request.

        Raises UsageError if it is no filter or too many are open, Refused if the broker refuses it,
        NoLiveBroker.
        """
        check_filter(topic_filter)
        held = self._held.get(topic_filter)
        if held is None:
            if len(self._held) >= MAX_TAILS:
                raise UsageError(
                    f"{MAX_TAILS} live tails are open: close one, it ends after {_TIMEOUT:.0f} s"
                )
            held = self._held[topic_filter] = TopicTail()
            held.task = asyncio.create_task(self._follow(topic_filter, held), name="live tail")
        elif held.max_wait is not None and not held.max_wait.expired():
            held.max_wait.reschedule(asyncio.get_running_loop().time() + _TIMEOUT)
        if not held.begun.is_set() and held.task is not None:
            begun = asyncio.create_task(held.begun.wait())
            await asyncio.wait({begun, held.task}, timeout=_FIRST, return_when="FIRST_COMPLETED")
            begun.cancel()
        if held.task is not None and held.task.done():
            held.task.result()
        return held

    async def close(self) -> None:
        """End all traces."""
        tasks = [held.task for held in self._held.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, FoldmqError):
                await task

    async def _follow(self, topic_filter: str, held: TopicTail) -> None:
        try:
            async with self._link.trace(topic=topic_filter, rate=_RATE) as trace:
                held.begun.set()
                async with asyncio.timeout(_TIMEOUT) as held.max_wait:
                    async for portion in trace.portions():
                        held.skipped += portion.skipped
                        for line in filter(None, map(_message, portion.lines)):
                            held.lines.appendleft({"log": "", **line})
        except NoLiveBroker:
            if not held.begun.is_set():
                raise
            # The next request begins a new trace.
        except TimeoutError:
            pass  # no page shows it any longer
        finally:
            self._held.pop(topic_filter, None)


def _message(line: dict[str, Any]) -> dict[str, Any] | None:
    """Return a message as a line with its ``packet``, in the log where a client published it.

    The trace has an event for a message that is recorded, and a packet for another.
    """
    event = line.get("event")
    if isinstance(event, dict) and event.get("type") == "MessagePublished":
        (message,) = event["messages"]
        packet = {"qos": event["qos"], "retain": event["retain"], **message}
        line = {**line, "client": event["session"], "packet": packet, "will": event["will"]}
    elif line.get("kind") != "publish" or "packet" not in line:
        return None
    return None if str(line.get("client")).startswith(LOG_SESSION) else line
