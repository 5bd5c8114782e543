"""The connections from an edge to the leader of one log, and the clients that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from cluster.client_header import PeerAnswer
from cluster.edge_client import ClientStage, EdgeClient, Upstream
from cluster.status import NodeStatus, Role

if TYPE_CHECKING:
    from cluster.edge_listeners import Edges

_log = structlog.get_logger("foldmq")

_AGAIN: Final = 0.05
"""Seconds until the next attempt to reach a leader that could not be reached."""
_OPENING_AT_MOST: Final = 64
"""Connections to the leader that are being opened at a time."""
_OPEN_SECONDS: Final = 5.0
"""Seconds in which the leader has to accept a connection."""
_LOG_EVERY: Final = 10.0
"""Seconds between log lines about a leader that cannot be reached."""


class LeaderPlace(NamedTuple):
    """The leader, and where it accepts the connections of other nodes."""

    epoch: int
    node: str
    host: str = ""
    port: int = 0
    """0: it has no address, and is reached in another way."""


class LeaderLink:
    """The clients of one log: they are passed on to its leader, or wait for one.

    ``number`` is that of the log among those of the edge; ``now`` returns monotonic seconds.
    """

    def __init__(self, number: int, owner: Edges, now: Callable[[], float]) -> None:
        self.number = number
        self._owner = owner
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._parked: dict[EdgeClient, None] = {}
        """Clients that wait for a connection, the one that waits longest first."""
        self._opening: dict[asyncio.Task[None], tuple[EdgeClient, LeaderPlace]] = {}
        self.open: dict[EdgeClient, tuple[LeaderPlace, Upstream]] = {}
        """Clients that are passed on, with their leader and the connection to it."""
        self.leader: LeaderPlace | None = None
        """The leader that clients are passed on to; None: they wait."""
        self._epoch = 0
        """Epoch of the last known leader."""
        self.led_at: float | None = None
        """When a leader that takes clients was heard last, in monotonic seconds; None: never."""
        self.serving = True
        """Whether the leader takes clients, as its last status says."""
        self._not_before = 0.0
        """When to try again to reach the leader, in monotonic seconds."""
        self._again: asyncio.TimerHandle | None = None
        self._logged_at = float("-inf")

    @property
    def parked(self) -> int:
        """The number of clients that wait for a leader."""
        return len(self._parked) + len(self._opening)

    def waiting(self, most: float) -> str:
        """Return why clients wait, if they have for ``most`` seconds; otherwise nothing."""
        if self.led_at is not None and self._now() - self.led_at < most:
            return ""
        return "no leader is known" if self.serving else "the leader takes no clients"

    def close(self) -> None:
        """Open no more connections."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for task in list(self._opening):
            task.remove_done_callback(self._opened)
            task.cancel()

    def park(self, client: EdgeClient) -> None:
        """Open a connection for a client, as soon as there is a leader."""
        self._wait(client)
        self._open_some()

    def _wait(self, client: EdgeClient) -> None:
        client.stage = ClientStage.PARKED
        self._parked[client] = None

    def forget(self, client: EdgeClient) -> None:
        """Forget a client whose connection is closed."""
        self._parked.pop(client, None)
        self.open.pop(client, None)

    def heard(self, status: NodeStatus) -> None:
        """Pass clients on to the leader that a status names, unless it is an earlier one."""
        leader = self.leader
        if status.role is Role.STOPPED:
            if leader is not None and leader.node == status.node:
                self.follow(None)
        elif status.role is Role.LEADING and status.epoch >= self._epoch:
            host, _, port = status.peers.rpartition(":")
            if host and port.isdigit():
                self._epoch = status.epoch
                self.serving = status.serving
                if status.serving or self.led_at is None:
                    self.led_at = self._now()
                place = LeaderPlace(status.epoch, status.node, host.strip("[]"), int(port))
                self.follow(place)

    def follow(self, leader: LeaderPlace | None) -> None:
        """Pass clients on to another leader; those of an earlier leader are closed.

        With None they wait until there is one.
        """
        before, self.leader = self.leader, leader
        if leader is None or leader == before:
            return
        self._not_before = 0.0
        for client, (place, upstream) in list(self.open.items()):
            if place.epoch < leader.epoch:
                upstream.abort()
                client.close()
        for task, (_, place) in list(self._opening.items()):
            if place != leader:
                task.cancel()
        self._open_some()

    def _open_some(self) -> None:
        """Open connections for clients that wait."""
        leader = self.leader
        if leader is None or not self._parked:
            return
        wait = self._not_before - self._now()
        if wait > 0:
            if self._again is None:
                self._again = self._loop.call_later(wait, self._try_again)
            return
        while self._parked and len(self._opening) < _OPENING_AT_MOST:
            client = next(iter(self._parked))
            handed_over = self._owner.give(client)
            if handed_over is False:
                self._not_before = self._now() + _AGAIN
                self._open_some()
                return
            self._parked.pop(client, None)
            if handed_over:
                continue
            client.stage = ClientStage.OPENING
            task = self._loop.create_task(self._connect(client, leader), name="edge")
            self._opening[task] = client, leader
            task.add_done_callback(self._opened)

    def _try_again(self) -> None:
        self._again = None
        self._open_some()

    def _opened(self, task: asyncio.Task[None]) -> None:
        opening = self._opening.pop(task, None)
        if opening is not None and opening[0].stage is ClientStage.OPENING:
            # Either the task was cancelled before it began, or there is another attempt already,
            # because a leader was heard between the end of the task and this call.
            client = opening[0]
            if not any(waiting is client for waiting, _ in self._opening.values()):
                self._wait(client)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a client was not passed on", exc_info=error)
        self._open_some()

    async def _connect(self, client: EdgeClient, leader: LeaderPlace) -> None:
        """Open the connection of one client; it waits again if that fails."""
        upstream: Upstream | None = None
        answer, problem = PeerAnswer.LATER, ""
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                upstream = await self._owner.reach(client, leader)
                answer = await upstream.answered
        except asyncio.CancelledError:
            if upstream is not None and client.stage is ClientStage.OPEN:
                # Accepted at the moment at which there was a later leader.
                upstream.abort()
                client.close()
            raise
        except (OSError, OverflowError, ValueError) as error:  # or it has an impossible address
            if upstream is not None and _has_result(upstream.answered):
                answer = upstream.answered.result()  # at the moment at which the time was over
            else:
                problem = str(error) or "no answer"
                if self.leader == leader:
                    self._owner.on_lost(self.number)
        finally:
            if client.stage is not ClientStage.OPEN:
                if upstream is not None:
                    upstream.abort()
                if client.stage is not ClientStage.ENDED and answer is not PeerAnswer.REFUSED:
                    self._wait(client)
        if answer is PeerAnswer.ACCEPTED and upstream is not None:
            if client.stage is ClientStage.OPEN:
                self.open[client] = leader, upstream
            else:
                upstream.close()
            if self.leader is not None and self.leader.epoch > leader.epoch:
                client.close()
        elif answer is PeerAnswer.REFUSED:
            self._owner.refused_by_leader(client)
            client.abort()
        elif client.stage is ClientStage.PARKED:
            self._not_before = self._now() + _AGAIN
            self._log_problem(leader, problem)

    def _log_problem(self, leader: LeaderPlace, problem: str) -> None:
        now = self._now()
        if now - self._logged_at >= _LOG_EVERY and self.leader == leader:
            self._logged_at = now
            where = {"address": f"{leader.host}:{leader.port}"} if leader.port else {}
            _log.warning(
                "clients wait: the leader does not accept their connections",
                leader=leader.node,
                reason=problem or "it closed the connection",
                **where,
            )


def _has_result(future: asyncio.Future[PeerAnswer]) -> bool:
    return future.done() and not future.cancelled()
