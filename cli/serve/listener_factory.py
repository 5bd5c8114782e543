"""Builds the listeners from the settings: sockets and transports."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from actors.connection.listener import ListenerOptions
from actors.limits.limit_options import Quota
from actors.transports.acceptor import listening_socket
from actors.transports.handshakes import Handshakes
from actors.transports.stack import StackOptions
from actors.transports.tls_context import TlsOptions, make_context
from actors.transports.websocket import WebSocketOptions, WebSocketStats
from cli.common.endpoints import Endpoint
from cli.settings.listener_settings import ipv4_hosts
from cli.settings.socket_binding import ListenError, bind, probe

if TYPE_CHECKING:
    import ssl

from cli.settings.settings import Settings

_log = structlog.get_logger("foldmq")

_BACKLOG = 4096
"""Length of the accept queue: with a short one, waiting clients lose a second."""

SOCKETS_VARIABLE = "_FOLDMQ_SOCKETS"
"""Passes listening sockets to the restarted process."""

_ANYWHERE = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


class Listeners:
    """The listeners of a broker; their counters survive reloads."""

    def __init__(self, settings: Settings) -> None:
        """Create the TLS contexts; raises TlsConfigError for invalid files."""
        self.handshakes = Handshakes()
        self.websocket_stats = WebSocketStats()
        self._files: list[Path] = []
        self._all = settings.listen
        self._inherited = _inherited_sockets()
        self._kept: dict[str, list[socket.socket]] | None = None
        """Duplicates of the listening sockets, by endpoint; None: none are kept."""
        self._clients: dict[str, list[socket.socket]] = {}
        """Inherited sockets of clients that have sent nothing, by endpoint."""
        self.options(settings, settings.max_packet_size)

    def options(self, settings: Settings, max_packet_size: int) -> list[ListenerOptions]:
        """Return the options of each listener; raises TlsConfigError.

        ``max_packet_size`` is the maximum that the log allows.
        """
        all_options = []
        for own in settings.listeners():
            (place,) = own.listen
            # Settings not set for a single listener limit all listeners together elsewhere.
            single = dict(place.own)
            largest = min(own.max_packet_size, max_packet_size)
            all_options.append(
                ListenerOptions(
                    name=str(place),
                    max_packet_size=largest,
                    connect_timeout=own.connect_timeout,
                    allow_anonymous=own.anonymous,
                    identity=None if own.tls_identity == "none" else own.tls_identity,
                    quota=Quota(
                        own.max_connections if "max_connections" in single else 0,
                        own.connection_rate,
                        own.publish_rate,
                        own.publish_bytes,
                    ),
                    stack=self._stack(own, place.endpoint),
                )
            )
        return all_options

    def _stack(self, own: Settings, where: Endpoint) -> StackOptions:
        websocket = WebSocketOptions(own.ws_path, own.ws_origins or None, own.proxy_from)
        return StackOptions(
            proxy=(own.proxy_from or _ANYWHERE) if own.proxy_protocol else None,
            tls_context=_context(own) if where.encrypted else None,
            handshakes=self.handshakes,
            websocket=websocket if where.framed else None,
            websocket_stats=self.websocket_stats,
        )

    def probe(self, settings: Settings) -> None:
        """Raise ListenError if an address cannot be bound, before a long replay begins."""
        with contextlib.ExitStack() as held:
            # All at once, because one may conflict with another, as 0.0.0.0 does.
            for listener in settings.listen:
                if str(listener.endpoint) in self._inherited:
                    continue
                place = listener.endpoint.place
                if place is None:
                    _remove_stale(listener.endpoint)
                    continue
                ipv4 = not ipv4_hosts(settings.listen, place.port)
                try:
                    bound = bind(place, "listen", ipv4=ipv4)
                except ListenError:
                    held.close()
                    probe(place, ipv4=ipv4)
                    own = OSError(errno.EEXIST, "it conflicts with another listener of this broker")
                    raise ListenError(listener, own) from None
                for sock in bound:
                    held.callback(sock.close)

    def reloaded(self, settings: Settings) -> None:
        """Set the file modes of Unix sockets from new settings."""
        for own in settings.listeners():
            where = own.listen[0].endpoint
            if where.place is not None:
                continue
            try:
                Path(where.path).chmod(int(own.unix_mode, 8))
            except OSError as error:
                _log.warning("file mode not changed", listener=str(where), reason=error.strerror)

    def bind(self, own: Settings) -> tuple[Endpoint, list[socket.socket]]:
        """Bind one listener; return its address with the actual port.

        Raises ListenError.
        """
        where = own.listen[0].endpoint
        name = str(where)
        if inherited := self._inherited.pop(name, None):
            bound = [sock for sock in inherited if _listens(sock)]
            self._clients[name] = [sock for sock in inherited if not _listens(sock)]
            if where.place is None:
                self._files.append(Path(where.path))
        elif where.place is None:
            bound = [self._bind_unix(where, int(own.unix_mode, 8))]
        else:
            ipv4 = not ipv4_hosts(self._all, where.place.port)
            bound = bind(where.place, "listen", _BACKLOG, ipv4=ipv4)
        if self._kept is not None:
            self._kept[name] = [sock.dup() for sock in bound]
        if where.place is not None:
            port = bound[0].getsockname()[1]
            where = where._replace(place=where.place._replace(port=port))
        return where, bound

    def _bind_unix(self, where: Endpoint, mode: int) -> socket.socket:
        _remove_stale(where)
        # No client may connect before the mode is set.
        before = os.umask(0o777 & ~mode | 0o111)
        try:
            bound = listening_socket(socket.AF_UNIX, where.path, _BACKLOG)
        except OSError as error:
            raise ListenError(where, error) from None
        finally:
            os.umask(before)
        self._files.append(Path(where.path))
        Path(where.path).chmod(mode)
        return bound

    def keep(self) -> None:
        """Keep duplicates of the sockets that are bound from now on, for :meth:`inheritance`."""
        self._kept = {}

    def keep_client(self, name: str, client: socket.socket) -> None:
        """Pass a client of a listener to the restarted process, too."""
        if self._kept is not None and name in self._kept:
            self._kept[name].append(client)
        else:
            client.close()

    def clients(self, name: str) -> list[socket.socket]:
        """Return, once, the clients of a listener that were kept before the restart."""
        return self._clients.pop(name, [])

    def close_kept(self) -> None:
        """Close the duplicates: clients are refused when the listeners are closed."""
        for sockets in (self._kept or {}).values():
            for sock in sockets:
                sock.close()
        self._kept = None

    def inheritance(self) -> str:
        """Return a text that lets the restarted process continue listening; empty: none.

        Clients that connect meanwhile wait in the queues of the sockets.
        """
        kept, self._kept = self._kept, None
        if not kept:
            return ""
        self._files.clear()
        numbers = {}
        for name, sockets in kept.items():
            for sock in sockets:
                sock.set_inheritable(True)
            numbers[name] = [sock.detach() for sock in sockets]
        return json.dumps(numbers)

    def close(self) -> None:
        """Stop the TLS threads and remove the files of Unix sockets."""
        self.close_kept()
        self.handshakes.close()
        for file in self._files:
            with contextlib.suppress(OSError):
                file.unlink()


def _listens(bound: socket.socket) -> bool:
    return bool(bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _inherited_sockets() -> dict[str, list[socket.socket]]:
    """Return the sockets of listeners and clients from before the restart, by endpoint."""
    inherited: dict[str, list[socket.socket]] = {}
    for name, numbers in json.loads(os.environ.pop(SOCKETS_VARIABLE, "{}")).items():
        inherited[name] = [socket.socket(fileno=number) for number in numbers]
        for sock in inherited[name]:
            sock.set_inheritable(False)
            sock.setblocking(False)
    return inherited


def _context(own: Settings) -> ssl.SSLContext:
    assert own.tls_cert is not None  # noqa: S101 - cli.settings.settings.check_settings
    return make_context(
        TlsOptions(
            own.tls_cert,
            own.tls_key,
            own.tls_key_password_file,
            "off" if own.tls_client_certs == "none" else own.tls_client_certs,
            own.tls_client_ca,
            own.tls_crl,
            own.tls_min_version,
            own.tls_ciphers,
        )
    )


def _can_be_made(where: Endpoint) -> None:
    directory = Path(where.path).parent
    if not directory.is_dir():
        raise ListenError(where, OSError(errno.ENOENT, f"the directory {directory} does not exist"))
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ListenError(where, OSError(errno.EPERM, f"permission denied in {directory}"))


def _remove_stale(where: Endpoint) -> None:
    """Remove the file of an unused Unix socket; raise ListenError if it is in use."""
    path = Path(where.path)
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ListenError(
                where, OSError(errno.EEXIST, "a file that is not a socket exists there")
            )
    except FileNotFoundError:
        _can_be_made(where)
        return
    except OSError as error:
        raise ListenError(where, error) from None
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ListenError(where, error) from None
    raise ListenError(where, OSError(errno.EADDRINUSE, "taken"))
