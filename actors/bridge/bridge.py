"""The actor between MQTT and NATS.

The bridge observes messages of QoS 0 (:meth:`Bridge.published`), in their turn; those that are in
the log come from ``actors.bridge.recorded_messages``. Messages from NATS are put into the actor's
mailbox in batches.

The bridge has its own connection to NATS: its failures do not affect the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from actors.bridge.bridge_properties import PropertyLosses, PropertyReader, PropertyWriter
from actors.bridge.from_nats import FromNats
from actors.bridge.recorded_messages import RecordedMessages
from actors.bridge.replies import Answered, Replies, ReplySubjects
from actors.bridge.subscriber_probes import SubscriberProbes
from actors.bridge.to_nats import GatedMessages, OutgoingMessages, ToNats
from actors.kernel.actor import LoopActor
from actors.node.read_pause import ReadPause
from actors.session.outside_publisher import GateSink
from eventstore.format.destination_events import NATS_DESTINATION, Forwarded, ForwardLost
from eventstore.format.events import NATS_SESSION
from eventstore.format.positions import position
from eventstore.format.stored_properties import expiries
from eventstore.log.message_store import Message
from eventstore.nats.batch_client import encode_hpub, encode_pub
from projections.state.destinations import ERASED
from protocol.nats.headers import has_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.bridge.bridge_stats import BridgeStats
    from actors.bridge.filter_reports import FilterReports
    from actors.bridge.interest import Interest
    from actors.limits.bridge_options import BridgeOptions
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import Batch, ClientConnection, Publication
    from eventstore.format.positions import Position
    from eventstore.nats.batch_client import BatchClient
    from eventstore.nats.batch_transport import NatsMessage


_log = structlog.get_logger("foldmq")

_SETTLE = 1.0
"""Seconds between two events with the position up to which NATS has the messages."""
_MUCH = 8 * 1024 * 1024
"""Bytes waiting for NATS from which QoS 0 publishers are slowed down."""
_GRACE = 3.0
"""Seconds for which messages in the log wait after a reconnect. NATS clients reconnect every 2 s by
default."""
_TAKE_MORE = object()
"""Message of the bridge to itself while arrived messages are not published yet."""
_CLOSE_SECONDS = 2.0
_NO_HEADERS = b"NATS/1.0\r\n"
_POLL = 0.005
_ERASED_AT_ONCE = 1000
"""Maximum number of ranges of erased messages that are recorded in a turn."""
_MOST_ERASED = 10 * _ERASED_AT_ONCE


class Connected(NamedTuple):
    """The connection to NATS is established."""


class Disconnected(NamedTuple):
    """The connection to NATS is lost."""


class FencePassed(NamedTuple):
    """The server has processed everything written before, and its answers were received."""

    done: Callable[[], None]


class OrderedLink:
    """A connection whose fences pass through the bridge's mailbox, after earlier input."""

    __slots__ = ("_link", "_tell", "inbox", "subscribe", "unsubscribe", "write")

    def __init__(self, link: BatchClient, tell: Callable[[object], None]) -> None:
        self._link = link
        self._tell = tell
        self.inbox = link.inbox
        self.write = link.write
        self.subscribe = link.subscribe
        self.unsubscribe = link.unsubscribe

    def fence(self, call: Callable[[], None]) -> None:
        """Call ``call`` when everything written so far is processed."""
        self._link.fence(lambda: self._tell(FencePassed(call)))


class ErasedRanges:
    """Ranges of positions whose messages were all erased, until the cursor passes them."""

    def __init__(self) -> None:
        self._ranges: list[tuple[Position, Position, int]] = []
        """Position before each, its last one, and the number of messages."""
        self._continues = False

    @property
    def full(self) -> bool:
        """Whether nothing more may be sent before some are recorded."""
        return len(self._ranges) >= _MOST_ERASED

    def add(self, place: Position, *, follows: bool) -> None:
        """Note a message; ``follows``: no other one was between it and the one noted before."""
        after, count = place - 1, 1
        if follows and self._continues:
            after, _, before = self._ranges.pop()
            count += before
        self._ranges.append((after, place, count))
        self._continues = follows

    def end_range(self) -> None:
        """Note that a message follows that is sent."""
        self._continues = False

    def take(self, through: Position) -> tuple[list[tuple[Position, Position, int]], Position]:
        """Return the ranges up to a position, some at a time, and the position up to which."""
        ranges = sorted(each for each in self._ranges if each[1] <= through)
        if len(ranges) > _ERASED_AT_ONCE:
            del ranges[_ERASED_AT_ONCE:]
            through = ranges[-1][1]
        self._ranges = [each for each in self._ranges if each[1] > through]
        self._continues = self._continues and bool(self._ranges)
        return ranges, through


