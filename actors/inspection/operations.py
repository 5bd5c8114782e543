"""Operators' changes to a running broker: kick, restart, remove, reload.

Each change is an event of the log that names the operator, followed in the same turn by its
consequences; the answer is sent when they are on disk. Archives of the log, and logins to the web
page, are recorded in the same way; messages are published in ``actors.inspection.publishing``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from actors.connection.connection import Connection
from actors.inspection.inspector import (
    NotReady,
    Refused,
    actor_of,
    flag,
    number,
    optional,
    shown,
    text,
)
from actors.inspection.publishing import ApiPublishing
from actors.node.operator_commands import OperatorCommand
from actors.session.decisions.subscribing import by_text
from actors.session.session import Session
from actors.session.session_messages import Close, Kick, Remove
from actors.session.subscription_actor import Subscription
from eventstore.format.events import API_SESSION, API_USER, LOG_SESSION, NATS_SESSION
from eventstore.format.node_events import LogArchived, RetainedCleared, WebAccessed
from eventstore.format.positions import INDEX_BITS
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence

    from actors.inspection.inspector import Work
    from actors.kernel.actor import LoopActor
    from actors.node.reload_outcome import ReloadOutcome
    from actors.session.node_context import HeldTime, NodeContext
    from projections.state.retained import RetainedMessage
    from projections.state.session import SessionState

    Outcome: TypeAlias = Generator[asyncio.Future[Any] | None, None, dict[str, Any]]
    """Carries out commands as a Work does, and returns what was done and what was refused."""

_log = structlog.get_logger("foldmq")

_MAX_NAMES = 500
_LONGEST_NAME = 256
"""Maximum characters of the operator's name."""
_LONGEST_PLACE = 4096
"""Maximum characters of an archive's location."""
_LONGEST_ADDRESS = 128
_LONGEST_TIME = 32
_LATEST_MS = 1 << 53
_LOOKED_AT_ONCE = 64
_OUTCOMES = ("login", "refused", "denied", "token_added", "token_removed")
_LAST_RECORD = 1 << 43
"""Upper limit of sequences."""


