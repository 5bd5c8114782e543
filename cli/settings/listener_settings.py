"""The settings of listeners: transports, TLS, and settings of a single listener."""

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from cli.common.endpoints import Endpoint, endpoint
from cli.common.units import Address
from cli.settings.setting_types import Elements, ExpandedPath, SettingsGroup, several
from eventstore.display import escaped

if TYPE_CHECKING:
    from cli.settings.settings import Settings

_MODE = re.compile(r"0?[0-7]{3}")

_MAPPED = 96
"""Bits before the IPv4 address in an IPv4-mapped one."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Listen(NamedTuple):
    """One listener as configured: its endpoint and its own settings."""

    endpoint: Endpoint
    own: tuple[tuple[str, object], ...] = ()
    """Settings of this listener only, as written by the operator."""

    def __str__(self) -> str:
        """Return the endpoint."""
        return str(self.endpoint)

    @property
    def loopback(self) -> bool:
        """Return whether only this machine can reach it."""
        return self.endpoint.loopback


def listen(value: object) -> Listen:
    """Read an endpoint, or a table with one and settings; raises ValueError."""
    if isinstance(value, Listen):
        return value
    if not isinstance(value, Mapping):
        return Listen(endpoint(value))
    table = dict(value)
    where = table.pop("address", None)
    if where is None:
        raise ValueError(
            'a listener given as a table needs an address, such as address = "tls://0.0.0.0:8883"'
        )
    for name in table:
        if name not in PER_LISTENER:
            raise ValueError(f'"{escaped(name)}" cannot be set for a single listener')
    return Listen(endpoint(where), tuple((name, _frozen(own)) for name, own in table.items()))


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _network(value: object) -> Network:
    if isinstance(value, ipaddress.IPv4Network | ipaddress.IPv6Network):
        return value
    try:
        network = ipaddress.ip_network(str(value).strip())
    except ValueError:
        raise ValueError("must be addresses or networks such as 10.0.0.0/8") from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= _MAPPED:
        return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED))
    return network


def _mode(value: str) -> str:
    if not _MODE.fullmatch(value):
        raise ValueError('must be an octal file mode such as "660"')
    return value


def _path(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text.startswith("/") or not text.isprintable() or any(sign in text for sign in "?# "):
        raise ValueError('must be paths that begin with "/", such as /mqtt')
    return text


def _origin(value: object) -> str:
    text = str(value).strip()
    if text != "null" and ("://" not in text or text.endswith("/")):
        raise ValueError("must be origins such as https://app.example.com")
    return text


Listens = Annotated[
    tuple[Annotated[Listen, BeforeValidator(listen)], ...], Elements(several, noun="host:port")
]
WebSocketPaths = Annotated[
    tuple[Annotated[str, BeforeValidator(_path)], ...], Elements(several, noun="path")
]
Networks = Annotated[
    tuple[Annotated[Network, BeforeValidator(_network)], ...], Elements(several, noun="network")
]
Origins = Annotated[
    tuple[Annotated[str, BeforeValidator(_origin)], ...], Elements(several, noun="origin")
]


class ListenerFields(SettingsGroup):
    """Settings of the listeners."""

    listen: Listens = Field((Listen(Endpoint("tcp", Address("127.0.0.1", 1883))),), min_length=1)
    """Address on which to accept MQTT clients: host:port, tls://host:port, ws://host:port,
    wss://host:port or unix:/path. May be repeated."""
    allow_anonymous: bool | None = None
    """Allow clients to connect without a user name. Default: only if no authentication is
    configured, on listeners that cannot be reached from other machines or that require a client
    certificate."""
    tls_cert: ExpandedPath | None = None
    """Certificate of TLS listeners, with its chain, in PEM."""
    tls_key: ExpandedPath | None = None
    """Private key of --tls-cert."""
    tls_key_password_file: ExpandedPath | None = None
    """File whose first line is the password of --tls-key."""
    tls_min_version: Literal["1.2", "1.3"] = "1.2"
    """Lowest TLS version to accept."""
    tls_ciphers: str | None = None
    """Cipher suites of TLS 1.2, in OpenSSL's notation. Default: Python's selection."""
    tls_client_ca: ExpandedPath | None = None
    """CA certificates that client certificates are verified against, in PEM."""
    tls_client_certs: Literal["none", "optional", "required"] = "none"
    """Whether clients must present a certificate signed by --tls-client-ca."""
    tls_crl: ExpandedPath | None = None
    """Certificate revocation lists, in PEM."""
    tls_identity: Literal["none", "cn", "dns", "email", "uri", "dn"] = "none"
    """Part of the client certificate to use as the user name, with no password needed: the common
    name (cn), a subject alternative name of that type, or the distinguished name (dn)."""
    ws_path: WebSocketPaths = Field(("/", "/mqtt", "/ws"), min_length=1)
    """URL path at which WebSocket listeners serve MQTT. May be repeated."""
    ws_origins: Origins = ()
    """Origin of web pages that may connect by WebSocket. May be repeated. Default: all."""
    unix_mode: Annotated[str, AfterValidator(_mode)] = "660"
    """File mode of Unix sockets, in octal."""
    proxy_protocol: bool = False
    """Require a PROXY protocol header (v1 or v2), as sent by load balancers, at the start of each
    connection, and take the client's address from it."""
    proxy_from: Networks = ()
    """Network of a trusted proxy. May be repeated. With --proxy-protocol, connections from
    elsewhere are refused; default: all are trusted. For WebSocket clients behind it, the headers
    X-Forwarded-For and Forwarded give the client's address; default: they are ignored."""

    @property
    def certified(self) -> bool:
        """Return whether every client of every listener must present a valid certificate."""
        required = self.tls_client_certs == "required"
        return required and all(listener.endpoint.encrypted for listener in self.listen)

    @property
    def reachable(self) -> bool:
        """Return whether clients on other machines, or behind a proxy, can connect."""
        return self.proxy_protocol or not all(listener.loopback for listener in self.listen)


