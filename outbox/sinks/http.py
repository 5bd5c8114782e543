"""The sink ``http``: CloudEvents to a web server, in order, signed by Standard Webhooks."""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import aiohttp

from eventstore.display import escaped
from eventstore.edited_files import client_context
from eventstore.format.positions import INDEX_BITS, MAX_INDEX
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.cloud_events import BATCH, STRUCTURED, EventEncoder, event_headers
from outbox.sinks.secret_files import usable_files
from outbox.sinks.webhook_signature import read_secrets, read_token, signed_headers

_AGAIN = frozenset({408, 425, 429})
_WRONG_SETTINGS = frozenset({401, 403, 404, 410})
_REASON = 200
"""Maximum number of characters of an answer that are recorded."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where and how messages are posted."""

    url: str
    format: Literal["batch", "structured", "binary"] = "batch"
    timeout: float = 30.0
    """Seconds for a whole request."""
    signing_secret_file: Path | None = None
    token_file: Path | None = None
    """A file with the token of the Authorization header."""
    ca_file: Path | None = None


class HttpSink:
    """Posts batches to one URL, one request at a time."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._log, self._events = "", EventEncoder("")
        self._tls: ssl.SSLContext | bool = True
        self._session: aiohttp.ClientSession | None = None

    async def open(self, about: Destination) -> None:
        """Prepare a client."""
        self._log, self._events = about.log, EventEncoder(about.log)
        await self.close()
        with usable_files("ca_file"):
            self._tls = _tls(self._options)

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Post a batch; returns when the server has answered with success."""
        if self._options.format == "batch":
            body = b"[" + b",".join(map(self._events.encode, batch)) + b"]"
            await self._post(batch, body, {"Content-Type": BATCH})
            return
        for message in batch:
            if self._options.format == "structured":
                body = self._events.encode(message)
                await self._post([message], body, {"Content-Type": STRUCTURED})
            else:
                await self._post([message], message.payload, event_headers(message, self._log))

    async def _post(
        self, batch: Sequence[OutboxMessage], body: bytes, headers: dict[str, str]
    ) -> None:
        options, session = self._options, self._client()
        headers |= self._identify(batch, body)
        try:
            async with session.post(
                options.url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                excerpt = await _excerpt(answer)
                judge(answer.status, excerpt, answer.headers.get("Retry-After"), batch)
                await self._stored(answer)
        except TimeoutError:
            raise TryAgain(f"no answer within {options.timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise TryAgain(_failure(error)) from None

    async def _stored(self, answer: aiohttp.ClientResponse) -> None:
        """Look at an answer that says that a batch is stored."""

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, ssl=self._tls),
                timeout=aiohttp.ClientTimeout(total=self._options.timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _identify(self, batch: Sequence[OutboxMessage], body: bytes) -> dict[str, str]:
        """Return the headers that authenticate a request."""
        headers, secrets = self._credentials()
        identifier = webhook_id(self._log, batch)
        return headers | signed_headers(identifier, int(time.time()), body, secrets)

    def _credentials(self) -> tuple[dict[str, str], list[bytes]]:
        """Return the header with the token, and the signing secrets, from files as they are now."""
        options = self._options
        headers: dict[str, str] = {}
        secrets: list[bytes] = []
        with usable_files("signing_secret_file", "token_file"):
            if options.signing_secret_file is not None:
                secrets = read_secrets(options.signing_secret_file.read_text("utf-8"))
            if options.token_file is not None:
                token = read_token(options.token_file.read_text("utf-8"))
                headers["Authorization"] = f"Bearer {token}"
        return headers, secrets

    async def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def webhook_id(log: str, batch: Sequence[OutboxMessage]) -> str:
    """Return the identifier of a batch: its log, and the positions of the first and last message.

    Positions are written with a hyphen, since a dot separates the signed parts.
    """
    ends = (batch[0].position, batch[-1].position)
    first, final = (f"{at >> INDEX_BITS}-{at & MAX_INDEX}" for at in ends)
    return f"{log}_{first}_{final}"


def judge(
    status: int, excerpt: str, retry_after: str | None, batch: Sequence[OutboxMessage]
) -> None:
    """Return if an answer says that a batch is stored.

    Raises TryAgain, or RefusedMessages for a batch that would be refused again.
    """
    if 200 <= status < 300:
        return
    if any(message.key for message in batch):  # it may quote the content
        excerpt = ""
    phrase = _phrase(status) + (f": {excerpt}" if excerpt else "")
    reason = f"{status} {phrase}"
    if status in _AGAIN or status >= 500:
        # Without a pause, the server would be asked again in a loop.
        raise TryAgain(reason, seconds_of(retry_after) or None)
    if status in _WRONG_SETTINGS or status < 400:
        raise TryAgain(reason, misconfigured=True)
    at = [batch[0].at] if len(batch) == 1 else []
    raise RefusedMessages(phrase or str(status), status, at)


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number, or a date; None if there is none."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        moment = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


def _failure(error: aiohttp.ClientError | OSError) -> str:
    """Return why there was no answer, as text."""
    text = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.errno or 0
        cause = os.strerror(number) if number > 0 else str(error.os_error)
        text = f"cannot connect to {error.host}:{error.port}: {cause}"
    return escaped(text, _REASON)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


async def _excerpt(answer: aiohttp.ClientResponse) -> str:
    """Return the beginning of an answer that is no success, and read no more of it."""
    if 200 <= answer.status < 300:
        return ""
    with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
        data = await answer.content.read(4 * _REASON)
        words = " ".join(data.decode("utf-8", "replace").split())
        # No escapes: whoever shows or logs it would escape them again.
        shown = "".join(each if each.isprintable() else "?" for each in words)
        return shown if len(shown) <= _REASON else f"{shown[:_REASON]}..."
    return ""


def _tls(options: HttpOptions) -> ssl.SSLContext | bool:
    return True if options.ca_file is None else client_context(options.ca_file)
