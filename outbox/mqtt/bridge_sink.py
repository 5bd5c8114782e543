"""The sink ``mqtt``: messages to another broker, over a connection that is kept open."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from eventstore.format.positions import Position
from eventstore.partitions import partition_of
from eventstore.task_cancellation import end_tasks
from outbox.backoff import Backoff
from outbox.mqtt.handshake import PeerRefusedError, code_text
from outbox.mqtt.link import BridgeLink
from outbox.mqtt.options import BRIDGE_CLIENT, ConnectionOptions, PeerAddress
from outbox.mqtt.outbound import Outbound, Outgoing, Refusal
from outbox.mqtt.peer import LocalAddress, PeerUnavailableError
from outbox.mqtt.relay import Relay
from outbox.mqtt.topic_lines import TopicMap
from outbox.runner import BatchLimits
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.loop_path import took_in, with_logs, would_loop
from protocol.mqtt.message_properties import with_remaining_expiry
from protocol.mqtt.origin_properties import Origin

_log = structlog.get_logger("foldmq")

_ANSWER_SECONDS: Final = 60.0
"""Time in which a peer answers nothing, not even a PINGREQ, after which the connection is opened
anew."""


_RECORD_WITHIN: Final = 0.02
"""Seconds for which messages in PUBREC wait for others: a peer may answer a message only when those
before it are released."""

_BATCH: Final = 500
"""Messages that are handed over at a time: the cursor moves at the end of a batch."""


def takes_in(options: ConnectionOptions, log: str, logs: Sequence[str]) -> bool:
    """Return whether a log, of several or the only one, takes the messages in.

    It is the log that has the session with which they are published.
    """
    return not logs or log == logs[partition_of(options.local_client_id, len(logs))]


def batch_limits(options: ConnectionOptions) -> BatchLimits:
    """Return how messages are put into batches for a connection."""
    pauses = (options.restart_base, options.restart_cap)
    return BatchLimits(_BATCH, wait=0.002, retry_base=pauses[0], retry_most=pauses[1])


class MqttSink:
    """Sends messages to one other broker."""

    def __init__(
        self,
        options: ConnectionOptions,
        local: LocalAddress | None = None,
        now: Callable[[], float] = time.time,
        logs: Sequence[str] = (),
        is_erased: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """``local`` is a listener of this broker, for messages in; ``now`` is Unix time.

        ``logs`` are the logs of a broker with several; one of them takes the messages in.
        ``is_erased`` returns whether a key of sealed contents was destroyed.
        """
        self.options = options
        self._now = now
        self._is_erased = is_erased
        self._topics = TopicMap(options.lines)
        self._qos2 = any(line.is_out and line.qos == 2 for line in options.lines)
        self._about: Destination | None = None
        self._outbound = Outbound(0, 0)
        self._relay: Relay | None = None
        self._local = local
        self._logs = logs
        self._link: BridgeLink | None = None
        self._connecting = asyncio.Lock()
        self._changed = asyncio.Event()
        """Set when the sender has something to do."""
        self._late: asyncio.TimerHandle | None = None
        """Ends the wait of messages in PUBREC for others."""
        self._is_late = False
        """Whether that wait has ended."""
        self._heard = False
        """Whether the other broker has sent anything since that was looked at."""
        self._backoff = Backoff(options.restart_base, options.restart_cap)
        self._keeping: asyncio.Task[None] | None = None
        self._private = options.try_private and options.version != MQTT_5
        self._next_address = 0
        self._clock = asyncio.get_running_loop().time
        self._opened = self._not_before = 0.0
        self._failure = TryAgain("not connected yet")
        self.dropped = 0
        """Messages at QoS 0 that could not be sent, since the last connection."""

    async def open(self, about: Destination) -> None:
        """Begin at a cursor."""
        await self.close()
        self._about = about
        if self._topics.subscriptions and takes_in(self.options, about.log, self._logs):
            self._relay = Relay(self._topics, about.log, self._logs)
        self._outbound = Outbound(
            *(about.number, about.through, about.received),
            qos2=self._qos2,
            is_erased=self._is_erased,
        )
        await self._connected()
        begun = self._outbound.to_record()
        if begun is not None:  # at once: messages in must survive the next start
            await about.record_received(begun)
            self._outbound.recorded(begun)
        self._keeping = asyncio.create_task(self._keep_connected())

    async def take(self, log: str) -> None:
        """Only receive messages, until cancelled."""

        async def record_received(_position: Position) -> None:
            """Record nothing: there are no messages out."""

        reason = ""
        while True:
            try:
                await self.open(Destination(self.options.name, log, 0, 0, 0, 0, record_received))
                reason = ""
                await asyncio.Event().wait()
            except TryAgain as answer:
                if answer.reason != reason:
                    _log.warning("no connection", to=self.options.name, reason=answer.reason)
                reason = answer.reason
                await asyncio.sleep(answer.after or self.options.restart_base)

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Return when the other broker has acknowledged all messages of a batch for good."""
        about = self._about
        if about is None:
            raise TryAgain("the sink is closed")
        outbound = self._outbound
        outgoing = self._outgoing(batch, about.log)
        if batch[0].number:
            outbound.offer(outgoing)
        else:  # refused before, and by itself
            for message in outgoing:
                outbound.offer_again(message)
        asked = {message.at for message in batch}
        while refusals := await self._settled(about):
            # Others were erased since a batch before, and the runner knows that.
            if at := [refusal.at for refusal in refusals if refusal.at in asked]:
                code = refusals[0].reason
                raise RefusedMessages(code_text(code), code, at)
        self._backoff.reset()

    async def _settled(self, about: Destination) -> list[Refusal]:
        """Wait until all that can be sent is acknowledged; return refusals with one reason."""
        outbound = self._outbound
        while not outbound.is_settled:
            link = await self._connected()
            self._changed.clear()
            link.peer.pump()
            position = outbound.to_record()
            if position is not None and (self._is_late or not outbound.may_record_later):
                self._end_wait()
                await about.record_received(position)
                outbound.recorded(position)
            elif not outbound.is_settled:
                if position is not None:
                    self._begin_wait()
                await self._await_change(link)
        return outbound.take_refusals()

    async def _await_change(self, link: BridgeLink) -> None:
        """Wait until the sender has something to do, or the connection ends."""
        while not self._changed.is_set():
            self._heard = False
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                if not self._heard:
                    link.end(f"no acknowledgement within {_ANSWER_SECONDS:g} s")

    def _note_change(self) -> None:
        """Wake the sender after packets of the peer, or the end of the connection, if it must act.

        Most acknowledgements only let the connection send more, which it does by itself.
        """
        self._heard = True
        outbound = self._outbound
        ended = self._link is None or self._link.peer.ended is not None
        waits = outbound.to_record() is not None
        if ended or (waits and not outbound.may_record_later) or outbound.is_settled:
            self._changed.set()
        elif waits:
            self._begin_wait()

    def _begin_wait(self) -> None:
        """Delay the PUBREL of messages for a short time, so that several share a commit."""
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(_RECORD_WITHIN, self._note_late)

    def _note_late(self) -> None:
        self._late, self._is_late = None, True
        self._changed.set()

    def _end_wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late, self._is_late = None, False

    async def close(self) -> None:
        """Close the connection."""
        self._end_wait()
        if self._keeping is not None:
            await end_tasks([self._keeping])
            self._keeping = None
        if self._link is not None:
            self._link.leave()
        self._link = None

    # Messages.

    def pass_live(
        self, batch: Sequence[OutboxMessage], may_have: Callable[[str], bool] = lambda _topic: True
    ) -> None:
        """Send messages at QoS 0, which are not in the log; without room now they are dropped."""
        own, log = self.options.local_client_id, self._about.log if self._about is not None else ""
        chosen = []
        for message in batch:
            sent = self._topics.outgoing(message.topic)
            if sent and not sent.qos and message.client != own and may_have(message.topic):
                chosen.append(message)
        for outgoing in self._outgoing(chosen, log):
            packet = self._outbound.live_packet(outgoing)
            peer = self._link.peer if self._link is not None else None
            if packet and peer is not None and peer.has_room:
                peer.write(packet)
            else:
                self.dropped += 1

    def _outgoing(self, batch: Sequence[OutboxMessage], log: str) -> Iterator[Outgoing]:
        with_blocks, outgoing = self.options.version == MQTT_5, self._topics.outgoing
        plain = with_logs(b"", log) if with_blocks else b""
        for message in batch:
            sent = outgoing(message.topic)
            if sent is None:
                continue
            block = plain
            if message.block:
                passed = self._passed_on(message, log)
                if passed is None:
                    continue
                block = passed if with_blocks else b""
            yield Outgoing(
                message.number,
                message.at,
                sent.topic,
                message.payload,
                min(message.qos, sent.qos),
                message.retain and self.options.outgoing_retain,
                block,
                Origin(message.at, message.position, message.time_ms),
                message.key,
            )

    def _passed_on(self, message: OutboxMessage, log: str) -> bytes | None:
        """Return the properties with which a message is sent; None: it would go round."""
        block = message.block
        entered = message.client.startswith(BRIDGE_CLIENT) and took_in(block, log)
        if not entered and would_loop(block, log):
            return None
        if message.expires:
            block = with_remaining_expiry(block, max(1, message.expires - int(self._now())))
        return block if entered else with_logs(block, log)

    # Connections.

    def _pause(self, reason: str, *, misconfigured: bool = False) -> None:
        """Make no attempt to connect for some time."""
        self._failure = TryAgain(reason, misconfigured=misconfigured)
        self._not_before = self._clock() + self._backoff.next()

    def _try_again(self) -> TryAgain:
        remaining = max(0.0, self._not_before - self._clock())
        return TryAgain(self._failure.reason, remaining, misconfigured=self._failure.misconfigured)

    async def _connected(self) -> BridgeLink:
        """Return the open connection; raises TryAgain."""
        async with self._connecting:
            if self._link is not None:
                if self._link.peer.ended is None:
                    return self._link
                if self._clock() - self._opened >= self.options.restart_base:
                    self._backoff.reset()
                self._pause(self._link.peer.ended)
                self._link = None
            if self._clock() < self._not_before:
                raise self._try_again()
            failure: PeerRefusedError | PeerUnavailableError | None = None
            for address in self._addresses():
                try:
                    self._link = await self._connect_to(address)
                except (PeerRefusedError, PeerUnavailableError) as error:
                    failure = failure or error
                    continue
                _log.info("connected to another broker", to=self.options.name, address=str(address))
                self._opened = self._clock()
                if self.dropped:
                    _log.warning(
                        "messages at QoS 0 were dropped", to=self.options.name, count=self.dropped
                    )
                    self.dropped = 0
                return self._link
            self._pause(str(failure), misconfigured=failure is not None and failure.misconfigured)
            raise self._try_again()

    def _addresses(self) -> Iterator[PeerAddress]:
        """Yield all addresses, from the first one on, or in turn with ``round_robin``."""
        addresses = self.options.addresses
        begin = self._next_address if self.options.round_robin else 0
        for offset in range(len(addresses)):
            at = (begin + offset) % len(addresses)
            self._next_address = (at + 1) % len(addresses)
            yield addresses[at]

    async def _connect_to(self, address: PeerAddress) -> BridgeLink:
        about = self._about
        bridged = (about.log, about.run) if about is not None else ("", 0)
        link = BridgeLink(
            *(self.options, bridged, self._outbound, self._topics, self._note_change),
            *(self._relay, self._local),
        )
        await link.open(address, private=self._private)
        return link

    async def _keep_connected(self) -> None:
        """Keep the connection open while there is nothing to send: the peer shows its state."""
        while True:
            try:
                link = await self._connected()
            except TryAgain as answer:
                await asyncio.sleep(answer.after or 0)
                continue
            await link.peer.closed.wait()
