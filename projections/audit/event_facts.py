"""The facts made from each type of event, besides the packed events for the audit."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, Final
from zlib import crc32

from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
)
from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.events import (
    NATS_SESSION,
    Delivered,
    MessageDropped,
    MessagePublished,
    Queued,
    Released,
    ReplayOpened,
    RetainedExpired,
    Subscribed,
    WillArmed,
)
from eventstore.format.node_events import (
    Bridged,
    BrokerStarted,
    BrokerStopped,
    CheckpointBegun,
    CheckpointCompleted,
    ClockJumped,
    Followed,
    LimitsApplied,
    LogArchived,
    LogCut,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import MAX_INDEX, Position, Run, from_runs, position
from eventstore.format.records import Record, payload_bounds
from eventstore.log.message_store import properties_of
from projections.audit.chain_check import (
    ACTED,
    ARCHIVED,
    BEGUN,
    BRIDGED_LATER,
    CLEARED_BY,
    COMPLETED,
    CUT,
    DOUBT,
    FOLLOWED,
    GIVEN_UP,
    JUMPED,
    KEYS,
    LIMITS,
    REPEATED,
    REPLAYS_THERE,
    SHARED_THERE,
    STARTED,
    STOPPED,
)
from projections.audit.destination_check import DestinationNotes
from projections.audit.erasure_check import KeyNotes
from projections.audit.event_codec import EventBatches, pack_events, packed_item
from projections.audit.expected_messages import packed_size
from projections.audit.fact_buffer import FactBuffer
from projections.audit.facts import CLEARED, EXPIRED_SO, REPEATED_SO, SET
from projections.audit.shared_subscription_steps import SHARE
from projections.audit.subscription_spans import SUBSCRIPTION_EVENTS as OF_SPANS
from projections.audit.will_rules import with_content
from projections.log_proof import LogProof
from projections.state.digests import retained_digest
from projections.state.retained import RetainedMessage
from protocol.mqtt.subscription_options import NO_LOCAL

_Messages = MessagePublished | RetainedSnapshot | MessagesCarried

_SENT: Final = 65_536
"""Maximum QoS 2 messages held until their release; others are joined by a fold."""
_MAX_REF: Final = 1 << 62
_OF_SUBSCRIPTIONS: Final = frozenset(
    {"generation", "clean", "connected", "subscriptions", "replays"}
)
"""Fields of a session's snapshot that concern its subscriptions."""


