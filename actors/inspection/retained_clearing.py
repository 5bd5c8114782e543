"""Removal of retained messages, and whether their publishers may still publish them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from actors.node.operator_commands import OperatorCommand
from actors.session.decisions.subscribing import by_text
from eventstore.format.events import LOG_SESSION, NATS_SESSION
from eventstore.format.node_events import RetainedCleared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors.session.node_context import NodeContext
    from projections.state.retained import RetainedMessage

_log = structlog.get_logger("foldmq")

_AT_ONCE: Final = 64
"""Messages checked in one turn."""
_PAUSE: Final = 0.002
"""Seconds between two turns."""
_WAIT: Final = 0.5
"""Seconds until a broker that cannot change anything now is looked at again."""
_SETTING: Final = "clear_denied_retained"
"""Name of the operator of the log for what the broker removes by itself."""


def publisher_permitted(message: RetainedMessage, node: NodeContext) -> bool | None:
    """Return whether the present rules let its publisher publish a retained message; None: unknown.

    The publisher is known by its client identifier. The permissions of a connected client are
    known. Of other clients, the log has the user while they have a session; tokens and the auth
    callout may give them other permissions than the file, and pseudonyms hide their identifiers.
    """
    client, topic = message.publisher, message.topic
    authorizer, options = node.permissions, node.options
    if not client or client.startswith(LOG_SESSION):
        return None
    if client == NATS_SESSION:
        return authorizer.bridge is None or authorizer.bridge.may_publish(topic)
    session = node.directory.find_session(client)
    connection = session.connection if session is not None else None
    if connection is not None and connection.identity is not None:
        return authorizer.access_of(connection, connection.identity).may_publish(topic)
    if options.users_elsewhere or options.pseudonym_key:
        return None
    state = node.state.sessions.peek(client)
    if state is None or (state.user is not None and not options.users_digest):
        # Without a password file, a user name in the log may be one that the client only claimed.
        return authorizer.permissions.decides_publish(client, topic)
    return authorizer.permissions.access(state.user, (), client).may_publish(topic)


def clear_topics(
    node: NodeContext, topics: Sequence[str], by: str, *, one_of_many: bool = False
) -> OperatorCommand:
    """Remove the retained messages of some topics in this turn, on behalf of an operator."""
    target = topics[0] if len(topics) == 1 else f"{len(topics)} topics"
    command = OperatorCommand("clear_retained", by, target, None)
    command.one_of_many = one_of_many
    command.carry_out(node)
    for part in by_text(topics, str):
        node.emit(RetainedCleared(part))
    return command


def clear_denied(node: NodeContext) -> None:
    """Remove the retained messages that are known not to be permitted, in small steps."""
    steps = (
        part[begin : begin + _AT_ONCE]
        for part in node.state.retained.parts()
        for begin in range(0, len(part), _AT_ONCE)
    )
    _clear_next(node, steps, 0)


def _clear_next(node: NodeContext, steps: Iterator[list[str]], count: int) -> None:
    """Do the next step; ``count`` messages have been removed before."""
    if node.draining or node.failed.done():
        return
    pause = _WAIT
    if not node.not_ready_reasons():
        topics = next(steps, None)
        if topics is None:
            if count:
                _log.info("retained messages removed", reason="not_permitted", count=count)
            return
        count += _clear(node, topics)
        pause = _PAUSE
    node.timers.after(pause, lambda: _clear_next(node, steps, count))


def _clear(node: NodeContext, topics: list[str]) -> int:
    """Remove those of some topics; return their number."""
    current = map(node.state.retained.current, topics)
    denied = [
        message.topic
        for message in current
        if message is not None and publisher_permitted(message, node) is False
    ]
    if denied:
        clear_topics(node, denied, _SETTING, one_of_many=True)
    return len(denied)
