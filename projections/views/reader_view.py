"""Sessions whose subscriptions match a topic, as typed rows and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from projections.state.session import SessionState


@dataclass(frozen=True, slots=True)
class ReaderView:
    """A subscription that matches a topic."""

    log: str
    """Its log; empty if there is only one."""
    client: str
    filter: str
    qos: int | None
    """None: of a shared subscription whose members have their own."""
    connected: bool
    user: str | None
    """User name of the session's last connection; None: it had none, or it is not known."""


def readers_of(sessions: Iterable[tuple[str, SessionState]], topic: str) -> Iterator[ReaderView]:
    """Yield the subscriptions of sessions, each with its log, that match a topic.

    Members of a shared subscription are listed, not the shared subscription itself.
    """
    for log, state in sessions:
        if state.session.startswith(SHARE):
            continue
        for held in state.active():
            inner = split_share(held.filter)[1]
            if held.replay is not None:
                inner = held.replay.topic_filter
            if matches(inner, topic):
                yield ReaderView(
                    log, state.session, held.filter, held.qos, state.connected, state.user
                )


def reader_object(view: ReaderView) -> dict[str, Any]:
    """Return a subscription as an object of ``--json``."""
    log = {"log": view.log} if view.log else {}
    return {
        **log,
        "client": view.client,
        "filter": view.filter,
        "qos": view.qos,
        "connected": view.connected,
        "user": view.user,
    }
