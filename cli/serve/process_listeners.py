"""The listeners of the main process: some pass on sockets, others bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import socket

    from actors.connection.listener import ListenerOptions
    from actors.limits.limit_options import LimitOptions
    from cli.common.endpoints import Endpoint
    from cli.serve.handover import Handover
    from cli.settings.settings import Settings
    from cluster.edge_listeners import Edges
    from eventstore.datadir import DataDir

_LOOK: Final = 0.02


class ListenerSource(Protocol):
    """The listeners as the settings describe them."""

    settings: Settings

    def bind(self) -> list[tuple[Endpoint, list[socket.socket]]]:
        """Bind all listeners; return their addresses and sockets."""

    def options(self) -> list[ListenerOptions]:
        """Return the options of each listener, in the same order."""

    def limits(self) -> tuple[LimitOptions, int]:
        """Return the limits, and the maximum of clients whose bytes pass through."""

    def pseudonym_key(self, datadir: DataDir) -> bytes:
        """Return the key of pseudonyms, created at the first call; empty without pseudonyms."""

    async def reload(self) -> None:
        """Read the settings again; raises FoldmqError, OSError or ValueError for invalid ones."""


class ProcessListeners:
    """All listeners of the main process.

    ``edges`` passes on bytes, ``handover`` sockets; without it, bytes of all clients are passed on.
    """

    def __init__(self, source: ListenerSource, edges: Edges, handover: Handover | None) -> None:
        self._source = source
        self._edges = edges
        self._handover = handover
        self._bound: list[list[socket.socket]] = []
        self._staged: set[int] = set()
        """The listeners of which bytes are passed on."""
        self._listening = False

    def bind(self) -> list[Endpoint]:
        """Bind all listeners; return their addresses. Raises ListenError."""
        bound = self._source.bind()
        self._bound = [sockets for _, sockets in bound]
        return [where for where, _ in bound]

    def listen(self) -> None:
        """Accept clients from now on."""
        self._listening = True
        for number, options in enumerate(self._source.options()):
            self._listen(number, options, self._bound[number])

    def _listen(self, number: int, options: ListenerOptions, sockets: list[socket.socket]) -> None:
        handover = self._handover
        if handover is None or _has_stages(options):
            self._staged.add(number)
            self._edges.listen(options, sockets)
        else:
            self._staged.discard(number)
            handover.listen(number, sockets)

    async def reload(self) -> None:
        """Apply other settings, which are read again; raises as :meth:`ListenerSource.reload`."""
        await self._source.reload()
        listeners = self._source.options()
        self._edges.reload(*self._source.limits(), listeners)
        handover = self._handover
        if handover is None or not self._listening:
            return
        for number, options in enumerate(listeners):
            staged = number in self._staged
            if staged is _has_stages(options):
                continue
            # PROXY protocol was switched on or off.
            if staged:
                sockets = self._edges.release(options.name).get(options.name, [])
            else:
                sockets = handover.release(number)
            self._listen(number, options, sockets)

    def stop(self) -> None:
        """Accept no more clients."""
        self._listening = False
        if self._handover is not None:
            self._handover.close()
        for sockets in self._edges.release().values():
            for one in sockets:
                one.close()

    async def flushed(self, seconds: float) -> None:
        """Wait, at most that long, until clients have the last bytes of processes that ended."""
        loop = asyncio.get_running_loop()
        late = loop.time() + seconds
        while self._edges.clients and loop.time() < late:  # noqa: ASYNC110 - clients set the pace
            await asyncio.sleep(_LOOK)

    def close(self) -> None:
        """Close everything."""
        if self._handover is not None:
            self._handover.close()
        self._edges.close()
        for sockets in self._bound:
            for one in sockets:
                one.close()


def _has_stages(options: ListenerOptions) -> bool:
    stack = options.stack
    return not (stack.proxy is None and stack.tls_context is None and stack.websocket is None)
