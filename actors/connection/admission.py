"""Admission of connections: limits, addresses, logins and the owner of the session.

This module decides about a connection until it requests its session: whether there is room for it
and for its buffered bytes, whether its login is valid, and whether it owns its session. Later
decisions are in :mod:`actors.broker.session_admission`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import structlog

from actors.access.credentials import Authenticator, Credentials, Verdict, login_rank
from actors.access.enhanced import Exchange, Outcome
from actors.connection.core import ConnectionCore
from actors.connection.listener import Listener, ListenerOptions
from actors.connection.pseudonyms import name_in_log
from actors.connection.socket_closer import SocketCloser
from actors.limits.address_networks import networks_of
from actors.limits.broker_options import BrokerOptions
from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import Quota
from actors.limits.slow_readers import SlowReader
from actors.session.core import SessionCore
from actors.session.node_context import NodeContext
from actors.session.session_messages import (
    Authenticated,
    AuthenticationStep,
    ClientConnection,
    Close,
    LoginInSteps,
)
from actors.transports.acceptor import Acceptor, start_acceptors
from actors.transports.stack import build_stack
from eventstore.format.events import API_USER, NATS_SESSION
from eventstore.format.name_entries import CLIENT, USER, is_token
from protocol.mqtt.packets import Connect, ConnectCode, Packet

if TYPE_CHECKING:
    import socket


_log = structlog.get_logger("foldmq")

_MAX_LOGINS = 1000
"""Maximum number of logins that are verified or wait for verification."""
_CHANGED_AT_ONCE, _CLOSED_AT_ONCE = 256, 32
"""Number of connections that get new limits, or are closed, in one iteration of the event loop."""
_LOOKED_AT, _LOOKING, _LOOK_SHARE = 1024, 0.05, 0.05
"""Number of connections examined at a time for clients that have left; seconds for which this may
be done at once, and the share of the time that it may take in the long run."""
_REVOKED = "login_revoked"
_RESERVED_USERS = (NATS_SESSION, API_USER)
"""Users with permissions of their own: only the bridge, and the HTTP API, have them."""
"""Close reason for clients whose user was changed in the password file or removed from it."""


class Admission:
    """Admits connections to a broker."""

    def __init__(
        self,
        node: NodeContext,
        authenticator: Authenticator,
        connect: Callable[[NodeContext, Admission, Listener], ConnectionCore],
    ) -> None:
        self.limits: ClientLimits[ConnectionCore] = ClientLimits(node.options.bounds, {})
        self.authenticator = authenticator
        self.connections: dict[Any, None] = {}
        """All open connections, in the order in which they were accepted."""
        self.closer = SocketCloser()
        """Closes the sockets of clients that have left."""
        self.on_connect: Callable[[Any, list[Packet]], None] | None = None
        """Called with each CONNECT while there is a trace that needs it."""
        self.listeners: dict[str, Listener] = {}
        """Listeners by name."""
        self.acceptors: list[Acceptor] = []
        self._node = node
        self._connect = connect
        """Creates the actor of a new connection."""
        self._logins = 0
        self._left: set[ConnectionCore] = set()
        """Connections that no longer count: the client has left, and the broker has not read it."""
        self._looking, self._looked = _LOOKING, 0.0
        """Seconds left for looking for them, and when that was last computed."""

    def listen(
        self,
        options: ListenerOptions,
        sockets: Sequence[socket.socket],
        clients: Sequence[socket.socket] = (),
    ) -> None:
        """Accept connections on bound, listening sockets, and those accepted before a restart."""
        listener = Listener(options, self._node.options.max_topic_aliases)
        self.listeners[options.name] = listener
        kernel = self._node.kernel
        if options.stack.handshakes is not None:
            options.stack.handshakes.busy_recently = lambda: kernel.busy_recently
        acceptors = (
            Acceptor(
                bound,
                partial(self.admits, listener),
                partial(self.accept, listener),
                busy_recently=lambda: kernel.busy_recently,
            )
            for bound in sockets
        )
        self.acceptors += start_acceptors(acceptors, clients)
        self.limits.change(self._node.options.bounds, self._quotas())

    def close(self) -> None:
        """Accept no more connections."""
        for acceptor in self.acceptors:
            acceptor.close()

    def reload(self, options: BrokerOptions, listeners: Sequence[ListenerOptions]) -> None:
        """Apply new limits and new options of listeners; open connections stay open."""
        for own in listeners:
            self.listeners[own.name].options = own
        self.limits.change(options.bounds, self._quotas())
        identified = [
            connection for connection in self.connections if connection.identity is not None
        ]
        self._node.in_parts(identified, _CHANGED_AT_ONCE, self._meter)

    def end_revoked(self) -> None:
        """Close connections whose password is no longer valid; call this after a change of users.

        Their sessions continue as after any lost connection.
        """
        self._node.spawn_task(self._end_revoked(list(self.connections)))

    async def _end_revoked(self, connections: Sequence[ConnectionCore]) -> None:
        count = 0
        for number, connection in enumerate(connections):
            if number % _CHANGED_AT_ONCE == _CHANGED_AT_ONCE - 1:
                await asyncio.sleep(0)
            verdict = connection.identity
            if verdict is None or self.is_valid(verdict) or connection.ended:
                continue
            count += 1
            # A new file may affect thousands of clients; the clients that stay take priority.
            self._node.kernel.tell_low_priority(connection, Close(_REVOKED))
        if count:
            _log.info("logins revoked: users or passwords changed", connections=count)

    def is_valid(self, verdict: Verdict) -> bool:
        """Return whether the credential of an accepted login is still valid."""
        return verdict.proof is None or self.authenticator.holds(verdict)

    def _quotas(self) -> dict[str, Quota]:
        return {name: listener.options.quota for name, listener in self.listeners.items()}

    # From the socket to the session.

    def admits(self, listener: Listener, host: str) -> bool:
        """Return whether a socket from this host may become a connection; empty: not known yet."""
        options = listener.options
        return not self.refuses(options.name, "" if options.stack.hides_clients(host) else host)

    def accept(self, listener: Listener, waited: float = 0.0) -> asyncio.Protocol:
        """Return the protocol of a new socket.

        ``waited`` are the seconds of ``connect_timeout`` that its client used before.
        """
        connection = self._connect(self._node, self, listener)
        connection.waited_before = waited
        self._node.kernel.spawn(connection, self._node.root)
        return build_stack(cast("asyncio.Protocol", connection), listener.options.stack)

    def admit(self, connection: ConnectionCore) -> bool:
        """Count a new connection; return False if there are too many or the broker shuts down."""
        now, listener = self._now(), connection.listener.options.name
        self._make_room_for(listener, connection.host)
        if self._full(connection.address):
            return False
        if self.limits.arrive(listener, connection.host, now) is not None:
            return False
        node = self._node
        self.connections[connection] = None
        node.counters.accepted += 1
        most = max(node.counters.most_connections, len(self.connections))
        node.counters.most_connections = most
        self._make_room(self.limits.unauthenticated.join(connection, connection.host))
        return True

    def refuses(self, listener: str, host: str) -> bool:
        """Return whether to close a socket immediately instead of accepting it.

        Clients that have left before do not count, although the broker may not have noticed it.
        """
        self._make_room_for(listener, host)
        return self._full(host) or self.limits.refuses(listener, host, self._now())

    def _full(self, address: str) -> bool:
        if not self._node.draining and not self._is_full:
            return False
        self.limits.refused.add("connections", self._now(), address=address)
        return True

    @property
    def _is_full(self) -> bool:
        count = len(self.connections) - len(self._left)
        return count >= self._node.options.max_connections

    def _make_room_for(self, listener: str, host: str) -> None:
        """If there are too many connections, stop counting those that their clients have closed.

        Some are examined at a time.
        """
        if not (self._is_full or self.limits.is_full(listener, host, self._now())):
            return
        clock, everywhere = self._node.kernel.clock, self._is_full
        began = clock()
        self._looking = min(_LOOKING, self._looking + _LOOK_SHARE * (began - self._looked))
        self._looked = began
        if self._looking <= 0:
            return
        candidates = (
            other
            for other in self.connections
            if other not in self._left
            and (everywhere or other.listener.options.name == listener or other.host == host)
        )
        for connection in [other for other in islice(candidates, _LOOKED_AT) if other.gone]:
            self._uncount(connection)
            self._left.add(connection)
        self._looking -= clock() - began

    def _uncount(self, connection: ConnectionCore) -> None:
        limits, host = self.limits, connection.host
        limits.unauthenticated.leave(connection, host)
        limits.leave(connection.listener.options.name, host, connection.counted_user)
        connection.counted_user = None

    def locate(self, connection: ConnectionCore) -> None:
        """Count a connection for the client address that a proxy reported."""
        if connection in self._left:
            return
        limits, host = self.limits, connection.host
        now, listener = self._now(), connection.listener.options.name
        limits.unauthenticated.leave(connection, "")
        if limits.locate(listener, host, now) is not None:
            connection.host = ""
            connection.abort("refused")
        else:
            self._make_room(limits.unauthenticated.join(connection, host))

    def sample(self, lag: float) -> None:
        """Record the lag of the event loop in seconds; call this often."""
        now = self._now()
        kernel = self._node.kernel
        self._node.counters.longest_turn.observe(kernel.longest, kernel.longest_work, now)
        kernel.longest = kernel.longest_work = 0.0
        # New clients wait while leadership is uncertain: they add no work for the log.
        oldest = self._node.journal.oldest if not self._node.unsure else None
        self.limits.overload.sample(lag, 0.0 if oldest is None else now - oldest, now)

    def hold(self, connection: ConnectionCore, size: int) -> None:
        """Record the number of bytes buffered for an unauthenticated client."""
        self._make_room(self.limits.unauthenticated.holds(connection, connection.host, size))

    def _make_room(self, connections: Iterable[ConnectionCore]) -> None:
        now = self._now()
        for connection in connections:
            self.limits.refused.add("unauthenticated", now, address=connection.address)
            connection.abort("refused")

    def identified(self, connection: ConnectionCore, connect: Connect) -> bool:
        """Count a connection for its user, who is now known; return whether it is admitted."""
        verdict, limits = connection.identity, self.limits
        user = verdict.user if verdict is not None else None
        now, host = self._now(), connection.host
        limits.unauthenticated.leave(connection, host)
        if connection in self._left:
            return True
        if verdict is not None and not self.is_valid(verdict):
            # The users changed after the password was verified.
            connection.refuse(ConnectCode.BAD_USER_NAME_OR_PASSWORD, _REVOKED)
            return False
        if user in _RESERVED_USERS:
            connection.refuse(ConnectCode.NOT_AUTHORIZED, "reserved_user")
            return False
        given_id = connection.given_id
        shown = connect.client_id
        if given_id and limits.flaps((user, given_id), now, shown, connection.address):
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "flapping")
            return False
        if limits.has_debt(host, self._node.user_in_log(user), now):
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "publish_rate")
            return False
        if not self._gives_token(cast("ClientConnection", connection), USER, user or ""):
            return False
        if self._node.names is not None:  # it may have got a token meanwhile
            connect.client_id = connection.client_id = self.known_as(given_id)
        name, user = connect.client_id, self._node.user_in_log(user)
        session: SessionCore | None = self._node.directory.find_session(name)
        old = session.connection if session is not None else None
        if old is not None and user is not None and old.counted_user == user:
            old.counted_user = None  # the new connection takes it over
        elif limits.identify(user, host, now) is not None:
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "too_many_connections")
            return False
        connection.counted_user = user
        self._meter(connection)
        return True

    def _meter(self, connection: ConnectionCore) -> None:
        name, user = connection.listener.options.name, connection.counted_user
        now = self._now()
        connection.set_rate_limiter(self.limits.rate_limiter(name, connection.host, user, now))

    def forget(self, connection: ConnectionCore) -> None:
        """Remove a connection from all counts."""
        node = self._node
        if connection in self.connections:
            if connection not in self._left:
                self._uncount(connection)
            self.limits.slow.forget(connection)
        self._left.discard(connection)
        self.connections.pop(connection, None)
        node.paused.pop(connection, None)

    def sweep(self) -> None:
        """Close clients that read nothing, and remove outdated counts; called once a second."""
        slow = self.limits.sweep(self.connections, self._now())
        self._node.in_parts(slow, _CLOSED_AT_ONCE, self._close_slow)

    def _close_slow(self, slow: SlowReader[ConnectionCore]) -> None:
        reader, now = slow.reader, self._now()
        if not reader.ended:
            client = reader.client_id
            self.limits.refused.add(slow.reason, now, client=client, unread=slow.unread)
            self.limits.count_fault(reader.host, now)
            reader.abort(slow.reason)

    def _now(self) -> float:
        return self._node.clock.monotonic()

    # The owner of the session.

    def known_as(self, client_id: str) -> str:
        """Return the name of a client identifier in the log and elsewhere, such as a pseudonym."""
        names = self._node.names
        if names is not None:
            return names.client(client_id)
        return name_in_log(client_id, self._node.options.pseudonym_key)

    def names_client(self, connection: ClientConnection, connect: Connect) -> bool:
        """Give a client that has logged in its names in the log; return whether it is admitted.

        Names of persons get tokens, for which there may be no room: call it when nothing else
        can refuse the client.
        """
        names, verdict = self._node.names, connection.identity
        if names is None or names.lacks_user(verdict.user if verdict is not None else None):
            return True  # the second: its session refuses it
        if not self._gives_token(connection, CLIENT, connection.given_id):
            return False
        connect.client_id = connection.client_id = names.client(connection.given_id)
        return True

    def _gives_token(self, connection: ClientConnection, kind: str, name: str) -> bool:
        """Give a token to a name that needs one, or refuse the client; return whether it did."""
        names, verdict = self._node.names, connection.identity
        if names is None or self._node.draining:  # then it is not admitted
            return True
        parties = [("address", network) for network in networks_of(connection.host)]
        user = verdict.user if verdict is not None and not verdict.claimed else None
        if user is not None and kind == CLIENT:
            parties.append((USER, user))
        now = self._now()
        reason = names.admit(kind, name, parties, now)
        if not reason:
            return True
        shown = self._node.user_in_log(user)
        self.limits.refused.add(reason, now, address=connection.address, user=shown)
        connection.refuse(ConnectCode.SERVER_UNAVAILABLE, reason)
        return False

    def authenticate(
        self, connection: ConnectionCore, connect: Connect, credentials: Credentials
    ) -> asyncio.Task[None] | None:
        """Verify user name and password outside the event loop; the connection gets the result.

        Returns the task, to be cancelled when it is no longer needed; None if the connection was
        refused because too many logins are waiting.
        """
        if self._has_too_many_logins(connection, credentials):
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "too_many_logins")
            return None
        return self._begin_login(self._authenticate(connection, connect, credentials))

    def begin_step(
        self,
        connection: ConnectionCore,
        login: LoginInSteps,
        exchange: Exchange,
        data: bytes | None,
    ) -> asyncio.Task[None] | None:
        """Process one step of enhanced authentication; the connection gets the answer.

        Returns the task; None if too many logins are waiting.
        """
        if self._has_too_many_logins(connection, exchange.credentials):
            return None
        return self._begin_login(self._decide_step(connection, login, exchange, data))

    def _has_too_many_logins(self, connection: ConnectionCore, credentials: Credentials) -> bool:
        """Return whether too many logins are waiting, and count the refusal."""
        # Part of them is for clients without recent failures, and part for known ones.
        share = _MAX_LOGINS // 4
        if self._logins < 2 * share:
            return False
        if self._logins < (4 - login_rank(self.authenticator, credentials)) * share:
            return False
        self.limits.refused.add(
            "logins", self._now(), client=connection.client_id, address=connection.address
        )
        return True

    def _begin_login(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._logins += 1
        task = self._node.spawn_task(work)
        # Not in the task: a task cancelled before its first step never runs.
        task.add_done_callback(self._login_over)
        return task

    def _login_over(self, _task: object) -> None:
        self._logins -= 1

    async def _authenticate(
        self, connection: ConnectionCore, connect: Connect, credentials: Credentials
    ) -> None:
        node, asked, verdict = self._node, None, None
        while verdict is None or asked is not self.authenticator:  # reloaded meanwhile
            asked = self.authenticator
            verdict = await asked.check(credentials)
        if not connection.stopped:
            # The client is nearly admitted: it takes priority over clients that have sent nothing.
            node.kernel.tell_low_priority(
                connection, Authenticated(connect, verdict), first=verdict.accepted
            )

    async def _decide_step(
        self,
        connection: ConnectionCore,
        login: LoginInSteps,
        exchange: Exchange,
        data: bytes | None,
    ) -> None:
        step = await self.authenticator.step(exchange, data)
        if not connection.stopped:
            is_in = isinstance(step, Outcome) and step.verdict.accepted
            self._node.kernel.tell_low_priority(
                connection,
                AuthenticationStep(login, step),
                first=is_in or connection.session is not None,
            )

    def refuses_other_user(self, connection: ClientConnection, name: str) -> bool:
        """Refuse a client whose session belongs to another user; return whether it was refused.

        Only if users are verified: an unverified claim proves nothing.
        """
        state, verdict = self._node.state.sessions.peek(name), connection.identity
        if state is None or state.user is None or verdict is None or verdict.claimed:
            return False
        user = self._node.user_in_log(verdict.user)
        if state.user == user or (state.user == verdict.user and not is_token(state.user)):
            return False  # the second: from before its name got a token
        names = self._node.names
        if names is not None and names.is_erased(name, state.user):
            # Its session is about to end; the client has another token.
            connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "erased")
            return True
        now = self._now()
        self.limits.refused.add("other_user", now, client=name, user=user)
        connection.refuse(ConnectCode.IDENTIFIER_REJECTED, "other_user")
        return True
