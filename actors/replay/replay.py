"""One replay: a subscription of a connected client that reads the log, or the logs of a node.

Its only state is a cursor in each log: the position up to which it was read. A step reads some
records, sends the messages that match, and records the cursors with the deliveries, in one turn;
the client gets them when the record is on disk. If the client has no room, or does not read, the
cursors stand still: nothing is queued, nothing is dropped. "Live" means that they are at the end.

Of several logs the record with the earliest time comes next, and of two at the same time that of
the earlier log; in a log its own order counts. At the end of the logs records come as they arrive.
"""

from __future__ import annotations

from itertools import groupby, repeat
from math import inf
from typing import TYPE_CHECKING, Final

import orjson
import structlog

from actors.replay.log_cursor import STILL_LIVE, LogCursor
from actors.replay.selection import (
    Budget,
    Rules,
    Run,
    TopicMatches,
    keep_latest,
    message_of,
    picked,
    references,
    room_for,
    select,
)
from actors.routing.option_semantics import is_no_local, is_retain_as_published
from actors.session.decisions.acknowledgements import take_packet_ids
from actors.session.position_properties import encode_with_positions, position_blocks
from eventstore.format.events import Delivered, ReplayReached
from eventstore.format.positions import Position, to_runs
from eventstore.log.message_store import Message
from eventstore.partitions import short_name
from protocol.mqtt.replay_filters import REPLAY_STATE, STREAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from actors.access.rules import TopicAcl
    from actors.replay.log_reader import LogReader
    from actors.replay.selection import Step
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
_STEP: Final = 0.001
"""Seconds of a step after which no further record is looked at."""
_CONGESTED, _AGAIN = 0.01, 1.0
"""Seconds until it looks again whether the log has room, and whether it may go on."""