class Operations:
    """Carries out the operators' changes to one broker."""

    def __init__(
        self,
        node: NodeContext,
        more: Mapping[str, Callable[[Mapping[str, Any], str], Work]] | None = None,
    ) -> None:
        """``more`` are changes that others carry out, by name."""
        self._node = node
        self.reload: Callable[[], Coroutine[Any, Any, ReloadOutcome]] | None = None
        """Reads the settings again; None: this process cannot."""
        self.publishing = ApiPublishing(node)
        self._actions: dict[str, Callable[[Mapping[str, Any], str], Work]] = {
            "kick": self._kick,
            "restart": self._restart,
            "remove_sessions": self._remove_sessions,
            "clear_retained": self._clear_retained,
            "archived": self._archived,
            "web_accessed": self._web_accessed,
            "confirm_clock": self._confirm_clock,
            "reload": self._reload,
            "publish": self.publishing.publish,
            **(more or {}),
        }

    def change(self, request: Mapping[str, Any]) -> Work:
        """Carry out a request: ``do`` names the change, ``by`` the operator."""
        action = self._actions.get(text(request, "do"))
        if action is None:
            raise Refused(f"do must be one of {', '.join(self._actions)}")
        by = text(request, "by")
        if not 0 < len(by) <= _LONGEST_NAME:
            raise Refused(f"by must name the operator, in at most {_LONGEST_NAME} characters")
        if self._node.not_ready_reasons():
            error = NotReady if action == self.publishing.publish else Refused
            raise error(f"nothing can be changed now: {'; '.join(self._node.not_ready_reasons())}")
        return action(request, by)

    def _kick(self, request: Mapping[str, Any], by: str) -> Work:
        """Close the connection of a client, or a connection whose client is not known yet."""
        node = self._node
        urn = optional(request, "actor")
        session: LoopActor | None
        if urn is None:
            name = text(request, "client")
            session = node.directory.find_session(name)
        else:
            actor = actor_of(urn, node)
            if isinstance(actor, Connection) and actor.session is None and not actor.ended:
                command = OperatorCommand("kick", by, urn, None)
                command.carry_out(node)
                node.kernel.tell(actor, Close("kicked"))
                return (yield from _answer([(urn, command)]))
            session = actor.session if isinstance(actor, Connection) else actor
            if not isinstance(session, Session):
                raise Refused(
                    f"{urn} is neither a session nor a connection, so it cannot be kicked"
                )
            name = session.name
        if not isinstance(session, Session) or session.connection is None:
            raise Refused(f"{shown(name)} is not connected")
        command = OperatorCommand("kick", by, name, name)
        node.tell_session(session, Kick(command))
        yield command.answer
        if command.refusal is not None:
            raise Refused(f"{shown(name)} {command.refusal}")
        return (yield from _answer([(name, command)]))

    def _restart(self, request: Mapping[str, Any], by: str) -> Work:
        """Make a session or subscription fail: its successor starts from the log."""
        node = self._node
        urn = text(request, "actor")
        actor = actor_of(urn, node)
        if isinstance(actor, Connection):
            raise Refused("a connection cannot be restarted, only kicked: the client reconnects")
        if isinstance(actor, Session) and actor.name in node.rebuilding:
            raise Refused(f"{urn} is already being rebuilt")
        if not isinstance(actor, (Session, Subscription)):
            raise Refused(f"{urn} cannot be restarted alone: only sessions and subscriptions can")
        name = actor.name if isinstance(actor, Session) else actor.subscriber.session
        command = OperatorCommand("restart", by, urn, name)
        command.carry_out(node)
        answer = node.kernel.restart(actor).future
        yield answer
        if answer.exception() is not None:
            raise Refused(f"{urn} ended meanwhile")
        return (yield from _answer([(urn, command)]))

    def _remove_sessions(self, request: Mapping[str, Any], by: str) -> Work:
        """Remove sessions with all their messages; connected clients are disconnected first."""
        before = number(request, "offline_before_ms", 0, 1 << 53)
        return (yield from self._remove(_names(request, "clients"), before, by))

    def _remove(self, names: Sequence[str], before: int, by: str) -> Outcome:
        """Remove sessions if they are offline since ``before``, Unix milliseconds; 0: always."""
        node = self._node
        commands: list[tuple[str, OperatorCommand]] = []
        for name in names:
            command = OperatorCommand("remove_session", by, name, name)
            command.one_of_many = len(names) > 1
            commands.append((name, command))
            if name == NATS_SESSION:
                command.refuse("belongs to the broker, not to a client")
            elif name.startswith(LOG_SESSION):
                command.refuse("represents another log, not a client")
            elif name.startswith(API_SESSION):
                command.refuse("represents a token of the HTTP API, not a client")
            elif name in node.state.sessions:
                node.tell_session(node.directory.session(name), Remove(command, before))
            else:
                command.refuse("no such session")
            yield None
        if len(names) > 1:
            _log.info("operator acted", action="remove_session", by=by, count=len(names))
        return (yield from _answer(commands))

    def _clear_retained(self, request: Mapping[str, Any], by: str) -> Work:
        """Remove the retained messages of some topics."""
        node = self._node
        topics = _names(request, "topics")
        denied_only = flag(request, "not_permitted")
        cleared: list[str] = []
        refused: list[list[str]] = []
        for topic in topics:
            message = node.state.retained.current(topic)
            if message is None or node.state.retained.get(topic) is None:
                refused.append([topic, "no retained message"])
            elif denied_only and publisher_permitted(message, node) is not False:
                refused.append([topic, "not known to be without permission any more"])
            else:
                cleared.append(topic)
        position = None
        if cleared:
            command = clear_topics(node, cleared, by)
            yield command.answer
            position = command.answer.result()
        return {"done": cleared, "refused": sorted(refused), "position": position}

    def _confirm_clock(self, _request: Mapping[str, Any], by: str) -> Work:
        """Record that the clock is right; remove the sessions that the time off has ended.

        These were offline before the start that did not count it. Messages, and the other sessions,
        keep the time that they had left.
        """
        node, held = self._node, self._node.held
        if held is None or held.ms <= 0:
            raise Refused("all time counts: no start left any out")
        names: list[str] = []
        for count, name in enumerate(list(node.state.sessions.names())):
            state = node.state.sessions.peek(name)
            if state is not None and _ended(state, held, node):
                names.append(name)
            if count % _LOOKED_AT_ONCE == 0:
                yield None
        before = held.until_ms + node.clock.jumped_ms
        outcome = yield from self._remove(names, before, by)
        command = OperatorCommand("confirm_clock", by, "the clock", None)

        def confirm() -> None:
            if node.held is not None:  # no other operator was faster
                node.emit(node.journal.jump(held.ms, "confirmed"))
                node.held = node.last_jump = None
            command.carry_out(node)

        # The event begins a record, which must not part the turn of a client. It comes last: after
        # a crash before it, the time can be confirmed again.
        node.after_turn.append(confirm)
        yield command.answer
        return {
            "held_ms": held.ms,
            "removed": len(outcome["done"]),
            "position": command.answer.result(),
        }

    def _archived(self, request: Mapping[str, Any], by: str) -> Work:
        """Record up to which record the log is archived, if the archive belongs to this log."""
        node = self._node
        through = number(request, "through", 0, _LAST_RECORD)
        link, where = text(request, "link"), _short(request, "where", _LONGEST_PLACE)
        archive = node.state.archived
        if (
            archive is not None
            and archive.event.where == where
            and archive.event.through <= through <= archive.at >> INDEX_BITS
        ):
            # Nothing changed: recording it again would make the log grow without end.
            return {"through": archive.event.through, "position": archive.at}
        if (yield from self._link_of(through)) != link:
            raise Refused(f"record {through} differs from the one in {shown(where)}")
        command = OperatorCommand("archived", by, where, None)
        at = command.put_on_record(node, LogArchived(through, link, by, where))
        _log.info("log archived", through=through, by=by, where=where)
        yield command.answer
        return {"through": through, "position": at}

    def _web_accessed(self, request: Mapping[str, Any], by: str) -> Work:
        """Record logins to the web page, accepted or refused, and changes of its tokens."""
        outcome = text(request, "outcome")
        if outcome not in _OUTCOMES:
            raise Refused(f"outcome must be one of {', '.join(_OUTCOMES)}")
        address = _short(request, "address", _LONGEST_ADDRESS)
        name, role, reason = (_short(request, key, 64) for key in ("name", "role", "reason"))
        expires = optional(request, "expires") or ""
        if len(expires) > _LONGEST_TIME:
            raise Refused(f"expires must have at most {_LONGEST_TIME} characters")
        count = number(request, "count", 1, _LATEST_MS)
        first_ms = number(request, "first_ms", 0, _LATEST_MS)
        command = OperatorCommand("web_accessed", by, outcome, None)
        event = WebAccessed(outcome, address, name, role, reason, count, first_ms, expires)
        at = command.put_on_record(self._node, event)
        yield command.answer
        return {"position": at}

    def _reload(self, _request: Mapping[str, Any], by: str) -> Work:
        """Read the settings and their files again; a refused configuration changes nothing."""
        if self.reload is None:
            raise Refused("this broker cannot read its settings again")
        reloading = asyncio.get_running_loop().create_task(self.reload())
        yield reloading
        outcome = reloading.result()
        if outcome.error:
            raise Refused(f"not reloaded, the previous settings stay in effect: {outcome.error}")
        command = OperatorCommand("reload", by, "settings", None)
        command.carry_out(self._node)
        yield command.answer
        return {"position": command.answer.result(), "restart": outcome.restart}

    def _link_of(self, sequence: int) -> Generator[asyncio.Future[Any], None, str]:
        """Return the link of a record of the log, or of the last deleted one."""
        node = self._node
        end, first = node.journal.durable, node.log.first
        if sequence > end:
            raise Refused(f"there is no record {sequence}: the log ends with {end}")
        cut = node.state.cuts[-1] if node.state.cuts else None
        if cut is not None and sequence == cut.first - 1:
            return cut.link
        if sequence < first:
            raise Refused(f"record {sequence} was deleted: the log begins with {first}")
        reading = asyncio.get_running_loop().create_task(_read_link(node, sequence))
        yield reading
        link = reading.result()
        if isinstance(link, FoldmqError):
            raise Refused(f"record {sequence} cannot be read: {link}")
        return link


