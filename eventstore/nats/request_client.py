"""Requests on a NATS subject, and their replies."""

import asyncio
from collections.abc import Callable

import nats.errors
import structlog
from nats.aio.client import Client

from eventstore.errors import EventStoreError
from eventstore.nats.connection import ConnectionOptions, connect, disconnect

_ATTEMPT_SECONDS = 5.0
_PAUSE_SECONDS = 1.0

log = structlog.get_logger("foldmq.nats")


class UnansweredError(Exception):
    """A request got no reply; the text gives the reason in a few words."""


class RequestClient:
    """Sends requests on one subject. Connects for the first one, and again when needed.

    Requests are not buffered while there is no connection: they would be answered too late.
    ``on_problem`` is called with each new problem as one line.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        subject: str,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self.subject = subject
        self._options = options
        self._tell = on_problem or _log_problem
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._asking = 0
        self._closed = False

    async def ask(self, request: bytes, seconds: float) -> bytes:
        """Return the answer; raises UnansweredError when there is none within ``seconds``."""
        self._asking += 1
        try:
            async with asyncio.timeout(seconds):
                client = await self._ready()
                return (await client.request(self.subject, request, timeout=seconds)).data
        except nats.errors.NoRespondersError:
            raise UnansweredError(f"no answer on {self.subject}") from None
        except TimeoutError:
            what = "no answer in time" if self._connected.is_set() else "no connection to NATS"
            raise UnansweredError(what) from None
        except (nats.errors.Error, OSError) as error:
            what = str(error).removeprefix("nats: ") or type(error).__name__
            raise UnansweredError(what) from None
        finally:
            self._asking -= 1
            self._end()

    def close(self) -> None:
        """Close the connection once the last request is answered."""
        self._closed = True
        self._end()

    async def closed(self) -> None:
        """Wait until the connection is closed, after :meth:`close`."""
        await self._gone.wait()

    async def _ready(self) -> Client:
        if self._closing is not None:
            raise UnansweredError("the connection was closed")
        while self._client is None or not self._connected.is_set():
            if self._client is None and (self._connecting is None or self._connecting.done()):
                self._connecting = asyncio.create_task(self._connect())
            await self._connected.wait()
        return self._client

    async def _connect(self) -> None:
        reported = ""
        while True:
            try:
                self._client = await connect(
                    self._options,
                    timeout=_ATTEMPT_SECONDS,
                    on_disconnect=self._connected.clear,
                    on_reconnect=self._connected.set,
                    on_closed=self._lost,
                    on_error=self._tell,
                )
            except EventStoreError as error:  # the server is down, or a file cannot be read now
                if str(error) != reported:
                    reported = str(error)
                    self._tell(reported)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._connected.set()
            return

    def _lost(self) -> None:
        """Connect again with the next request, since the client has given up."""
        self._client = None
        self._connected.clear()

    def _end(self) -> None:
        if self._closed and not self._asking and self._closing is None:
            self._closing = asyncio.create_task(self._disconnect())

    async def _disconnect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._client is not None:
            await disconnect(self._client)
        self._gone.set()


def _log_problem(text: str) -> None:
    log.warning("the auth callout cannot be queried", reason=text)