class Bridge(LoopActor):
    """Exchanges messages with NATS for the whole broker."""

    def __init__(
        self,
        node: NodeContext,
        options: BridgeOptions,
        interest: Interest,
        link: BatchClient,
        wire: OrderedLink,
        stats: BridgeStats,
        prefix_of: Callable[[str], str],
        failed: Callable[[BaseException], None],
        unproven: GatedMessages,
        reports: FilterReports | None = None,
    ) -> None:
        """``failed`` replaces this bridge; ``reports`` are those of other logs, if any.

        ``unproven`` holds messages without a record while it is not known whether this node still
        leads, and then calls :meth:`release`.
        """
        super().__init__()
        self._prefix_of = prefix_of
        self._failed = failed
        self._node = node
        self._options = options
        self._link = link
        self._wire = wire
        self._interest = interest
        self.stats = stats
        clock, name = node.clock, node.options.node
        losses = PropertyLosses(stats)
        self._reply_subjects = ReplySubjects(lambda: clock.time_ms() // 1000)
        self._properties = PropertyWriter(
            options, self._reply_subjects, clock.steady_ms, losses, self._expired
        )
        self._flows = SubscriberProbes(
            wire, name, clock.monotonic, node.timers.after, stats, properties=self._properties
        )
        self._replies = Replies(clock.monotonic, secrets.token_hex)
        may_publish = node.permissions.to_nats
        self._departures = ToNats(self._flows, options, self._answer, may_publish)
        self.permissions_changed = self._departures.reset_denied
        self.recorded = RecordedMessages(
            node, options, self._flows, self._pass_on, self._room_for_recorded, prefix_of, failed
        )
        """The messages of QoS 1 and 2."""
        self._wills = GatedMessages(self.release)
        """Wills of QoS 0 whose records are not on disk yet."""
        self._unproven = unproven
        self._arrivals = FromNats(
            node,
            options,
            interest,
            self._replies,
            stats,
            PropertyReader(losses),
            f"FOLDMQ_LOG_{name}",
            prefix_of,
            GateSink(link.write),  # clients without a reply retry
            reports,
        )
        self._backpressure = NatsBackpressure(self._much_room, node.timers.after)
        self._erased = ErasedRanges()
        self._paused = 0
        """The reasons why nothing is read from NATS; see ``ReadPause``."""
        self._ended = False
        self._confirmed: Position = 0
        """The position up to which the server recently confirmed everything; it may not be on its
        disk yet."""

    # Life cycle.

    def begin(self) -> None:
        """Continue at the cursor in the log."""
        if self._link.connected:
            self._connected()
        self._settle_later()

    def end(self, reason: str) -> None:
        """Exchange nothing more."""
        if not self._ended:
            self._ended = True
            self._arrivals.end(reason)
            self.recorded.stop()
            self._flows.lose()

    async def settle_last(self) -> None:
        """Record the position up to which NATS has the messages, if NATS confirms it soon."""
        if not self.stats.connected:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self.recorded.behind or self._flows.oldest() is not None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)
        self.recorded.stop()  # nothing may be sent that is not recorded
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                through, confirmed = self.recorded.settled(), asyncio.Event()
                self._wire.fence(confirmed.set)
                await confirmed.wait()
                self._note(through)

    def settle(self) -> None:
        """Record that NATS has everything on disk, if it has confirmed the last message.

        A cursor behind records with nothing for NATS would hold the log.
        """
        if self.stats.connected and self.recorded.idle:
            self._note(position(self._node.journal.durable + 1, 0) - 1)

    def _connected(self) -> None:
        self.stats.connected = True
        self._erased = ErasedRanges()  # they are read again
        self._interest.reconnected()
        self.recorded.start(_GRACE)

    def _disconnected(self) -> None:
        self.stats.connected = False
        self._confirmed = 0
        self._paused &= ReadPause.WORK  # a new connection is read
        self.recorded.stop()
        self._interest.disconnected()
        self._lost(self._flows.lose(), "bridge_unavailable")

    def on_failure(self, *exc_info: Any) -> None:
        """Request a replacement."""
        self._failed(exc_info[1])

    def on_receive(self, message: Any) -> None:
        """Handle messages from NATS, or a change of the connection."""
        if self._ended:
            return
        if type(message) is list:
            self._arrived(message)
        elif message is _TAKE_MORE:
            self._take_arrivals()
        elif type(message) is Connected:
            self._connected()
        elif type(message) is Disconnected:
            self._disconnected()
        elif type(message) is FencePassed:
            message.done()

    # From MQTT.

    def published(self, publication: Publication) -> None:
        """Send messages of QoS 0, unless they come from elsewhere."""
        client, batch, content = publication.session, publication.batch, publication.content
        if publication.taken or client == NATS_SESSION:
            return
        leaving = OutgoingMessages(
            *((client,), self._prefix_of(client), 0, batch.published_retain, content),
            _size(batch),
            expires=batch.expires,
        )
        if batch.gated:  # a will
            self._wills.hold_back(leaving)
            self._node.journal.send_when_durable(self._wills, b".")
        else:
            self._send_now(leaving, batch)

    def _send_now(self, leaving: OutgoingMessages, batch: Batch) -> None:
        if not self._can(len(batch)):
            return
        recorded = bool(batch.positions)
        if batch.blocks and not recorded:
            expires = expiries(batch.blocks, self._node.clock.steady_ms())
            leaving = leaving._replace(expires=expires)
        if self._unproven.waits_for is not None:
            self._unproven.hold_back(leaving)
            self._node.journal.send_unlogged(self._unproven, b".")
        else:
            self._pass_on(leaving)
        self._flush()
        publisher = batch.publisher
        if publisher is not None and not recorded and self._pending > _MUCH:
            self._backpressure.hold(publisher)

    def _can(self, count: int) -> bool:
        """Return whether NATS accepts QoS 0 messages; otherwise count them as dropped."""
        if not self._link.connected:
            self._lost(count, "bridge_unavailable")
            return False
        if not self._room():
            self._lost(count, "bridge_slow")
            return False
        return True

    def _room(self) -> bool:
        return self._link.connected and self._pending < self._options.most_held

    def _room_for_recorded(self) -> bool:
        return self._room() and not self._erased.full

    def _much_room(self) -> bool:
        return not self._link.connected or self._pending < _MUCH // 2

    @property
    def _pending(self) -> int:
        """Bytes of messages that are not in NATS yet, without those that wait for their records."""
        return self._link.unsent + self._flows.held + self._unproven.size

    def release(self, leaving: OutgoingMessages) -> None:
        """Send messages of QoS 0 that waited for the log."""
        if self._ended:
            self._lost(len(leaving.content.topics), "bridge_unavailable")
        elif self._can(len(leaving.content.topics)):
            self._pass_on(leaving)
            self._flush()

    def _unerased(self, leaving: OutgoingMessages) -> OutgoingMessages:
        """Return messages whose content is not erased; the others are given up."""
        sealing, content = self._node.sealing, leaving.content
        if sealing is None or not leaving.refs:
            return leaving
        keep: list[int] = []
        for at, (ref, place) in enumerate(zip(leaving.refs, leaving.places, strict=True)):
            message = Message(
                *(content.topics[at], content.payloads[at]),
                content.blocks[at] if content.blocks else b"",
            )
            if sealing.is_erased(ref, message):
                self._erased.add(place, follows=not leaving.selected)
            else:
                keep.append(at)
                self._erased.end_range()
        if len(keep) == len(leaving.refs):
            return leaving
        self.stats.erased += len(leaving.refs) - len(keep)
        return leaving.select(keep)

    def _pass_on(self, leaving: OutgoingMessages) -> None:
        leaving = self._unerased(leaving)
        self.stats.offered += len(leaving.content.topics)
        if leaving.expires:
            is_expired = self._properties.is_expired
            keep = [at for at, when in enumerate(leaving.expires) if not is_expired(when)]
            if len(keep) < len(leaving.expires):
                self._expired(len(leaving.expires) - len(keep))
                leaving = leaving.select(keep)
        self._lost(self._departures.send(leaving, self._link.max_payload), "bridge_too_large")

    def _flush(self) -> None:
        if not self._flows.flush():
            self._lost(self._flows.lose(), "bridge_unavailable")

    def _lost(self, count: int, reason: str) -> None:
        if count:
            self._node.count_dropped(reason, count)

    def _expired(self, count: int) -> None:
        self._node.count_dropped("expired", count)

    def _answer(self, token: str, payload: bytes, block: bytes, prefix: str) -> None:
        subject = self._replies.subject(token)
        if subject is None or not self._link.write(
            encode_pub(subject, payload)
            if not block
            else self._answer_with_properties(subject, payload, block, prefix)
        ):
            self._lost(1, "bridge_reply")

    def _answer_with_properties(
        self, subject: bytes, payload: bytes, block: bytes, prefix: str
    ) -> bytes:
        head, sealed = self._properties.head(_NO_HEADERS, None, prefix, block, 0)
        reply = b"%ba.%b" % (self._link.inbox, sealed) if sealed else b""
        if not self._properties.fits_line(subject, reply):
            reply = b""
        return encode_hpub(subject, reply, head, payload)

    # From NATS.

    def _arrived(self, messages: list[Any]) -> None:
        inbox = self._link.inbox_sid
        answers = [message for message in messages if message.sid == inbox]
        for answer in answers:
            self._flows.answered(answer.subject, answer.headers)
        if answers:
            self._flush()
            messages = [message for message in messages if message.sid != inbox]
        answered = self._unsealed(answers) if answers else ()
        if messages or answered:
            self._arrivals.add(messages, answered)
            if not self._paused & ReadPause.WORK:
                self._take_arrivals()

    def _take_arrivals(self) -> None:
        """Publish arrived messages; those too many for this turn wait, and reading pauses."""
        if self._arrivals.take():
            self.resume(ReadPause.WORK)
        else:
            self.pause(ReadPause.WORK)
            self.kernel.later(self, _TAKE_MORE)
        if self._node.journal.congested:
            self.pause(ReadPause.LOG)
            self._node.paused[self] = None

    def _unsealed(self, answers: list[NatsMessage]) -> list[tuple[NatsMessage, Answered]]:
        """Return answers to requests of MQTT clients, with the content of their reply subjects."""
        unsealed: list[tuple[NatsMessage, Answered]] = []
        begin = len(self._link.inbox)
        for answer in answers:
            sealed = answer.subject[begin:].partition(b".")[2]
            if sealed and not has_status(answer.headers):
                answered = self._reply_subjects.unseal(sealed)
                if answered is not None:
                    unsealed.append((answer, answered))
        return unsealed

    def pause(self, reason: int) -> None:
        """Stop reading from NATS until every reason for the pause is removed."""
        self._link.pause_reading()  # also if a previous connection was paused
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason for the pause; resume reading if it was the last one."""
        if self._paused & reason:
            self._paused &= ~reason
            if not self._paused:
                self._link.resume_reading()

    # Confirmed positions.

    def _settle_later(self) -> None:
        self._node.timers.after(_SETTLE, self._settle)

    def _settle(self) -> None:
        """Request a confirmation of sent messages from the server, if there are new ones."""
        if self._ended:
            return
        self._settle_later()
        # JetStream stores messages some time after the server received them, and a server killed in
        # between loses them: so the recorded position is the one confirmed one round earlier.
        self._note(self._confirmed)
        through = self.recorded.settled()
        self._erased.end_range()  # so that no range goes beyond a cursor
        # Until this actor is notified of a new connection, "settled" refers to the previous one.
        if through > (self.recorded.through) and self.stats.connected:
            self._wire.fence(lambda: self._confirm(through))

    def _confirm(self, through: Position) -> None:
        self._confirmed = through

    def _note(self, through: Position) -> None:
        if through > (self.recorded.through):
            ranges, through = self._erased.take(through)
            for after, until, count in ranges:
                self._node.emit(ForwardLost(NATS_DESTINATION, after, until, ERASED, messages=count))
            self._node.emit(Forwarded(NATS_DESTINATION, through))
            self._node.kernel.wake()


def _size(batch: Batch) -> int:
    """Return the approximate bytes of messages."""
    if batch.packets:
        return sum(map(len, batch.packets))
    size = batch.size or sum(map(len, batch.payloads))
    return size + sum(map(len, batch.blocks)) if batch.blocks else size


_LOOK = 0.005
"""Seconds between two checks whether there is room."""
_LONGEST = 0.25
"""Maximum seconds for which publishers wait for NATS."""


class NatsBackpressure:
    """Pauses publishers until there is room again, but only for a limited time.

    After that their messages are dropped until there is room again. ``room`` returns whether there
    is room, ``later`` calls a function after some seconds.
    """

    def __init__(
        self, room: Callable[[], bool], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._room = room
        self._later = later
        self._held: dict[ClientConnection, None] = {}
        self._gave_up = False
        self._looks = 0

    def hold(self, publisher: ClientConnection) -> None:
        """Pause a client briefly."""
        if self._gave_up or publisher.ended:
            return
        if not self._held:
            self._looks = 0
            self._later(_LOOK, self._look)
        self._held[publisher] = None
        publisher.pause(ReadPause.NATS)

    def _look(self) -> None:
        self._looks += 1
        room = self._room()
        if room or self._looks * _LOOK > _LONGEST:
            self._gave_up = not room
            held, self._held = self._held, {}
            for publisher in held:
                publisher.resume(ReadPause.NATS)
        if not room:
            self._later(_LOOK, self._look)
