"""Builds a node's side of the connections between nodes from the settings."""

from __future__ import annotations

import hashlib
import ssl
from typing import TYPE_CHECKING, Final

from actors.connection.admission import Admission
from actors.kernel.clock import Clock
from actors.transports.handshakes import Handshakes
from actors.transports.tls_context import TlsOptions, make_context
from cli.common.units import Address
from cli.logs.key_files import cluster_key
from cli.serve.limits_factory import limit_options
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from cli.settings.socket_binding import bind
from cluster.edge_listeners import Edges
from cluster.peer_listener import PeerListener
from eventstore.edited_files import client_context, unmarked_pair

if TYPE_CHECKING:
    import socket

    from actors.session.node_context import NodeContext

_FLIGHTS: Final = 5
"""Rounds of messages of a TLS handshake, at most."""
_DIGEST: Final = 12
"""Hexadecimal digits of a digest that distinguishes certificates."""


class PeerSockets:
    """The listening sockets of ``cluster_listen``, bound before this node leads."""

    def __init__(self, settings: Settings) -> None:
        """Bind them; raises ListenError, ConfigError and TlsConfigError for invalid files."""
        place = settings.cluster_listen
        assert place is not None  # noqa: S101 - the caller has checked that
        self._key = cluster_key(settings)
        self._context = _server_context(settings)
        self._client_context = client_tls_context(settings)
        self._sockets: list[socket.socket] = bind(place, "cluster_listen", 4096)
        port = self._sockets[0].getsockname()[1]
        self.address: Address = settings.cluster_advertise or place._replace(port=port)
        """The address at which other nodes connect."""

    def edges(self, settings: Settings, node: str, most: int, clock: Clock) -> Edges:
        """Return what passes clients on, at most that many."""
        bounds = limit_options(settings, most)
        return Edges(node, self._key, self._client_context, bounds, most, clock.monotonic)

    def serve(self, node: NodeContext, admission: Admission, handshakes: Handshakes) -> None:
        """Accept the connections of other nodes, which are clients of a broker."""
        listener = PeerListener(node, admission, self._key, self._context, handshakes)
        sockets, self._sockets = self._sockets, []
        listener.listen(sockets)

    def close(self) -> None:
        """Close the sockets, unless the broker has them."""
        for bound in self._sockets:
            bound.close()


def _server_context(settings: Settings) -> ssl.SSLContext | None:
    if settings.cluster_tls_cert is None:
        return None
    return make_context(
        TlsOptions(
            settings.cluster_tls_cert,
            settings.cluster_tls_key,
            None,
            "required",
            settings.cluster_tls_ca,
            None,
            "1.2",
            None,
        )
    )


def client_tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the context for connections to the leader; any certificate of the CA is a node's."""
    if settings.cluster_tls_cert is None:
        return None
    try:
        context = client_context(settings.cluster_tls_ca)
        context.check_hostname = False
        with unmarked_pair(settings.cluster_tls_cert, settings.cluster_tls_key) as (first, key):
            context.load_cert_chain(first, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cluster_tls_cert and cluster_tls_ca: {error}") from None
    server = _server_context(settings)
    if server is not None:
        _check_own_certificate(settings, context, server)
    return context


def _check_own_certificate(
    settings: Settings, client_context: ssl.SSLContext, server_context: ssl.SSLContext
) -> None:
    """Raise ConfigError if the certificate of this node would not be accepted by its own CA.

    The node connects to itself, in memory: this shows what another node would find.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    finished_ends = 0
    for _ in range(_FLIGHTS):
        finished_ends = 0
        for end in (client, server):
            try:
                end.do_handshake()
                finished_ends += 1
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                why = getattr(error, "verify_message", "") or error.reason or "TLS error"
                raise ConfigError(
                    f"cluster_tls_cert = {settings.cluster_tls_cert}: other nodes would not accept "
                    f"it, it is verified against cluster_tls_ca = {settings.cluster_tls_ca}: {why}"
                ) from None
        if finished_ends == len((client, server)):
            return


def cluster_authorities(settings: Settings) -> str:
    """Return short digests of the certificates of ``cluster_tls_ca``; empty without it."""
    context = client_tls_context(settings)
    certificates = context.get_ca_certs(binary_form=True) if context is not None else []
    return ",".join(sorted(hashlib.sha256(data).hexdigest()[:_DIGEST] for data in certificates))
