"""The inspector: an actor that answers queries about all other actors.

Queries and answers are JSON objects, described in ``docs/nats-api.md``. Long queries run in slices
of 0.3 ms, with pauses between them while messages flow, so that a list of a hundred thousand actors
does not delay clients noticeably. Lists are returned in pages; each page is created when it is
requested.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import structlog

from actors.kernel.actor import LoopActor
from actors.session.node_context import NodeContext
from projections.state.session_table import OutstandingTotals, SessionTable
from protocol.errors import FoldmqError
from protocol.mqtt.topics import TopicError, validate_topic_name

_SHOWN = 120
_ALIKE: Final = 0.8
"""Lowest similarity, from 0 to 1, of a name that is suggested."""
_MAX_MORE: Final = 3
"""Maximum difference in length, in characters, of a suggested name."""


class Refused(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A query that cannot be answered, or a change that is refused; the text gives the reason."""


class TooLarge(Refused):
    """The answer would be too large: the caller can request fewer items."""


class NotReady(Refused):
    """The broker cannot answer completely yet: the caller can ask another broker, or later."""


def shown(name: str) -> str:
    """Return a name for use in a message: quoted, escaped, shortened."""
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")


class NameSimilarity:
    """Rates how similar other names are to one; those that nearly match can be suggested."""

    def __init__(self, name: str) -> None:
        self._name = name.casefold()
        self._matcher = SequenceMatcher(None, b=self._name, autojunk=False)

    def of(self, other: str) -> float:
        """Return the similarity, from 0 to 1; 0 unless it is high. Case does not matter."""
        if not 0 < len(other) <= _SHOWN or abs(len(other) - len(self._name)) > _MAX_MORE:
            return 0.0
        other = other.casefold()
        if other == self._name:
            return 1.0
        matcher = self._matcher
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() < _ALIKE or matcher.quick_ratio() < _ALIKE:
            return 0.0
        rate = matcher.ratio()
        return rate if rate >= _ALIKE else 0.0


def text(request: Mapping[str, Any], field: str) -> str:
    """Return a text field; raises Refused if it is not text."""
    value = request.get(field)
    if not isinstance(value, str):
        raise Refused(f"{field} must be text")
    return value


def optional(request: Mapping[str, Any], field: str) -> str | None:
    """Return an optional text field, or None."""
    return None if request.get(field) is None else text(request, field)


def flag(request: Mapping[str, Any], field: str) -> bool:
    """Return a Boolean field; False if it is missing."""
    value = request.get(field, False)
    if not isinstance(value, bool):
        raise Refused(f"{field} must be true or false")
    return value


def number(
    request: Mapping[str, Any], field: str, default: int, most: int, called: str = ""
) -> int:
    """Return a whole number from 0 to ``most``."""
    value = request.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Refused(f"{called or field} must be a whole number up to {most}")
    return value


def valid(
    request: Mapping[str, Any], field: str, validate: Callable[[str], None] = validate_topic_name
) -> str:
    """Return a text field that names a topic; ``validate`` checks it."""
    value = text(request, field)
    try:
        validate(value)
    except TopicError as error:
        raise Refused(f"{field}: {error}") from None
    return value


def actor_of(urn: str, node: NodeContext) -> LoopActor:
    """Return an actor; raises Refused if there is none."""
    actor = node.kernel.get(urn)
    if actor is None:
        raise Refused(f"no actor {shown(urn)}")
    return actor


_log = structlog.get_logger("foldmq")

Answer: TypeAlias = "dict[str, Any]"
Work: TypeAlias = "Generator[asyncio.Future[Any] | None, None, Answer | Listing]"
"""Creates an answer; yields where it can be interrupted, or a future to wait for."""
Handler: TypeAlias = "Callable[[Mapping[str, Any]], Answer | Work | Listing]"

SLICE = 0.0003
"""Seconds of work in one slice."""
_PAUSE_SHARE = 5
"""Length of the pause after a slice, relative to the slice, while others have work."""
PAGE_ROWS = 500
_PAGE_BYTES = 256 * 1024
_ROW_BYTES = 256
_TEXT_FACTOR = 6
"""Maximum bytes of a character in JSON."""
LOOKED_AT_ONCE = 16
"""Items checked between two readings of the clock."""
_CURSORS = 64
_CURSOR_LIFE = 60.0
_TIMEOUT = 30.0
"""Maximum seconds for which an answer waits for the disk."""
_MAX_WAITING = 256
"""Maximum number of pending queries."""