class Replay:
    """A replay of a connected client."""

    def __init__(
        self,
        node: NodeContext,
        readers: Mapping[str, LogReader],
        session: Session,
        topic_filter: str,
        state: ReplayState,
        wake: Callable[[Replay], None],
    ) -> None:
        """``readers`` are those of the logs in order; the empty name is that of the own log."""
        self._node = node
        self._wake = wake
        self.session = session
        self.connection: ClientConnection | None = session.connection
        self.filter = topic_filter
        """The filter of the subscription, as the client sent it."""
        self.damage: FoldmqError | None = None
        """Why it cannot go on; None: it can."""
        self._changed = state.state
        """The state that was recorded last."""
        self.matches = TopicMatches(state.topic_filter)
        """Which topics match the filter."""
        names = {log: short_name(log or node.options.node) for log in readers}
        labels = {log: f"{name}:" if len(readers) > 1 else "" for log, name in names.items()}
        self.logs = [
            LogCursor(log, labels[log], reader, self.matches, state, self.wake, self.on_damage)
            for log, reader in readers.items()
        ]
        """Its place in each log, in the order of the logs."""
        self.own = next(log for log in self.logs if not log.log)
        """Its place in the log of the node."""
        self._latest_known = not state.last
        """Whether the last message of each topic is known to be the last in all logs."""
        self._allowed: tuple[TopicAcl | None, bool] | None = None
        """Permissions, and whether they cover the filter; None: not known yet."""
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
    def goes_on(self) -> bool:
        """Whether it has not ended, and may read."""
        return self._changed not in _FINAL and self._changed != WITHHELD

    @property
    def cursor(self) -> Position | None:
        """The last position of the own log that was read; None: it is to be determined."""
        return self.own.cursor

    @property
    def lag(self) -> int:
        """Number of records that are to be read; 0 if it has ended."""
        return 0 if self._changed in _FINAL else sum(log.lag for log in self.logs)

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
        if any(log.new_gap is not None for log in self.logs):
            self._record("")
        elif self._changed == WITHHELD:
            self._change("")
        beginning = [log for log in self.logs if log.cursor is None]
        for log in beginning:
            log.reader.request(log)
        if beginning:
            return WAITS
        wait = self._wait(connection)
        if wait > 0:
            return wait
        if self.own.next_sequence < self.own.reader.held_before:
            return WAITS
        if held.replay.last and not self._find_last():
            return WAITS
        return self._read(held, connection, interval)

    def _find_last(self) -> bool:
        """Return whether the last messages of topics are known; go on to the next one."""
        is_complete = True
        for log in self.logs:
            if log.last is not None and log.last.too_many:
                self._change(TOO_MANY_TOPICS)
                return False
            if log.last is not None and not log.last.complete:
                log.reader.request(log)
                is_complete = False
        if not is_complete:
            return False
        if not self._latest_known:
            if len(self.logs) > 1:
                keep_latest([log.last for log in self.logs if log.last is not None])
            for log in self.logs:
                log.tell_lost()
            self._latest_known = True
        for log in self.logs:
            if log.last is not None and log.cursor is not None and not log.ahead:
                log.cursor = log.last.after(log.cursor)
        return True

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

    def _next(self) -> tuple[LogCursor | None, float]:
        """Return the log whose next record is read next, and the time before which that must be.

        None: the next record is not known yet, or there is none.
        """
        heads: list[tuple[int, int, LogCursor]] = []
        complete = True
        for number, log in enumerate(self.logs):
            if log.ended:
                continue
            if not log.ahead and not log.is_live:
                log.look_ahead()
            if log.ahead:
                heads.append((log.ahead[0].time_ms, number, log))
            elif not log.keeps_up:
                complete = False
        if not heads or not complete:
            return None, inf
        if len(heads) == 1:
            return heads[0][2], inf
        heads.sort()
        (_, number, log), (other_ms, other, _) = heads[:2]
        return log, other_ms + (number < other)

    def _read(
        self, held: SubscriptionState, connection: ClientConnection, interval: float
    ) -> float:
        """Read some records, and send what matches in them."""
        now = self._node.clock.stopwatch
        until = now() + _STEP
        room = room_for(self.session.state, held, self._node.delivery_limits.window)
        budget = Budget(room, shared=self._node.kernel.shared)
        rules = self._rules(held, connection)
        steps: list[tuple[LogCursor, Step]] = []
        ends = {log.log: log.place(log.cursor or 0) for log in self.logs}
        step = None
        while step is None or (not step.interrupted and len(self.logs) > 1):
            log, rules.before_ms = self._next()
            if log is None or log.cursor is None:
                break
            rules.until, rules.until_ms, rules.last = log.until, log.until_ms, log.last
            # Messages of an open record may come later, which is older than a beginning just now.
            rules.start_ms = log.start_ms if log.recorded is None else 0
            step = select(log.ahead, log.cursor, rules, budget, lambda: now() >= until)
            log.start_ms = rules.start_ms
            log.count(step)
            steps.append((log, step))
            if len(log.ahead) < _FEW and log.last is None and log.next_ahead <= log.reader.last:
                log.look_ahead()
        if step is None:
            return self._at_end()
        state = ""
        ended = all(log.ended for log in self.logs)
        if ended and not any(log.ends_in_hole for log in self.logs):
            state = ENDED
        elif not ended and all(
            log.ended or log.is_live or (self._changed == LIVE and log.lag <= STILL_LIVE)
            for log in self.logs
        ):
            state = LIVE
        if any(part.sent for _, part in steps):
            self._send(held, connection, steps, ends, state)
            if state == LIVE:
                self.next_at = self._node.clock.monotonic() + interval
        elif state == ENDED:
            self._change(ENDED)
        elif sum(log.unrecorded for log in self.logs) >= _RECORDED_EVERY or (
            step.lost and any(log.left_out for log in self.logs)
        ):
            self._record(self._changed)
        if step.lost:
            steps[-1][0].pass_lost(step.lost)
            return 0.0
        if ended and state != ENDED:  # in a step of its own: no message of this one is behind it
            for log in self.logs:
                log.pass_end()
            self._change(ENDED)
        return WAITS if step.no_room or ended else 0.0

    def _at_end(self) -> float:
        """Wait for records, or for new messages, unless the replay ends here."""
        if not all(log.ended or log.is_live for log in self.logs):
            return WAITS
        ended = [log.ended or log.at_end() for log in self.logs]
        if all(ended):
            self._change(ENDED)
            return WAITS
        if self._changed != LIVE:
            self._change(LIVE)
        return _AGAIN if self.own.until_ms else WAITS

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

        return Rules(self.matches, held.qos, are_checked, why_not)

    def _is_as_published(self, publications: Publications, held: SubscriptionState) -> bool:
        """Return whether messages are sent with RETAIN, as they were published."""
        if not publications.retain or not is_retain_as_published(held.options):
            return False
        return self.session.delivery.encoder is not None

    # Output.

    def _send(
        self,
        held: SubscriptionState,
        connection: ClientConnection,
        steps: Sequence[tuple[LogCursor, Step]],
        ends: dict[str, str],
        state: str,
    ) -> None:
        """Send the messages of steps, and record them with the cursors.

        ``ends`` is how far each log was read before, as clients see it. Everything that could fail
        comes before the events: they belong together.
        """
        node, session, name = self._node, self.session, self.session.name
        numbered = sum(step.numbered for _, step in steps)
        packet_ids = take_packet_ids(session.state, numbered) if numbered else []
        deliveries: list[Delivered] = []
        parts: list[bytes] = []
        sizes: list[tuple[int, int, int]] = []
        at = 0
        # The first message tells of all logs: a client that goes on after it is behind them.
        gap = ",".join(log.gap_text(log.gap) for log in self.logs if log.gap is not None)

        def kind(run: Run) -> tuple[int, bool]:
            return run.qos, self._is_as_published(run.publications, held)

        for log, step in steps:
            ends[log.log] = log.place(step.through)
            for (qos, rap), group in groupby(step.runs, kind):
                runs = [*group]
                count = sum(len(run.numbers) for run in runs)
                pids: Sequence[int] = packet_ids[at : at + count] if qos else ()
                at += len(pids)
                data = self._encode(log, runs, (qos, rap), pids, held, ends, gap)
                gap = ""
                parts.append(data)
                sizes.append((qos, count, len(data)))
                if qos:
                    ids, places = to_runs(pids), references(runs)
                    deliveries.append(Delivered(name, self.filter, qos, ids, places, rap=rap))
        for delivered in deliveries:
            session.emit(delivered)
        self._record(state, b"".join(parts))
        for log in self.logs:
            log.gap = None
        for qos, count, size in sizes:
            node.counters.count_sent(connection, qos, count, size)
        node.counters.replayed += sum(step.sent for _, step in steps)
        if deliveries:
            session.delivery.expect_acks()

    def _encode(
        self,
        log: LogCursor,
        runs: Sequence[Run],
        flags: tuple[int, bool],
        packet_ids: Sequence[int],
        held: SubscriptionState,
        ends: Mapping[str, str],
        gap: str,
    ) -> bytes:
        """Encode messages of a log; ``flags`` are their QoS and RETAIN.

        ``ends`` is how far each log was read, ``gap`` what was removed unread before the first
        message.
        """
        delivery, parts, begin = self.session.delivery, list[bytes](), 0
        encoder, of_stream = delivery.encoder, self.filter.startswith(STREAM)
        for run in runs:
            publications, numbers, _ = run
            end = begin + len(numbers)
            ids = packet_ids[begin:end]
            begin = end
            if encoder is None or encoder.limit or gap or log.label or publications.blocks:
                messages = self._messages(log, run, flags, held, ends, gap)
                parts.append(delivery.encode(messages, flags, ids, of=held))
                gap = ""
                continue
            part = encode_with_positions(
                picked(publications.topics, numbers),
                picked(publications.payloads, numbers),
                picked(publications.positions, numbers),
                publications.time_ms,
                encoder.variant(flags, held),
                ids,
                of_stream=of_stream,
            )
            parts.append(part)
        return b"".join(parts)

    def _messages(
        self,
        log: LogCursor,
        run: Run,
        flags: tuple[int, bool],
        held: SubscriptionState,
        ends: Mapping[str, str],
        gap: str,
    ) -> list[Message]:
        """Return messages of a log with the properties that say where they are in it.

        These are left out of a packet that would be too large for the client with them. Arguments
        are as of :meth:`_encode`.
        """
        encoder = self.session.delivery.encoder
        publications, numbers, _ = run
        blocks = picked(publications.blocks, numbers) if publications.blocks else ()
        own: Iterable[bytes] = blocks or repeat(b"", len(numbers))
        if encoder is not None:
            own = position_blocks(
                picked(publications.positions, numbers),
                publications.time_ms,
                blocks,
                gap,
                of_stream=self.filter.startswith(STREAM),
                label=log.label,
                rest="".join(f",{end}" for other, end in ends.items() if other != log.log),
            )
        topics = picked(publications.topics, numbers)
        payloads = picked(publications.payloads, numbers)
        expires = picked(publications.expires, numbers) if publications.expires else repeat(0)
        messages = list(map(Message, topics, payloads, own, expires))
        if encoder is not None and encoder.limit:
            now_ms = self._node.clock.steady_ms()
            for place, number in enumerate(numbers):
                if encoder.is_too_large(messages[place], flags, now_ms, held):
                    messages[place] = message_of(publications, number)
        return messages

    def _change(self, state: str) -> None:
        """Record another state."""
        if state != self._changed:
            self._record(state)

    def _record(self, state: str, output: bytes = b"") -> None:
        """Record the cursors, and what has happened since they were recorded last.

        ``output`` are the messages that were sent, which the client gets when that is on disk.
        """
        about = self.session.name, self.filter
        others = [log for log in self.logs if log is not self.own]
        events = [event for log in others if (event := log.take_news(*about))]
        own = self.own.take_news(*about)
        if own is not None or not events:
            events.append(own or ReplayReached(*about, {}))
        for event in events[:-1]:
            event.state = self._changed
        events[-1].state = state
        for event in events:
            self.session.emit(event)
        if output and self.connection is not None:
            self._node.journal.send_when_durable(self.connection, output)
        changed, self._changed = state != self._changed, state
        if changed or any(event.gap for event in events):
            self._notify(events)

    def _notify(self, events: Sequence[ReplayReached]) -> None:
        """Send the client a notice, if it has subscribed to them."""
        notices = self.session.state.subscriptions.get(REPLAY_STATE)
        held, connection = self.subscription, self.connection
        if notices is None or not notices.active or connection is None:
            return
        if held is None or held.replay is None:
            return
        notice: dict[str, object] = {"filter": self.filter, "state": self._changed or "reading"}
        places = [log.place(log.cursor) for log in self.logs if log.cursor is not None]
        if places:
            notice["through"] = ",".join(places)
        notice["messages"] = held.replay.sent
        gaps = [
            log.gap_text((gap[0], gap[-1]))
            for event in events
            for log in self.logs
            if (gap := event.gap.get(log.log))
        ]
        if gaps:
            notice["gap"] = ",".join(gaps)
        message = Message(REPLAY_STATE.encode(), orjson.dumps(notice))
        data = self.session.delivery.encode([message], (0, False), (), of=notices)
        self._node.journal.send_when_durable(connection, data)
        self._node.counters.count_sent(connection, 0, 1, len(data))

    def record_cursor(self) -> None:
        """Record the cursors if they have moved: its session changes, or the log is cut."""
        if self.subscription is not None and any(log.has_news for log in self.logs):
            self._record(self._changed)