async def _read_link(node: NodeContext, sequence: int) -> str | FoldmqError:
    """Return the link of a record in hexadecimal, or why it cannot be read."""
    try:
        (record,) = await node.log.read_some([sequence])
    except FoldmqError as error:
        return error
    return record.link.hex()


def _answer(commands: Iterable[tuple[str, OperatorCommand]]) -> Outcome:
    """Wait until all commands are on disk or refused, and return the outcome of each."""
    carried_out: list[str] = []
    refused: list[list[str]] = []
    position = None
    for name, command in commands:
        yield command.answer
        if command.refusal is None:
            carried_out.append(name)
            position = command.answer.result()
        else:
            refused.append([name, command.refusal])
    return {"done": carried_out, "refused": refused, "position": position}


def _ended(state: SessionState, held: HeldTime, node: NodeContext) -> bool:
    """Return whether a session that was offline before a start ends with the time off."""
    offline = not state.connected and not state.clean and state.closed_ms < held.until_ms
    return offline and node.expires_in(state) * 1000 <= held.ms


def _short(request: Mapping[str, Any], field: str, most: int) -> str:
    value = text(request, field)
    if len(value) > most:
        raise Refused(f"{field} must have at most {most} characters")
    return value


def _names(request: Mapping[str, Any], field: str) -> list[str]:
    names = request.get(field)
    if (
        not isinstance(names, list)
        or len(names) > _MAX_NAMES
        or not all(isinstance(name, str) for name in names)
    ):
        raise Refused(f"{field} must be a list of at most {_MAX_NAMES} names")
    return list(dict.fromkeys(names))


