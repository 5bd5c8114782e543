"""Decisions about shared subscriptions: assigns messages to members (MQTT 5, section 4.8.2)."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import defaultdict
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from actors.session.decisions.acknowledgements import in_parts
from eventstore.format.events import Queued, Returned
from eventstore.format.positions import to_runs
from eventstore.format.stored_properties import expiry_runs
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from eventstore.format.positions import Position
    from eventstore.log.message_store import Message
    from projections.state.session import SessionState, SubscriptionState

_NONE: frozenset[int] = frozenset()
_NEAR = 65_536
"""Approximate number of queued messages examined to insert returned ones in order."""


class Assignment(NamedTuple):
    """The messages assigned to each member, by their numbers in the batch."""

    pieces: list[Sequence[int]]
    """For each member the numbers of its messages, ascending."""
    waiting: Sequence[int]
    """Messages for which no member has room, ascending."""
    refused: Sequence[int]
    """Messages that no member may receive or accepts, ascending."""


class Rows(NamedTuple):
    """The candidate members, as columns."""

    rooms: Sequence[int]
    """The number of messages that each member has room for."""
    barred: Sequence[AbstractSet[int]] = ()
    """Numbers of the messages that each member may not receive or that exceed its packet limit;
    empty: no member is barred from any."""
    alike: Sequence[bytes] = ()
    """For each message a key; messages with the same key are barred from the same members; empty:
    messages have no key."""
    pools: Sequence[int] = ()
    """For each member the number of the first member that shares its room; empty: each member has
    its own room."""


def assign(count: int, members: Rows) -> Assignment:
    """Divide messages among members by their room; the first members get the remainder.

    Each member gets consecutive messages, and no more than it has room for.
    """
    if not any(members.barred):
        pieces = _divide(range(count), members.rooms)
        return Assignment(pieces, range(sum(map(len, pieces)), count), ())
    rooms = list(members.rooms)
    shares: list[list[int]] = [[] for _ in rooms]
    waiting: list[int] = []
    refused: list[int] = []
    for allowed, numbers in _by_members(count, members).items():
        if not allowed:
            refused += numbers
            continue
        parts = _divide(numbers, [rooms[one] for one in allowed])
        for one, part in zip(allowed, parts, strict=True):
            rooms[one] -= len(part)
            shares[one] += part
        waiting += numbers[sum(map(len, parts)) :]
    return Assignment([sorted(share) for share in shares], sorted(waiting), sorted(refused))


def assign_by_topic(topics: Sequence[bytes], members: Rows) -> Assignment:
    """Assign all messages on a topic to one member, chosen by the topic and the set of members.

    If that member has no room, its message waits, and so do all messages behind it.
    """
    rooms, barred, alike = list(members.rooms), members.barred, members.alike
    pools = members.pools or range(len(rooms))
    shares: list[list[int]] = [[] for _ in rooms]
    refused: list[int] = []
    everyone = range(len(rooms))
    known: dict[object, Sequence[int]] = {}
    for number, topic in enumerate(topics):
        allowed: Sequence[int] | None = everyone
        if barred:
            key = alike[number] if alike else number
            allowed = known.get(key)
            if allowed is None:
                allowed = [one for one in everyone if number not in barred[one]]
                known[key] = allowed
        if not allowed:
            refused.append(number)
            continue
        chosen = allowed[zlib.crc32(topic) % len(allowed)]
        if not rooms[pools[chosen]]:
            return Assignment([*shares], range(number, len(topics)), refused)
        rooms[pools[chosen]] -= 1
        shares[chosen].append(number)
    return Assignment([*shares], (), refused)


def first_ones(assignment: Assignment) -> Assignment:
    """Return the assignment of the messages before the first one that waits.

    Messages can leave a queue only at its head.
    """
    pieces, waiting, refused = assignment
    if not waiting:
        return assignment
    end = waiting[0]
    return Assignment(
        [piece[: bisect_left(piece, end)] for piece in pieces],
        waiting,
        refused[: bisect_left(refused, end)],
    )


def _divide(numbers: Sequence[int], rooms: Sequence[int]) -> list[Sequence[int]]:
    """Cut messages into one piece for each member, in proportion to its room."""
    total = sum(rooms)
    taken = min(len(numbers), total)
    sizes = [taken * room // total for room in rooms] if taken else [0] * len(rooms)
    left = taken - sum(sizes)
    for one, room in enumerate(rooms):
        if not left:
            break
        if sizes[one] < room:
            sizes[one] += 1
            left -= 1
    pieces: list[Sequence[int]] = []
    at = 0
    for size in sizes:
        pieces.append(numbers[at : at + size])
        at += size
    return pieces


def _by_members(count: int, members: Rows) -> dict[tuple[int, ...], list[int]]:
    """Group messages by the members that may receive them.

    Members barred from the same messages share one set in ``barred``: each set is searched once for
    messages with the same key.
    """
    barred, alike = members.barred, members.alike
    kinds = list({id(numbers): numbers for numbers in barred}.values())
    restricted = _NONE.union(*kinds)
    known: dict[object, tuple[bool, ...]] = {}
    groups: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    for number in range(count):
        kind: tuple[bool, ...] = ()
        if number in restricted:
            key = alike[number] if alike else number
            if key not in known:
                known[key] = tuple([number in some for some in kinds])
            kind = known[key]
        groups[kind].append(number)
    return {
        tuple(one for one, numbers in enumerate(barred) if some[0] not in numbers): some
        for some in groups.values()
    }


def shared_in_flight(state: SessionState) -> dict[str, list[int]]:
    """Return the unacknowledged QoS 1 deliveries of shared subscriptions to a client.

    The result maps ``$share/NAME/FILTER`` to packet identifiers in the order of delivery. QoS 2
    messages stay with their member [MQTT-4.8.2-4].
    """
    found: dict[str, list[int]] = defaultdict(list)
    if not state.inflight or not any(
        held.outstanding and held.filter.startswith(SHARE) for held in state.subscriptions.values()
    ):
        return found
    for pid, sent in state.inflight.items():
        if sent.flags & QOS_MASK == 1 and sent.subscription.filter.startswith(SHARE):
            found[sent.subscription.filter].append(pid)
    return found


def refs_to_return(state: SessionState) -> list[Position]:
    """Return the positions of the messages that a member returns if its connection ends now."""
    if not state.inflight:
        return []
    pids = [pid for some in shared_in_flight(state).values() for pid in some]
    return [state.inflight[pid].ref for pid in pids]


def returned(state: SessionState, name: str, pids: Sequence[int]) -> list[Returned]:
    """Return events that return unacknowledged deliveries to the queue of a shared subscription."""
    refs = [state.inflight[pid].ref for pid in pids]
    return [
        Returned(state.session, name, to_runs(some), to_runs(those))
        for some, those in zip(in_parts(pids), in_parts(refs), strict=True)
    ]


def requeued(
    session: str,
    held: SubscriptionState | None,
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
    rest = sorted(messages.keys() - set(first))
    places: Iterable[tuple[int, list[Position]]] = _places(held, rest)
    if older:
        places = _places_among(held, first, rest, older)
    for behind, neighbours in places:
        for some in in_parts(neighbours):
            chosen = [messages[ref] for ref in some]
            event = Queued(
                session,
                topic_filter,
                qos,
                to_runs(some),
                sum(len(message.payload) for message in chosen),
                behind=behind,
            )
            expires = [message.expires for message in chosen]
            if any(expires):
                event.expires = expiry_runs(expires)
            events.append(event)
            behind += len(some)
    return events


def _places_among(
    held: SubscriptionState | None,
    first: Sequence[Position],
    rest: Sequence[Position],
    older: Container[int],
) -> Iterable[tuple[int, list[Position]]]:
    """Yield returned messages with the number of queued ones before them: older ones first."""
    queue = held.queue if held is not None and held.queue is not None else ()
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
    for more, neighbours in _places(held, rest, len(leading)):
        yield behind + more, neighbours


def _places(
    held: SubscriptionState | None, refs: Sequence[Position], begin: int = 0
) -> Iterable[tuple[int, list[Position]]]:
    """Yield returned messages with the number of queued ones before them, so that order is kept.

    ``begin`` is the number of queued ones that stay before all of them; the result excludes it.
    """
    queue = held.queue if held is not None and held.queue is not None else ()
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
