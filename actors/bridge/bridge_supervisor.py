"""The supervisor of the bridge: opens its connection, and replaces its actor if it fails.

Other parts of the broker call this module, so that a failure in the bridge does not affect them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import structlog

from actors.bridge.bridge import Bridge, Connected, Disconnected, OrderedLink
from actors.bridge.bridge_stats import BridgeStats
from actors.bridge.filter_reports import FilterReports
from actors.bridge.interest import Interest, TopicHomes
from actors.bridge.to_nats import GatedMessages
from actors.limits.destination_options import DestinationOptions
from eventstore.display import escaped
from eventstore.errors import BadNatsOptions, EventStoreError
from eventstore.format.destination_events import NATS_DESTINATION
from eventstore.format.events import NATS_SESSION
from eventstore.format.positions import sequence_of
from eventstore.nats.batch_client import BatchClient
from eventstore.reading.publications import Publications, publications_in
from protocol.errors import FoldmqError
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.bridge.to_nats import OutgoingMessages
    from actors.limits.bridge_options import BridgeOptions
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import Publication
    from eventstore.format.positions import Position
    from eventstore.log.message_store import StoredMessages
    from eventstore.nats.batch_transport import NatsMessage
    from eventstore.nats.connection import ConnectionOptions

_log = structlog.get_logger("foldmq")

_ARRIVED = 128
"""Maximum number of messages from NATS that are handled together."""

_DIAL_AGAIN = 2.0
_AT_ONCE = 1.0
"""Seconds within which an available server is expected to accept the connection."""
_BEGIN_AGAIN = 1.0
_BEGIN_AGAIN_AT_MOST = 60.0
"""Seconds before a failed bridge is restarted; doubled each time it fails again."""
_QUIET = 60.0
"""Seconds without a failure after which the next one counts as the first again."""


class BridgeSupervisor:
    """Keeps one bridge running."""

    def __init__(self, node: NodeContext, options: BridgeOptions) -> None:
        self.options = options
        self._since_ms = node.clock.time_ms()
        """When the connection was established or lost, Unix time in milliseconds."""
        self._waiting_ms = 0
        """Time of the oldest message that waited when NATS was not connected, Unix time in
        milliseconds; 0: none did."""
        self.interest = Interest(options, self.prefix_of)
        self.stats = BridgeStats()
        self._node = node
        self._link: BatchClient | None = None
        self._wire: OrderedLink | None = None
        self._actor: Bridge | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._starting = False
        self._pause = 0.0
        """Seconds of the pause after the last failure."""
        self._began = 0.0
        """When it last started; 0: not yet."""
        self._ended = False
        self._reports: FilterReports | None = None
        """The reports between the brokers of several logs; None: there is one log."""
        self.destination = DestinationOptions(
            NATS_DESTINATION,
            NATS_DESTINATION,
            options.rules.filters,
            hashlib.sha256(repr(options.rules.filters).encode()).hexdigest()[:16],
        )
        """The cursor of the bridge in the log."""
        self._unproven = GatedMessages(self._release)
        """Messages in no record, while it is not known whether this node still leads; also those
        of an actor that failed meanwhile."""

    def join(self, names: Sequence[str], send: Callable[[bytes], object]) -> None:
        """Share the work with the bridges of other logs; ``names`` are those of all logs.

        ``send`` sends a report to the other brokers. Call before recovery.
        """
        interest = self.interest
        interest.homes = homes = TopicHomes(names, self._node.options.node)
        self._reports = reports = FilterReports(
            self._node,
            homes,
            interest.own_filters,
            interest.wanted_elsewhere,
            interest.unwanted_elsewhere,
            self._when_subscribed,
            send,
        )
        interest.on_change = lambda topic_filter, begun: reports.changed(topic_filter, begun=begun)

    async def start(self, access: ConnectionOptions) -> None:
        """Connect and start; if the server is not available, connect in the background.

        Raises BadNatsOptions if the options can never work.
        """
        self._starting = True
        for topic_filter in self.options.always:
            self.interest.added("", topic_filter)
        if self._reports is not None:
            self._reports.begin()
        self._dialling = dialling = asyncio.get_running_loop().create_task(self._dial(access))
        await asyncio.wait({dialling}, timeout=_AT_ONCE)
        self._starting = False
        if dialling.done():
            dialling.result()

    async def stop(self) -> None:
        """Stop: send pending messages to NATS, and record the position."""
        self._ended = True
        if self._actor is not None:
            await self._actor.settle_last()
            self._actor.end("broker_stopped")
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait({self._dialling})
        if self._link is not None:
            await self._link.close()

    def prefix_of(self, session: str) -> str:
        """Return the subject prefix of a session's user."""
        if not self.options.prefixes:
            return ""
        state = self._node.state.sessions.peek(session)
        return self.options.prefix(state.user if state is not None else None)

    def await_proof(self) -> None:
        """Hold messages without a record until the events of this turn are on disk."""
        self._node.journal.order_behind(self._unproven)

    def settle(self) -> None:
        """Record that NATS has everything on disk, if that is so; before a cut of the log."""
        if self._actor is not None:
            self._try(self._actor.settle)

    def report(self) -> dict[str, Any]:
        """Return what operators see of the destination, as the process of the outbox reports it."""
        stats = self.stats
        return {
            "at_ms": self._node.clock.time_ms(),
            "state": "sending" if stats.connected else "retrying",
            "error": "" if stats.connected else "NATS is not available",
            "since_ms": self._since_ms,
            "sent": stats.sent,
            "retries": 0,
            "expired": 0,
            "denied": 0,
            "erased": stats.erased,
            "time_ms": 0,
            "waiting_ms": self._oldest_ms,
            "batch_seconds": 0.0,
        }

    @property
    def _oldest_ms(self) -> int:
        """Time of the oldest message that waits for NATS, Unix time in milliseconds; 0: none."""
        actor = self._actor
        if actor is None or not self.stats.connected:
            return self._waiting_ms
        return actor.recorded.waiting_ms or (self._waiting_ms if actor.recorded.behind else 0)

    def skipped(self) -> None:
        """Record that NATS does not get what waits now, as an operator wants."""
        self._waiting_ms = 0

    async def _find_left(self) -> None:
        """Find the oldest message that an earlier run left for NATS, which is not connected."""
        node, cursor = self._node, self._node.state.destinations.get(NATS_DESTINATION)
        if cursor is None:
            return
        first = max(sequence_of(cursor.through + 1), node.state.begin)
        with contextlib.suppress(EventStoreError), node.retention.cuts_suspended():
            async for record in node.log.read(first, node.journal.last_complete_turn):
                for item in publications_in(record):
                    due = item.after(cursor.through) if isinstance(item, Publications) else None
                    if due is not None and due.qos and self._is_due(due.session, due.topics):
                        self._waiting_ms = record.time_ms
                        return

    def _is_due(self, session: str, topics: Sequence[bytes]) -> bool:
        """Return whether one of the messages of a session is for NATS."""
        filters = self.destination.filters
        names = (topic.decode() for topic in topics)
        return session != NATS_SESSION and any(
            matches(topic_filter, name) for name in names for topic_filter in filters
        )

    def permissions_changed(self) -> None:
        """Update the bridge to changed permissions."""
        if self._actor is not None:
            self._actor.permissions_changed()

    # The bridges of other logs.

    def announce(self, filters: Sequence[str]) -> None:
        """Count filters before a client subscribes to them; each call counts them once more."""
        for topic_filter in _in_nats(filters):
            self.added("", topic_filter)

    def withdraw(self, filters: Sequence[str]) -> None:
        """End what one call announced: the client has subscribed, or will not."""
        for topic_filter in _in_nats(filters):
            self.removed("", topic_filter)

    @property
    def filter_changes(self) -> int:
        """The number of changes of filters that the bridges of other logs must know."""
        return self._reports.changes if self._reports is not None else 0

    def is_known(self, changes: int) -> bool:
        """Return whether the bridges of other logs have subscribed for this number of changes."""
        return self._reports is None or self._reports.is_known(changes)

    def reported(self, log: str, report: bytes) -> None:
        """Process a report of the bridge of another log."""
        if self._reports is not None:
            self._try(self._reports.heard, log, report)

    def _when_subscribed(self, call: Callable[[], None]) -> None:
        """Call ``call`` when NATS has all subscriptions; immediately without a connection."""
        link = self._link
        connected = link is not None and link.connected and self.stats.connected
        if self._wire is None or self._actor is None or not connected:
            call()
        else:
            self._wire.fence(call)

    # Calls by the router, and as an observer of messages, in their turn.

    def added(self, session: str, topic_filter: str) -> None:
        """Record a new subscription of a session."""
        self._try(self.interest.added, session, topic_filter)

    def removed(self, session: str, topic_filter: str) -> None:
        """Record the end of a subscription."""
        self._try(self.interest.removed, session, topic_filter)

    def recorded(
        self, qos: int, content: StoredMessages, refs: Sequence[Position], since: Position
    ) -> None:
        """Send recorded messages of QoS 1 or 2 that take effect in this turn."""
        if self._actor is not None:
            self._try(self._actor.recorded.add, qos, content, refs, since)
        if not (self.stats.connected or self._waiting_ms) and self._is_due(
            content.publishers[0], content.topics
        ):
            self._waiting_ms = self._node.clock.time_ms()

    def published(self, publication: Publication) -> None:
        """Send messages of QoS 0 that take effect in this turn."""
        actor, batch = self._actor, publication.batch
        if actor is not None:
            self._try(actor.published, publication)
        elif not publication.taken and publication.session != NATS_SESSION:
            self._node.count_dropped("bridge_unavailable", len(batch))

    def _release(self, leaving: OutgoingMessages) -> None:
        """Send messages that waited until it was known that this node leads."""
        if self._actor is not None:
            self._try(self._actor.release, leaving)
        else:
            self._node.count_dropped("bridge_unavailable", len(leaving.content.topics))

    def _try(self, work: Callable[..., None], *about: object) -> None:
        try:
            work(*about)
        except Exception as error:  # noqa: BLE001 - callers are not affected
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Replace a failed bridge; the new one continues at the position in the log.

        The pause before that becomes longer with each failure.
        """
        with contextlib.suppress(Exception):  # whatever has failed
            self._waiting_ms = self._oldest_ms
        actor, self._actor = self._actor, None
        if actor is None:  # another one is already starting
            _log.error("the bridge failed", **_cause(error))
            return
        if self._node.clock.monotonic() - self._began >= _QUIET:
            self._pause = 0.0
        self._pause = min(max(2 * self._pause, _BEGIN_AGAIN), _BEGIN_AGAIN_AT_MOST)
        _log.error(f"the bridge failed: it restarts in {self._pause:g} s", **_cause(error))
        self._node.timers.after(self._pause, self._begin)
        self.stats.connected = False
        self._forget_fences()  # their answers are for the actor that failed
        try:
            actor.end("failed")
            if not actor.stopped:
                actor.stop()
            self.interest.detach()
            if self._link is not None:
                self._link.resume_reading()  # the actor may have paused it
        except Exception as another:  # noqa: BLE001 - nothing else is affected
            _log.error("the bridge failed while it ended", exc_info=another)

    # The connection.

    async def _dial(self, access: ConnectionOptions) -> None:
        """Connect, however long it takes; log each reason for a failure once."""
        logged: set[str] = set()
        while not self._ended:
            try:
                await self._open(access)
            except BadNatsOptions as error:
                if self._starting:
                    raise
                line = str(error)
            except EventStoreError as error:
                line = str(error)
            except Exception as error:  # noqa: BLE001 - it may be another the next time
                line = f"cannot connect to NATS: {type(error).__name__}: {escaped(str(error))}"
            else:
                if logged:
                    _log.info("bridge: connected to NATS")
                return
            if not logged:
                await self._find_left()
            if line not in logged:
                logged.add(line)
                _log.warning(f"bridge: {line}; trying again")
            await asyncio.sleep(_DIAL_AGAIN)

    async def _open(self, access: ConnectionOptions) -> None:
        link = await BatchClient.open(
            access,
            on_messages=self._arrived,
            on_up=self._up,
            on_down=self._down,
            on_error=lambda line: _log.warning(f"bridge: {line}"),
            on_refused=self._refused,
        )
        self._link, self._wire = link, OrderedLink(link, self._tell)
        self._begin()

    def _begin(self) -> None:
        link, wire = self._link, self._wire
        if link is None or wire is None or self._ended or self._actor is not None:
            return
        again = self._began > 0
        self._began = self._node.clock.monotonic()
        self._actor = Bridge(
            self._node,
            self.options,
            self.interest,
            link,
            wire,
            self.stats,
            self.prefix_of,
            self.failed,
            self._unproven,
            self._reports,
        )
        try:
            self._node.kernel.spawn(self._actor, self._node.root)
            self.interest.attach(wire)
            self._actor.begin()
        except Exception as error:  # noqa: BLE001 - the connection is not to blame
            self.failed(error)
            return
        if again:
            _log.info("the bridge was restarted")

    # Calls by the connection: in its order; the actor may not have handled its mailbox yet.

    def _up(self) -> None:
        _log.info("bridge: connected to NATS again")
        self._since_ms = self._node.clock.time_ms()
        self._try(self.interest.renewed)
        self._tell(Connected())

    def _down(self) -> None:
        self._since_ms, self._waiting_ms = self._node.clock.time_ms(), self._oldest_ms
        self.stats.connected = False
        self._forget_fences()
        self._tell(Disconnected())

    def _forget_fences(self) -> None:
        if self._reports is not None:
            self._reports.connection_lost()

    def _refused(self, subject: str) -> None:
        self._try(self.interest.refused, subject)

    def _arrived(self, messages: list[NatsMessage]) -> None:
        """Pass messages to the actor in parts, between which the turn can be split."""
        for at in range(0, len(messages), _ARRIVED):
            self._tell(messages[at : at + _ARRIVED])

    def _tell(self, message: object) -> None:
        actor = self._actor
        if actor is not None and not actor.stopped:
            self._node.kernel.tell(actor, message)


def _in_nats(filters: Sequence[str]) -> list[str]:
    """Return the filters that can be subjects in NATS."""
    return [topic_filter for topic_filter in filters if not topic_filter.startswith("$")]


def _cause(error: BaseException) -> dict[str, Any]:
    """Return the log fields of a failure: a traceback only for unexpected ones."""
    return {"reason": str(error)} if isinstance(error, FoldmqError) else {"exc_info": error}
