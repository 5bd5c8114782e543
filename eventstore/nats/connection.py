"""Connections to a NATS server: dialing, credentials, TLS, and errors as single lines."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict, Unpack
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from eventstore.edited_files import client_context, has_mark, unmarked_pair
from eventstore.errors import (
    BadNatsOptions,
    NatsTooOld,
    NatsUnavailable,
)
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.server_urls import ServerChoice, without_secrets

MINIMUM_VERSION: Final = (2, 10, 23)
_WHY_MINIMUM: Final = "2.10.20 to 2.10.22 can lose a whole stream when the server is killed"

PENDING_BYTES: Final = 128 * 1024 * 1024
"""Bytes that the client buffers while it is not connected; publish refuses more."""

_PING_SECONDS: Final = (5, 2)
"""Seconds between two pings, with one server and with several; two may stay unanswered."""
_HEARD_SECONDS: Final = 0.1
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_RECONNECT_SECONDS: Final = (0.05, 0.25)
_MARKERS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")

_log = logging.getLogger("foldmq.nats")

Notice: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The address of a NATS server, and the credentials for it.

    ``credentials`` is a ``.creds`` file (user JWT and seed), ``nkey_seed`` a file with a seed;
    ``tls_ca``, ``tls_cert`` and ``tls_key`` are PEM files.
    """

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    nkey_seed: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_context: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS parameters that replace these files."""
    name: str = "foldmq"
    domain: str | None = None
    """The JetStream domain; None: the domain of the server."""
    inbox: str = "_INBOX"
    """Prefix of the subjects of replies."""

    @property
    def where(self) -> str:
        """The servers for display: without user or password."""
        return ", ".join(without_secrets(url) for url in self.urls)


PRIVATE_PREFIX = "foldmq."
"""Prefix of foldmq's own subjects, which are not exchanged with MQTT clients."""


def _ignore() -> None:
    pass


def _ignore_text(_text: str) -> None:
    pass


class ConnectionNotices(TypedDict, total=False):
    """What is called when something happens to a connection, see :func:`dial`."""

    on_disconnect: Notice
    on_reconnect: Notice
    on_closed: Notice
    on_error: Callable[[str], None]


async def connect(
    options: ConnectionOptions,
    *,
    timeout: float = 5.0,  # noqa: ASYNC109 - the whole of several attempts, not one await
    **notices: Unpack[ConnectionNotices],
) -> DirectClient:
    """Connect to NATS; see :func:`dial`."""
    client = DirectClient(options.domain)
    await dial(client, options, timeout=timeout, **notices)
    return client


async def dial(
    client: Client,
    options: ConnectionOptions,
    *,
    timeout: float = 5.0,  # noqa: ASYNC109 - the whole of several attempts, not one await
    no_echo: bool = False,
    **notices: Unpack[ConnectionNotices],
) -> None:
    """Connect a client that has never connected; afterwards it reconnects forever by itself.

    The call waits up to ``timeout`` seconds for a server that does not accept connections yet.
    ``on_error`` is called with each new problem as one line; a repeated one is reported once
    between two connections. ``on_closed`` is called when the client has given up (closed by us, or
    the server revoked our access). With ``no_echo`` the client does not receive its own
    publications.

    A request that was in flight when the connection was lost gets no reply, and fails only at its
    time limit: the caller must send it again ``on_reconnect``.

    Raises NatsUnavailable when no server admits the client, BadNatsOptions for an invalid file.
    """
    if not options.urls:
        raise BadNatsOptions("no NATS server is named: give --nats-url URL")
    _quiet_client_library()
    watch = _ConnectionErrors(options.where, notices.get("on_error", _ignore_text))
    wait = _reconnect_wait(options.urls)
    choice = ServerChoice(wait)

    def connected() -> None:
        if client._current_server is not None:  # noqa: SLF001 - nats-py hides which of several it is
            choice.connected(client._current_server.uri.netloc)  # noqa: SLF001

    opening = asyncio.create_task(
        client.connect(
            list(options.urls),
            name=options.name,
            error_cb=watch.error,
            disconnected_cb=_as_coroutine(notices.get("on_disconnect", _ignore)),
            reconnected_cb=_as_coroutine(
                watch.healthy, connected, notices.get("on_reconnect", _ignore)
            ),
            closed_cb=_as_coroutine(notices.get("on_closed", _ignore)),
            connect_timeout=2,
            reconnect_time_wait=wait,  # type: ignore[arg-type] # slept
            reconnect_to_server_handler=choice,
            max_reconnect_attempts=-1,
            ping_interval=_PING_SECONDS[len(options.urls) > 1],
            no_echo=no_echo,
            pending_size=PENDING_BYTES,
            inbox_prefix=options.inbox,
            **_access(options),
        )
    )
    try:
        await _opened(opening, watch, timeout)
    except BaseException:
        await _give_up(client, opening)
        raise
    finally:
        watch.final_error.cancel()
    watch.healthy()
    connected()


