"""Publishes the leader's status and stops serving when leadership is uncertain."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from actors.kernel.clock import Clock
from actors.maintenance.cluster_hooks import ClusterHooks
from cluster.status import STATUS_EVERY, NodeStatus, Role, decode_status
from eventstore.errors import EventStoreError
from eventstore.format.records import FORMAT

if TYPE_CHECKING:
    from cluster.members import Members
    from eventstore.nats.cluster_messages import NodeMessages

CERTAIN_FOR = 1.0
"""Seconds for which a stored record, or the statuses of the other nodes, are proof."""
DOUBTFUL_FOR = 2.5
"""Seconds in doubt, after which the leader disconnects its clients."""
STOOD_STILL = 0.5
"""Delay of the leader's own timer, in seconds, from which its process counts as suspended."""


class Confidence(Enum):
    """A leader's confidence in its leadership."""

    CERTAIN = "certain"
    DOUBTFUL = "doubtful"
    """Output to clients has to wait for a record."""
    GIVEN_UP = "given up"
    """The leader has no clients until a record is stored."""


class LeadershipCheck:
    """The judgement of a leader about its leadership; every time is monotonic, in seconds.

    A doubt ends with a record that was sent after the doubt began. Acknowledgements and statuses
    that waited in a socket while the process was suspended prove nothing.
    """

    def __init__(self, now: float, durable: int) -> None:
        self._proved = now
        self._looked = now
        self._durable = durable
        self._since: float | None = None
        self._needed: int | None = None

    def look(self, now: float, *, durable: int, others: bool | None, connected: bool) -> Confidence:
        """Return the confidence at a time.

        ``durable`` is the last stored record. ``others`` says whether all other known nodes follow
        this one; None: no other node is known. ``connected`` says whether the connection to NATS
        is up.
        """
        late = now - self._looked > STOOD_STILL
        advanced = durable > self._durable
        self._looked, self._durable = now, durable
        if self._since is None:
            if not late and (advanced or (connected and others is not False)):
                self._proved = now
            if late or not connected or now - self._proved > CERTAIN_FOR:
                self._since, self._needed = now, None
        elif self._needed is not None and durable >= self._needed:
            self._since, self._proved = None, now
        if self._since is None:
            return Confidence.CERTAIN
        return Confidence.DOUBTFUL if now - self._since < DOUBTFUL_FOR else Confidence.GIVEN_UP

    def needs(self, sequence: int) -> None:
        """End the present doubt when the record of this sequence is stored."""
        if self._needed is None:
            self._needed = sequence

    @property
    def needs_proof(self) -> bool:
        """Whether the present doubt needs a record to end."""
        return self._since is not None and self._needed is None


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


class Leader:
    """The leader of a cluster: call ``begin``, then ``run`` until it is cancelled."""

    def __init__(
        self,
        messages: NodeMessages,
        members: Members,
        clock: Clock,
        me: NodeStatus,
        epoch: int,
        broker: ClusterHooks,
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
        return {other.node: max(0, stored - other.sequence) for other in others}

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
        reads = [status.reads for status in self._members.others(now)]
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