class FactMakers:
    """Makes facts from events of one node; the caller sets ``record``, the record of the events."""

    def __init__(
        self,
        facts: FactBuffer,
        packs: EventBatches,
        drops: Counter[str],
        note: Callable[[Position, str, dict[str, Any]], None],
    ) -> None:
        self.record: Record
        self.before_ms = 0
        """Time of the previous record; 0: unknown."""
        self.interrupts = False
        """Whether the turn of the previous record is unfinished, and another one begins."""
        self.links: dict[int, str] = {}
        """Links of previous records, by their sequence."""
        self.followed: set[str] = set()
        """Logs whose messages this one takes, as far as noted."""
        self._cleared_in = 0
        """The last turn in which retained messages were removed."""
        self._facts = facts
        self._packs = packs
        self._drops = drops
        self._note = note
        self._sent: dict[Position, tuple[Any, ...]] = {}
        """Unreleased QoS 2 messages, as rows of ``FactBuffer.sent``."""
        self._repeated = [0, 0]
        """Sessions and retained messages repeated since the last note."""
        self._repeated_at: Position = 0
        """Position of the first of them."""
        self._shared = self._replays = False
        self._destinations = DestinationNotes(note)
        self._keys = KeyNotes(note, KEYS)

    def finish(self, last: Position) -> None:
        """Emit the remaining facts; no events follow until ``last``."""
        self._give_sent()
        self._note_repeated(last)
        self._destinations.finish()

    # Messages.

    def _published(self, event: MessagePublished, at: Position) -> bool:
        self._keys.check(event, at, self.record)
        passed = self._messages(event, at)
        return self._with_content(event, at) if event.will else passed

    def _with_content(self, event: MessagePublished | WillArmed, at: Position) -> bool:
        """Pass a will, or its publication, to its session with a checksum of its content.

        Returns True: the event has been passed.
        """
        record = self.record
        checked = with_content(event, record.payload)
        self._packs.add(event.session, packed_item(checked, at, record.steady_ms, record.part))
        return True

    def _messages(self, event: MessagePublished, at: Position) -> bool:
        qos, count = event.qos, event.count
        _check(event.pids)
        if event.share:
            payloads = self._payloads(event)
            refs = range(at, at + count)
            self._facts.wills.extend(refs, refs, self._checks(event, payloads), _topics(event))
        refs = range(at, at + count)
        if count == 1 and qos and not event.retain and (qos == 1 or event.will):  # most frequent
            self._message(event, at)
            return False
        topics, payloads = _topics(event), self._payloads(event)
        checks = self._checks(event, payloads)
        sizes = self._sizes(event, payloads, [event.session] * count)
        expires = self._expiries(event)
        times = [self.record.steady_ms] * count
        qoses = [qos] * count
        digests = self._digests(event, payloads, qoses, refs) if event.retain else [""] * count
        if qos == 2 and not event.will:
            if len(self._sent) > _SENT:
                self._give_sent()
            flags = [int(event.retain)] * count
            columns = refs, refs, times, flags, checks, topics, digests, sizes, expires
            rows = zip(*columns, strict=True)
            self._sent.update(zip(refs, rows, strict=True))
            if event.retain:
                self._with_payload(event, event.session, at, payloads)
            return event.retain
        sessions, levels = [event.session] * count, [qos | self.record.part << 2] * count
        self._facts.effects.extend(
            sessions, refs, refs, times, levels, checks, topics, sizes, expires
        )
        if event.retain:
            nothing = [None] * count
            kinds = [SET | qos << 2] * count
            self._facts.retained.extend(
                [event.session] * count,
                *(refs, refs, self._turns(count), kinds, nothing, topics, digests, nothing),
                expires,
            )
        return False

    def _message(self, event: MessagePublished, at: Position) -> None:
        """Make the fact of a single message that takes effect at once."""
        payload, record = self._payload(event), self.record
        check, ends = crc32(payload), 0
        if event.blocks:
            (check,), (ends,) = self._checks(event, (payload,)), self._expiries(event)
        size = len(payload)
        if event.blocks or event.session == NATS_SESSION:
            (size,) = self._sizes(event, (payload,), (event.session,))
        topic = _topics(event)[0] if event.which else event.topics[0]
        level = event.qos | record.part << 2
        self._facts.effects.add(
            event.session, at, at, record.steady_ms, level, check, topic, size, ends
        )

    def _released(self, event: Released, at: Position) -> None:
        time_ms, facts, session = self.record.steady_ms, self._facts, event.session
        level = 2 | self.record.part << 2
        _check(event.pids)
        for place, ref in enumerate(_positions(event.refs), at):
            row = self._sent.pop(ref, None)
            if row is None:
                facts.released.add(session, place, ref, time_ms, level)
                continue
            _, _, _, retained, check, topic, digest, size, expires = row
            facts.effects.add(session, place, ref, time_ms, level, check, topic, size, expires)
            if retained:
                (turn,), kind = self._turns(1), SET | 2 << 2
                facts.retained.add(
                    *(session, place, ref, turn, kind, None, topic, digest, None, expires)
                )

    def _give_sent(self) -> None:
        for row in self._sent.values():
            self._facts.sent.add(*row)
        self._sent.clear()

    def _delivered(self, event: Delivered, at: Position) -> None:
        _check(event.pids)
        if event.retain and event.queued < 0:
            self._replayed(event, at)

    def _queued(self, event: Queued, at: Position) -> None:
        if event.retain:
            self._replayed(event, at)

    def _replayed(self, event: Delivered | Queued, at: Position) -> None:
        refs, record = _positions(event.refs), self.record
        count = len(refs)
        places = range(at, at + count)
        sessions, turns = [event.session] * count, self._turns(count)
        numbers, filters = [int(isinstance(event, Delivered))] * count, [event.filter] * count
        seconds = [record.steady_ms // 1000] * count
        self._facts.replays.extend(sessions, places, refs, turns, numbers, filters, seconds)

    def _turns(self, count: int) -> list[Position]:
        """Return the position where the turn of the record begins, some times."""
        return [position(self.record.sequence - self.record.part, 0)] * count

    def _dropped(self, event: MessageDropped, _at: Position) -> None:
        _check(event.refs)
        self._drops[event.reason] += event.count

    # Subscriptions.

    def _of_span(self, event: Any, at: Position) -> None:
        if not self._shared and event.session.startswith(SHARE):
            self._shared = True
            self._note(0, SHARED_THERE, {})
        item = packed_item(event, at, self.record.steady_ms, self.record.part)
        self._facts.spans.add(event.session, at, 0, pack_events([item]))

    def _subscribed(self, event: Subscribed, at: Position) -> None:
        self._of_span(event, at)
        filters: Sequence[Any] = event.filters  # other readers have lists in place of tuples
        names = [topic_filter for topic_filter, _ in filters]
        options = dict(zip(names, event.options, strict=False))
        for topic_filter, qos in dict(filters).items():
            if qos:
                number = qos | options.get(topic_filter, 0) & NO_LOCAL
                self._facts.grants.add(
                    event.session, at, self.record.steady_ms, number, topic_filter
                )

    def _opened_replay(self, event: ReplayOpened, at: Position) -> None:
        self._of_span(event, at)
        self._has_replays()

    def _has_replays(self) -> None:
        if not self._replays:
            self._replays = True
            self._note(0, REPLAYS_THERE, {})

    def _armed(self, event: WillArmed, at: Position) -> bool:
        self._of_span(event, at)
        area = self.record.payload
        if not 0 <= event.at - sum(event.blocks) <= event.at + event.size <= len(area):
            raise IndexError("a will that the record does not hold")
        block = area[event.at - sum(event.blocks) : event.at]
        payload = area[event.at : event.at + event.size]
        self._facts.wills.add(at, at, crc32(payload, crc32(block)), event.topic)
        return self._with_content(event, at)

    def _snapshot(self, event: SessionSnapshot, at: Position) -> None:
        if not any(self._repeated):
            self._repeated_at = at
        self._repeated[0] += event.last
        if "replays" in event.state:
            self._has_replays()
        state = {name: event.state[name] for name in event.state if name in _OF_SUBSCRIPTIONS}
        short = SessionSnapshot(event.session, state, event.part, event.last)
        item = packed_item(short, at, self.record.steady_ms, self.record.part)
        self._facts.spans.add(event.session, at, 1, pack_events([item]))

    # Retained messages and repetitions.

    def _repeated_messages(self, event: RetainedSnapshot, at: Position) -> None:
        refs, payloads, count = _positions(event.refs), self._payloads(event), event.count
        topics, qos = event.topics, event.qos
        if not len(refs) == len(topics) == len(qos) == count:
            raise IndexError("columns of different lengths")
        before = self._digests(event, payloads, qos, refs)
        new = range(at, at + count)
        if event.session is None:
            if not any(self._repeated):
                self._repeated_at = at
            self._repeated[1] += count
            digests = self._digests(event, payloads, qos, new)
            kinds = [REPEATED_SO | level << 2 for level in qos]
            expires = self._expiries(event)
            self._facts.retained.extend(
                *(_publishers(event), new, new, self._turns(count), kinds, refs, topics, digests),
                *(before, expires),
            )
            return
        times, checks = [self.record.steady_ms] * count, self._checks(event, payloads)
        sizes = self._sizes(event, payloads, [event.session] * count)
        more = sizes, self._expiries(event)
        self._facts.sent.extend(new, refs, times, [1] * count, checks, topics, before, *more)
        self._with_payload(event, event.session, at, payloads)

    def _cleared(self, event: RetainedCleared | RetainedExpired, at: Position) -> None:
        count = len(event.topics)
        expired = isinstance(event, RetainedExpired)
        places, nothing = [at] * count, [None] * count
        kinds = [EXPIRED_SO if expired else CLEARED] * count
        digests, expires = [""] * count, [self.record.steady_ms // 1000 if expired else 0] * count
        turns = self._turns(count)
        columns = places, places, turns, kinds, nothing, event.topics, digests, nothing, expires
        self._facts.retained.extend([""] * count, *columns)
        if not expired:
            values = {"count": count, "topic": event.topics[0] if count == 1 else ""}
            self._note(at, CLEARED_BY, {**values, **self._turn()})
            self._cleared_in = self.record.sequence - self.record.part

    def _carried(self, event: MessagesCarried, at: Position) -> None:
        refs, topics, payloads = _positions(event.refs), _topics(event), self._payloads(event)
        waiting = frozenset(_positions(event.waiting))
        count = event.count
        if len(refs) != count:
            raise IndexError("columns of different lengths")
        if not {*waiting, *_positions(event.as_retained)} <= {*refs}:
            raise IndexError("says more of a message than that it is repeated")
        flags = [int(ref in waiting) for ref in refs]
        digests = self._digests(event, payloads, [2] * count, refs) if waiting else [""] * count
        times, checks = [self.record.steady_ms] * count, self._checks(event, payloads)
        places, publishers = range(at, at + count), _publishers(event)
        sizes, expires = self._sizes(event, payloads, publishers), self._expiries(event)
        columns = places, refs, times, flags, checks, topics, digests, sizes, expires
        self._facts.carried.extend(publishers, *columns)

    def _with_payload(
        self,
        event: MessagePublished | RetainedSnapshot,
        session: str,
        at: Position,
        payloads: Iterable[memoryview],
    ) -> None:
        """Pass an event with its properties and payloads to the fold of its session."""
        item = packed_item(event, at, self.record.steady_ms, self.record.part)
        area = b"".join((*self.record.distinct_blocks(event), *payloads))
        self._packs.alone(session, item, area)

    # Checkpoints and cuts.

    def _begun(self, event: CheckpointBegun, at: Position) -> None:
        self._note_repeated(at)
        previous, time_ms = self.record.previous.hex(), self.record.time_ms
        values = {"checkpoint": event.checkpoint, "previous": previous, "time_ms": time_ms}
        self._note(at, BEGUN, values)

    def _completed(self, event: CheckpointCompleted, at: Position) -> None:
        self._note_repeated(at)
        fields = ("checkpoint", "begun", "sessions", "retained")
        self._note(at, COMPLETED, {name: getattr(event, name) for name in fields})

    def _note_repeated(self, at: Position) -> None:
        sessions, retained = self._repeated
        if sessions or retained:
            values = {"sessions": sessions, "retained": retained, "first": self._repeated_at}
            self._note(at, REPEATED, values)
            self._repeated = [0, 0]

    def _cut(self, event: LogCut, at: Position) -> None:
        self._destinations.finish()
        fields = ("first", "link", "begins_ms")
        self._note(at, CUT, {name: getattr(event, name) for name in fields})

    # The node.

    def _turn(self) -> dict[str, Any]:
        return {"turn": self.record.sequence - self.record.part}

    def _started(self, event: BrokerStarted, at: Position) -> None:
        times = {"time_ms": self.record.steady_ms, "clock_ms": self.record.time_ms}
        values = {"software": event.software, **times, **self._turn()}
        before = {"before_ms": self.before_ms, "interrupts": self.interrupts}
        self._note(at, STARTED, {**values, **before})

    def _doubtful(self, event: LogEndUnproven | LogSalvaged, at: Position) -> None:
        proof = LogProof()
        proof.take(event, self.record.sequence, self.record.time_ms)
        values: dict[str, Any] = {"e": event.e, "doubts": [tuple(doubt) for doubt in proof.doubts]}
        if isinstance(event, LogEndUnproven) and event.salvaged:
            ends = [event.end, event.salvaged]
            values |= {"continued": ends, "clock_ms": self.record.time_ms}
        elif isinstance(event, LogSalvaged) and event.known:
            values["known"] = event.known
        self._note(at, DOUBT, values)

    def _limits(self, event: LimitsApplied, at: Position) -> None:
        values = {
            "limits": event.limits,
            "denies": bool(event.permissions or event.elsewhere),
            "time_ms": self.record.steady_ms,
        }
        self._note(at, LIMITS, {**values, **self._turn()})

    def _acted(self, event: OperatorActed, at: Position) -> None:
        if event.action == "clear_retained":
            self._note(at, ACTED, {"target": event.target, **self._turn()})

    def _bridged(self, event: Bridged, at: Position) -> None:
        if event.through >= at:
            self._note(at, BRIDGED_LATER, {"through": event.through})

    def _followed(self, event: Followed, at: Position) -> None:
        if event.log not in self.followed:
            self.followed.add(event.log)
            self._note(at, FOLLOWED, {"log": event.log})
        if self._cleared_in == self.record.sequence - self.record.part:
            self._note(at, FOLLOWED, {"log": event.log, **self._turn()})

    def _given_up(self, event: LogSalvaged, at: Position) -> None:
        self._doubtful(event, at)
        self._note(at, GIVEN_UP, {"first": event.first, "last": event.end, "until": event.until})

    def _archived(self, event: LogArchived, at: Position) -> None:
        known = self.links.get(event.through)
        values = {"through": event.through, "link": event.link, "known": known}
        self._note(at, ARCHIVED, values)

    def _checks(self, event: _Messages, payloads: Iterable[memoryview]) -> list[int]:
        """Return a checksum of the properties and the payload of each message."""
        if not event.blocks:
            return list(map(crc32, payloads))
        blocks = self.record.blocks(event)
        return [
            crc32(payload, crc32(block)) for payload, block in zip(payloads, blocks, strict=True)
        ]

    def _sizes(
        self, event: _Messages, payloads: Iterable[memoryview], publishers: Sequence[str]
    ) -> list[int]:
        """Return the ``packed_size`` of each message."""
        if not event.blocks and NATS_SESSION not in publishers:
            return list(map(len, payloads))
        blocks = self.record.blocks(event) if event.blocks else repeat(b"", event.count)
        columns = zip(payloads, blocks, publishers, strict=True)
        return [packed_size(len(payload), len(block), by) for payload, block, by in columns]

    def _expiries(self, event: _Messages) -> Sequence[int]:
        """Return the expiry of each message, Unix time in seconds; 0: never."""
        if not event.blocks:
            return [0] * event.count
        return properties_of(self.record, event)[1] or [0] * event.count

    def _payloads(self, event: _Messages) -> list[memoryview]:
        area, bounds = self.record.payload, payload_bounds(event)
        if len(bounds) != event.count + 1 or bounds[0] < 0 or bounds[-1] > len(area):
            raise IndexError("payloads that the record does not hold")
        return [area[start:stop] for start, stop in pairwise(bounds)]

    def _payload(self, event: MessagePublished) -> memoryview:
        """Return the payload of an event with one message."""
        area, begin, sizes = self.record.payload, event.at, event.sizes
        size = sizes if isinstance(sizes, int) else sum(sizes) if len(sizes) == 1 else -1
        if begin < 0 or size < 0 or begin + size > len(area):
            raise IndexError("payloads that the record does not hold")
        return area[begin : begin + size]

    def _digests(
        self,
        event: _Messages,
        payloads: Iterable[memoryview],
        qos: Iterable[int],
        refs: Iterable[Position],
    ) -> list[str]:
        """Return the digests of retained messages; empty for those that clear their topic."""
        topics = event.topics if isinstance(event, RetainedSnapshot) else _topics(event)
        blocks, expires = properties_of(self.record, event)
        columns = zip(
            topics,
            payloads,
            qos,
            refs,
            blocks or repeat(b"", event.count),
            expires or repeat(0, event.count),
            strict=True,
        )
        return [
            retained_digest(RetainedMessage(topic, bytes(payload), *fields)) if payload else ""
            for topic, payload, *fields in columns
        ]


FACT_MAKERS: Final[dict[type, Callable[[FactMakers, Any, Position], bool | None]]] = {
    **dict.fromkeys(OF_SPANS, FactMakers._of_span),
    MessagePublished: FactMakers._published,
    Released: FactMakers._released,
    Delivered: FactMakers._delivered,
    Queued: FactMakers._queued,
    MessageDropped: FactMakers._dropped,
    Subscribed: FactMakers._subscribed,
    ReplayOpened: FactMakers._opened_replay,
    WillArmed: FactMakers._armed,
    SessionSnapshot: FactMakers._snapshot,
    RetainedSnapshot: FactMakers._repeated_messages,
    RetainedCleared: FactMakers._cleared,
    RetainedExpired: FactMakers._cleared,
    MessagesCarried: FactMakers._carried,
    CheckpointBegun: FactMakers._begun,
    CheckpointCompleted: FactMakers._completed,
    **dict.fromkeys(
        (TopicsKeyed, KeysSnapshot, ErasureRequested, Erased),
        lambda makers, event, at: makers._keys.take(event, at, makers.record.steady_ms),
    ),
    LogCut: FactMakers._cut,
    LogEndUnproven: FactMakers._doubtful,
    BrokerStarted: FactMakers._started,
    BrokerStopped: lambda makers, _event, at: makers._note(at, STOPPED, {}),
    ClockJumped: lambda makers, event, at: makers._note(at, JUMPED, {"ms": event.ms}),
    LimitsApplied: FactMakers._limits,
    OperatorActed: FactMakers._acted,
    Followed: FactMakers._followed,
    LogArchived: FactMakers._archived,
    LogSalvaged: FactMakers._given_up,
    Bridged: FactMakers._bridged,
    Forwarded: lambda makers, event, at: makers._destinations.forwarded(event, at),
    **dict.fromkeys(
        (DestinationOpened, ForwardRefused, ForwardLost, DestinationClosed),
        lambda makers, event, at: makers._destinations.other(event, at),
    ),
}
"""Type of event -> method that makes its facts; other types make none.

A method returns True if it has passed the event to its session."""


def _publishers(event: MessagesCarried | RetainedSnapshot) -> list[str]:
    """Return the publisher of each message, "" where it is not known."""
    if not event.publishers:
        return [""] * event.count
    publishers = [event.publishers[number] for number in event.publisher_of or [0] * event.count]
    if len(publishers) != event.count:
        raise IndexError("columns of different lengths")
    return publishers


def _topics(event: MessagePublished | MessagesCarried) -> list[str]:
    """Return the topic of each message."""
    if event.which:
        if len(event.which) != event.count:
            raise IndexError("columns of different lengths")
        return list(map(event.topics.__getitem__, event.which))
    return [event.topics[0]] * event.count


def _positions(runs: Sequence[Run]) -> list[Position]:
    """Return positions; raise ValueError for invalid ones, before they take much memory."""
    _check(runs)
    positions = from_runs(runs)
    if positions and not (min(positions) >= 0 and max(positions) < _MAX_REF):
        raise ValueError("a position that is none")
    return positions


def _check(runs: Iterable[Run]) -> None:
    """Raise ValueError for runs that would take much memory."""
    for run in runs:
        if type(run) is not int and not 0 <= run[1] <= MAX_INDEX:  # type: ignore[index]
            raise ValueError("a run that is too long")
