"""Checks of one event against the state of its session before it.

All checks are pure functions that return violations.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from eventstore.format.events import (
    Acked,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.positions import Position, format_position, from_runs
from projections.audit.expected_messages import ExpectedMessage
from projections.audit.rule_table import Rule, Violation
from projections.audit.shared_subscription_steps import SHARE
from projections.state.session import (
    SHARED_HOME,
    SHARED_PART,
    SessionState,
    SubscriptionState,
)
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK
from protocol.mqtt.topics import matches

_MAX_PID: Final = 65_535
TOO_LARGE_CODE: Final = 0x95
"""Reason code with which the broker ends deliveries that the client no longer accepts."""
_LEVEL_5: Final = 5
_AGAIN: Final = frozenset({"resumed", "ack_wait"})
"""Causes of a second transmission of packets."""


# --------------------------------------------------------------------- beginnings and ends


def is_clean_start(event: SessionOpened) -> bool:
    """Return whether the client asked for a new, empty session."""
    return event.clean_start if event.level >= _LEVEL_5 else event.clean


def opened(state: SessionState | None, event: SessionOpened, at: Position) -> list[Violation]:
    """Check that a session continues exactly when it must [MQTT-3.1.2-4, MQTT-3.1.2-6]."""
    what = ""
    if not event.resumed:
        if state is not None and not state.clean and not is_clean_start(event):
            what = "its state was discarded although it had to be kept"
    elif state is None:
        what = "a session was resumed that did not exist"
    elif state.clean:
        what = "a clean session was resumed"
    elif is_clean_start(event):
        what = "a session was resumed although a clean one was requested"
    return [Violation(Rule.SESSION, at, what)] if what else []


def ended(
    state: SessionState | None, event: SessionClosed | SessionExpired, at: Position
) -> list[Violation]:
    """Check that the session or connection that ends existed."""
    if state is None:
        return [Violation(Rule.SESSION, at, "a session ended that did not exist")]
    if event.e == "SessionExpired" and state.connected:
        return [Violation(Rule.SESSION, at, "a session expired while its client was connected")]
    return []


# ------------------------------------------------------------------------------ deliveries


def identifiers(state: SessionState, pids: list[int], count: int, at: Position) -> list[Violation]:
    """Check the packet identifiers given to ``count`` messages [MQTT-2.3.1-4]."""
    violations: list[Violation] = []
    if len(pids) != count or (count > 1 and len(set(pids)) != count):
        what = "not one packet identifier for each message"
        violations.append(Violation(Rule.PACKET_ID_REUSE, at, what))
    for number, pid in enumerate(pids):
        if pid in state.inflight or pid in state.releasing:
            what = f"packet identifier {pid} was already in flight"
            violations.append(Violation(Rule.PACKET_ID_REUSE, at + number, what))
        elif not 0 < pid <= _MAX_PID:
            what = f"{pid} is not a packet identifier"
            violations.append(Violation(Rule.PACKET_ID_REUSE, at + number, what))
    return violations


def from_the_head(
    held: SubscriptionState | None, refs: list[Position], flags: int | None, at: Position
) -> list[Violation]:
    """Check that messages, with these flags if given, are the first of a queue."""
    queue = held.queue if held is not None else None
    head = list(islice(queue, len(refs))) if queue is not None else []
    if flags is None:
        there, expected = [packed >> FLAG_BITS for packed in head], refs
    else:
        there, expected = head, [ref << FLAG_BITS | flags for ref in refs]
    if there != expected:
        return [Violation(Rule.QUEUE, at, "messages left the queue that were not at its head")]
    return []


def dropped(
    state: SessionState, event: MessageDropped, refs: list[Position], at: Position
) -> list[Violation]:
    """Check that messages dropped from a queue are its first ones, and that all are named."""
    if event.queued < 0:
        return []
    if event.count != len(refs):
        what = f"{event.count} messages left the queue, but {len(refs)} are named"
        return [Violation(Rule.QUEUE, at, what)]
    return from_the_head(state.subscriptions.get(event.filter), refs, None, at)


# ----------------------------------------------------------------------------------- expiry

# A message expires at the second that its event contains, not before: the broker decides that at
# the time of the record. A message that is sent may be in a later record than the one in which that
# was decided, if this had no more room.


def sent_in_time(
    held: SubscriptionState | None, refs: list[Position], time_ms: int, at: Position
) -> list[Violation]:
    """Check that messages sent from the head of a queue have not expired [MQTT-3.3.2-5]."""
    queue = held.queue if held is not None else None
    expires = queue.expiries(len(refs)) if queue is not None else []
    violations: list[Violation] = []
    for number, (ref, end) in enumerate(zip(refs, expires, strict=False)):
        if 0 < end < time_ms // 1000:
            what = f"message {format_position(ref)} was sent {time_ms // 1000 - end} s too late"
            violations.append(Violation(Rule.EXPIRY, at + number, what))
    return violations


def taken_in_time(message: ExpectedMessage, ref: Position, at: Position) -> list[Violation]:
    """Check that a message sent at once had not expired when it took effect [MQTT-3.3.2-5].

    At QoS 2 it takes effect with its PUBREL, which may come long after it was published. The broker
    may have read the clock a second before the record of the PUBREL began.
    """
    effect_s = message.time_ms // 1000
    if not message.expires or effect_s <= message.expires + 1:
        return []
    late = effect_s - message.expires
    what = f"message {format_position(ref)} was sent, but took effect {late} s after it expired"
    return [Violation(Rule.EXPIRY, at, what)]


def expiry_differs(
    message: ExpectedMessage, ref: Position, expires: int, at: Position
) -> list[Violation]:
    """Check that a waiting message expires at the time that its publication sets."""
    if message.expires is None or message.expires == expires:
        return []
    what = f"message {format_position(ref)} waits until {expires or 'it is sent'}, but expires"
    when = f"at {message.expires}" if message.expires else "never"
    return [Violation(Rule.EXPIRY, at, f"{what} {when}")]


def put_behind(state: SessionState, event: Queued, at: Position) -> list[Violation]:
    """Check that a queue has at least as many messages as stay ahead of those put back."""
    held = state.subscriptions.get(event.filter)
    waiting = len(held.queue) if held is not None and held.queue is not None else 0
    if event.behind <= waiting:
        return []
    what = f"messages were put back behind {event.behind} others, but only {waiting} waited"
    return [Violation(Rule.QUEUE, at, what)]


def bytes_left(held: SubscriptionState, at: Position) -> list[Violation]:
    """Check that an empty queue has zero bytes, and that no queue has a negative size."""
    if held.queued_bytes >= 0 and (not held.queued_bytes or held.queue):
        return []
    what = f"{held.queued_bytes} bytes are left in a queue"
    return [Violation(Rule.QUEUE, at, f"{what}{'' if held.queue else ' that is empty'}")]


def expired(state: SessionState, event: Expired, at: Position, time_ms: int) -> list[Violation]:
    """Check that expired messages were the first of the queue, and had reached their expiry."""
    held = state.subscriptions.get(event.filter)
    queue = held.queue if held is not None else None
    due = Counter(queue.expired(time_ms // 1000) if queue is not None else ())
    violations: list[Violation] = []
    for number, ref in enumerate(from_runs(event.refs)):
        if not due[ref]:
            what = f"message {format_position(ref)} expired before its time"
            violations.append(Violation(Rule.EXPIRY, at + number, what))
        due[ref] -= 1
    return violations


# -------------------------------------------------------- acknowledgements and publications


def ended_unsent(state: SessionState, event: Acked | Refused, at: Position) -> list[Violation]:
    """Check that deliveries ended as too large could be too large [MQTT-3.1.2-25]."""
    if state.packet_maximum or TOO_LARGE_CODE not in from_runs(event.reasons):
        return []
    what = "a delivery was ended as too large, but the client accepts packets of any size"
    return [Violation(Rule.ACKNOWLEDGEMENT, at, what)]


def largest_packet(state: SessionState, topic: str, payload: int, properties: int) -> int:
    """Return the size of the largest PUBLISH for a message of QoS 1 or 2 to an MQTT 5 client.

    It contains the identifiers of all subscriptions that match, and no topic alias.
    """
    for held in state.subscriptions.values():
        if held.identifier and matches(held.filter, topic):
            properties += 1 + _width(held.identifier)
    body = 2 + len(topic.encode()) + 2 + _width(properties) + properties + payload
    return 1 + _width(body) + body


def _width(number: int) -> int:
    """Return the size in bytes of a Variable Byte Integer."""
    return 1 if number < 1 << 7 else 2 if number < 1 << 14 else 3 if number < 1 << 21 else 4


def takes_assigned(state: SessionState | None) -> bool:
    """Return whether other logs assign messages to a session, which match no subscription."""
    if state is None or not state.session.startswith(SHARE):
        return False
    options = SHARED_HOME | SHARED_PART
    return any(held.options & options for held in state.subscriptions.values())


def _received(state: SessionState, event: Received | Refused, at: Position) -> list[Violation]:
    violations = ended_unsent(state, event, at) if isinstance(event, Refused) else []
    for number, pid in enumerate(from_runs(event.pids)):
        sent = state.inflight.get(pid)
        if sent is None or sent.flags & QOS_MASK != 2:
            what = f"PUBREC {pid}: not in flight at QoS 2"
            violations.append(Violation(Rule.ACKNOWLEDGEMENT, at + number, what))
    return violations


def _returned(state: SessionState, event: Returned, at: Position) -> list[Violation]:
    violations: list[Violation] = []
    pids, refs = from_runs(event.pids), from_runs(event.refs)
    for number, (pid, ref) in enumerate(zip(pids, refs, strict=True)):
        sent = state.inflight.get(pid)
        if sent is None or sent.ref != ref or sent.subscription.filter != event.filter:
            what = f"{pid}: message {format_position(ref)} was not in flight"
            violations.append(Violation(Rule.ACKNOWLEDGEMENT, at + number, what))
        elif sent.flags & QOS_MASK != 1:
            what = f"message {format_position(ref)} of QoS 2 was returned"
            violations.append(Violation(Rule.SHARED, at + number, what))
    return violations


def _redelivered(state: SessionState, event: Redelivered, at: Position) -> list[Violation]:
    violations: list[Violation] = []
    for number, pid in enumerate(from_runs(event.pids)):
        if pid not in state.inflight and pid not in state.releasing:
            what = f"packet {pid} was sent again, but was not in flight"
            violations.append(Violation(Rule.ACKNOWLEDGEMENT, at + number, what))
    if event.cause not in _AGAIN:
        what = f"packets were sent again for an unknown cause: {event.cause!r:.60}"
        violations.append(Violation(Rule.ACKNOWLEDGEMENT, at, what))
    return violations


def _published(state: SessionState, event: MessagePublished, at: Position) -> list[Violation]:
    violations: list[Violation] = []
    if event.qos != 2 or event.will:
        return violations
    for number, pid in enumerate(from_runs(event.pids)):
        if pid in state.inbound:
            what = f"PUBLISH {pid} was accepted as new, but the previous one was not released"
            violations.append(Violation(Rule.PACKET_ID_REUSE, at + number, what))
    return violations


def _released(
    state: SessionState, event: Released | InboundReplaced, at: Position
) -> list[Violation]:
    violations: list[Violation] = []
    pids, refs = from_runs(event.pids), from_runs(event.refs)
    for number, (pid, ref) in enumerate(zip(pids, refs, strict=True)):
        if state.inbound.get(pid) != ref:
            what = f"packet {pid}: message {format_position(ref)} did not wait for its PUBREL"
            violations.append(Violation(Rule.ACKNOWLEDGEMENT, at + number, what))
    return violations


WITH_STATE: Final[dict[type, Callable[[SessionState, Any, Position], list[Violation]]]] = {
    Received: _received,
    Refused: _received,
    Returned: _returned,
    Redelivered: _redelivered,
    MessagePublished: _published,
    Released: _released,
    InboundReplaced: _released,
}
"""Type of event -> the check that needs only the state of the session."""
