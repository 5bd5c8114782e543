"""Clients whose bytes pass through the main process: it ends TLS, WebSocket and PROXY protocol."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from cluster.edge_client import Upstream
from cluster.edge_listeners import Edges
from cluster.leader_link import LeaderPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.limits.limit_options import LimitOptions
    from cluster.edge_client import EdgeClient


PASSED_ON: Final = 255
"""Replaces the number of a listener, which is in the header of the client."""


class ProcessEdges(Edges):
    """Passes the bytes of each client to the process that has its session.

    ``give(number, socket)`` passes a process one end of a pair of sockets; it returns False while
    the process cannot take it. The other arguments are those of :class:`Edges`.
    """

    def __init__(
        self,
        processes: int,
        give: Callable[[int, socket.socket], bool],
        limits: LimitOptions,
        max_connections: int,
        now: Callable[[], float],
        pseudonym_key: bytes = b"",
    ) -> None:
        # No name and no key: only the main process can send the process a socket.
        super().__init__("", b"", None, limits, max_connections, now, processes, pseudonym_key)
        self._give = give
        self._starts = 0

    def ready(self, number: int, name: str) -> None:
        """Pass clients on to a process that takes connections; ``name`` is that of its log."""
        self._starts += 1
        self.links[number].follow(LeaderPlace(self._starts, name))

    def away(self, number: int) -> None:
        """Let clients of a process wait until it takes connections again."""
        self.links[number].follow(None)

    async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
        """Connect to the process of a client; raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            self._pass(client.log, theirs, leader.node)
            ours.setblocking(False)
            _, upstream = await asyncio.get_running_loop().create_unix_connection(
                partial(Upstream, client), sock=ours
            )
        except BaseException:
            ours.close()
            raise
        return upstream

    def _pass(self, number: int, end: socket.socket, name: str) -> None:
        """Pass a socket to a process; raises OSError if it takes none."""
        with end:
            if not self._give(number, end):
                raise ConnectionRefusedError(f"the process of log {name} takes no connections now")
