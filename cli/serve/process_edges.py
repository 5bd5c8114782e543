"""The clients of the main process: a process gets the socket or the bytes of each."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from actors.limits.limit_options import LimitOptions
from cluster.edge_client import EdgeClient, Upstream
from cluster.edge_listeners import Edges
from cluster.leader_link import LeaderPlace

PASSED_ON: Final = 255
"""Replaces the number of a listener, which is in the header of the client."""


class ProcessEdges(Edges):
    """Passes each client to the process that has its session.

    The process gets the client's socket, with what the client has sent so far. Where the main
    process ends TLS, WebSocket or PROXY protocol, it gets one end of a pair of sockets instead, and
    bytes are passed on.

    ``give(number, listener, socket, waited, data)`` passes a process a socket of a listener; it
    returns False while the process cannot take it. The other arguments are those of :class:`Edges`.
    """

    def __init__(
        self,
        processes: int,
        give: Callable[[int, int, socket.socket, float, bytes], bool],
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

    def give(self, client: EdgeClient) -> bool | None:
        """Leave a client's socket to its process; None: its bytes are passed on."""
        data, transport = client.first_bytes, client.transport
        if data is None or transport is None:
            return None
        listener = [*self._options].index(client.listener)
        end = transport.get_extra_info("socket")
        if not self._give(client.log, listener, end, self.waited(client), data):
            return False
        client.leave()
        return True

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

    def _why_late(self, client: EdgeClient) -> str:
        del client
        return "process_not_ready"

    def _pass(self, number: int, end: socket.socket, name: str) -> None:
        """Pass a socket to a process; raises OSError if it takes none."""
        with end:
            if not self._give(number, PASSED_ON, end, 0.0, b""):
                raise ConnectionRefusedError(f"the process of log {name} takes no connections now")
