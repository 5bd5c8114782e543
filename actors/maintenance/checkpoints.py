"""The events of a checkpoint, and of messages kept after a cut, made from the state.

Pure functions: state and messages in, events out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import orjson

from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import to_runs
from eventstore.format.stored_properties import block_columns, expiry_runs
from projections.state.session_table import text_of
from projections.state.snapshot import encode_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from eventstore.format.positions import Position, Run
    from eventstore.log.message_store import Message
    from projections.state.node_state import NodeState
    from projections.state.retained import RetainedMessage

Item = TypeVar("Item")

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
    events = [
        StateEvent(SessionSnapshot(name, part, number, number == len(parts) - 1))
        for number, part in enumerate(parts)
    ]
    return [
        *events,
        *(_repeat(batch, name) for batch in _batches(node.retained.pending(name), _weight)),
    ]


def repeat_retained(node: NodeState, topics: Iterable[str]) -> Iterator[StateEvent]:
    """Yield the events that repeat the retained messages on some topics."""
    messages = (node.retained.get(topic) for topic in topics)
    for batch in _batches((message for message in messages if message is not None), _weight):
        yield _repeat(batch, None)


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
        event.publishers, event.publisher_of = _distinct([each.publisher for each in messages])
    return StateEvent(event, [*blocks, *payloads])


def _distinct(names: Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the distinct names, and the index of each name; no indexes if there is only one."""
    numbers: dict[str, int] = {}
    of = [numbers.setdefault(name, len(numbers)) for name in names]
    return [*numbers], of if len(numbers) > 1 else []


def _batches(messages: Iterable[Item], weight_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield messages in lists that each fit into an event."""
    batch: list[Item] = []
    size = 0
    for message in messages:
        weight = weight_of(message)
        if batch and (size + weight > BYTES_AT_ONCE or len(batch) >= MESSAGES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += weight
    if batch:
        yield batch


def repeat_messages(
    messages: Iterable[tuple[Position, Message]], waiting: AbstractSet[Position]
) -> Iterator[StateEvent]:
    """Yield events that repeat messages; those in ``waiting`` are retained with their PUBREL."""
    for batch in _batches(messages, lambda item: _weight(item[1])):
        yield _carried(batch, waiting)


def _carried(
    messages: Sequence[tuple[Position, Message]], waiting: AbstractSet[Position]
) -> StateEvent:
    topics: dict[str, int] = {}
    which = [topics.setdefault(message.topic.decode(), len(topics)) for _, message in messages]
    payloads = [message.payload for _, message in messages]
    blocks, sizes, block_of = block_columns([message.block for _, message in messages])
    event = MessagesCarried(
        to_runs([ref for ref, _ in messages]),
        list(topics),
        which if len(topics) > 1 else [],
        _sizes(payloads),
        0,
        len(messages),
        to_runs([ref for ref, _ in messages if ref in waiting]),
        blocks=sizes,
        block_of=block_of,
        expires=_expiries([message.expires for _, message in messages]),
        as_retained=to_runs([ref for ref, message in messages if message.retain]),
    )
    if all(message.publisher for _, message in messages):
        event.publishers, event.publisher_of = _distinct(
            [message.publisher for _, message in messages]
        )
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
