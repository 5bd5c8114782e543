"""Publishes the leader's status and stops serving when leadership is uncertain."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Protocol

import structlog

from cluster.leadership_check import Confidence, LeadershipCheck
from cluster.status import STATUS_EVERY, NodeStatus, Role, decode_status
from eventstore.errors import EventStoreError
from eventstore.format.records import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.clock import Clock
    from cluster.members import Members
    from eventstore.nats.cluster_messages import NodeMessages

_log = structlog.get_logger("foldmq")

_STEADY = 5.0
"""Seconds without doubt and with a connection to NATS, after which there is no outage."""

_ALL_HEARD = 60.0
"""Seconds after which a leader has heard every node, unless it is down."""


class Replaced(EventStoreError):  # noqa: N818 - as in eventstore.errors
    """Another node of the cluster leads now."""

    exit_code = 75

    def __init__(self, other: str, epoch: int) -> None:
        super().__init__(f"node {other} leads the cluster now, in epoch {epoch}")


class BrokerHooks(Protocol):
    """The interface of the broker that its leader uses."""

    @property
    def stored(self) -> tuple[int, bytes]:
        """Sequence and link of the last record that is stored on disk."""

    @property
    def clients(self) -> int:
        """The number of connected clients."""

    def prove(self, epoch: int) -> int:
        """Append a LeaderProved; return its record's sequence.

        Output to clients that needs no record waits until this record is stored.
        """

    def write_format(self, record_format: int) -> None:
        """Write new records in this format."""

    def refuse_clients(self, reason: str) -> None:
        """Close all clients and admit none while there is a reason; an empty one ends this."""

    def fail(self, error: EventStoreError) -> None:
        """Stop the broker with an error."""


class Leader:
    """The leader of a cluster: call ``begin``, then ``run`` until it is cancelled."""

    def __init__(
        self,
        messages: NodeMessages,
        members: Members,
        clock: Clock,
        me: NodeStatus,
        epoch: int,
        broker: BrokerHooks,
    ) -> None:
        self._messages = messages
        self._members = members
        self._clock = clock
        self._me = me
        self._epoch = epoch
        self._broker = broker
        self._leadership = LeadershipCheck(clock.monotonic(), broker.stored[0])
        self._confidence = Confidence.CERTAIN
        self._steady_since = self._since = clock.monotonic()
        """When the leadership was in doubt last, or the connection to NATS away."""
        self.listen: list[str] = []
        """Addresses at which clients connect."""
        self.peers = ""
        """Address at which other nodes connect to pass clients on."""
        self.count: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the number of clients that this node passes to itself, and of those that wait."""
        self.to = ""
        """The node that this one hands over to; empty: to any."""
        self.role = Role.LEADING

    @property
    def behind(self) -> dict[str, int]:
        """The number of records that each other node has not folded yet."""
        stored = self._broker.stored[0]
        others = self._members.others(self._clock.monotonic())
        return {one.node: max(0, stored - one.sequence) for one in others}

    @property
    def steady(self) -> bool:
        """Whether this node serves, and has been certain of its leadership for some seconds."""
        return bool(self.listen) and self._clock.monotonic() - self._steady_since > _STEADY

    def status(self) -> NodeStatus:
        """Return this node's own status."""
        sequence, link = self._broker.stored
        return dataclasses.replace(
            self._me,
            role=self.role,
            epoch=self._epoch,
            sequence=sequence,
            link=link.hex(),
            time_ms=self._clock.time_ms(),
            listen=self.listen,
            clients=self._broker.clients,
            peers=self.peers,
            parked=self.count()[1],
            serving=self._confidence is not Confidence.GIVEN_UP,
            to=self.to,
        )

    def take(self, data: bytes) -> None:
        """Process the status of a node."""
        status = decode_status(data)
        if status is None or status.node == self._me.node:
            return
        self._members.heard(status, self._clock.monotonic(), self._me)
        if status.role is Role.LEADING and status.epoch > self._epoch:
            self._broker.fail(Replaced(status.node, status.epoch))

    async def run(self) -> None:
        """Publish the status and check the leadership, until cancelled."""
        loop = asyncio.get_running_loop()
        self.look()
        while True:
            await self._messages.publish(self.status().encode())
            looked: asyncio.Future[None] = loop.create_future()
            # A timer and no sleep: when the process goes on after it was suspended, it is called
            # before the turn that handles what clients have sent meanwhile.
            timer = loop.call_later(STATUS_EVERY, self._look_in_time, looked)
            try:
                await looked
            finally:
                timer.cancel()

    def _look_in_time(self, looked: asyncio.Future[None]) -> None:
        if looked.done():  # cancelled
            return
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - it ends the task that waits for this
            looked.set_exception(error)
        else:
            looked.set_result(None)

    def look(self) -> None:
        """Check the leadership and act on the result."""
        now = self._clock.monotonic()
        leadership = self._leadership
        confidence = leadership.look(
            now,
            durable=self._broker.stored[0],
            others=self._members.follow(self._epoch, now),
            connected=self._messages.is_connected,
        )
        if confidence is not Confidence.CERTAIN or not self._messages.is_connected:
            self._steady_since = now
        reads = [one.reads for one in self._members.others(now)]
        self._broker.write_format(min([FORMAT, *reads]) if now - self._since > _ALL_HEARD else 1)
        if leadership.needs_proof:
            leadership.needs(self._broker.prove(self._epoch))
        if confidence is not self._confidence:
            before, self._confidence = self._confidence, confidence
            if confidence is Confidence.GIVEN_UP:
                self._broker.refuse_clients("this node cannot prove that it leads the cluster")
            elif before is Confidence.GIVEN_UP:
                self._broker.refuse_clients("")

    async def stopped(self) -> None:
        """Publish that this node has shut down cleanly."""
        self.role = Role.STOPPED
        await self._messages.publish(self.status().encode())
