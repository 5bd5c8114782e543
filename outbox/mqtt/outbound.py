"""The messages on their way to another broker: which packet comes next, and how far the peer is.

This is the sender's side of QoS 1 and 2 (section 4.3), over any number of connections and restarts,
without I/O. Nothing about a single message is stored anywhere. What survives is the cursor of the
destination: ``through``, up to which everything is acknowledged, and ``received``, up to which the
peer has sent PUBREC. They suffice because the packet identifier of a message follows from its
number among the messages that are due (``packet_identifier``).

QoS 2: a PUBREL is sent only after ``received`` is on disk. So after a restart, a message at or
before ``received`` gets its PUBREL again, and one behind it gets its PUBLISH again, which a peer
that has it does not take twice.

A run with QoS 2 begins with a clean session, since the peer may still have identifiers of the run
before. That it has one is recorded before the first message is sent, with ``received`` at
``through``: another clean session would let the peer take messages twice. The same is recorded when
the peer has lost its session, or a later restart would take a message for received that the new
session never had. Everything behind ``through`` is then sent as new.

A message of the window that is not offered after a restart, because it has expired, may still wait
for its release at the peer. Its identifier is released, so that it is free for a later message.

The peer's refusals end a batch: the runner records them before anything later counts as received.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from eventstore.format.positions import Position
from protocol.errors import FoldmqError
from protocol.mqtt.client_packet_encoder import encode_publish
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.encoder import encode_acks
from protocol.mqtt.loop_path import is_readable
from protocol.mqtt.origin_properties import Origin, with_origin, without_origin
from protocol.mqtt.packets import PacketType
from protocol.mqtt.reason_codes import FAILURE, ReasonCode

MAX_WINDOW: Final = 1000
"""Messages between the first one that is not acknowledged and the last one that is sent."""
_IDENTIFIERS: Final = 65_535
_FAR: Final = 16_384
"""Distance of the number of a message that is sent again from others: above any window."""
_SEND_BYTES: Final = 262_144
_RECORD_AT_ONCE: Final = 250
"""Messages in PUBREC that are recorded although more are about to come."""


def packet_identifier(number: int) -> int:
    """Return the packet identifier of the message with a number among those that are due."""
    return number % _IDENTIFIERS + 1


class PeerViolationError(FoldmqError):
    """The peer answered as no broker may: the connection is closed, and resumed after a pause."""


class PeerBusyError(FoldmqError):
    """The peer has no room for a message now: it is sent again after a pause."""


class SessionConflictError(FoldmqError):
    """The peer uses an identifier for another message: its session must start anew."""


class Outgoing(NamedTuple):
    """A message to be sent."""

    number: int
    """Its number among the messages that are due."""
    at: Position
    """The position with which the cursors are compared."""
    topic: bytes
    """The topic at the peer; empty: it has no legal one, and the message is refused."""
    payload: bytes
    qos: int
    """1 or 2, or 0: it is sent once, without an answer."""
    retain: bool = False
    block: bytes = b""
    """Properties; they are only sent to a peer with MQTT 5."""
    origin: Origin | None = None
    """Its place in this log, for a peer that knows by it what it has already."""
    key: int = 0
    """Number of the key that its content is sealed under; 0: it is not sealed."""


class Refusal(NamedTuple):
    """A message that the peer does not take."""

    at: Position
    reason: int
    """Reason code of its answer; 0x95 for a message above its Maximum Packet Size, or with more
    properties than a foldmq takes; 0x90 for one without a legal topic; 0x80 for one that was erased
    before it was sent."""


class PeerLimits(NamedTuple):
    """What a peer accepts, as in its CONNACK."""

    version: int = MQTT_5
    """Protocol level: 3, 4 or 5."""
    window: int = 100
    """Unacknowledged messages: the lower of Receive Maximum and the setting."""
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_size: int = 0
    """Bytes; 0: no limit."""
    takes_origins: bool = False
    """Whether it is a foldmq, which takes a message at QoS 1 once by its origin."""


# States of an entry. They are numbers, because members of an enumeration are slow when compiled.
_WAITING: Final = 0
_SENT: Final = 1
_RECEIVED: Final = 2
"""PUBREC has come."""
_RELEASED: Final = 3
"""PUBREL is sent."""
_REFUSED: Final = 4
"""The runner has not been told yet."""
_DONE: Final = 5


class _Entry:
    """A number in the window or behind it."""

    __slots__ = ("dup", "message", "number", "qos", "state")

    def __init__(
        self, number: int, message: Outgoing | None, state: int, dup: bool = False
    ) -> None:
        self.number = number
        self.message = message
        """None: it is not to be sent."""
        self.state = state
        self.dup = dup
        """Whether it may have been sent before."""
        self.qos = 0
        """QoS at which it was sent."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Outbound:
    """The messages of one run of a destination, on their way.

    The arguments are the cursor on disk: the number of messages that are acknowledged for good, the
    position of the last one, and the position up to which PUBREC is recorded, 0 in a run without a
    session. ``qos2`` says whether messages may be sent at QoS 2. ``is_erased`` returns whether a
    key was destroyed: what it sealed is not sent, and not sent again.
    """

    def __init__(
        self,
        number: int,
        through: Position,
        received: Position = 0,
        *,
        qos2: bool = True,
        is_erased: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._is_erased = is_erased
        self._offered: deque[Outgoing] = deque()
        """Messages behind the last entry."""
        self._entries: deque[_Entry] = deque()
        """At most ``MAX_WINDOW``."""
        self._first = number + 1
        """Number of the first entry, or of the next one if there is none."""
        self._next = 0
        """Index of the first entry that may still have to be sent on this connection."""
        self._released = 0
        """Index of the first entry that may still have to be released."""
        self._received = 0
        """Index of the first entry that the peer may not have yet."""
        self._latest: Position = 0
        """Position of the last message before it that is not released yet."""
        self._unrecorded = 0
        """Number of those messages that are behind ``received``."""
        self._recorded = received
        self._again: _Entry | None = None
        """A message that is sent once more although it was refused before."""
        self._conflict = False
        """Whether the peer's session has other messages than this one."""
        self._begun = max(through, 1)
        """``received`` of a session that has nothing yet; no message has the position 1."""
        self._reset = False
        """Whether that must be recorded before anything is sent."""
        self._refusals: list[Refusal] = []
        self._limits = PeerLimits()
        self._online = False
        self._qos2 = qos2
        self._stale_until = number + MAX_WINDOW
        """Numbers up to this one may have been sent before this process began."""

    # The runner's side.

    @property
    def needs_clean_session(self) -> bool:
        """Whether the next connection must ask for a clean session."""
        return self._conflict or (self._qos2 and self._first == 1 and not self._recorded)

    @property
    def number(self) -> int:
        """Number up to which all messages are acknowledged."""
        return self._first - 1

    @property
    def is_settled(self) -> bool:
        """Whether nothing more happens before new messages come or refused ones are reported."""
        if self._again is not None:
            return False
        if not self._refusals:
            return not self._entries and not self._offered
        blocked = False
        for entry in self._entries:
            state = entry.state
            if state in (_SENT, _RELEASED) or (state == _RECEIVED and not blocked):
                return False
            blocked = blocked or state == _REFUSED
        return True

    def offer(self, messages: Iterable[Outgoing]) -> None:
        """Take the messages of a batch, whose numbers grow.

        Those that are known already are not taken twice. Numbers that are left out belong to
        messages that are not to be sent.
        """
        newest = self._offered[-1].number if self._offered else self.number + len(self._entries)
        self._offered.extend(message for message in messages if message.number > newest)
        self._advance()

    def offer_again(self, message: Outgoing) -> None:
        """Take a message that was refused before, while nothing else is on its way.

        It has no number any more. It is sent at QoS 1 at most, with an identifier that is far from
        those of other messages.
        """
        # Without its origin: the peer has later ones.
        again = message._replace(qos=min(message.qos, 1), origin=None)
        self._again = _Entry(self._first + _FAR, again, _WAITING)

    def take_refusals(self) -> list[Refusal]:
        """Return refused messages with one reason, once: they are reported before more is offered.

        Another call returns those with another reason.
        """
        reason = self._refusals[0].reason if self._refusals else 0
        refusals = [each for each in self._refusals if each.reason == reason]
        self._refusals = [each for each in self._refusals if each.reason != reason]
        at = {each.at for each in refusals}
        for entry in self._entries if refusals else ():
            if entry.state == _REFUSED and entry.message and entry.message.at in at:
                entry.state = _DONE
        self._advance()
        return refusals

    def to_record(self) -> Position | None:
        """Return what must be recorded as ``received`` before more can be sent; None: nothing."""
        if self._reset:
            return self._begun
        entries = self._entries
        while self._received < len(entries):
            entry = entries[self._received]
            if entry.state not in (_RECEIVED, _RELEASED, _DONE):
                break
            self._received += 1
            message = entry.message
            if message is not None and entry.state == _RECEIVED and message.at > self._recorded:
                self._latest = message.at
                self._unrecorded += 1
        return self._latest if self._latest > self._recorded else None

    @property
    def may_record_later(self) -> bool:
        """Whether more messages are about to be received, and only few of them wait for a record.

        Each record is a commit of the log, so many messages share one.
        """
        if self._reset or self._unrecorded >= _RECORD_AT_ONCE:
            return False
        at = self._received
        return at < len(self._entries) and self._entries[at].state == _SENT

    def recorded(self, position: Position) -> None:
        """Continue: the position of ``to_record`` is on disk."""
        if self._reset and position != self._begun:
            return  # the session was lost meanwhile
        self._recorded = position
        self._reset = False
        self._released = self._received = self._unrecorded = 0

    # The connection's side.

    def connected(self, limits: PeerLimits, *, session_present: bool) -> None:
        """Begin a connection, after a CONNACK that accepts."""
        self._limits = limits
        self._online = True
        self._conflict = False
        self._next = self._released = self._received = self._unrecorded = 0
        self._latest = 0
        if not session_present:
            self._stale_until = 0
            self._reset = self._qos2
            self._recorded = self._begun
        if self._again is not None:
            self._again.state = _WAITING
        for entry in self._entries:
            state = entry.state
            if state in (_DONE, _REFUSED):
                continue
            if not session_present:
                entry.state = _WAITING if entry.message is not None else _DONE
                entry.dup = False
            elif state == _RELEASED:
                entry.state = _RECEIVED
            elif state == _SENT:
                entry.state, entry.dup = _WAITING, True
        self._advance()

    def disconnected(self) -> None:
        """End the connection."""
        self._online = False

    def packets(self) -> bytes:
        """Return the next packets to be sent, some at a time; empty: there are none now."""
        if not self._online or self._reset:
            return b""
        parts: list[bytes] = []
        releases = self._release()
        if releases:
            parts.append(encode_acks(PacketType.PUBREL, releases))
        again = self._again
        if again is not None and again.state == _WAITING and again.message is not None:
            if not self._withdraws(again, again.message):
                parts.append(self._publish(again, again.message))
            self._end_again()
        size, erased = 0, False
        stop = 0 if self._refusals else min(self._limits.window, len(self._entries))
        while self._next < stop and size < _SEND_BYTES:
            entry = self._entries[self._next]
            self._next += 1
            if entry.state != _WAITING or entry.message is None:
                continue
            if self._withdraws(entry, entry.message):
                erased = True
                if self._refusals:
                    break
                continue
            packet = self._publish(entry, entry.message)
            if not packet:  # it was refused
                break
            parts.append(packet)
            size += len(packet)
        if erased and (releases := self._release()):
            parts.append(encode_acks(PacketType.PUBREL, releases))
        self._advance()
        return b"".join(parts)

    def acknowledged(
        self, kind: PacketType, packet_ids: Sequence[int], reasons: Sequence[int] = ()
    ) -> None:
        """Handle PUBACK, PUBREC or PUBCOMP packets of the peer.

        Raises PeerViolationError, PeerBusyError or SessionConflictError: the connection then has
        to be closed.
        """
        try:
            for index, packet_id in enumerate(packet_ids):
                reason = reasons[index] if reasons else 0
                entry = self._find(packet_id)
                if entry is None:  # it belongs to no message, or to one that is done
                    continue
                if kind is PacketType.PUBACK:
                    self._on_puback(entry, reason)
                elif kind is PacketType.PUBREC:
                    self._on_pubrec(entry, reason)
                else:
                    self._on_pubcomp(entry)
        finally:
            self._end_again()
            self._advance()

    # How it works.

    def _append(self, message: Outgoing | None) -> None:
        number = self._first + len(self._entries)
        stale = number <= self._stale_until
        state = _WAITING
        if message is None:
            state = _RECEIVED if stale and self._qos2 else _DONE
        elif stale and message.at <= self._recorded:
            state = _RECEIVED if message.qos == 2 else _DONE
        self._entries.append(_Entry(number, message, state, stale))

    def _find(self, packet_id: int) -> _Entry | None:
        again = self._again
        if again is not None and packet_id == packet_identifier(again.number):
            return again
        index = (packet_id - packet_identifier(self._first)) % _IDENTIFIERS
        return self._entries[index] if index < len(self._entries) else None

    def live_packet(self, message: Outgoing) -> bytes:
        """Return the PUBLISH of a message that is not in the log; empty: it cannot be sent."""
        if not self._online or not message.topic:
            return b""
        packet = self._encoded(message, 0, 0)
        return packet if not 0 < self._limits.maximum_packet_size < len(packet) else b""

    def _encoded(self, message: Outgoing, qos: int, packet_id: int, *, dup: bool = False) -> bytes:
        limits, topic, payload = self._limits, message.topic, message.payload
        retain = message.retain and limits.retain_available
        block = message.block if limits.version == MQTT_5 else None
        if limits.takes_origins and qos == 1:
            origin, bare = message.origin, message.block
            block = without_origin(bare) if origin is None else with_origin(bare, origin)
            if not is_readable(block):
                block = without_origin(bare)
        return encode_publish(topic, payload, qos, packet_id, retain=retain, dup=dup, block=block)

    def _publish(self, entry: _Entry, message: Outgoing) -> bytes:
        """Return the PUBLISH of a message; empty: it is refused."""
        limits = self._limits
        qos = min(message.qos, limits.maximum_qos)
        packet_id = packet_identifier(entry.number)
        if not message.topic:
            self._refuse(entry, ReasonCode.TOPIC_NAME_INVALID)
            return b""
        packet = self._encoded(message, qos, packet_id, dup=entry.dup and qos > 0)
        if 0 < limits.maximum_packet_size < len(packet) and message.origin is not None:
            plain = message._replace(origin=None)
            packet = self._encoded(plain, qos, packet_id, dup=entry.dup and qos > 0)
        unreadable = limits.takes_origins and not is_readable(message.block)
        if unreadable or 0 < limits.maximum_packet_size < len(packet):
            self._refuse(entry, ReasonCode.PACKET_TOO_LARGE)
            return b""
        entry.qos = qos
        entry.state = _SENT if qos else _DONE
        return packet

    def _withdraws(self, entry: _Entry, message: Outgoing) -> bool:
        """Return whether a message was erased and is not sent; a peer that has it releases it."""
        if not message.key or not self._is_erased(message.key):
            return False
        if entry.dup:
            entry.message = None
            entry.state = _RECEIVED if self._qos2 else _DONE
        else:
            self._refuse(entry, FAILURE)
        return True

    def _release(self) -> list[int]:
        """Return the identifiers of the messages to be released now."""
        released: list[int] = []
        while self._released < len(self._entries):
            entry = self._entries[self._released]
            if entry.message is not None and entry.message.at > self._recorded:
                break
            self._released += 1
            if entry.state == _RECEIVED:
                entry.state = _RELEASED
                released.append(packet_identifier(entry.number))
        return released

    def _on_puback(self, entry: _Entry, reason: int) -> None:
        if entry.state != _SENT:
            return
        if reason == ReasonCode.QUOTA_EXCEEDED:
            raise PeerBusyError("the peer has no room for more messages (0x97)")
        if reason >= FAILURE:
            self._refuse(entry, reason)
        else:
            # At QoS 2, too: a peer that answers PUBACK there has stored it and awaits no PUBREL.
            entry.state = _DONE

    def _on_pubrec(self, entry: _Entry, reason: int) -> None:
        if entry.state != _SENT:
            return
        if entry.qos != 2:
            raise PeerViolationError("PUBREC for a message at QoS 1")
        if reason < FAILURE or (reason == ReasonCode.PACKET_IDENTIFIER_IN_USE and entry.dup):
            entry.state = _RECEIVED
        elif reason == ReasonCode.PACKET_IDENTIFIER_IN_USE:
            self._conflict = True
            raise SessionConflictError("the peer has another message with this identifier (0x91)")
        elif reason == ReasonCode.QUOTA_EXCEEDED:
            raise PeerBusyError("the peer has no room for more messages (0x97)")
        else:
            self._refuse(entry, reason)

    def _on_pubcomp(self, entry: _Entry) -> None:
        if entry.state == _RELEASED:
            entry.state = _DONE
        elif entry.state in (_SENT, _RECEIVED):
            raise PeerViolationError("PUBCOMP before PUBREL")

    def _refuse(self, entry: _Entry, reason: int) -> None:
        if entry.message is not None:
            entry.state = _REFUSED
            self._refusals.append(Refusal(entry.message.at, reason))

    def _end_again(self) -> None:
        if self._again is not None and self._again.state in (_DONE, _REFUSED):
            self._again = None

    def _advance(self) -> None:
        """Forget the entries that are done, from the first one on, and add as many."""
        entries, offered, count = self._entries, self._offered, 0
        while True:
            while entries and entries[0].state == _DONE:
                entries.popleft()
                self._first += 1
                count += 1
            if not offered or len(entries) == MAX_WINDOW:
                break
            if not entries and self._first > self._stale_until:
                self._first = offered[0].number
            while offered and len(entries) < MAX_WINDOW:
                ready = offered[0].number == self._first + len(entries)
                self._append(offered.popleft() if ready else None)
            if entries[0].state != _DONE:
                break
        self._next = max(0, self._next - count)
        self._released = max(0, self._released - count)
        self._received = max(0, self._received - count)
