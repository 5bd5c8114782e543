"""Erases the contents of personal topics, by destroying their keys.

First the log records which keys are to be destroyed, and the broker stops sending what they sealed.
Once that record is on disk, the keys are overwritten; once they are, the log records it. After a
crash in between, the next start completes the erasure before any client connects.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from actors.inspection.inspector import Refused, shown, text
from actors.inspection.nameless_sessions import remove_nameless, sessions_of
from actors.inspection.operations import clear_topics
from actors.maintenance.recovery import until_durable
from actors.session.content_sealing import ContentSealing, period_ms
from actors.session.decisions.subscribing import by_text
from eventstore.format.erasure_events import KEEP, REQUEST, RESTORED, Erased, ErasureRequested
from eventstore.format.name_entries import CLIENT, USER, parts_of, topic_shown
from eventstore.format.node_events import LeaderProved
from eventstore.format.positions import format_position, position, to_runs
from eventstore.format.sealing import SealedBytes
from eventstore.log.key_file import KeyFileError, file_of_log
from eventstore.log.name_requests import (
    NameRequest,
    remove_request,
    store_request,
    stored_requests,
)
from protocol.errors import FoldmqError
from protocol.mqtt.topics import TopicError, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.inspection.inspector import Work
    from actors.session.node_context import NodeContext
    from eventstore.log.shared_keys import Keys
    from projections.state.topic_keys import TopicKey

_log = structlog.get_logger("foldmq")

in_thread = asyncio.to_thread

_BROKER = "foldmq"
"""The operator in the log of erasures that no operator requested."""
_RETRY = 5.0
"""Seconds after which it is tried again to destroy the keys of an erasure of another log."""
_AT_ONCE = 512
"""Topics compared with a filter in one turn of the event loop."""
_KEYS_AT_ONCE = 4096
"""Keys looked at in one turn of the event loop."""
_SHOWN = 1000
"""Maximum number of topics in an answer."""
_KEYS = 500
"""Maximum number of keys of one erasure: it begins in one turn."""
_NEVER_MS = 1 << 53
_LOOK_EVERY = 5.0
"""Seconds between two looks whether there are requests of other logs."""
_LONGEST_PAUSE = 3600.0
"""Seconds after which it is looked again for contents that are too old."""


class Scope(NamedTuple):
    """What an erasure erases."""

    filter: str = ""
    """Topics that match it; empty: all topics with keys."""
    before_ms: int = 0
    """Only contents of periods that ended up to here, without the jumps of the clock; 0: all."""

    def numbers(self, topic: str, keys: Sequence[TopicKey]) -> list[int]:
        """Return the keys of a topic that are destroyed."""
        if self.filter and not self.matches(topic):
            return []
        return [
            key.number for key in keys if not self.before_ms or 0 < key.ends_ms <= self.before_ms
        ]

    def left(self, topic: str, keys: Sequence[TopicKey]) -> int:
        """Return until when contents from before that time remain; 0: none do."""
        if not self.before_ms or (self.filter and not self.matches(topic)):
            return 0
        ends = [
            key.ends_ms or _NEVER_MS
            for key in keys
            if key.begins_ms < self.before_ms and not 0 < key.ends_ms <= self.before_ms
        ]
        return max(ends, default=0)

    def matches(self, topic: str) -> bool:
        """Return whether its filter matches a topic with keys."""
        return ContentSealing.is_erased_by(self.filter, topic)


class Erasure:
    """Carries out the erasures of a broker, one at a time."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._lock = asyncio.Lock()
        node.erase = self.begin

    async def finish(self) -> None:
        """Finish at a start what was begun, and repeat what a restored log does not know of."""
        node, keys = self._node, self._node.log.keys
        if keys is None:
            return
        topic_keys = node.state.keys
        is_old = keys.last_erasure < topic_keys.erasure - bool(topic_keys.pending)
        await self._destroy()
        if is_old:
            await self._destroy_again(keys)
        again = [
            (topic, key.number)
            for topic, held in node.state.keys.by_topic.items()
            for key in held.keys
            if keys.erasure(key.number)
        ]
        if again:
            _log.warning("contents were erased after this log was copied", keys=len(again))
            await self.erase(again, _BROKER, RESTORED)
        await self.carry_out_requests()

    async def end_nameless(self) -> None:
        """End at a start the sessions of names that were erased before it."""
        if self._node.names is not None:
            await remove_nameless(self._node, _BROKER)

    async def keep(self, seconds: float) -> None:
        """Erase contents that are older than so many seconds, again and again."""
        node, keep_ms = self._node, round(seconds * 1000)
        pause = min(_LONGEST_PAUSE, period_ms(keep_ms) / 4000)
        while not (node.draining or node.failed.done()):
            before_ms = node.journal.event_ms() - keep_ms
            try:
                keys = await self.keys(Scope("", before_ms))
                await self.erase(keys, _BROKER, KEEP, before_ms)
            except FoldmqError as error:
                _log.warning("contents older than personal_keep are not erased", reason=str(error))
            await asyncio.sleep(pause)

    def answer(self, request: Mapping[str, Any]) -> Work:
        """Return the topics that match ``filter`` and have a key: what an erasure would erase."""
        topic_keys, scope = self._node.state.keys, self._scope(request)
        keyed = [*topic_keys.by_topic]
        first: list[str] = []
        total = keys = with_retained = remaining = until_ms = 0
        for begin in range(0, len(keyed), _AT_ONCE):
            part: list[str] = []
            for topic in keyed[begin : begin + _AT_ONCE]:
                own_keys = topic_keys.of(topic)
                numbers = scope.numbers(topic, own_keys)
                if numbers:
                    part.append(topic)
                    keys += len(numbers)
                    with_retained += self._has_retained(
                        topic, numbers, len(numbers) == len(own_keys)
                    )
                if ends_ms := scope.left(topic, own_keys):
                    remaining, until_ms = remaining + 1, max(until_ms, ends_ms)
            total += len(part)
            first = sorted([*first, *part])[:_SHOWN]
            yield None
        return {
            "total": total,
            "topics": first,
            "keys": keys,
            "retained": with_retained,
            "keyed": len(topic_keys.by_topic),
            "left": remaining,
            "left_until_ms": until_ms + self._node.clock.jumped_ms,
            "erasures": topic_keys.erasure,
            "pending": len(topic_keys.pending),
        }

    def change(self, request: Mapping[str, Any], by: str) -> Work:
        """Erase the contents of the topics that match ``filter``, or a name.

        With ``logs``, the request to erase the name is stored for other logs.
        """
        node = self._node
        if node.sealing is None:
            raise Refused("nothing is sealed: personal_topics is not set")
        work = self._erase_matching if "filter" in request else self._erase_name
        if "logs" in request:
            work = self._store_requests
        task = asyncio.get_running_loop().create_task(work(request, by))
        yield task
        outcome = task.result()
        if isinstance(outcome, Refused):
            raise outcome
        if isinstance(outcome, FoldmqError):
            raise Refused(f"not erased yet, try again: {outcome}")
        return outcome

    async def _erase_matching(
        self, request: Mapping[str, Any], by: str
    ) -> dict[str, Any] | FoldmqError:
        try:
            scope = self._scope(request)
            keys = await self.keys(scope)
            followed = scope.filter if self._node.exchange is not None else ""
            outcome = await self.erase(keys, by, before_ms=scope.before_ms, followed=followed)
            if not outcome.keys:
                what = "no topic with sealed contents"
                if scope.before_ms:
                    what += " in a period that ended before"
                return Refused(f"{what} matches {shown(scope.filter)}")
            return asdict(outcome)
        except FoldmqError as error:
            return error

    async def _erase_name(
        self, request: Mapping[str, Any], by: str
    ) -> dict[str, Any] | FoldmqError:
        """Erase a name, and end the sessions that were known by it."""
        try:
            entry = self._entry(request)
            if not entry:
                return Refused("the name has no token, or was erased")
            keys = [(entry, key.number) for key in self._node.state.keys.of(entry)]
            outcome = await self.erase(keys, by)
            if not outcome.keys:
                return Refused("the name was erased meanwhile")
            sessions = await remove_nameless(self._node, by)
            return {**asdict(outcome), "token": topic_shown(entry), "sessions": sessions}
        except KeyFileError as error:
            self._node.spawn_task(self._complete_name(by))
            return Refused(f"not erased yet, it is tried again every {_RETRY:g} s: {error}")
        except FoldmqError as error:
            return error

    async def _complete_name(self, by: str) -> None:
        """Complete the erasure of a name whose key could not be destroyed."""
        await self._complete()
        await remove_nameless(self._node, by)

    def _entry(self, request: Mapping[str, Any]) -> str:
        """Return the entry of the name that a request gives; empty: it has none."""
        names, kind = self._node.names, text(request, "kind")
        if kind not in (CLIENT, USER):
            raise Refused(f"kind must be {CLIENT} or {USER}")
        name = text(request, "name")
        return "" if names is None else names.entry(kind, name)

    def name(self, request: Mapping[str, Any]) -> Work:
        """Return the token of a name, what sessions its erasure ends, and the number of logs."""
        entry, node = parts_of(self._entry(request)), self._node
        logs = max(1, len(node.logs))
        if entry is None:
            return {"token": None, "sessions": [], "total": 0, "logs": logs}
        sessions: list[str] = []
        for name in sessions_of(node, lambda name, user: entry.token in (name, user)):
            if name is None:
                yield None
            else:
                sessions.append(name)
        return {
            "token": entry.shown,
            "sessions": sorted(sessions)[:_SHOWN],
            "total": len(sessions),
            "logs": logs,
        }

    # What an erasure does not do by itself: destinations that have contents, and other logs.

    def receivers(self, request: Mapping[str, Any]) -> Work:
        """Return the destinations that may have contents of the topics that match ``filter``."""
        scope, node_state, names = Scope(text(request, "filter")), self._node.state, set[str]()
        keyed = [*node_state.keys.by_topic]
        for begin in range(0, len(keyed), _AT_ONCE):
            for topic in keyed[begin : begin + _AT_ONCE]:
                if scope.matches(topic):
                    names.update(node_state.destinations.receivers(topic))
            yield None
        return {"receivers": sorted(names)}

    def progress(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the end of the log on disk, and up to where it has taken and followed others."""
        node = self._node
        return {
            "durable": position(node.journal.durable + 1, 0) - 1,
            "taken": node.exchange.taken if node.exchange is not None else {},
            "pending": len(node.state.keys.pending),
        }

    # Names for whose erasure a log was asked while its broker was away. The broker of another log
    # has stored the request beside the file with the keys. It is carried out at the start, before a
    # client connects; or soon, if this broker began just then.

    async def _store_requests(
        self, request: Mapping[str, Any], by: str
    ) -> dict[str, Any] | FoldmqError:
        """Store the request to erase a name for each of ``logs``, whose brokers are away.

        Returns the error if one cannot be stored.
        """
        node, keys, logs = self._node, self._node.log.keys, request.get("logs")
        own = node.options.node
        if not isinstance(logs, list) or not node.logs.issuperset(logs) or own in logs:
            return Refused("logs must be names of other logs of this node")
        if keys is None or node.names is None:
            return Refused("no names have tokens: personal_clients and personal_users are not set")
        try:
            asked = NameRequest.of(text(request, "kind"), text(request, "name"), by)
            for log in logs:
                await in_thread(store_request, asked, file_of_log(keys.path, own, log))
        except FoldmqError as error:
            return error
        return {"logs": logs}

    async def carry_out_requests(self) -> bool:
        """Erase the names that are asked for; return whether there were requests.

        Sessions do not end yet. Raises KeyFileError, and what prevents the erasure; the requests
        are kept then, and the next call goes on.
        """
        node, keys = self._node, self._node.log.keys
        if keys is None or node.names is None or node.exchange is None:
            return False
        requests = await in_thread(stored_requests, keys.path)
        if not requests:
            return False
        entries: dict[str, str] = {}
        for named, entry in node.names.entries():
            if named is None:
                await asyncio.sleep(0)
                continue
            for request in requests:
                if request.is_for(*named):
                    entries[entry] = request.by
        for entry, by in entries.items():
            numbers = [(entry, key.number) for key in node.state.keys.of(entry)]
            await self.erase(numbers, by)
        await self.destroy_pending()  # of an earlier call, after which no name is found
        await self._prove_leadership()
        for request in requests:
            await in_thread(remove_request, request)
        return True

    async def _prove_leadership(self) -> None:
        """Return once a record shows that this node has all names; raises what prevents it.

        A node of a cluster may have been replaced as the leader, and not know the newest names.
        """
        node = self._node
        if node.state.epoch:
            node.emit(LeaderProved(node.state.epoch))
            await until_durable(node, node.journal.end)
        if node.failed.done():
            raise node.failed.result()

    async def watch_requests(self) -> None:
        """Look for requests again and again: this broker may have begun just before one."""
        node = self._node
        while not (node.draining or node.failed.done()):
            await asyncio.sleep(_LOOK_EVERY)
            try:
                if await self.carry_out_requests():
                    await remove_nameless(node, _BROKER)
            except FoldmqError as error:
                _log.warning("a name is not erased yet", reason=str(error))

    def _scope(self, request: Mapping[str, Any]) -> Scope:
        """Return what a request asks for; raises Refused for an invalid one."""
        topic_filter, before_ms = text(request, "filter"), request.get("before_ms", 0)
        try:
            validate_topic_filter(topic_filter)
        except TopicError as error:
            raise Refused(str(error)) from None
        if not isinstance(before_ms, int):
            raise Refused("before_ms is not an integer")
        return Scope(topic_filter, before_ms and max(1, before_ms - self._node.clock.jumped_ms))

    async def keys(self, scope: Scope) -> list[tuple[str, int]]:
        """Return the keys to be destroyed, each with its topic."""
        chosen: list[tuple[str, int]] = []
        topic_keys = self._node.state.keys
        keyed = [*topic_keys.by_topic]
        for begin in range(0, len(keyed), _AT_ONCE):
            for topic in keyed[begin : begin + _AT_ONCE]:
                numbers = scope.numbers(topic, topic_keys.of(topic))
                chosen += [(topic, number) for number in numbers]
            await asyncio.sleep(0)
        return chosen

    async def erase(
        self,
        keys: Sequence[tuple[str, int]],
        by: str,
        cause: str = REQUEST,
        before_ms: int = 0,
        followed: str = "",
    ) -> Outcome:
        """Erase what keys sealed; raises KeyFileError if the keys cannot be destroyed.

        Other logs of the node follow the topic filter ``followed``.
        """
        outcome = Outcome()
        async with self._lock:
            await self._destroy()
            keys = await self._existing(keys)  # the last one must exist: its event has the filter
            for begin in range(0, len(keys), _KEYS):
                parts = by_text(keys[begin : begin + _KEYS], itemgetter(0))
                for number, part in enumerate(parts, 1):
                    is_last = number == len(parts) and begin + _KEYS >= len(keys)
                    self._request(part, by, cause, before_ms, outcome, followed * is_last)
                    await self._destroy()
        return outcome

    def begin(self, topics: list[str], by: str, cause: str, before_ms: int = 0) -> bool:
        """Record an erasure in this turn, as another log of the node did, unless one is pending.

        ``before_ms``: only contents of periods that ended up to then, in steady time; 0: all. Takes
        the topics off the list; returns whether none is left. The keys are destroyed later.
        """
        topic_keys, scope = self._node.state.keys, Scope("", before_ms)
        while topics:
            if self._lock.locked() or topic_keys.pending:
                return False
            chosen = by_text(topics[:_KEYS], str)[0]
            keys = [
                (topic, number)
                for topic in chosen
                for number in scope.numbers(topic, topic_keys.of(topic))
            ]
            part = by_text(keys[:_KEYS], itemgetter(0))[0] if keys else []
            self._request(part, by, cause, before_ms, Outcome())
            if len(part) == len(keys):
                del topics[: len(chosen)]
            if topic_keys.pending:
                self._node.spawn_task(self._complete())
        return True

    async def destroy_pending(self) -> None:
        """Destroy the keys of an erasure that was recorded, if that is not done; as erase()."""
        async with self._lock:
            await self._destroy()

    async def _complete(self) -> None:
        """Destroy the keys of an erasure that was recorded."""
        node = self._node
        while not node.failed.done():
            try:
                await self.destroy_pending()
            except FoldmqError as error:
                _log.warning("keys cannot be destroyed now", reason=str(error))
                await asyncio.sleep(_RETRY)
            else:
                return

    def _request(
        self,
        keys: Sequence[tuple[str, int]],
        by: str,
        cause: str,
        before_ms: int,
        outcome: Outcome,
        followed: str = "",
    ) -> None:
        """Record an erasure in this turn, after which the contents are no longer sent."""
        node, topic_keys = self._node, self._node.state.keys
        numbers: dict[str, list[int]] = {}
        for topic, number in keys:
            if self._exists(topic, number):
                numbers.setdefault(topic, []).append(number)
        if not numbers:
            return
        topics = [topic for topic, own in numbers.items() for _ in own]
        destroyed = [number for own in numbers.values() for number in own]
        erasure = topic_keys.erasure + 1
        event = ErasureRequested(
            *(erasure, by, cause, topics, to_runs(destroyed)), before_ms=before_ms, filter=followed
        )
        at = node.emit(event)
        if node.names is not None:
            node.names.forget(numbers)
        present: list[str] = []
        for topic, own in numbers.items():
            left_keys = topic_keys.of(topic)
            if not left_keys:
                node.state.retained.unrecorded.pop(topic, None)
            if self._has_retained(topic, own, not left_keys):
                present.append(topic)
            if node.sealing is not None:
                node.sealing.forget(topic, min((key.since for key in left_keys), default=at))
        if present:
            clear_topics(node, present, by)
        node.messages.clear()
        node.kernel.wake()
        outcome.keys += len(destroyed)
        outcome.retained += len(present)
        outcome.erasures.append(erasure)
        _log.info(
            "erasure requested",
            erasure=erasure,
            by=by,
            topics=len(numbers),
            position=format_position(at),
        )

    async def _existing(self, keys: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return the keys that were not erased while this erasure waited for another one."""
        existing: list[tuple[str, int]] = []
        for begin in range(0, len(keys), _KEYS_AT_ONCE):
            part = keys[begin : begin + _KEYS_AT_ONCE]
            existing += [(topic, number) for topic, number in part if self._exists(topic, number)]
            await asyncio.sleep(0)
        return existing

    def _exists(self, topic: str, number: int) -> bool:
        return any(key.number == number for key in self._node.state.keys.of(topic))

    def _has_retained(self, topic: str, numbers: Sequence[int], is_whole: bool) -> bool:
        """Return whether a topic's retained message is erased; ``is_whole``: no key is left."""
        message = self._node.state.retained.get(topic)
        if message is None or is_whole:
            return message is not None
        return any(
            isinstance(part, SealedBytes) and part.key in numbers
            for part in (message.payload, message.block)
        )

    async def _destroy(self) -> None:
        """Destroy the keys of the last erasure, if that is not done."""
        node, topic_keys, keys = self._node, self._node.state.keys, self._node.log.keys
        if not topic_keys.pending or keys is None:
            return
        numbers, erasure = [*topic_keys.pending], topic_keys.erasure
        await until_durable(node, node.journal.end)
        if node.failed.done():  # the request may not be on disk
            raise node.failed.result()
        try:
            await in_thread(keys.erase, numbers, erasure)
        except KeyFileError as error:
            if node.sealing is not None:
                node.sealing.trouble = str(error)
            raise
        if node.sealing is not None:
            node.sealing.trouble = ""
        node.messages.clear()  # a start may have loaded some before
        node.emit(Erased(erasure, len(numbers)))
        node.kernel.wake()
        await until_durable(node, node.journal.end)
        _log.info("erased", erasure=erasure, keys=len(numbers))

    async def _destroy_again(self, keys: Keys) -> None:
        """Destroy the keys that belong to no topic: an older copy of the file has them again."""
        topic_keys = self._node.state.keys
        used = {key.number for held in topic_keys.by_topic.values() for key in held.keys}
        numbers: list[int] = []
        for existing in keys.ranges:
            end = min(existing.stop, topic_keys.last + 1)
            for begin in range(existing.start, end, _KEYS_AT_ONCE):
                part = range(begin, min(begin + _KEYS_AT_ONCE, end))
                numbers += [
                    number for number in part if number not in used and keys.key(number) is not None
                ]
                await asyncio.sleep(0)
        if not numbers:
            return
        await in_thread(keys.erase, numbers, topic_keys.erasure)
        self._node.messages.clear()
        _log.warning(
            "personal_key_file was older than the last erasure: erased keys were destroyed again",
            keys=len(numbers),
        )


@dataclass(slots=True)
class Outcome:
    """What was erased."""

    keys: int = 0
    retained: int = 0
    erasures: list[int] = field(default_factory=list)
