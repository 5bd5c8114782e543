"""What operators have done to a running broker: kick, restart, remove.

Whatever is done is an event of the log that names who asked, followed in the same turn by the
events that it leads to; whoever asked is answered when they are on disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from actors.connection import Connection
from actors.inspection.inspector import in_steps
from actors.inspection.requests import Refused, number, optional, shown, text
from actors.messages import Close, Kick, Remove
from actors.session import Session
from actors.subscription import Subscription
from eventstore.events import OperatorActed, RetainedCleared
from eventstore.positions import format_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors.broker import Broker
    from actors.inspection.inspector import Work
    from actors.kernel import LoopActor
    from eventstore.journal import Effects

_log = structlog.get_logger("foldmq")

_MOST_NAMES = 500
_LONGEST_NAME = 256
"""Characters of the name of who asks."""
_FEW = 8
"""Sessions removed in one turn."""


class Operations:
    """Does what an operator asks of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._acted_at = 0
        """Position of the last OperatorActed."""
        self._actions: dict[str, Callable[[Mapping[str, Any], str], Work]] = {
            "kick": self._kick,
            "restart": self._restart,
            "remove_sessions": self._remove_sessions,
            "clear_retained": self._clear_retained,
        }

    def change(self, request: Mapping[str, Any]) -> Work:
        """Do what a request says: ``do`` names it, ``by`` who asks."""
        action = self._actions.get(text(request, "do"))
        if action is None:
            raise Refused(f"do must be one of {', '.join(self._actions)}")
        by = text(request, "by")
        if not 0 < len(by) <= _LONGEST_NAME:
            raise Refused(f"by must name who asks, in at most {_LONGEST_NAME} characters")
        if self._broker.trouble():
            raise Refused(f"nothing can be changed now: {'; '.join(self._broker.trouble())}")
        return action(request, by)

    def _kick(self, request: Mapping[str, Any], by: str) -> Work:
        """Close the connection of a client, or one that is no client's yet."""
        broker = self._broker
        urn = optional(request, "actor")
        if urn is not None:
            actor = _actor(urn, broker)
            if isinstance(actor, Connection) and actor.session is None and not actor.ended:
                self._act("kick", by, urn, None)
                broker.kernel.tell(actor, Close("kicked"))
                return (yield from self._done([urn], []))
            session = actor if isinstance(actor, Session) else getattr(actor, "session", None)
            if not isinstance(session, Session):
                raise Refused(f"{urn} is no session or connection: nobody to be kicked")
        else:
            name = text(request, "client")
            found = broker.find_session(name)
            if found is None:
                raise Refused(f"{shown(name)} is not connected")
            session = found
        if session.connection is None:
            raise Refused(f"{shown(session.name)} is not connected")
        self._act("kick", by, session.name, session.name)
        broker.kernel.tell(session, Kick())
        return (yield from self._done([session.name], []))

    def _restart(self, request: Mapping[str, Any], by: str) -> Work:
        """Let a session or subscription fail: its successor begins from the log."""
        broker = self._broker
        urn = text(request, "actor")
        actor = _actor(urn, broker)
        if isinstance(actor, Connection):
            raise Refused("a connection cannot be restarted, only kicked: the client comes back")
        if isinstance(actor, Session) and actor.name in broker.rebuilding:
            raise Refused(f"{urn} is being rebuilt already")
        if not isinstance(actor, (Session, Subscription)):
            raise Refused(f"{urn} cannot be restarted alone: only sessions and subscriptions can")
        name = actor.name if isinstance(actor, Session) else actor.subscriber.session
        self._act("restart", by, urn, name)
        answer = broker.kernel.restart(actor).future
        yield answer
        if answer.exception() is not None:
            raise Refused(f"{urn} ended meanwhile")
        return (yield from self._done([urn], []))

    def _remove_sessions(self, request: Mapping[str, Any], by: str) -> Work:
        """Remove sessions with all they hold; those that are connected are closed first."""
        broker = self._broker
        names = _names(request, "clients")
        before = number(request, "offline_before_ms", 0, 1 << 53)
        done: list[str] = []
        refused: list[tuple[str, str]] = []
        for name, pause in in_steps(names, _FEW):
            state = broker.node.sessions.peek(name)
            if state is None:
                refused.append((name, "no such session"))
            elif name in broker.rebuilding:
                refused.append((name, "is being rebuilt: try again"))
            elif before and (state.connected or state.closed_ms > before):
                refused.append((name, "came back meanwhile"))
            else:
                self._act("remove_session", by, name, name)
                broker.tell_session(broker.session(name), Remove())
                done.append(name)
            if pause:
                yield None
        return (yield from self._done(done, refused))

    def _clear_retained(self, request: Mapping[str, Any], by: str) -> Work:
        """Remove the retained messages of some topics."""
        broker = self._broker
        topics = _names(request, "topics")
        done = [topic for topic in topics if broker.node.retained.get(topic) is not None]
        missing = set(topics).difference(done)
        if done:
            target = done[0] if len(done) == 1 else f"{len(done)} topics"
            self._act("clear_retained", by, target, None)
            broker.emit(RetainedCleared(done))
        return (yield from self._done(done, [(one, "no retained message") for one in missing]))

    def _act(self, action: str, by: str, target: str, session: str | None) -> None:
        at = self._acted_at = self._broker.emit(OperatorActed(action, by, target, session))
        _log.info(
            "operator acted", action=action, by=by, target=target, position=format_position(at)
        )

    def _done(self, done: list[str], refused: Iterable[tuple[str, str]]) -> Work:
        """Answer when all that was appended in this turn, and before, is on disk."""
        stored = _Stored()
        self._broker.journal.after(stored, b"stored")
        self._broker.kernel.wake()
        yield stored.reached
        return {
            "done": done,
            "refused": [list(one) for one in refused],
            "position": self._acted_at if done else None,
        }


class _Stored:
    """An effect that nobody is sent: it tells that the log has what was decided."""

    __slots__ = ("gated", "hold", "reached")

    def __init__(self) -> None:
        self.hold: Effects | None = None
        self.gated = 0
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, _data: bytes) -> None:
        """Take note."""
        if not self.reached.done():
            self.reached.set_result(None)


def _actor(urn: str, broker: Broker) -> LoopActor:
    actor = broker.kernel.get(urn)
    if actor is None:
        raise Refused(f"no actor {shown(urn)}")
    return actor


def _names(request: Mapping[str, Any], field: str) -> list[str]:
    found = request.get(field)
    if (
        not isinstance(found, list)
        or len(found) > _MOST_NAMES
        or not all(isinstance(one, str) for one in found)
    ):
        raise Refused(f"{field} must be a list of at most {_MOST_NAMES} names")
    return list(dict.fromkeys(found))
