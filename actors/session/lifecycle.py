"""The life cycle of a session: CONNECT, end of its connections, expiry and removal."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import structlog

from actors.routing.subscriber import is_shared
from actors.session.core import SessionCore
from actors.session.decisions import sharing
from actors.session.delivery import Delivery
from actors.session.delivery_encoder import DeliveryEncoder
from actors.session.node_context import NodeContext
from actors.session.overdue import left_by
from actors.session.packet_handler import PacketHandler
from actors.session.session_messages import (
    NEXT_TURN,
    ClientConnection,
    ConnectionAttached,
    ConnectionDetached,
    Expire,
    Freeze,
    Kick,
    Remove,
    Retry,
)
from actors.session.subscription_handler import SubscriptionHandler
from actors.session.will import SessionWill
from eventstore.format.events import (
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
)
from eventstore.format.positions import Position, format_position
from eventstore.log.message_store import Message
from projections.state.session import SessionState
from projections.state.session_table import is_freezable
from protocol.mqtt.encoder import encode_connack
from protocol.mqtt.origin_properties import log_of, log_property
from protocol.mqtt.packets import Connect, ConnectCode, ConnectProperties, UserProperties
from protocol.mqtt.reason_codes import ENDINGS, ReasonCode
from protocol.mqtt.server_packet_encoder_v5 import (
    NO_EXPLANATION,
    ConnackProperties,
    Explanation,
    encode_connack_v5,
)
from protocol.mqtt.topics import is_bridge_state

_log = structlog.get_logger("foldmq")

_STARTED_AT_ONCE: Final = 512
"""Number of subscriptions of a resumed session that are started in one turn."""
_USER_PROPERTIES: Final = 1024
"""Maximum characters of a CONNECT's user properties that are recorded; longer ones are not."""


