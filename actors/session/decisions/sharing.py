"""Decisions about messages that members of shared subscriptions return (MQTT 5, section 4.8.2)."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from itertools import islice, takewhile

from actors.session.decisions.acknowledgements import in_parts
from eventstore.format.events import Queued, Returned
from eventstore.format.positions import Position, to_runs
from eventstore.format.stored_properties import expiry_runs
from eventstore.log.message_store import Message
from projections.state.session import SessionState, SubscriptionState
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK
from protocol.mqtt.shared_filters import SHARE

_NEAR = 65_536
"""Approximate number of queued messages examined to insert returned ones in order."""


def shared_in_flight(state: SessionState) -> dict[str, list[int]]:
    """Return the unacknowledged QoS 1 deliveries of shared subscriptions to a client.

    The result maps ``$share/NAME/FILTER`` to packet identifiers in the order of delivery. QoS 2
    messages stay with their member [MQTT-4.8.2-4].
    """
    pids_of: dict[str, list[int]] = defaultdict(list)
    if not state.inflight or not any(
        subscription.outstanding and subscription.filter.startswith(SHARE)
        for subscription in state.subscriptions.values()
    ):
        return pids_of
    for pid, sent in state.inflight.items():
        if sent.flags & QOS_MASK == 1 and sent.subscription.filter.startswith(SHARE):
            pids_of[sent.subscription.filter].append(pid)
    return pids_of


def refs_to_return(state: SessionState) -> list[Position]:
    """Return the positions of the messages that a member returns if its connection ends now."""
    if not state.inflight:
        return []
    pids = [pid for in_share in shared_in_flight(state).values() for pid in in_share]
    return [state.inflight[pid].ref for pid in pids]


def returned(state: SessionState, name: str, pids: Sequence[int]) -> list[Returned]:
    """Return events that return unacknowledged deliveries to the queue of a shared subscription."""
    refs = [state.inflight[pid].ref for pid in pids]
    return [
        Returned(state.session, name, to_runs(part), to_runs(those))
        for part, those in zip(in_parts(pids), in_parts(refs), strict=True)
    ]


def requeued(
    session: str,
    subscription: SubscriptionState | None,
    topic_filter: str,
    messages: dict[int, Message],
    older: Container[int] = (),
    qos: int = 1,
) -> list[Queued]:
    """Return events that queue messages again, in their former place before unassigned ones.

    Those in ``older`` count as older than all others, regardless of their positions.
    """
    events: list[Queued] = []
    first = sorted(ref for ref in messages if ref in older)
    newer = sorted(messages.keys() - set(first))
    places: Iterable[tuple[int, list[Position]]] = _places(subscription, newer)
    if older:
        places = _places_among(subscription, first, newer, older)
    for behind, neighbours in places:
        for part in in_parts(neighbours):
            chosen = [messages[ref] for ref in part]
            event = Queued(
                session,
                topic_filter,
                qos,
                to_runs(part),
                sum(len(message.payload) for message in chosen),
                behind=behind,
            )
            expires = [message.expires for message in chosen]
            if any(expires):
                event.expires = expiry_runs(expires)
            events.append(event)
            behind += len(part)
    return events


def _places_among(
    subscription: SubscriptionState | None,
    first: Sequence[Position],
    newer: Sequence[Position],
    older: Container[int],
) -> Iterable[tuple[int, list[Position]]]:
    """Yield returned messages with the number of queued ones before them: older ones first."""
    queue = (
        subscription.queue if subscription is not None and subscription.queue is not None else ()
    )
    leading = [*takewhile(older.__contains__, (packed >> FLAG_BITS for packed in queue))]
    at = behind = 0
    for ref in leading:
        stop = bisect_left(first, ref, at)
        if stop > at:
            yield behind, list(first[at:stop])
            behind += stop - at
            at = stop
        behind += 1
    if at < len(first):
        yield behind, list(first[at:])
        behind += len(first) - at
    for more, neighbours in _places(subscription, newer, len(leading)):
        yield behind + more, neighbours


def _places(
    subscription: SubscriptionState | None, refs: Sequence[Position], begin: int = 0
) -> Iterable[tuple[int, list[Position]]]:
    """Yield returned messages with the number of queued ones before them, so that order is kept.

    ``begin`` is the number of queued ones that stay before all of them; the result excludes it.
    """
    queue = (
        subscription.queue if subscription is not None and subscription.queue is not None else ()
    )
    at = behind = 0
    for packed in islice(queue, begin, None):
        if at == len(refs):
            break
        stop = bisect_left(refs, packed >> FLAG_BITS, at)
        if stop > at:
            yield behind, list(refs[at:stop])
            behind += stop - at
            at = stop
        behind += 1
        if behind > 2 * len(refs) + _NEAR:
            break
    if at < len(refs):
        yield behind, list(refs[at:])