PER_LISTENER = frozenset(
    {
        *ListenerFields.model_fields,
        "connect_timeout",
        "connection_rate",
        "max_connections",
        "max_packet_size",
        "publish_bytes",
        "publish_rate",
    }
) - {"listen"}
"""Settings that can be set for a single listener."""


def ipv4_hosts(listeners: Iterable[Listen], port: int) -> bool:
    """Return whether a listener has an IPv4 address, or a name, with this port."""
    places = [listener.endpoint.place for listener in listeners]
    return any(place and place.port == port and ":" not in place.host for place in places)


def listed_twice(listeners: Iterable[Listen]) -> Listen | None:
    """Return the first listener whose address or file an earlier one already has, or None."""
    seen = set()
    for listener in listeners:
        place = listener.endpoint.place
        if place is None:
            key = os.path.abspath(listener.endpoint.path)  # noqa: PTH100 -- resolves no links
        elif place.port:
            key = f"{place.host.lower()} {place.port}"
        else:  # any free port
            continue
        if key in seen:
            return listener
        seen.add(key)
    return None


def problem(own: "Settings") -> str | None:
    """Return the error in the settings of one listener and its remedy, or None."""
    place = own.listen[0]
    if place.endpoint.encrypted:
        wrong = _tls_problem(own, place)
        if wrong is not None:
            return wrong
        if own.tls_identity != "none":
            return None
    if own.authenticates or own.anonymous:
        return None
    users = "password_file (create one with: foldmq passwd FILE USER)"
    if own.allow_anonymous is False:
        certificates = ", or tls_identity" if own.certified else ""
        return (
            f"listen = {place}: no client can connect with allow_anonymous = false: set {users}, "
            f"jwt_keys or auth_subject{certificates}"
        )
    if own.reachable:
        return (
            f"listen = {place} can be reached from other machines: set {users}, or "
            "allow_anonymous = true to admit all clients"
        )
    return (
        f"listen = {place}: no client can connect, because a listener without TLS gets no client "
        f"certificates: set {users}, or allow_anonymous = true for this listener"
    )


def _tls_problem(own: "Settings", place: Listen) -> str | None:
    """Return the error in the TLS settings of a listener and its remedy, or None."""
    if own.tls_cert is None or own.tls_key is None:
        return (
            f"listen = {place}: TLS needs tls_cert and tls_key, the certificate and its private key"
        )
    if own.tls_client_certs != "none" and own.tls_client_ca is None:
        return (
            f"tls_client_certs = {own.tls_client_certs} also needs tls_client_ca, the CA "
            "certificates to verify clients against"
        )
    if own.tls_client_certs == "none":
        for name in ("tls_client_ca", "tls_crl"):
            if getattr(own, name) is not None:
                return f'{name} also needs tls_client_certs = "required" or "optional"'
        if own.tls_identity != "none":
            return 'tls_identity also needs tls_client_certs = "required" or "optional"'
    return None