class Listing:
    """Rows, created when they are requested."""

    def __init__(
        self,
        keys: Iterable[Any],
        row: Callable[[Any], dict[str, Any] | None],
        **about: Any,
    ) -> None:
        """Create a listing of keys; ``row`` returns the row of a key, None to leave it out.

        ``about`` are fields that every page has.
        """
        self._keys = iter(keys)
        self._row = row
        self._about = about
        self.used = 0.0

    def page(self) -> Generator[None, None, tuple[Answer, bool]]:
        """Create the next page; return it and whether there are more."""
        rows: list[dict[str, Any]] = []
        room = _PAGE_BYTES
        more = True
        while len(rows) < PAGE_ROWS and room > 0:
            try:
                key = next(self._keys)
            except StopIteration:
                more = False
                break
            row = self._row(key)
            if row is not None:
                rows.append(row)
                room -= _ROW_BYTES + _TEXT_FACTOR * sum(
                    len(value) for value in row.values() if isinstance(value, str)
                )
            yield None
        return {"rows": rows, **self._about}, more


class _Query(NamedTuple):
    """A query."""

    endpoint: str
    request: Mapping[str, Any]


class _NextSlice(NamedTuple):
    """Message: it is time for the next slice."""


@dataclass(slots=True)
class _PendingAnswer:
    """A query in progress."""

    work: Work
    answer: asyncio.Future[Answer]