async def _opened(opening: asyncio.Task[None], watch: _ConnectionErrors, seconds: float) -> None:
    await asyncio.wait(
        {opening, watch.final_error}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    if not opening.done():
        raise watch.unavailable(None)
    try:
        opening.result()
    except (OSError, nats.errors.Error) as error:
        raise watch.unavailable(error) from None


async def _give_up(client: Client, opening: asyncio.Task[None]) -> None:
    if opening.done():  # it failed before a connection existed
        return
    # Python 3.11's wait_for loses a cancellation that arrives together with its result, and nats-py
    # then continues to dial forever: cancel until the task ends.
    while not opening.done():
        opening.cancel()
        await asyncio.wait({opening}, timeout=_HEARD_SECONDS)
    if not opening.cancelled():
        opening.exception()
    await disconnect(client)


async def disconnect(client: Client) -> None:
    """Close a client in any state of its connection; nats-py's ``close`` fails in some.

    It raises a RuntimeError if data is still to be written over a closed transport, and a spurious
    CancelledError if it is about to reconnect: its reconnecting task waits for the end of the same
    transport when it is cancelled.

    It may also continue to reconnect forever, if an attempt fails just when it is cancelled: Python
    3.11 then raises only the failure. Without a server to choose, the next attempt ends the task.
    """
    client._server_pool.clear()  # noqa: SLF001 - nats-py has no other way to end it
    try:
        await client.close()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    except (OSError, RuntimeError, nats.errors.Error):
        pass


class _ConnectionErrors:
    """Converts the errors of nats-py to single lines, and recognizes permanent ones."""

    def __init__(self, where: str, tell: Callable[[str], None]) -> None:
        self.final_error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._where = where
        self._tell = tell
        self._last: Exception | None = None
        self._logged: set[str] = set()
        self._connected_once = False

    def healthy(self) -> None:
        self._connected_once = True
        self._logged.clear()

    async def error(self, error: Exception) -> None:
        if self._last is None or not _is_final(self._last):  # the decisive error is kept
            self._last = error
        if not self._connected_once:
            if _is_final(error) and not self.final_error.done():
                self.final_error.set_result(None)
            return
        text = describe_error(error)
        if text not in self._logged:
            self._logged.add(text)
            self._tell(f"NATS at {self._where}: {text}")

    def unavailable(self, error: Exception | None) -> NatsUnavailable:
        latest = error or self._last
        what = describe_error(latest) if latest is not None else "no answer"
        if latest is not None and _is_refusal(latest):
            advice = "check the user, password, token or credentials file"
        elif isinstance(latest, ssl.SSLCertVerificationError):
            advice = "set the certificate of its authority"
        else:
            advice = "check the address and that the server runs"
        return NatsUnavailable(f"cannot connect to NATS at {self._where}: {what}; {advice}")


def check_server(client: Client) -> int:
    """Return the size in bytes of the largest message that the connected server accepts.

    Raises NatsTooOld when the server's version is known to lose data.
    """
    check_server_version(str(client.connected_server_version), where="the NATS server")
    return client.max_payload


def check_server_version(version: str, *, where: str) -> None:
    """Raise NatsTooOld unless the version (``2.15.1``, ``v2.12.0-rc.1``) is recent enough."""
    require_version(version, MINIMUM_VERSION, where, "", _WHY_MINIMUM)


def require_version(
    version: str, minimum: tuple[int, int, int], where: str, purpose: str, *reason: str
) -> None:
    """Raise NatsTooOld, with the reason, unless a version is recent enough for a purpose."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None or tuple(map(int, match.groups())) < minimum:
        needed = ".".join(map(str, minimum)) + purpose
        raise NatsTooOld(where, match[0] if match else "", needed, *reason)


def _access(options: ConnectionOptions) -> dict[str, Any]:
    """Return nats-py's arguments for our credentials, from files that are checked first."""
    access: dict[str, Any] = {
        "user": options.user,
        "password": options.password,
        "token": options.token,
    }
    for file in (options.credentials, options.nkey_seed):
        if file is not None:
            _check_secret(file, _MARKERS if file is options.credentials else ())
    if options.credentials is not None:
        access["user_credentials"] = str(options.credentials)
    if options.nkey_seed is not None:
        if has_mark(options.nkey_seed):
            access["nkeys_seed_str"] = options.nkey_seed.read_text("utf-8-sig")
        else:
            access["nkeys_seed"] = str(options.nkey_seed)
    if options.tls_context is not None:
        access["tls"] = options.tls_context
    elif any((options.tls_ca, options.tls_cert, options.tls_key)):
        access["tls"] = _tls(options)
    return access


def check_access(options: ConnectionOptions) -> None:
    """Raise BadNatsOptions for a file that a connection with these options could not use."""
    _access(options)


def _check_secret(file: Path, markers: Sequence[bytes]) -> None:
    """Raise BadNatsOptions for a file on which nats-py would loop forever, or fail."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadNatsOptions(f"cannot read {file}: {error.strerror}") from None
    if missing := [marker.decode() for marker in markers if marker not in content]:
        raise BadNatsOptions(f"{file} is not a NATS credentials file: it lacks {missing[0]!r}")
    if importlib.util.find_spec("nkeys") is None:
        raise BadNatsOptions(f"to use {file} the package nkeys is needed: pip install nkeys")


def _tls(options: ConnectionOptions) -> ssl.SSLContext:
    try:
        context = client_context(options.tls_ca)
        if options.tls_cert is not None:
            with unmarked_pair(options.tls_cert, options.tls_key) as (certificate, key):
                context.load_cert_chain(certificate, key)
        elif options.tls_key is not None:
            raise BadNatsOptions(f"a key ({options.tls_key}) needs its certificate")
    except OSError as error:
        files = (options.tls_ca, options.tls_cert, options.tls_key)
        names = ", ".join(str(file) for file in files if file is not None)
        raise BadNatsOptions(f"cannot use the TLS files {names}: {error.strerror}") from None
    return context


def _reconnect_wait(urls: Sequence[str]) -> float:
    """Return the seconds between two attempts: short for a server on this machine."""
    try:
        hosts = [urlsplit(url if "://" in url else f"nats://{url}").hostname for url in urls]
    except ValueError as error:
        raise BadNatsOptions(f"not a NATS address: {error}") from None
    return _RECONNECT_SECONDS[0 if all(host in _LOOPBACK for host in hosts) else 1]


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, nats.errors.AuthorizationError):
        return True
    return "authorization" in str(error).lower() or "authentication" in str(error).lower()


def _is_final(error: Exception) -> bool:
    """Return whether a retry cannot help: access was refused, or the server is not trusted."""
    return _is_refusal(error) or isinstance(error, ssl.SSLCertVerificationError)


def describe_error(error: Exception) -> str:
    """Return a short text for an exception of nats-py, ssl or the system."""
    if _is_refusal(error):
        return "the server rejects our credentials"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, nats.errors.UnexpectedEOF | ConnectionResetError):
        return "connection lost"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).removeprefix("nats: ").strip("'\" ") or type(error).__name__


def _as_coroutine(*notices: Notice) -> Callable[[], Any]:
    async def tell() -> None:
        for notice in notices:
            notice()

    return tell


class _OneLine(logging.Handler):
    """Passes on nats-py's own log messages as one line each, without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        detail = f": {type(error).__name__}: {error}" if error else ""
        _log.log(record.levelno, "%s%s", record.getMessage(), detail)


def _quiet_client_library() -> None:
    library = logging.getLogger("nats")
    if not any(isinstance(handler, _OneLine) for handler in library.handlers):
        library.addHandler(_OneLine())
        library.propagate = False
