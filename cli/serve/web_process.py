"""The web page of ``foldmq serve``: a process that starts and ends with the broker.

The broker binds the address, so that a taken one is reported at the start, and passes the listening
socket to ``foldmq web`` at the first connection, which waits in the kernel's queue meanwhile. After
``web_idle`` seconds without a connection the process ends with exit code 0, and the broker watches
the socket again. It never outlives the broker: the broker ends it, it ends when its standard input
does (a pipe held only by the broker), and on Linux the kernel ends it as well.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Self

import structlog

from cli.common.units import Address
from cli.settings.broker_child import BrokerChild, environment_for
from cli.settings.settings import Settings
from cli.settings.socket_binding import ListenError, bind, raise_unless_default, readable
from cli.web.own_token import TOKEN_FILE, TokenError, find_token
from eventstore.datadir import DataDir

if TYPE_CHECKING:
    import socket


log = structlog.get_logger("foldmq")


class WebProcess(BrokerChild):
    """Keeps the process of the page running."""

    title = "web page"
    pauses = (0.2, 30.0)
    stable_seconds = 30.0

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.address: str | None = None
        """URL of the page, or None."""
        self.token = ""
        """Suffix of the URL with the token."""
        self._settings = settings
        self._sockets: list[socket.socket] = []
        self._waits = bool(settings.web_idle)
        """Whether the next process starts at the next connection."""

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
        keeping = self._keep_running(partial(self._serve, datadir, environment))
        self._keeping = asyncio.create_task(keeping, name="web page")

    async def __aenter__(self) -> Self:
        self.listen()
        return self

    async def stop(self) -> None:
        """End the process, and listen no more."""
        await super().stop()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()
        self._sockets = []
        self.address = None

    async def _serve(self, datadir: DataDir, environment: Mapping[str, str]) -> str:
        """Run the process, after a failure at once, otherwise from the first connection on."""
        if self._waits:
            await readable(self._sockets)
        descriptors = [each.fileno() for each in self._sockets]
        arguments = [
            *("web", "--data-dir", str(datadir.path)),
            *(argument for each in descriptors for argument in ("--fd", str(each))),
            *(("--operate",) if self._settings.web_operate else ()),
        ]
        why = await self._run(arguments, environment, descriptors=descriptors)
        self._waits = why == "exit 0" and bool(self._settings.web_idle)
        return "" if self._waits else why
