"""A process as a node of a cluster: it follows the log, takes over, and announces that."""

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import structlog

from actors.kernel.clock import Clock
from actors.maintenance.cluster_hooks import ClusterHooks
from actors.maintenance.recovery import software
from actors.node.reload_outcome import ReloadOutcome
from cli.common.units import Address
from cli.serve.edge_factory import cluster_authorities
from cli.serve.log_store import Store
from cli.settings.settings import Settings
from cluster.edge_listeners import Edges
from cluster.leader import Leader
from cluster.members import Members
from cluster.standby import Leadership, Standby
from cluster.status import NodeStatus, Role, decode_status
from eventstore.nats.cluster_messages import NodeMessages
from protocol.errors import FoldmqError

_log = structlog.get_logger("foldmq")

_DIGEST = 12
"""Hexadecimal digits of a digest that distinguishes files."""
_SPREAD_EVERY = 2.0
"""Seconds between two checks whether another node is to lead."""
_PARKED_SECONDS = 10.0
"""Seconds without a leader that takes clients, after which a node that passes on clients is not
ready."""


class SteppedDown(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """Another node leads, or the log has to be read again: this process restarts.

    ``sockets`` are its listening sockets, see ``Listeners.inheritance``. ``ordered`` says that this
    node has handed over the leadership.
    """

    def __init__(self, reason: str, sockets: str = "", *, ordered: bool = False) -> None:
        super().__init__(reason)
        self.sockets = sockets
        self.ordered = ordered


class ClusterMember:
    """The node of this process in its cluster."""

    def __init__(
        self, settings: Settings, store: Store, cluster: str, node: str, clock: Clock
    ) -> None:
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._messages = NodeMessages(store.client, cluster)
        self._members = Members(node, clock.time_ms)
        self._me = NodeStatus(
            node,
            Role.STARTING,
            0,
            0,
            "",
            0,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=software(),
            users=_digest(settings.password_file, settings.jwt_keys),
            permissions=_digest(settings.permissions),
            authorities=cluster_authorities(settings),
        )
        self._standby: Standby | None = None
        self._leader: Leader | None = None
        self._stop_announced = False
        self.count: Callable[[], tuple[int, int]] = self._count
        """Returns the number of clients that this node passes on, and of those that wait."""
        self.spreads = 1
        """The number of logs whose leaders spread over the nodes."""
        self.edges: Edges | None = None
        """The clients that this node passes on; None: it does not pass on clients."""
        self.listening: list[str] = []
        """Addresses at which this node accepts clients to pass them on."""
        self.on_move: Callable[[str], object] = lambda _node: None
        """Called once with the node that this one is to hand over to."""
        self._moves_to = ""
        self.certificates: list[dict[str, Any]] = []
        """The certificates of this node while it does not lead, as in the status of a broker."""
        self.reload: ReloadOutcome | None = None
        """The last reload of this node while it did not lead; None: there was none."""

    @property
    def _part(self) -> Standby | Leader | None:
        return self._leader or self._standby

    async def lead(
        self,
        stack: contextlib.AsyncExitStack,
        progress: Callable[[int, int], None],
        on_following: Callable[[], object],
    ) -> Leadership:
        """Follow the log until this node leads; raises as :meth:`Standby.lead`.

        ``on_following`` is called when the log has been read.
        """
        standby = Standby(
            self._store.log,
            self._messages,
            self._members,
            self._clock,
            self._cluster,
            self._me,
            on_following,
        )
        standby.listen, standby.count = self.listening, self.count
        self._standby = standby
        stack.push_async_callback(self._announce_stop)
        await self._messages.listen(self._take)
        await self._messages.answer(self._answer)
        if self.edges is not None:
            self.edges.on_lost = lambda _log: standby.suspect()
        leadership = await standby.lead(progress)
        # At once, so that no other node takes over from this one while it adopts the state.
        await self._messages.answer_as_leader(self._status)
        await self._messages.publish(standby.status().encode())
        return leadership

    async def begin(self, stack: contextlib.AsyncExitStack, led: ClusterHooks, epoch: int) -> None:
        """Announce from now on that this node leads."""
        leader = Leader(self._messages, self._members, self._clock, self._me, epoch, led)
        leader.count = self.count
        self._leader = leader
        await self._messages.answer_moves(self._asked_to_move)
        running = asyncio.create_task(self._leader.run(), name="cluster leader")

        async def end() -> None:
            running.cancel()
            await asyncio.wait({running})

        stack.push_async_callback(end)
        running.add_done_callback(lambda task: _report(task, led))
        if self.spreads > 1:
            spreading = asyncio.create_task(self._spread(led), name="spread leaders")
            stack.callback(spreading.cancel)

    def serves_at(self, listening: list[str], peers: Address | None) -> None:
        """Announce the addresses for clients, and for other nodes, which pass on clients."""
        leader = self._leader
        if leader is None:
            return
        leader.listen = listening
        if peers is not None:
            leader.peers = str(peers)
        if self.edges is not None:
            self.edges.heard(leader.status())

    def waiting(self) -> str:
        """Return why this node serves no clients; empty if it leads."""
        standby = self._standby
        if self._leader is not None or standby is None:
            return ""
        edges = self.edges
        if edges is not None and edges.links[0].led_at is not None:
            # During a failover clients wait here: the node is ready for them.
            return edges.links[0].waiting(_PARKED_SECONDS)
        if standby.role is Role.STARTING:
            return "starting"
        leader = standby.leader
        return f"following node {leader.node}" if leader is not None else "no leader is known"

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the cluster."""
        part = self._part
        if part is None:
            return {}
        status = part.status()
        behind = part.behind
        return {
            "leader": int(self._leader is not None),
            "epoch": status.epoch,
            "behind": behind if isinstance(behind, int) else 0,
            "edge_clients": self.edges.clients if self.edges is not None else 0,
            "parked": self.edges.parked if self.edges is not None else 0,
        }

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that this node follows; 0: it knows none, or leads."""
        standby = self._standby if self._leader is None else None
        return standby.leader.epoch if standby is not None and standby.leader is not None else 0

    @property
    def passes_on(self) -> bool:
        """Whether this node accepts clients while another one leads."""
        return self.edges is not None

    @property
    def state(self) -> dict[str, str]:
        """For ``/readyz``: the node's role, the leader that it knows, why it does not follow."""
        part = self._part
        if part is None:
            return {}
        leader = (
            self._standby.leader if self._standby is not None and part is self._standby else None
        )
        fields = {"node": self._me.node, "role": str(part.role)}
        if leader is not None:
            fields["leader"] = leader.node
        if isinstance(part, Standby) and part.problem:
            fields["problem"] = part.problem
        return fields

    @property
    def has_followers(self) -> bool:
        """Whether another node can take over at once."""
        now = self._clock.monotonic()
        return not isinstance(self._members.successor("", now), str)

    async def hand_over(self, to: str) -> None:
        """Announce that this node has ended, after its last record; ``to`` is to lead."""
        if self._leader is not None:
            self._leader.to = to
        await self._announce_stop()

    async def _spread(self, led: ClusterHooks) -> None:
        """Hand over once to the node that is to lead this log, unless there are clients.

        In an outage the log is idle because its clients are away: then nothing is handed over.
        """
        steady = ""
        while True:
            await asyncio.sleep(_SPREAD_EVERY)
            preferred = self._members.preferred(
                int(self._cluster.rpartition("-p")[2]), self._clock.monotonic()
            )
            leader = self._leader
            if self._moves_to:
                return
            if leader is None or not leader.steady or leader.count()[1]:
                steady = ""
                continue
            if preferred and preferred == steady and not led.clients:
                _log.info("handing over an idle log, to spread the leaders", to=preferred)
                self._move(preferred)
                return
            steady = preferred

    def _asked_to_move(self, data: bytes) -> bytes:
        """Decide about a request of an operator to hand over."""
        target = data.decode("utf-8", "replace")
        if target == self._me.node:
            return orjson.dumps({"error": f"node {target} leads already"})
        if self._moves_to:
            what = f"this node hands over to node {self._moves_to} already"
            return orjson.dumps({"error": what})
        successor = self._members.successor(target, self._clock.monotonic())
        if isinstance(successor, str):
            return orjson.dumps({"error": successor})
        _log.info("handing over the leadership", to=successor.node, host=successor.host)
        self._move(successor.node)
        return orjson.dumps({"to": successor.node, "from": self._me.node})

    def _move(self, to: str) -> None:
        self._moves_to = to
        self.on_move(to)

    def _count(self) -> tuple[int, int]:
        edges = self.edges
        return (edges.clients, edges.parked) if edges is not None else (0, 0)

    async def _announce_stop(self) -> None:
        """Announce to the other nodes that this node has ended, so that they do not wait for it."""
        part = self._part
        if part is not None and not self._stop_announced:
            self._stop_announced = True
            part.role = Role.STOPPED
            await self._messages.publish(part.status().encode())

    def _status(self) -> bytes:
        part = self._part
        return part.status().encode() if part is not None else b""

    def _answer(self) -> bytes:
        """Return the status for a command: a broker reports the rest of that of a leader."""
        part = self._part
        if part is None or part is self._leader:
            return self._status()
        reload = {} if self.reload is None else self.reload._asdict()
        status = replace(part.status(), certificates=self.certificates, reload=reload)
        return status.encode()

    def _take(self, data: bytes) -> None:
        part = self._part
        if part is None:
            return
        part.take(data)
        if self.edges is not None:
            status = decode_status(data)
            if status is not None and status.node != self._me.node:
                self.edges.heard(status)


def _report(task: asyncio.Task[None], led: ClusterHooks) -> None:
    """End the broker when it can no longer announce that it leads."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the leader's work failed", exc_info=error)
        led.fail(FoldmqError(f"the work as leader failed: {error}; please report"))


def _digest(*files: Path | None) -> str:
    """Return a digest of the contents of files; empty if there are none."""
    read = [file.read_bytes() for file in files if file is not None and file.is_file()]
    if not read:
        return ""
    return hashlib.sha256(b"\0".join(read)).hexdigest()[:_DIGEST]
