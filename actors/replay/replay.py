"""One replay: a subscription of a connected client that reads the log.

Its only state is a cursor: the position up to which the log was read. A step reads some records,
sends the messages that match, and records the cursor with the deliveries, in one turn; the client
gets them when the record is on disk. If the client has no room, or does not read, the cursor stands
still: nothing is queued, nothing is dropped. "Live" means that the cursor is at the end of the log.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby, repeat
from math import inf
from typing import TYPE_CHECKING, Final

import orjson
import structlog

from actors.replay.log_reader import next_record
from actors.replay.selection import (
    MESSAGES_AT_ONCE,
    LastMessages,
    Rules,
    TopicMatches,
    message_of,
    picked,
    select,
)
from actors.routing.option_semantics import is_no_local, is_retain_as_published
from actors.session.decisions import queueing
from actors.session.decisions.acknowledgements import PACKET_IDS, take_packet_ids
from actors.session.position_properties import point_text, position_blocks
from eventstore.format.events import Delivered, ReplayReached
from eventstore.format.positions import Position, format_position, position, to_runs
from eventstore.log.message_store import Message
from protocol.mqtt.replay_filters import REPLAY_STATE, STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from actors.access.rules import TopicAcl
    from actors.replay.log_reader import LogReader
    from actors.replay.named_records import NamedRecords
    from actors.replay.selection import LogRecord, Run, Step
    from actors.session.node_context import NodeContext
    from actors.session.session import Session
    from actors.session.session_messages import ClientConnection
    from eventstore.reading.publications import Publications
    from projections.state.session import ReplayState, SubscriptionState
    from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")

LIVE, WITHHELD, ENDED, DAMAGED = "live", "withheld", "ended", "damaged"
TOO_MANY_TOPICS: Final = "too_many_topics"
_FINAL: Final = frozenset({ENDED, DAMAGED, TOO_MANY_TOPICS})
WAITS: Final = inf
"""The next step follows when something has changed."""
_AT_GATE: Final = 1024 * 1024
"""Bytes of its client that may wait for the disk."""
_FEW: Final = 8
"""Records ahead below which further ones are read."""
_RECORDED_EVERY: Final = 10_000
"""Records without a message for the client after which the cursor is recorded."""
_ENOUGH: Final = 4
"""Part of a step, or of a smaller window, for which it waits while messages are in flight."""
_SPARE, _SPARE_SHARE = 16, 4
"""What stays free of the Receive Maximum for other subscriptions of the client: at most so many,
and at most that part of it."""
_STILL_LIVE: Final = 64
"""Records that a replay which has read everything may be behind, and still counts as live."""
_STEP: Final = 0.001
"""Seconds of a step after which no further record is looked at."""
_CONGESTED, _AGAIN = 0.01, 1.0
"""Seconds until it looks again whether the log has room, and whether it may go on."""
_OPEN_RECORD_MS: Final = 1500
"""Age at which no record that could still get events is open."""


class Replay:
    """A replay of a connected client."""

    __slots__ = (
        "_allowed",
        "_changed",
        "_gap",
        "_left_out",
        "_new_gap",
        "_node",
        "_reader",
        "_recorded",
        "_unrecorded",
        "_wake",
        "ahead",
        "connection",
        "cursor",
        "damage",
        "due",
        "filter",
        "fruitless",
        "last",
        "matches",
        "named",
        "next_at",
        "queued",
        "session",
        "start_ms",
        "until",
        "until_found",
        "until_ms",
    )

    def __init__(
        self,
        node: NodeContext,
        reader: LogReader,
        session: Session,
        topic_filter: str,
        state: ReplayState,
        wake: Callable[[Replay], None],
    ) -> None:
        self._node = node
        self._reader = reader
        self._wake = wake
        self.session = session
        self.connection: ClientConnection | None = session.connection
        self.filter = topic_filter
        """The filter of the subscription, as the client sent it."""
        self.start_ms = state.start_ms
        self.cursor: Position | None = state.through.get("")
        """The last position that was read; None: it is to be determined where it begins."""
        self._recorded = self.cursor
        """The cursor in the log."""
        self._unrecorded = 0
        """Records that were read since then."""
        self._left_out: dict[str, int] = {}
        """Messages left out since then, by the reason."""
        self._gap: tuple[Position, Position] | None = None
        """A part of the log that was removed unread, which the next message reports."""
        self._new_gap: tuple[Position, Position] | None = None
        """The same, until it is recorded."""
        self.damage: FoldmqError | None = None
        """Why it cannot go on; None: it can."""
        self._changed = state.state
        """The state that was recorded last."""
        self.matches = TopicMatches(state.topic_filter)
        """Which topics match the filter."""
        self.last: LastMessages | None = None
        """Which messages it sends up to where it began, if it is the last of each topic."""
        if state.last:
            self.last = LastMessages(state.start.get("", 0), self.cursor or 0)
        self._allowed: tuple[TopicAcl | None, bool] | None = None
        """Permissions, and whether they cover the filter; None: not known yet."""
        self.ahead: deque[LogRecord] = deque()
        """Records after the cursor in order; nothing matches in any between them."""
        self.until, self.until_ms = state.until.get(""), state.until_ms
        """The last position and the last time that it sends; None and 0: there is none."""
        self.named: NamedRecords | None = None
        """The next records in which something may match, as the index names them."""
        self.until_found = (0, 0)
        """Up to which record ``until_ms`` was looked for, and the last record before it."""
        self.fruitless = False
        """Whether none of the last records had a message for the client."""
        self.next_at = 0.0
        """Monotonic time before which no step follows while it is live."""
        self.queued = False
        """Whether a step is due."""
        self.due = inf
        """Monotonic time of a timer for the next step; infinity: there is none."""

    # What has changed.

    def wake(self) -> None:
        """Look whether a step is possible."""
        self._wake(self)

    def on_read(self) -> None:
        """Continue: there are records, or the beginning is known."""
        self.wake()

    def skip_to(self, sequence: int) -> None:
        """Go on with a record: nothing matches in those before it."""
        through = position(sequence, 0) - 1
        if self.cursor is not None and through > self.cursor:
            self._unrecorded += sequence - next_record(self.cursor)
            self.cursor = through

    def on_cut(self, first: int) -> None:
        """Continue at the new beginning of the log, and report what was removed."""
        if self.cursor is not None and self.cursor + 1 < position(first, 0):
            ends = position(first, 0) - 1
            begins = self._gap[0] if self._gap is not None else self.cursor + 1
            self._new_gap = self.cursor + 1, ends
            self._gap = begins, ends
            self.cursor = ends
        self.wake()

    def on_damage(self, error: FoldmqError) -> None:
        """End: a record cannot be read."""
        self.damage = error
        self.wake()

    # Steps.

    @property
    def subscription(self) -> SubscriptionState | None:
        """The subscription; None: it has ended, or its session or connection is another one now."""
        session = self.session
        if session.stopped or self.connection is None or session.connection is not self.connection:
            return None
        if self._node.state.sessions.live.get(session.name) is not session.state:
            return None
        return session.state.replays.get(self.filter)

    @property
    def state(self) -> str:
        """The state that was recorded last, as it is shown."""
        return self._changed or "reading"

    @property
    def is_live(self) -> bool:
        """Whether everything has been read."""
        return self.cursor is not None and next_record(self.cursor) > self._reader.last

    @property
    def lag(self) -> int:
        """Number of records that are to be read; 0 if it has ended."""
        if self._changed in _FINAL:
            return 0
        cursor = self.cursor if self.cursor is not None else 0
        return max(0, self._reader.last - max(next_record(cursor), self._reader.first) + 1)

    def step(self, interval: float) -> float:
        """Read and send; return in how many seconds the next step may follow, 0: at once.

        ``interval`` is the least number of seconds between two steps that send, while it is live.
        """
        held, connection = self.subscription, self.connection
        if held is None or connection is None or held.replay is None:
            return WAITS
        if held.replay.state in _FINAL:
            return WAITS
        if not self._is_permitted(connection.access):
            self._change(WITHHELD)
            return _AGAIN
        if self.damage is not None:
            _log.error(
                "a replay ends: the log cannot be read",
                client=self.session.name,
                filter=self.filter,
                reason=str(self.damage),
            )
            self._change(DAMAGED)
            return WAITS
        if self._new_gap is not None:
            self._record("")
        elif self._changed == WITHHELD:
            self._change("")
        if self.cursor is None:
            self._reader.request(self)
            return WAITS
        wait = self._wait(connection)
        if wait > 0:
            return wait
        if next_record(self.cursor) < self._reader.held_before:
            return WAITS
        if self.last is not None and not self._find_last(self.last, self.cursor):
            return WAITS
        if not self.ahead:
            if self.is_live:
                return self._at_end(held.replay)
            self._look_ahead()
            if not self.ahead:
                return WAITS
        return self._read(held, connection, self._rules(held, connection), interval)

    @property
    def next_ahead(self) -> int:
        """Sequence of the record that follows those ahead."""
        if self.ahead:
            return self.ahead[-1].sequence + 1
        return next_record(self.cursor) if self.cursor is not None else 0

    def _look_ahead(self) -> None:
        """Take further records from memory, or request them."""
        records = self._reader.take(self.next_ahead)
        self.ahead.extend(records)
        if not records:
            self._reader.request(self)

    def _find_last(self, last: LastMessages, cursor: Position) -> bool:
        """Return whether the last messages of topics are known; go on to the next one."""
        if last.too_many:
            self._change(TOO_MANY_TOPICS)
        elif not last.complete:
            self._reader.request(self)
        else:
            if not self.ahead:
                self.cursor = last.after(cursor)
            return True
        return False

    def _wait(self, connection: ClientConnection) -> float:
        """Return in how many seconds output is possible, 0: at once."""
        if self._node.journal.congested:
            return _CONGESTED
        if not self.session.delivery.may_send(connection):
            return WAITS
        if connection.gated >= _AT_GATE:
            connection.starved = True
            return WAITS
        return self.next_at - self._node.clock.monotonic()

    def _read(
        self,
        held: SubscriptionState,
        connection: ClientConnection,
        rules: Rules,
        interval: float,
    ) -> float:
        """Read some records, and send what matches in them."""
        now, cursor = self._node.clock.stopwatch, self.cursor
        if cursor is None:
            return WAITS
        until = now() + _STEP
        chosen = select(self.ahead, cursor, rules, self._room(held), lambda: now() >= until)
        self.cursor, self.start_ms = chosen.through, rules.start_ms
        self._unrecorded += chosen.records
        if len(self.ahead) < _FEW and self.last is None and self.next_ahead <= self._reader.last:
            self._look_ahead()
        self.fruitless = not chosen.sent and not chosen.no_room
        for reason, count in chosen.left_out.items():
            self._left_out[reason] = self._left_out.get(reason, 0) + count
        state = ""
        if chosen.ended:
            state = ENDED
        elif self.is_live or (self._changed == LIVE and self.lag <= _STILL_LIVE):
            state = LIVE
        if chosen.sent:
            self._send(held, connection, chosen, state)
            if state == LIVE:
                self.next_at = self._node.clock.monotonic() + interval
        elif chosen.ended:
            self._change(ENDED)
        elif self._unrecorded >= _RECORDED_EVERY:
            self._record(self._changed)
        return WAITS if chosen.no_room or chosen.ended else 0.0

    def _at_end(self, replay: ReplayState) -> float:
        """Wait for new messages, unless the replay ends here."""
        until, until_ms = replay.until.get(""), replay.until_ms
        if until is not None and self.cursor is not None and self.cursor >= until:
            self._change(ENDED)
            return WAITS
        if until_ms:
            journal = self._node.journal
            settled = journal.durable >= journal.end
            if self._node.clock.time_ms() > until_ms + _OPEN_RECORD_MS and settled:
                self._change(ENDED)
                return WAITS
        if self._changed != LIVE:
            self._change(LIVE)
        return _AGAIN if until_ms else WAITS

    def _room(self, held: SubscriptionState) -> int:
        """Return how many messages at QoS 1 and 2 may be sent; 0 also if that is not worth a step.

        Few messages are as many events as many are. While messages are in flight, their
        acknowledgements make more room.
        """
        state, window = self.session.state, self._node.delivery_limits.window
        room = queueing.room(state, held, window)
        if held.outstanding:
            enough = min(window, state.receive_maximum, MESSAGES_AT_ONCE) // _ENOUGH
            room = room if room >= enough else 0
        if len(state.subscriptions) > len(state.replays):
            spare = min(_SPARE, state.receive_maximum // _SPARE_SHARE)
            free = min(PACKET_IDS, state.receive_maximum)
            free -= len(state.inflight) + len(state.releasing)
            room = max(0, min(room, free - spare))
        return room

    def _is_permitted(self, access: TopicAcl | None) -> bool:
        """Return whether the client may read the past of the filter at present."""
        if self._allowed is None or self._allowed[0] is not access:
            inner = self.matches.topic_filter
            allowed = access is None or (access.may_subscribe(inner) and access.may_replay(inner))
            self._allowed = access, allowed
        return self._allowed[1]

    def _rules(self, held: SubscriptionState, connection: ClientConnection) -> Rules:
        """Return what is sent at present."""
        access, expired = connection.access, self._node.expired_until
        own = self.session.name if is_no_local(held.options) else None
        encoder, now_ms = self.session.delivery.encoder, self._node.clock.steady_ms()
        limited = encoder is not None and encoder.limit
        sealing = self._node.sealing

        def are_checked(publications: Publications) -> bool:
            return bool(
                access
                or limited
                or sealing is not None
                or publications.expires
                or publications.session == own
            )

        def why_not(publications: Publications, number: int, qos: int) -> str:
            if publications.session == own:
                return "no_local"  # [MQTT-3.8.3-3]
            topic = publications.topics[number]
            if access is not None and not (access.read[topic] and access.history[topic]):
                return "not_permitted"
            if publications.expires and 0 < publications.expires[number] <= expired:
                return "expired"  # [MQTT-3.3.2-5]
            if sealing is not None and sealing.is_erased(
                publications.positions[0], message_of(publications, number)
            ):
                return "erased"
            if limited and encoder is not None:
                flags = qos, self._is_as_published(publications, held)
                message = message_of(publications, number)
                if encoder.is_too_large(message, flags, now_ms, held):
                    return "packet_too_large"  # [MQTT-3.1.2-24]
            return ""

        until, until_ms = self.until, self.until_ms
        # Messages of an open record may come later, which is older than a beginning just now.
        start_ms = self.start_ms if self._recorded is None else 0
        return Rules(
            *(self.matches, held.qos, are_checked, why_not, until, until_ms, self.last, start_ms),
            shared=self._node.kernel.shared,
        )

    def _is_as_published(self, publications: Publications, held: SubscriptionState) -> bool:
        """Return whether messages are sent with RETAIN, as they were published."""
        if not publications.retain or not is_retain_as_published(held.options):
            return False
        return self.session.delivery.encoder is not None

    # Output.

    def _send(
        self, held: SubscriptionState, connection: ClientConnection, step: Step, state: str
    ) -> None:
        """Send the messages of a step, and record them with the cursor.

        Everything that could fail comes before the events: they belong together.
        """
        node, session, name = self._node, self.session, self.session.name
        packet_ids = take_packet_ids(session.state, step.numbered) if step.numbered else []
        deliveries: list[Delivered] = []
        parts: list[bytes] = []
        sizes: list[tuple[int, int, int]] = []
        at = 0

        def kind(run: Run) -> tuple[int, bool]:
            return run.qos, self._is_as_published(run.publications, held)

        for (qos, rap), group in groupby(step.runs, kind):
            runs = [*group]
            messages = self._messages(runs, (qos, rap), held)
            pids: Sequence[int] = packet_ids[at : at + len(messages)] if qos else ()
            at += len(pids)
            data = session.delivery.encode(messages, (qos, rap), pids, of=held)
            parts.append(data)
            sizes.append((qos, len(messages), len(data)))
            if qos:
                refs = [ref for run in runs for ref in picked(run.publications.refs, run.numbers)]
                ids, places = to_runs(pids), to_runs(refs)
                deliveries.append(Delivered(name, self.filter, qos, ids, places, rap=rap))
        for delivered in deliveries:
            session.emit(delivered)
        self._record(state, step.sent, b"".join(parts))
        for qos, count, size in sizes:
            node.counters.count_sent(connection, qos, count, size)
        node.counters.replayed += step.sent
        if deliveries:
            session.delivery.expect_acks()

    def _messages(
        self, runs: Sequence[Run], flags: tuple[int, bool], held: SubscriptionState
    ) -> list[Message]:
        """Return the messages with the properties that say where they are in the log.

        These are left out of a packet that would be too large for the client with them.
        """
        encoder, gap = self.session.delivery.encoder, self._gap
        of_stream = self.filter.startswith(STREAM)
        messages: list[Message] = []
        for publications, numbers, _ in runs:
            blocks = picked(publications.blocks, numbers) if publications.blocks else ()
            own: Iterable[bytes] = blocks or repeat(b"", len(numbers))
            if encoder is not None:
                places = picked(publications.positions, numbers)
                own = position_blocks(
                    places, publications.time_ms, blocks, gap, of_stream=of_stream
                )
                gap = None
            topics = picked(publications.topics, numbers)
            payloads = picked(publications.payloads, numbers)
            expires = picked(publications.expires, numbers) if publications.expires else repeat(0)
            messages += map(Message, topics, payloads, own, expires)
        if encoder is not None and encoder.limit:
            now_ms = self._node.clock.steady_ms()
            plain = (message_of(run.publications, at) for run in runs for at in run.numbers)
            for number, message in enumerate(plain):
                if encoder.is_too_large(messages[number], flags, now_ms, held):
                    messages[number] = message
        return messages

    def _change(self, state: str) -> None:
        """Record another state."""
        if state != self._changed:
            self._record(state)

    def _record(self, state: str, sent: int = 0, output: bytes = b"") -> None:
        """Record the cursor, and what has happened since it was recorded last.

        ``output`` are the messages that were sent, which the client gets when that is on disk.
        """
        event = ReplayReached(self.session.name, self.filter, {}, sent=sent, state=state)
        if self.cursor is not None and self.cursor != self._recorded:
            event.through = {"": self.cursor}
        if self._left_out:
            event.left_out, self._left_out = self._left_out, {}
        if self._new_gap is not None:
            event.gap = {"": [*self._new_gap]}
        self.session.emit(event)
        self._recorded, self._unrecorded, self._new_gap = self.cursor, 0, None
        if output and self.connection is not None:
            self._node.journal.send_when_durable(self.connection, output)
            self._gap = None
        if state != self._changed or event.gap:
            self._changed = state
            self._notify(event)

    def _notify(self, event: ReplayReached) -> None:
        """Send the client a notice, if it has subscribed to them."""
        notices = self.session.state.subscriptions.get(REPLAY_STATE)
        held, connection = self.subscription, self.connection
        if notices is None or not notices.active or connection is None:
            return
        if held is None or held.replay is None:
            return
        notice: dict[str, object] = {"filter": self.filter, "state": event.state or "reading"}
        if self.cursor is not None:
            notice["through"] = point_text(self.cursor)
        notice["messages"] = held.replay.sent
        if event.gap:
            first, last = event.gap[""]
            notice["gap"] = f"{format_position(first)}..{point_text(last)}"
        message = Message(REPLAY_STATE.encode(), orjson.dumps(notice))
        data = self.session.delivery.encode([message], (0, False), (), of=notices)
        self._node.journal.send_when_durable(connection, data)
        self._node.counters.count_sent(connection, 0, 1, len(data))

    def record_cursor(self) -> None:
        """Record the cursor if it has moved: its session is about to change, or the log is cut."""
        if self.subscription is not None and (
            self.cursor != self._recorded or self._left_out or self._new_gap is not None
        ):
            self._record(self._changed)