class Inspector(LoopActor):
    """Answers queries, one slice at a time.

    ``handlers`` are functions by endpoint: they get the request, and return an answer, the work
    that creates one, or a listing.
    """

    def __init__(self, node: NodeContext, handlers: Mapping[str, Handler]) -> None:
        super().__init__()
        self._node = node
        self._handlers = handlers
        self._jobs: deque[_PendingAnswer] = deque()
        self._parked: dict[int, _PendingAnswer] = {}
        """Queries that wait for a future, by identity."""
        self._cursors: dict[str, Listing] = {}
        self._going = False
        self._turns = 0
        """The kernel's turns at the end of the last slice."""

    @property
    def endpoints(self) -> list[str]:
        """The names of the endpoints."""
        return [*self._handlers, "page"]

    async def ask_for(self, endpoint: str, request: Mapping[str, Any] | None = None) -> Answer:
        """Return the answer to a query; raises Refused if there is none."""
        answer = await self.actor_ref.ask(_Query(endpoint, request or {}), block=False)
        if isinstance(answer, asyncio.Future):
            answer = await answer
        content: Answer = answer
        return content

    def on_receive(self, message: Any) -> Any:
        """Handle a query, or continue with long ones."""
        if isinstance(message, _Query):
            return self._on_query(message)
        if isinstance(message, _NextSlice):
            self._work()
        return None

    def on_stop(self) -> None:
        """Fail the pending queries."""
        self._jobs.extend(self._parked.values())
        self._parked.clear()
        while self._jobs:
            self._settle(self._jobs.popleft(), Refused("the broker is shutting down"))

    def on_failure(self, *_exc_info: object) -> None:
        """Fail the pending queries."""
        self.on_stop()

    # Queries.

    def _on_query(self, question: _Query) -> Answer | asyncio.Future[Answer]:
        reply: Answer | Work | Listing
        if question.endpoint == "page":
            reply = self._next_page(text(question.request, "cursor"))
        else:
            handler = self._handlers.get(question.endpoint)
            if handler is None:
                raise Refused(f"there is no endpoint {question.endpoint[:100]!r}")
            reply = handler(question.request)
        if isinstance(reply, dict):
            return reply
        if isinstance(reply, Listing):
            reply = self._page(None, reply)
        if len(self._jobs) + len(self._parked) >= _MAX_WAITING:
            raise Refused("busy: too many queries are pending, try again")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._begin(_PendingAnswer(reply, answer))
        return answer

    def _begin(self, job: _PendingAnswer) -> None:
        self._jobs.append(job)
        if not self._going and not self.stopped:
            self._going = True
            self.kernel.tell(self, _NextSlice())

    def _work(self) -> None:
        """Work on the oldest query for a slice, then pause."""
        clock = self.kernel.clock
        started = clock()
        while self._jobs:
            job = self._jobs[0]
            if self._advance(job, started + SLICE):
                self._jobs.popleft()
            else:
                self._jobs.rotate(-1)
            if clock() - started >= SLICE:
                break
        self._going = bool(self._jobs)
        if not self._going:
            return
        turns, self._turns = self.kernel.turns - self._turns, self.kernel.turns
        if turns > 1:
            self._node.timers.after((clock() - started) * _PAUSE_SHARE, self._continue)
        else:
            # No other actor had work since the last slice.
            asyncio.get_running_loop().call_soon(self._continue)

    def _advance(self, job: _PendingAnswer, until: float) -> bool:
        """Work on one query; return whether it is done, or waits for a future."""
        if job.answer.cancelled():
            job.work.close()
            return True
        clock = self.kernel.clock
        try:
            while clock() < until:
                awaited = next(job.work)
                if awaited is not None and not awaited.done():
                    self._park(job, awaited)
                    return True
        except StopIteration as end:
            if isinstance(end.value, Listing):
                job.work = self._page(None, end.value)
                return False
            self._settle(job, end.value)
            return True
        except Exception as error:  # noqa: BLE001 - one question must not end the others
            if not isinstance(error, Refused):
                _log.error("query cannot be answered", exc_info=error)
                error = Refused(f"cannot be answered: {type(error).__name__}")
            self._settle(job, error)
            return True
        return False

    def _park(self, job: _PendingAnswer, awaited: asyncio.Future[Any]) -> None:
        self._parked[id(job)] = job

        def go_on(_: object) -> None:
            if self._parked.pop(id(job), None) is not None:
                self._begin(job)

        def give_up() -> None:
            if self._parked.pop(id(job), None) is not None:
                self._settle(job, Refused("not done yet, but it may still be done: check again"))
                job.work.close()

        awaited.add_done_callback(go_on)
        self._node.timers.after(_TIMEOUT, give_up)

    def _settle(self, job: _PendingAnswer, result: Answer | Exception) -> None:
        if job.answer.done():
            return
        if isinstance(result, Exception):
            job.answer.set_exception(result)
            job.answer.exception()  # the caller may have left
        else:
            job.answer.set_result(result)

    def _continue(self) -> None:
        if not self.stopped:
            self.kernel.tell(self, _NextSlice())

    # Pages.

    def _next_page(self, cursor: str) -> Work:
        listing = self._cursors.pop(cursor, None)
        if listing is None:
            raise Refused("this list has expired: request it again")
        return self._page(cursor, listing)

    def _page(self, cursor: str | None, listing: Listing) -> Work:
        page, more = yield from listing.page()
        cursor = (cursor or secrets.token_hex(12)) if more else None
        if cursor is not None:
            self._keep(cursor, listing)
        return {**page, "more": more, "cursor": cursor}

    def _keep(self, cursor: str, listing: Listing) -> None:
        now = listing.used = self._node.clock.monotonic()
        old = [key for key, kept in self._cursors.items() if now - kept.used > _CURSOR_LIFE]
        for key in old:
            del self._cursors[key]
        if len(self._cursors) >= _CURSORS:
            del self._cursors[next(iter(self._cursors))]
        self._cursors[cursor] = listing


def count_outstanding(
    sessions: SessionTable, every: int = LOOKED_AT_ONCE
) -> Generator[None, None, OutstandingTotals]:
    """Return the totals over all sessions; yields after ``every`` sessions."""
    totals = OutstandingTotals()
    for name, pause in in_steps(chain.from_iterable(sessions.live_parts()), every):
        state = sessions.live.get(name)
        if state is not None:
            totals.add(state)
        if pause:
            yield None
    totals.plus(sessions.frozen_totals)
    return totals


def in_steps(items: Iterable[Any], every: int = LOOKED_AT_ONCE) -> Iterator[tuple[Any, bool]]:
    """Yield items, each with whether to read the clock."""
    for number, item in enumerate(items, 1):
        yield item, number % every == 0
