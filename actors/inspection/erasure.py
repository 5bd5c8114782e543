"""Erases the contents of personal topics, by destroying their keys.

First the log records which keys are to be destroyed, and the broker stops sending what they sealed.
Once that record is on disk, the keys are overwritten; once they are, the log records it. After a
crash in between, the next start completes the erasure before any client connects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from actors.inspection.inspector import Refused, shown, text
from actors.inspection.operations import clear_topics
from actors.maintenance.recovery import until_durable
from actors.session.content_sealing import ContentSealing
from actors.session.decisions.subscribing import by_text
from eventstore.format.erasure_events import REQUEST, Erased, ErasureRequested
from eventstore.format.positions import format_position, to_runs
from protocol.errors import FoldmqError
from protocol.mqtt.topics import TopicError, matches, validate_topic_filter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.inspection.inspector import Work
    from actors.session.node_context import NodeContext
    from eventstore.log.key_file import KeyFile

_log = structlog.get_logger("foldmq")

in_thread = asyncio.to_thread

RESTORED = "restored"
_BROKER = "foldmq"
"""The operator in the log of what a restored backup requires."""
_AT_ONCE = 512
"""Topics compared with a filter in one turn of the event loop."""
_KEYS_AT_ONCE = 4096
"""Keys looked at in one turn of the event loop."""
_SHOWN = 1000
"""Maximum number of topics in an answer."""
_RETRY = 5.0
_TOPICS = 500
"""Maximum number of topics of one erasure: it begins in one turn."""


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
            topic for topic, key in node.state.keys.by_topic.items() if keys.erasure(key.number)
        ]
        if again:
            _log.warning("contents were erased after this log was copied", topics=len(again))
            await self.erase(again, _BROKER, RESTORED)

    def answer(self, request: Mapping[str, Any]) -> Work:
        """Return the topics that match ``filter`` and have a key: what an erasure would erase."""
        topic_keys, retained = self._node.state.keys, self._node.state.retained
        topic_filter = _filter_of(request)
        keyed = [*topic_keys.by_topic]
        first: list[str] = []
        total = with_retained = 0
        for begin in range(0, len(keyed), _AT_ONCE):
            part = [
                topic
                for topic in keyed[begin : begin + _AT_ONCE]
                if _is_chosen(topic_filter, topic)
            ]
            total += len(part)
            with_retained += sum(retained.get(topic) is not None for topic in part)
            first = sorted([*first, *part])[:_SHOWN]
            yield None
        return {
            "total": total,
            "topics": first,
            "retained": with_retained,
            "keyed": len(topic_keys.by_topic),
            "erasures": topic_keys.erasure,
            "pending": len(topic_keys.pending),
        }

    def change(self, request: Mapping[str, Any], by: str) -> Work:
        """Erase the contents of the topics that match ``filter``."""
        node = self._node
        if node.sealing is None:
            raise Refused("nothing is sealed: personal_topics is not set")
        task = asyncio.get_running_loop().create_task(self._erase_matching(_filter_of(request), by))
        yield task
        done = task.result()
        if isinstance(done, FoldmqError):
            raise Refused(f"not erased yet, try again: {done}")
        return done

    async def _erase_matching(self, topic_filter: str, by: str) -> dict[str, Any] | FoldmqError:
        try:
            topics = await self.topics(topic_filter)
            if not topics:
                return Refused(f"no topic with sealed contents matches {shown(topic_filter)}")
            several = self._node.exchange is not None
            return (await self.erase(topics, by, topic_filter=topic_filter * several)).fields()
        except FoldmqError as error:
            return error

    def begin(self, topics: list[str], by: str, cause: str) -> bool:
        """Record an erasure in this turn, as another log of the node did, unless one is pending.

        Takes the topics off the list; returns whether none is left. The keys are destroyed later.
        """
        while topics:
            if self._lock.locked() or self._node.state.keys.pending:
                return False
            part = by_text(topics[:_TOPICS], str)[0]
            del topics[: len(part)]
            self._request(part, by, cause, Outcome(0, 0, []))
            if self._node.state.keys.pending:
                self._node.spawn_task(self._complete())
        return True

    async def _complete(self) -> None:
        """Destroy the keys of an erasure that was recorded."""
        node = self._node
        while not node.failed.done():
            try:
                async with self._lock:
                    await self._destroy()
            except FoldmqError as error:
                _log.warning("keys cannot be destroyed now", reason=str(error))
                await asyncio.sleep(_RETRY)
            else:
                return

    async def topics(self, topic_filter: str) -> list[str]:
        """Return the topics with keys that match a filter."""
        chosen: list[str] = []
        keyed = [*self._node.state.keys.by_topic]
        for begin in range(0, len(keyed), _AT_ONCE):
            part = keyed[begin : begin + _AT_ONCE]
            chosen += [topic for topic in part if _is_chosen(topic_filter, topic)]
            await asyncio.sleep(0)
        return chosen

    async def erase(
        self, topics: Sequence[str], by: str, cause: str = REQUEST, topic_filter: str = ""
    ) -> Outcome:
        """Erase the contents of topics; raises KeyFileError if the keys cannot be destroyed.

        Other logs of the node follow ``topic_filter``.
        """
        outcome = Outcome(0, 0, [])
        async with self._lock:
            await self._destroy()
            for begin in range(0, len(topics), _TOPICS):
                parts = by_text(topics[begin : begin + _TOPICS], str)
                for number, part in enumerate(parts, 1):
                    is_last = number == len(parts) and begin + _TOPICS >= len(topics)
                    self._request(part, by, cause, outcome, topic_filter if is_last else "")
                    await self._destroy()
        return outcome

    def _request(
        self, topics: list[str], by: str, cause: str, outcome: Outcome, topic_filter: str = ""
    ) -> None:
        """Record an erasure in this turn, after which the contents are no longer sent."""
        node, topic_keys = self._node, self._node.state.keys
        topics = [topic for topic in topics if topic in topic_keys.by_topic]
        if not topics:
            return
        numbers = [topic_keys.by_topic[topic].number for topic in topics]
        erasure = topic_keys.erasure + 1
        event = ErasureRequested(erasure, by, cause, topics, to_runs(numbers), filter=topic_filter)
        at = node.emit(event)
        retained = node.state.retained
        for topic in topics:
            retained.unrecorded.pop(topic, None)
        present = [topic for topic in topics if retained.get(topic) is not None]
        if present:
            clear_topics(node, present, by)
        if node.sealing is not None:
            node.sealing.forgotten.update(dict.fromkeys(map(str.encode, topics), at))
        node.messages.clear()
        node.kernel.wake()
        outcome.keys += len(numbers)
        outcome.retained += len(present)
        outcome.erasures.append(erasure)
        _log.info(
            "erasure requested",
            erasure=erasure,
            by=by,
            topics=len(topics),
            position=format_position(at),
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
        await in_thread(keys.erase, numbers, erasure)
        node.messages.clear()  # a start may have loaded some before
        node.emit(Erased(erasure, len(numbers)))
        node.kernel.wake()
        await until_durable(node, node.journal.end)
        _log.info("erased", erasure=erasure, keys=len(numbers))

    async def _destroy_again(self, keys: KeyFile) -> None:
        """Destroy the keys that belong to no topic: an older copy of the file has them again."""
        topic_keys = self._node.state.keys
        used = {key.number for key in topic_keys.by_topic.values()}
        numbers: list[int] = []
        for begin in range(1, topic_keys.last + 1, _KEYS_AT_ONCE):
            part = range(begin, min(begin + _KEYS_AT_ONCE, topic_keys.last + 1))
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


class Outcome:
    """What was erased."""

    def __init__(self, keys: int, retained: int, erasures: list[int]) -> None:
        self.keys = keys
        self.retained = retained
        self.erasures = erasures

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"keys": self.keys, "retained": self.retained, "erasures": self.erasures}


def _is_chosen(topic_filter: str, topic: str) -> bool:
    return matches(topic_filter, topic) or ContentSealing.matches([topic_filter], topic)


def _filter_of(request: Mapping[str, Any]) -> str:
    """Return the filter of a request; raises Refused for an invalid one."""
    topic_filter = text(request, "filter")
    try:
        validate_topic_filter(topic_filter)
    except TopicError as error:
        raise Refused(str(error)) from None
    return topic_filter
