"""The web page of ``foldmq serve``: a process that starts and ends with the broker.

The broker binds the address, so that a taken one is reported at the start, and passes the listening
socket to ``foldmq web`` at the first connection, which waits in the kernel's queue meanwhile. After
``web_idle`` seconds without a connection the process ends with exit code 0, and the broker watches
the socket again. It never outlives the broker: the broker ends it, it ends when its standard input
does (a pipe held only by the broker), and on Linux the kernel ends it as well.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import structlog

from cli.common.units import Address
from cli.settings.broker_child import BrokerChild, environment_for
from cli.settings.settings import Settings
from cli.settings.socket_binding import ListenError, bind, raise_unless_default
from cli.web.own_token import TOKEN_FILE, TokenError, find_token
from eventstore.datadir import DataDir

if TYPE_CHECKING:
    import socket


log = structlog.get_logger("foldmq")

_BACKOFF_SECONDS = (0.2, 30.0)
_STABLE_SECONDS = 30.0


class WebProcess(BrokerChild):
    """Keeps the process of the page running."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.address: str | None = None
        """URL of the page, or None."""
        self.token = ""
        """Suffix of the URL with the token."""
        self._settings = settings
        self._sockets: list[socket.socket] = []

    def listen(self) -> None:
        """Bind the address; raises ListenError if an explicit one is not available."""
        place = self._settings.web
        if place is None:
            return
        try:
            self._sockets = bind(place, "web")
        except ListenError as error:
            raise_unless_default(self._settings, "web", error)
            return
        self.address = f"http://{Address(place.host, self._sockets[0].getsockname()[1])}/"

    async def start(self, datadir: DataDir) -> None:
        """Serve the page; errors are only logged, because the broker runs without it."""
        if not self._sockets:
            return
        try:
            self.token = find_token(datadir.path / TOKEN_FILE).query
        except TokenError as error:
            log.warning("web page not available", reason=str(error))
            self._close_sockets()
            return
        environment = environment_for(self._settings, datadir)
        self._keeping = asyncio.create_task(self._keep(datadir, environment), name="web page")

    async def __aenter__(self) -> Self:
        self.listen()
        return self

    async def stop(self) -> None:
        """End the process, and listen no more."""
        await super().stop()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []
        self.address = None

    async def _keep(self, datadir: DataDir, environment: Mapping[str, str]) -> None:
        """Start the process at the first connection; restart it if it fails."""
        loop = asyncio.get_running_loop()
        delay = 0.0
        wanted = not self._settings.web_idle
        while True:
            if not wanted:
                await self._connection()
            wanted = True
            begun = loop.time()
            descriptors = [each.fileno() for each in self._sockets]
            arguments = [
                *("web", "--data-dir", str(datadir.path)),
                *(argument for each in descriptors for argument in ("--fd", str(each))),
                *(("--operate",) if self._settings.web_operate else ()),
            ]
            why = await self._run(arguments, environment, descriptors=descriptors)
            if why == "exit 0" and self._settings.web_idle:
                wanted, delay = False, 0.0
                continue
            if loop.time() - begun > _STABLE_SECONDS:
                delay = 0.0
            log.warning("web page ended, restarting it", reason=why, after_s=delay)
            await asyncio.sleep(delay)
            delay = min(max(_BACKOFF_SECONDS[0], delay * 2), _BACKOFF_SECONDS[1])

    async def _connection(self) -> None:
        """Wait until a client connects; leave the connection to the process."""
        loop = asyncio.get_running_loop()
        connected = asyncio.Event()
        for listening in self._sockets:
            loop.add_reader(listening, connected.set)
        try:
            await connected.wait()
        finally:
            for listening in self._sockets:
                loop.remove_reader(listening)
