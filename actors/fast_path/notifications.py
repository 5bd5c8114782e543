"""Notifies observers, such as the bridge to NATS, of the messages of a turn.

Observers get messages by session, as from its publisher: consecutive messages of one session
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.session.session_messages import Batch, Publication
from eventstore.log.message_store import StoredMessages
from protocol.mqtt.packets import Publishes

if TYPE_CHECKING:
    from actors.fast_path.read_columns import MessageColumns
    from actors.session.node_context import NodeContext
    from eventstore.format.positions import Position


def notify_observers(
    node: NodeContext,
    messages: MessageColumns,
    qos: int,
    took_effect: Position,
    *,
    retain: bool = False,
) -> None:
    """Notify the observers of messages of QoS 1 or 2.

    ``took_effect`` is the position of the entry with which the first message takes effect; those of
    the others follow it. ``retain``: they have RETAIN 1.
    """
    sessions, has_blocks = messages.sessions, any(messages.blocks)
    begin, count = 0, len(sessions)
    while begin < count:
        end = _end_of_run(messages, begin)
        topics, payloads = messages.topics[begin:end], messages.payloads[begin:end]
        refs = messages.refs[begin:end]
        blocks = messages.blocks[begin:end] if has_blocks else []
        expires = messages.expires[begin:end] if messages.expires else ()
        size = sum(map(len, payloads))
        batch = Batch(
            qos,
            topics,
            payloads,
            refs,
            size=size,
            publisher=messages.publishers[begin],
            blocks=blocks,
            published_retain=retain,
            expires=expires,
        )
        content = StoredMessages(refs[0], topics, payloads, size, blocks, expires, retain)
        positions = took_effect + begin, took_effect + end - 1
        node.notify_observers(Publication(sessions[begin].name, batch, content, positions))
        begin = end


def notify_observers_qos0(node: NodeContext, messages: MessageColumns) -> None:
    """Notify the observers of messages of QoS 0."""
    begin, count = 0, len(messages.sessions)
    while begin < count:
        end = _end_of_run(messages, begin)
        publisher = messages.publishers[begin]
        content = Publishes(0)
        content.topics += messages.topics[begin:end]
        content.packets += messages.payloads[begin:end]
        if publisher.properties is not None:
            content.blocks = messages.blocks[begin:end]
        batch = Batch(
            0,
            content.topics,
            (),
            (),
            packets=content.packets,
            publisher=publisher,
            blocks=content.blocks,
        )
        session = messages.sessions[begin].name
        node.notify_observers(Publication(session, batch, content))
        begin = end


def _end_of_run(messages: MessageColumns, begin: int) -> int:
    """Return the index behind the last consecutive message of the same connection."""
    publishers = messages.publishers
    end, publisher = begin + 1, publishers[begin]
    while end < len(publishers) and publishers[end] is publisher:
        end += 1
    return end