# Removal of retained messages, and whether their publishers may still publish them.


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
    known. Of other clients, the log has the user while they have a session, and the broker
    remembers that of clients which were connected since its start; tokens and the auth callout may
    give them other permissions than the file, and pseudonyms or tokens hide their names.
    """
    client, topic = message.publisher, message.topic
    authorizer, options = node.permissions, node.options
    if not client or client.startswith(LOG_SESSION):
        return None
    if client == NATS_SESSION:
        return authorizer.bridge is None or authorizer.bridge.may_publish(topic)
    if client.startswith(API_SESSION):
        return authorizer.permissions.access(API_USER, (), client).may_publish(topic)
    session = node.directory.find_session(client)
    connection = session.connection if session is not None else None
    if connection is not None and connection.identity is not None:
        return authorizer.access_of(connection, connection.identity).may_publish(topic)
    if options.users_elsewhere or node.hides_names:
        return None
    state, past = node.state.sessions.peek(client), node.clients.find(client)
    user = past.user if state is None else state.user
    unknown = state is None and past.host is None
    if unknown or (user is not None and not options.users_digest):
        # Without a password file, a user name in the log may be one that the client only claimed.
        return authorizer.permissions.decides_publish(client, topic)
    return authorizer.permissions.access(user, (), client).may_publish(topic)


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


async def clear_denied(node: NodeContext) -> None:
    """Remove the retained messages that are known not to be permitted, in small steps."""
    steps = (
        part[begin : begin + _AT_ONCE]
        for part in node.state.retained.parts()
        for begin in range(0, len(part), _AT_ONCE)
    )
    count = 0
    while not (node.draining or node.failed.done()):
        if node.not_ready_reasons():
            await asyncio.sleep(_WAIT)
            continue
        topics = next(steps, None)
        if topics is None:
            if count:
                _log.info("retained messages removed", reason="not_permitted", count=count)
            return
        denied = [
            message.topic
            for message in map(node.state.retained.current, topics)
            if message is not None and publisher_permitted(message, node) is False
        ]
        if denied:
            clear_topics(node, denied, _SETTING, one_of_many=True)
        count += len(denied)
        await asyncio.sleep(_PAUSE)