class SessionLifecycle:
    """Opens, closes, takes over, expires and removes one session."""

    __slots__ = (
        "_delivery",
        "_node",
        "_publisher",
        "_session",
        "_subscriptions",
        "_will",
        "attaching",
    )

    def __init__(
        self,
        node: NodeContext,
        session: SessionCore,
        delivery: Delivery,
        publisher: PacketHandler,
        subscriptions: SubscriptionHandler,
    ) -> None:
        self._node = node
        self._session = session
        self._delivery = delivery
        self._publisher = publisher
        self._subscriptions = subscriptions
        self._will = SessionWill(node, session, delivery, publisher)
        self.attaching: ClientConnection | None = None
        """The connection that the session gets once its subscriptions are started."""

    def handle(self, message: Any) -> None:
        """Handle a message about the session's life cycle."""
        _HANDLERS[type(message)](self, message)

    def _on_attach(self, message: ConnectionAttached) -> None:
        self.attaching = message.connection
        if self._load_closing(lambda: self._on_attach(message)):
            self._session.begin_work(self._attach(message))

    def _attach(self, message: ConnectionAttached) -> Iterator[object]:
        """Start the subscriptions of a resumed session, then accept its client."""
        session, properties = self._session, message.connect.properties
        state_before = self._node.state.sessions.get(session.name)
        resumes = state_before is not None and not state_before.clean and not message.connect.clean
        encoder = None
        if resumes:
            if properties is not None:
                encoder = self._encoder(session.state, properties)
            subscribers = self._node.router.subscribers(session.name)
            for at in range(0, len(subscribers), _STARTED_AT_ONCE):
                if at:
                    yield NEXT_TURN
                for subscriber in subscribers[at : at + _STARTED_AT_ONCE]:
                    self._subscriptions.start_actor(subscriber)
            while encoder is not None and encoder.complete(_STARTED_AT_ONCE):
                yield NEXT_TURN
        while not self._will.is_routed():
            yield NEXT_TURN
        self._open(message, encoder)
        self.attaching = None

    def _open(self, message: ConnectionAttached, encoder: DeliveryEncoder | None) -> None:
        session = self._session
        connection, connect = message.connection, message.connect
        if connection.ended or self._refuses_erased(connection):
            if session.connection is None:
                self._subscriptions.stop_actors(self._node.router.subscribers(session.name))
                self._node.directory.went_offline(session)
            return
        session.last_active = self._node.clock.monotonic()
        state_before = self._node.state.sessions.get(session.name)
        resumed = state_before is not None and not state_before.clean and not connect.clean
        if session.connection is not None:
            self._take_over(session.connection, resumed=resumed)
            state_before = self._node.state.sessions.get(session.name)
            resumed = resumed and state_before is not None
        will = session.state.will
        if state_before is not None and will is not None:
            self._will.end_waiting(discard=resumed or (will.grace > 0 and not will.delay))
        generation = session.state.generation + 1
        if state_before is not None and not resumed:
            self._subscriptions.remove_all()
        at = session.emit(self._opened(connection, connect, generation, resumed=resumed))
        self._publisher.bridged = None
        self._publisher.is_bridge = _announces_bridge(
            connection.given_id, connect, message.denied_will
        )
        if connect.properties is not None and connect.properties.user:
            self._publisher.bridged = log_of(connect.properties.user)
            self._publisher.is_bridge |= self._publisher.bridged is not None
            connect.properties.user = ()  # recorded, or too long for the log
        _log.debug(
            "connected",
            client=session.name,
            address=connection.address,
            resumed=resumed,
            position=format_position(at),
        )
        session.state = self._node.state.sessions[session.name]
        now_ms, user = self._node.clock.time_ms(), session.state.user
        self._node.clients.opened(session.name, now_ms, connection.host, user)
        if connect.will is not None:
            self._will.arm(connect)
        elif message.denied_will is not None:
            self._will.drop(message.denied_will, "not_permitted")
        session.connection = self._publisher.connection = connection
        self._node.directory.came_online(session)
        if connect.properties is not None and not (resumed and encoder is not None):
            encoder = self._encoder(session.state, connect.properties)
        self._delivery.attach(encoder)
        accepted = self._connack(connection, connect, resumed=resumed)
        session.answer(connection, accepted)
        self._node.journal.order_behind(connection)
        if resumed:
            self._node.router.set_acl(session.name, connection.access)
            for subscriber in self._node.router.subscribers(session.name):
                self._subscriptions.start_actor(subscriber)
            self._delivery.resume()
            if session.state.replays:
                self._node.replays.attach(session)
        connection.attached(session, self._keep_alive(connect))
        counters = self._node.counters
        counters.most_clients = max(counters.most_clients, self._node.directory.attached)
        if not accepted:  # the client does not accept a packet of that size
            connection.abort("packet_too_large")

    def _refuses_erased(self, connection: ClientConnection) -> bool:
        """Refuse a client whose name, or user, was erased since its login; return whether it was.

        It gets another token when it connects again.
        """
        names, identity = self._node.names, connection.identity
        if names is None:
            return False
        user = identity.user if identity is not None else None
        if names.are_current(connection.given_id, self._session.name, user):
            return False
        connection.refuse(ConnectCode.SERVER_UNAVAILABLE, "erased")
        return True

    def _encoder(self, state: SessionState, properties: ConnectProperties) -> DeliveryEncoder:
        return DeliveryEncoder(state, properties, self._node.alias_numbers)

    def _opened(
        self, connection: ClientConnection, connect: Connect, generation: int, *, resumed: bool
    ) -> SessionOpened:
        properties = connect.properties
        identity, user = connection.identity, connect.username
        if identity is not None:
            user = self._node.user_in_log(identity.user)
        event = SessionOpened(
            self._session.name,
            resumed,
            connect.clean,
            connect.version,
            self._keep_alive(connect),
            generation,
            connection.address,
            user,
            via=connection.via,
            bridge=connect.bridge,
        )
        if properties is not None:
            event.clean_start = connect.clean
            event.expiry = self._expiry(properties.session_expiry)
            event.clean = not event.expiry
            event.receive_maximum = properties.receive_maximum
            event.packet_maximum = properties.maximum_packet_size
            fits = properties.user and _size(properties.user) <= _USER_PROPERTIES
            if fits and self._node.names is None:  # they may name a person
                event.properties = {"user": [list(pair) for pair in properties.user]}
        return event

    def _expiry(self, asked: int) -> int:
        """Return the session expiry granted to an MQTT 5 client, in seconds."""
        bound = math.ceil(self._node.options.session_expiry)
        return min(asked, bound) if bound else asked

    def _keep_alive(self, connect: Connect) -> int:
        """Return the keep alive that the broker enforces, in seconds; 0: none."""
        longest = math.ceil(self._node.options.max_keep_alive)
        if longest and connect.properties is not None and not 0 < connect.keep_alive <= longest:
            return longest
        return connect.keep_alive

    def _connack(self, connection: ClientConnection, connect: Connect, *, resumed: bool) -> bytes:
        """Return the CONNACK; empty if the client does not accept a packet of its size."""
        asked = connect.properties
        if asked is None:
            return encode_connack(
                ConnectCode.ACCEPTED, session_present=resumed, version=connect.version
            )
        options = self._node.options
        expiry, keep_alive = self._expiry(asked.session_expiry), self._keep_alive(connect)
        usual = (
            resumed,
            expiry if expiry != asked.session_expiry else None,
            keep_alive if keep_alive != connect.keep_alive else None,
            options.receive_maximum,
            1 if options.reject_qos2_publish else 2,
            connection.max_packet,
            options.max_topic_aliases,
            asked.maximum_packet_size,
        )
        assigned = connection.given_id if connection.id_assigned else None
        prefix = None
        if asked.request_response_information:
            prefix = _response_information(options.response_information, connection.given_id)
        bridged = self._publisher.bridged is not None
        if not (bridged or assigned or prefix or asked.authentication_method is not None):
            return _usual_connack(*usual)
        about = Explanation(None, (log_property(options.node),)) if bridged else NO_EXPLANATION
        return _encode_connack(
            *usual,
            ConnackProperties(
                assigned_client_identifier=assigned,
                response_information=prefix,
                authentication_method=asked.authentication_method,
                authentication_data=connection.authentication_data,
            ),
            about,
        )

    def _load_closing(self, then: Callable[[], None], *, keeps_will: bool = False) -> bool:
        """Return whether the messages needed to end a connection are in memory; load them if not.

        These are the will and its receivers, unless it is not published now, and the messages
        returned to shared subscriptions.
        """
        if self._session.state.connected:
            refs = sharing.refs_to_return(self._session.state)
            if self._delivery.find_or_load(refs, then) is None:
                return False
        return keeps_will or (self._will.load(then) and self._will.route(then))

    def _take_over(self, old: ClientConnection, *, resumed: bool) -> None:
        """Close the previous connection of the client [MQTT-3.1.4-2]."""
        session = self._session
        self._detach(old, "taken_over")
        at = session.emit(SessionTakenOver(session.name, session.state.generation))
        _log.info(
            "session taken over",
            client=session.name,
            address=old.address,
            position=format_position(at),
        )
        self._close("taken_over", orderly=False, resumed=resumed)

    def _detach(self, connection: ClientConnection, reason: str) -> None:
        """Close a connection that no longer belongs to this session."""
        connection.session = None
        connection.close(reason)

    def _on_kick(self, message: Kick) -> None:
        session = self._session
        if session.connection is None:
            message.command.refuse("is not connected")
            return
        if not self._load_closing(lambda: self._on_kick(message)):
            return
        message.command.carry_out(self._node)
        self._kick(session.connection)

    def _kick(self, connection: ClientConnection) -> None:
        self._detach(connection, "kicked")
        self._disconnected("kicked", orderly=False)

    def _on_remove(self, message: Remove) -> None:
        session = self._session
        if is_shared(session.name):
            message.command.refuse("is a shared subscription, which ends with its last member")
            return
        if not self._load_closing(lambda: self._on_remove(message)):
            return
        state, before = session.state, message.offline_before_ms
        if self._node.state.sessions.get(session.name) is not state:
            message.command.refuse("no such session")
            return
        closed_ms = state.closed_ms + self._node.clock.jumped_ms
        if before and (state.connected or closed_ms > before):
            message.command.refuse("reconnected meanwhile")
            return
        message.command.carry_out(self._node)
        if session.connection is not None:
            self._kick(session.connection)
        self._remove(state)

    def _remove(self, state: SessionState) -> None:
        """Remove a session that is disconnected, once the receivers of its will are known."""
        session = self._session
        if self._node.state.sessions.get(session.name) is not state or session.stopped:
            return
        if self._will.route(lambda: self._remove(state)):
            self._end("removed")

    def _on_detached(self, message: ConnectionDetached) -> None:
        session = self._session
        state, connection = session.state, message.connection
        # After a rebuild or a restart there is no connection, only a state that records one.
        if not state.connected or session.connection not in (None, connection):
            if connection is not None:
                connection.close_when_written()
            return
        if self._load_closing(
            lambda: self._on_detached(message),
            keeps_will=message.orderly or self._will.grace(message.reason) > 0,
        ):
            if connection is not None:  # after the events of its end, which are in this turn
                connection.close_when_written()
            self._disconnected(
                message.reason, orderly=message.orderly, code=message.code, expiry=message.expiry
            )

    def _disconnected(
        self, reason: str, *, orderly: bool, code: int = 0, expiry: int | None = None
    ) -> None:
        """Continue without a connection, or end the session with it."""
        session = self._session
        self._close(reason, orderly=orderly, code=code, expiry=expiry)
        if self._node.state.sessions.get(session.name) is None:
            self._node.directory.retire(session)
        else:
            self._node.directory.went_offline(session)

    def _close(
        self,
        reason: str,
        *,
        orderly: bool,
        resumed: bool = False,
        code: int = 0,
        expiry: int | None = None,
    ) -> None:
        """End everything bound to the connection: its will, and the whole of a clean session.

        ``resumed``: the subscriptions continue with the connection that took over. ``code`` and
        ``expiry`` are those of an MQTT 5 DISCONNECT.
        """
        session = self._session
        self._node.retained_pace.flush(session.name)
        if self._delivery.replays is not None:
            self._node.replays.detach(session)
        state = session.state
        connection, session.connection = session.connection, None
        self._publisher.connection = None
        if connection is not None and connection.session is session:
            connection.session = None
        unacknowledged = self._node.clients.find(session.name).unacknowledged
        if connection is not None:
            unacknowledged = left_by(connection, self._delivery, state, self._node)
        returned = self._delivery.find(sharing.refs_to_return(state))
        self._delivery.forget()
        stays = not state.clean if expiry is None else bool(expiry)
        grace = 0 if orderly else self._will.grace(reason)
        if state.will is not None and not grace:
            if orderly or (resumed and state.will.delay):
                self._will.cancel()
            elif not (state.will.delay and stays) or reason == "taken_over":
                self._will.fire(connection)
        if not resumed:
            if stays:
                self._node.router.set_acl(session.name, None)
            self._subscriptions.stop_actors(self._node.router.subscribers(session.name))
        if returned:
            self._return_unacknowledged(returned, ends=not stays)
        event = SessionClosed(session.name, reason, state.generation, grace=grace)
        if connection is not None and connection.properties is not None:
            event.code = code or ENDINGS.get(reason, 0)
            event.expiry = self._expiry(expiry) if expiry is not None else None
        at = session.emit(event)
        self._node.clients.closed(session.name, reason, self._node.clock.time_ms())
        self._node.clients.find(session.name).unacknowledged = unacknowledged
        _log.debug(
            "disconnected",
            client=session.name,
            address=connection.address if connection is not None else None,
            reason=reason,
            position=format_position(at),
        )
        if state.clean:
            self._node.router.remove_session(session.name)

    def _return_unacknowledged(self, messages: dict[Position, Message], *, ends: bool) -> None:
        """Return unacknowledged deliveries to their shared subscriptions.

        ``ends``: the session ends with its connection. Deliveries of a shared subscription without
        other members then end, too; those of one that has already ended are for this client only.
        """
        session, groups = self._session, self._node.router.groups
        state, exchange = session.state, self._node.exchange
        for name, pids in sharing.shared_in_flight(state).items():
            group = groups.find(name)
            is_part = exchange is not None and bool(exchange.home_of(name))
            if group.is_empty:
                stays = not (ends and is_part)
            else:  # if it is a part, there may be members in other logs
                only = group.members == {session.name} and not group.logs
                stays = ends and only and not is_part
            if stays:
                continue
            refs = [state.inflight[pid].ref for pid in pids]
            for event in sharing.returned(state, name, pids):
                session.emit(event)
            returned = {ref: messages[ref] for ref in refs}
            if group.is_empty and exchange is not None:
                exchange.give_back(name, returned)
            else:
                self._node.directory.session(name).delivery.requeue(returned)

    def _on_expire(self, _message: Expire) -> None:
        session = self._session
        if (
            self._node.state.sessions.get(session.name) is not session.state
            or session.state.connected
        ):
            return
        expires = self._node.expires_in(session.state) <= 0
        if session.state.clean:  # only its will is left
            expires = self._node.will_due_in(session.state) <= 0
        if session.state.will is not None and (
            expires or self._node.will_due_in(session.state) <= 0
        ):
            again = partial(self._on_expire, _message)
            if not self._will.load(again) or not self._will.route(again):
                return
            self._will.fire(None)
        if expires:
            self._node.counters.expired += 1
            self._end("expired")
        else:
            self._node.directory.watch_expiry(session.state)

    def _end(self, reason: str) -> None:
        """Remove the session, which is disconnected, and all of its state."""
        session = self._session
        if session.state.will is not None:
            self._will.fire(None)
        self._subscriptions.remove_all()
        at = session.emit(SessionExpired(session.name, reason))
        self._node.clients.session_ended(session.name)
        _log.debug(
            "session removed",
            client=session.name,
            reason=reason,
            position=format_position(at),
        )
        self._node.directory.retire(session)

    def _on_retire(self, _message: Freeze) -> None:
        session = self._session
        few = is_freezable(session.state)
        if session.connection is None and not self._delivery.loading and few:
            self._node.directory.retire(session)

    def _on_retry(self, message: Retry) -> None:
        self._on_detached(message.message)


