"""The bridge's place in the broker: opens its connection, and replaces its actor when it fails.

What the broker's other parts call is here, so that a failure in the bridge is the bridge's alone.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import structlog

from actors.bridge.bridge import Bridge, Down, InOrder, Up
from actors.bridge.interest import Interest
from actors.bridge.stats import BridgeStats
from eventstore.errors import BadNatsOptions, EventStoreError
from eventstore.events import Bridged
from eventstore.link import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.bridge.options import BridgeOptions
    from actors.broker import Broker
    from actors.connection import Connection
    from eventstore.connection import ConnectionOptions
    from eventstore.link import Arrived
    from eventstore.messages import Stored
    from eventstore.positions import Position
    from protocol.packets import Publishes

_log = structlog.get_logger("foldmq")

_DIAL_AGAIN = 2.0
_BEGIN_AGAIN = 1.0
"""Seconds before a bridge that failed goes on."""
_MOST_FAILURES = 5
_REMEMBERED = 60.0
"""How often it may fail in so many seconds until it is left off."""
_REFUSED = re.compile(r'subscription to "([^"]+)"', re.IGNORECASE)


class BridgeHost:
    """Keeps one bridge going."""

    def __init__(self, broker: Broker, options: BridgeOptions) -> None:
        self.options = options
        self.interest = Interest(options, broker.prefix_of)
        self.stats = BridgeStats()
        self._broker = broker
        self._link: Link | None = None
        self._wire: InOrder | None = None
        self._actor: Bridge | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._failures: list[float] = []
        self._ended = False

    async def start(self, access: ConnectionOptions) -> None:
        """Connect and begin; a server that is not there is waited for in the background.

        Raises BadNatsOptions when it can never be reached so.
        """
        broker = self._broker
        if broker.node.bridged is None:
            broker.emit(Bridged(broker.journal.last))
            broker.kernel.wake()
        try:
            await self._open(access)
        except BadNatsOptions:
            raise
        except EventStoreError as error:
            _log.warning(f"bridge: {error}; trying again")
            self._dialling = asyncio.get_running_loop().create_task(self._dial(access))

    async def stop(self) -> None:
        """End: NATS gets what it is owed, and the log says how far it has it."""
        self._ended = True
        if self._actor is not None:
            await self._actor.settle_last()
            self._actor.end("broker_stopped")
        if self._dialling is not None:
            self._dialling.cancel()
        if self._link is not None:
            await self._link.close()

    # What publishers call, in their turn.

    def packets(self, client: str, packet: Publishes, origin: Connection | None) -> None:
        """Send messages at QoS 0 that are not retained, in whole packets; ``origin`` has them."""
        actor = self._actor
        if actor is None:
            self._broker.count_dropped("bridge_unavailable", len(packet))
            return
        try:
            actor.packets(client, packet, origin)
        except Exception as error:  # noqa: BLE001 - whoever publishes has nothing to do with it
            self.failed(error)

    def published(
        self,
        client: str,
        qos: int,
        content: Stored,
        refs: Sequence[Position],
        *,
        retain: bool,
        gated: bool,
    ) -> None:
        """Take messages that take effect in this turn, with what was recorded last."""
        actor = self._actor
        if actor is None:
            return
        try:
            actor.published(client, qos, content, refs, retain=retain, gated=gated)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Put another bridge in the place of one that failed; it goes on where the log says."""
        actor, self._actor = self._actor, None
        now = self._broker.clock.monotonic()
        self._failures = [at for at in self._failures if at > now - _REMEMBERED] + [now]
        over = len(self._failures) >= _MOST_FAILURES
        _log.error("the bridge failed" + (": it is left off" if over else ""), exc_info=error)
        if actor is not None:
            actor.end("failed")
            if not actor.stopped:
                actor.stop()
        if not over:
            self._broker.timers.after(_BEGIN_AGAIN, self._begin)

    # The connection.

    async def _dial(self, access: ConnectionOptions) -> None:
        while not self._ended:
            await asyncio.sleep(_DIAL_AGAIN)
            try:
                await self._open(access)
            except EventStoreError:
                continue
            _log.info("bridge: connected to NATS")
            return

    async def _open(self, access: ConnectionOptions) -> None:
        self._link = await Link.open(
            access,
            on_messages=self._arrived,
            on_up=lambda: self._tell(Up()),
            on_down=lambda: self._tell(Down()),
            on_error=self._trouble,
        )
        self._wire = InOrder(self._link, self._tell)
        self.interest.attach(self._wire)
        self._begin()

    def _begin(self) -> None:
        link, wire = self._link, self._wire
        if link is None or wire is None or self._ended:
            return
        self._actor = Bridge(self._broker, self.options, self.interest, link, wire, self.stats)
        self._broker.kernel.spawn(self._actor, self._broker)
        self._actor.begin()

    def _arrived(self, messages: list[Arrived]) -> None:
        self._tell(messages)

    def _tell(self, message: object) -> None:
        actor = self._actor
        if actor is not None and not actor.stopped:
            self._broker.kernel.tell(actor, message)

    def _trouble(self, line: str) -> None:
        _log.warning(f"bridge: {line}")
        refused = _REFUSED.search(line)
        if refused is not None:
            self.interest.refused(refused[1])
