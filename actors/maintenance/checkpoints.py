"""The events of a checkpoint, and of messages kept after a cut, made from the state.

Pure functions: state and messages in, events out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import to_runs
from eventstore.format.stored_properties import block_columns, expiry_runs
from projections.state.session_table import text_of
from projections.state.snapshot import encode_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from eventstore.format.positions import Position, Run
    from eventstore.log.message_store import Message
    from projections.state.node_state import NodeState
    from projections.state.retained import RetainedMessage

MESSAGES_AT_ONCE = 512
BYTES_AT_ONCE = 256 * 1024
"""Approximate maximum size of one event."""


class StateEvent(NamedTuple):
    """An event with the content of its payload area."""

    event: Event
    payloads: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """Bytes of its payloads and blocks of properties."""
        return sum(map(len, self.payloads))

    @property
    def bytes(self) -> int:
        """Approximate size in the log."""
        return self.size + len(orjson.dumps(json_object(self.event)))


def repeat_session(node: NodeState, name: str) -> list[StateEvent]:
    """Return the events that repeat a session's state; empty if there is no such session.

    All of them must go into the same turn.
    """
    frozen = node.sessions.frozen(name)
    if frozen is not None:
        texts = [text_of(frozen)]
    else:
        state = node.sessions.live.get(name)
        if state is None:
            return []
        texts = [orjson.dumps(part) for part in encode_session(state)]
    # Already encoded as JSON: it is measured and written without encoding it again.
    parts: list[Any] = list(map(orjson.Fragment, texts))
    said = [
        StateEvent(SessionSnapshot(name, part, number, number == len(parts) - 1))
        for number, part in enumerate(parts)
    ]
    said += [_repeat(some, name) for some in _batches(node.retained.pending(name))]
    return said


def repeat_retained(node: NodeState, topics: Iterable[str]) -> Iterator[StateEvent]:
    """Yield the events that repeat the retained messages on some topics."""
    found = (node.retained.get(topic) for topic in topics)
    for some in _batches(message for message in found if message is not None):
        yield _repeat(some, None)


def _repeat(messages: Sequence[RetainedMessage], session: str | None) -> StateEvent:
    payloads = [message.payload for message in messages]
    blocks, sizes, block_of = block_columns([message.block for message in messages])
    event = RetainedSnapshot(
        [message.topic for message in messages],
        [message.qos for message in messages],
        to_runs([message.ref for message in messages]),
        _sizes(payloads),
        0,
        len(messages),
        session,
        blocks=sizes,
        block_of=block_of,
        expires=_expiries([message.expires for message in messages]),
    )
    if session is None and any(message.publisher for message in messages):
        event.publishers, event.publisher_of = _distinct([one.publisher for one in messages])
    return StateEvent(event, [*blocks, *payloads])


def _distinct(names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the distinct names, and the index of each name; no indexes if there is only one."""
    found: dict[str, int] = {}
    of = [found.setdefault(name, len(found)) for name in names]
    return [*found], of if len(found) > 1 else []


def _batches(messages: Iterable[RetainedMessage]) -> Iterator[list[RetainedMessage]]:
    """Yield messages in lists that each fit into an event."""
    some: list[RetainedMessage] = []
    size = 0
    for message in messages:
        weight = _weight(message)
        if some and (size + weight > BYTES_AT_ONCE or len(some) >= MESSAGES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(message)
        size += weight
    if some:
        yield some


def repeat_messages(
    messages: Iterable[tuple[Position, Message]], waiting: AbstractSet[Position]
) -> Iterator[StateEvent]:
    """Yield events that repeat messages; those in ``waiting`` are retained with their PUBREL."""
    some: list[tuple[Position, Message]] = []
    size = 0
    for ref, message in messages:
        weight = _weight(message)
        if some and (size + weight > BYTES_AT_ONCE or len(some) >= MESSAGES_AT_ONCE):
            yield _carried(some, waiting)
            some, size = [], 0
        some.append((ref, message))
        size += weight
    if some:
        yield _carried(some, waiting)


def _carried(
    some: Sequence[tuple[Position, Message]], waiting: AbstractSet[Position]
) -> StateEvent:
    topics: dict[str, int] = {}
    which = [topics.setdefault(one.topic.decode(), len(topics)) for _, one in some]
    payloads = [one.payload for _, one in some]
    blocks, sizes, block_of = block_columns([one.block for _, one in some])
    event = MessagesCarried(
        to_runs([ref for ref, _ in some]),
        list(topics),
        which if len(topics) > 1 else [],
        _sizes(payloads),
        0,
        len(some),
        to_runs([ref for ref, _ in some if ref in waiting]),
        blocks=sizes,
        block_of=block_of,
        expires=_expiries([one.expires for _, one in some]),
        as_retained=to_runs([ref for ref, one in some if one.retain]),
    )
    if all(one.publisher for _, one in some):
        event.publishers, event.publisher_of = _distinct([one.publisher for _, one in some])
    return StateEvent(event, [*blocks, *payloads])


def _expiries(expires: list[int]) -> list[Run] | int:
    """Return the expiries of messages in the format of events."""
    return expiry_runs(expires) if any(expires) else 0


def _weight(message: Message | RetainedMessage) -> int:
    names = len(message.topic) + len(message.publisher)
    return len(message.payload) + len(message.block) + 6 * names + 64


def _sizes(payloads: Sequence[bytes]) -> list[int] | int:
    """Return the sizes in the format of events: one number if all are equal."""
    sizes = list(map(len, payloads))
    return sizes[0] if len(set(sizes)) == 1 else sizes