_HANDLERS: Final[Mapping[type, Callable[[SessionLifecycle, Any], None]]] = {
    ConnectionAttached: SessionLifecycle._on_attach,
    ConnectionDetached: SessionLifecycle._on_detached,
    Expire: SessionLifecycle._on_expire,
    Kick: SessionLifecycle._on_kick,
    Remove: SessionLifecycle._on_remove,
    Freeze: SessionLifecycle._on_retire,
    Retry: SessionLifecycle._on_retry,
}


def _size(user: UserProperties) -> int:
    return sum(len(name) + len(value) for name, value in user)


_LONGEST_STRING: Final = 65_535
"""Maximum bytes of a string in a packet."""
_NO_LEVEL: Final = frozenset("/+#")
"""Characters that no topic level may contain."""


def _response_information(prefix: str, client_id: str) -> str | None:
    """Return the prefix of a client's response topics; None: it has none.

    There is none for a client identifier that would span several topic levels, or that makes the
    prefix longer than an MQTT string.
    """
    if not prefix:
        return None
    if "%c" in prefix and _NO_LEVEL.intersection(client_id):
        return None
    text = prefix.replace("%c", client_id)
    return text if len(text.encode()) <= _LONGEST_STRING else None


def _encode_connack(
    resumed: bool,
    session_expiry: int | None,
    server_keep_alive: int | None,
    receive_maximum: int,
    maximum_qos: int,
    maximum_packet_size: int,
    topic_alias_maximum: int,
    limit: int,
    properties: ConnackProperties | None = None,
    about: Explanation = NO_EXPLANATION,
) -> bytes:
    """Encode the CONNACK of MQTT 5 that accepts a client, with more ``properties``.

    ``session_expiry`` and ``server_keep_alive`` are in seconds; None: as the client requested.
    Empty if it is larger than ``limit``, the client's maximum packet size; 0: there is none.
    """
    properties = properties or ConnackProperties()
    properties.session_expiry = session_expiry
    properties.server_keep_alive = server_keep_alive
    properties.receive_maximum = receive_maximum
    properties.maximum_qos = maximum_qos
    properties.maximum_packet_size = maximum_packet_size
    properties.topic_alias_maximum = topic_alias_maximum
    return encode_connack_v5(
        ReasonCode.SUCCESS,
        session_present=resumed,
        properties=properties,
        about=about,
        limit=limit,
    )


_usual_connack = lru_cache(64)(_encode_connack)


def _announces_bridge(client_id: str, connect: Connect, denied_will: str | None) -> bool:
    """Return whether an MQTT 5 client has the will with which bridges report their state."""
    topic = connect.will.topic if connect.will is not None else denied_will
    if connect.properties is None or topic is None:
        return False
    return is_bridge_state(topic) and topic.split("/")[3] == client_id
