"""Checks of one event against the state of its session before it.

All checks are pure functions that yield violations.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from eventstore.format import (
    Expired,
    MessagePublished,
    Received,
    Redelivered,
    Refused,
    Released,
    Returned,
    format_position,
    from_runs,
)
from projections.audit.rules import Rule, Violation
from projections.audit.shared_subscription_steps import SHARE
from projections.state import FLAG_BITS, QOS_MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from eventstore.format import (
        Acked,
        MessageDropped,
        Position,
        Queued,
        SessionClosed,
        SessionExpired,
        SessionOpened,
    )
    from projections.audit.expected_messages import ExpectedMessage
    from projections.state import SessionState, SubscriptionState

_MOST_PID: Final = 65_535
TOO_LARGE_CODE: Final = 0x95
"""Reason code with which the broker ends deliveries that the client no longer accepts."""
_LEVEL_5: Final = 5
_AGAIN: Final = frozenset({"resumed", "ack_wait"})
"""Causes of a second transmission of packets."""


# --------------------------------------------------------------------- beginnings and ends


def is_clean_start(event: SessionOpened) -> bool:
    """Return whether the client asked for a new, empty session."""
    return event.clean_start if event.level >= _LEVEL_5 else event.clean


def opened(state: SessionState | None, event: SessionOpened, at: Position) -> Iterator[Violation]:
    """Check that a session continues exactly when it must [MQTT-3.1.2-4, MQTT-3.1.2-6]."""
    if not event.resumed:
        if state is not None and not state.clean and not is_clean_start(event):
            yield Violation(Rule.SESSION, at, "its state was thrown away though it was to be kept")
    elif state is None:
        yield Violation(Rule.SESSION, at, "a session was resumed that there was not")
    elif state.clean:
        yield Violation(Rule.SESSION, at, "a session was resumed that was clean")
    elif is_clean_start(event):
        yield Violation(Rule.SESSION, at, "a session was resumed though a clean one was asked for")


def ended(
    state: SessionState | None, event: SessionClosed | SessionExpired, at: Position
) -> Iterator[Violation]:
    """Check that the session or connection that ends did exist."""
    if state is None:
        yield Violation(Rule.SESSION, at, "a session ended that there was not")
    elif event.e == "SessionExpired" and state.connected:
        yield Violation(Rule.SESSION, at, "a session expired while its client was connected")


# ------------------------------------------------------------------------------ deliveries


def identifiers(
    state: SessionState, pids: Sequence[int], count: int, at: Position
) -> Iterator[Violation]:
    """Check the packet identifiers given to ``count`` messages [MQTT-2.3.1-4]."""
    if len(pids) != count or len(set(pids)) != count:
        yield Violation(Rule.PACKET_ID_REUSE, at, "not one packet identifier for each message")
    for number, pid in enumerate(pids):
        if pid in state.inflight or pid in state.releasing:
            what = f"packet identifier {pid} was in flight already"
            yield Violation(Rule.PACKET_ID_REUSE, at + number, what)
        elif not 0 < pid <= _MOST_PID:
            yield Violation(Rule.PACKET_ID_REUSE, at + number, f"{pid} is no packet identifier")


def from_the_head(
    held: SubscriptionState | None, refs: Sequence[Position], flags: int | None, at: Position
) -> Iterator[Violation]:
    """Check that messages, with these flags if given, are the first of a queue."""
    queue = held.queue if held is not None else None
    head = list(islice(queue, len(refs))) if queue is not None else []
    if flags is None:
        found, wanted = [packed >> FLAG_BITS for packed in head], list(refs)
    else:
        found, wanted = head, [ref << FLAG_BITS | flags for ref in refs]
    if found != wanted:
        yield Violation(Rule.QUEUE, at, "what left the queue did not stand at its head")


def dropped(
    state: SessionState, event: MessageDropped, refs: Sequence[Position], at: Position
) -> Iterator[Violation]:
    """Check that messages dropped from a queue are its first ones, and that all are named."""
    if event.queued >= 0 and event.count != len(refs):
        what = f"{event.count} messages left the queue, but {len(refs)} are named"
        yield Violation(Rule.QUEUE, at, what)
    elif event.queued >= 0:
        yield from from_the_head(state.subscriptions.get(event.filter), refs, None, at)


# ----------------------------------------------------------------------------------- expiry

# A message expires at the second that its event names. The time of a record is that of its first
# event, which may be up to a second before that of the others.


def sent_in_time(
    held: SubscriptionState | None, refs: Sequence[Position], time_ms: int, at: Position
) -> Iterator[Violation]:
    """Check that messages sent from the head of a queue have not expired [MQTT-3.3.2-5]."""
    queue = held.queue if held is not None else None
    expires = queue.expiries(len(refs)) if queue is not None else []
    for number, (ref, end) in enumerate(zip(refs, expires, strict=False)):
        if 0 < end < time_ms // 1000:
            what = f"message {format_position(ref)} was sent {time_ms // 1000 - end} s too late"
            yield Violation(Rule.EXPIRY, at + number, what)


def expiry_differs(
    message: ExpectedMessage, ref: Position, expires: int, at: Position
) -> Iterator[Violation]:
    """Check that a waiting message expires at the time that its publication names."""
    if message.expires is not None and message.expires != expires:
        what = f"message {format_position(ref)} waits until {expires or 'it is sent'}, but expires"
        told = f"at {message.expires}" if message.expires else "never"
        yield Violation(Rule.EXPIRY, at, f"{what} {told}")


def put_behind(state: SessionState, event: Queued, at: Position) -> Iterator[Violation]:
    """Check that a queue is as long as the part of it behind which messages are put back."""
    held = state.subscriptions.get(event.filter)
    waiting = len(held.queue) if held is not None and held.queue is not None else 0
    if event.behind > waiting:
        what = f"messages wait again behind {event.behind} others, but there are {waiting}"
        yield Violation(Rule.QUEUE, at, what)


def bytes_left(held: SubscriptionState | None, at: Position) -> Iterator[Violation]:
    """Check that an empty queue has zero bytes, and that no queue has a negative size."""
    if held is not None and (held.queued_bytes < 0 or (held.queued_bytes and not held.queue)):
        what = f"{held.queued_bytes} bytes are left of a queue"
        yield Violation(Rule.QUEUE, at, f"{what}{'' if held.queue else ' that is empty'}")


def expired(state: SessionState, event: Expired, at: Position, time_ms: int) -> Iterator[Violation]:
    """Check that expired messages were the first of the queue, and had reached their expiry."""
    refs = from_runs(event.refs)
    held = state.subscriptions.get(event.filter)
    due = Counter(held.queue.expired(time_ms // 1000 + 1)) if held and held.queue else Counter()
    for number, ref in enumerate(refs):
        if not due[ref]:
            what = f"message {format_position(ref)} expired that was not to expire by then"
            yield Violation(Rule.EXPIRY, at + number, what)
        due[ref] -= 1


# ------------------------------------------------------------- what a client answers and sends


def ended_unsent(state: SessionState, event: Acked | Refused, at: Position) -> Iterator[Violation]:
    """Check that deliveries ended as too large could be so [MQTT-3.1.2-25]."""
    if not state.packet_maximum and TOO_LARGE_CODE in from_runs(event.reasons):
        what = "a delivery was ended as too large, but the client accepts packets of any size"
        yield Violation(Rule.ACKNOWLEDGEMENT, at, what)


def is_shared(state: SessionState) -> bool:
    """Return whether a session is a shared subscription."""
    return state.session.startswith(SHARE)


def _received(state: SessionState, event: Received | Refused, at: Position) -> Iterator[Violation]:
    if isinstance(event, Refused):
        yield from ended_unsent(state, event, at)
    for number, pid in enumerate(from_runs(event.pids)):
        sent = state.inflight.get(pid)
        if sent is None or sent.flags & QOS_MASK != 2:
            what = f"PUBREC {pid}: not on its way at QoS 2"
            yield Violation(Rule.ACKNOWLEDGEMENT, at + number, what)


def _returned(state: SessionState, event: Returned, at: Position) -> Iterator[Violation]:
    pids, refs = from_runs(event.pids), from_runs(event.refs)
    for number, (pid, ref) in enumerate(zip(pids, refs, strict=True)):
        sent = state.inflight.get(pid)
        if sent is None or sent.ref != ref or sent.subscription.filter != event.filter:
            what = f"{pid}: message {format_position(ref)} was not on its way"
            yield Violation(Rule.ACKNOWLEDGEMENT, at + number, what)
        elif sent.flags & QOS_MASK != 1:
            what = f"message {format_position(ref)} was returned, which is of QoS 2"
            yield Violation(Rule.SHARED, at + number, what)


def _redelivered(state: SessionState, event: Redelivered, at: Position) -> Iterator[Violation]:
    for number, pid in enumerate(from_runs(event.pids)):
        if pid not in state.inflight and pid not in state.releasing:
            what = f"{pid} was sent again, not on its way"
            yield Violation(Rule.ACKNOWLEDGEMENT, at + number, what)
    if event.cause not in _AGAIN:
        what = f"packets were sent again for a cause that there is not: {event.cause!r:.60}"
        yield Violation(Rule.ACKNOWLEDGEMENT, at, what)


def _published(state: SessionState, event: MessagePublished, at: Position) -> Iterator[Violation]:
    if event.qos != 2 or event.will:
        return
    for number, pid in enumerate(from_runs(event.pids)):
        if pid in state.inbound:
            what = f"PUBLISH {pid} was taken as new, the one before was not released"
            yield Violation(Rule.PACKET_ID_REUSE, at + number, what)


def _released(state: SessionState, event: Released, at: Position) -> Iterator[Violation]:
    pids, refs = from_runs(event.pids), from_runs(event.refs)
    for number, (pid, ref) in enumerate(zip(pids, refs, strict=True)):
        if state.inbound.get(pid) != ref:
            what = f"PUBREL {pid}: message {format_position(ref)} did not wait for it"
            yield Violation(Rule.ACKNOWLEDGEMENT, at + number, what)


WITH_STATE: Final[dict[type, Callable[[SessionState, Any, Position], Iterable[Violation]]]] = {
    Received: _received,
    Refused: _received,
    Returned: _returned,
    Redelivered: _redelivered,
    MessagePublished: _published,
    Released: _released,
}
"""Type of event -> the check that needs no more than the state of the session."""
