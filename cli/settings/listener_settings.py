"""The settings of listeners: what they speak, and how one of several gets settings of its own."""

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from cli.common import Address
from cli.settings.endpoints import Endpoint, endpoint
from cli.settings.setting_types import ExpandedPath, several
from eventstore.display import escaped

if TYPE_CHECKING:
    from cli.settings.settings import Settings

_MODE = re.compile(r"0?[0-7]{3}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Listen(NamedTuple):
    """One listener as it is set: where, and what is different there."""

    endpoint: Endpoint
    own: tuple[tuple[str, object], ...] = ()
    """Settings that hold for this listener only, as they were written."""

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
        raise ValueError('a listener that is a table needs address = "tls://host:port" or another')
    for name in table:
        if name not in PER_LISTENER:
            raise ValueError(f'"{escaped(name)}" cannot be set for one listener')
    return Listen(endpoint(where), tuple((name, _frozen(own)) for name, own in table.items()))


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _network(value: object) -> Network:
    if isinstance(value, ipaddress.IPv4Network | ipaddress.IPv6Network):
        return value
    try:
        return ipaddress.ip_network(str(value).strip())
    except ValueError:
        raise ValueError("must be addresses or networks such as 10.0.0.0/8") from None


def _mode(value: str) -> str:
    if not _MODE.fullmatch(value):
        raise ValueError('must be a mode of files in octal such as "660"')
    return value


def _path(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or any(sign in value for sign in "?# "):
        raise ValueError('must be a path that begins with "/"')
    return value


def _origin(value: object) -> str:
    text = str(value).strip()
    if text != "null" and ("://" not in text or text.endswith("/")):
        raise ValueError("must be origins such as https://app.example.com")
    return text


Listens = Annotated[
    tuple[Annotated[Listen, BeforeValidator(listen)], ...], NoDecode, BeforeValidator(several)
]
Networks = Annotated[
    tuple[Annotated[Network, BeforeValidator(_network)], ...], NoDecode, BeforeValidator(several)
]
Origins = Annotated[
    tuple[Annotated[str, BeforeValidator(_origin)], ...], NoDecode, BeforeValidator(several)
]


class ListenerFields(BaseModel):
    """Where clients come in, and what is spoken there."""

    listen: Listens = Field(
        default=(Listen(Endpoint("tcp", Address("127.0.0.1", 1883))),),
        min_length=1,
        description="Where to accept MQTT clients: host:port, tls://host:port, ws://host:port, "
        "wss://host:port or unix:/path; may be given several times.",
    )
    allow_anonymous: bool | None = Field(
        default=None,
        description="Let clients connect without a user name. Default: while nothing says who may "
        "connect, on listeners that nothing but this machine reaches (no proxy either) or that "
        "require a certificate.",
    )
    tls_cert: ExpandedPath | None = Field(
        default=None, description="Certificate of TLS listeners, with the chain that it needs."
    )
    tls_key: ExpandedPath | None = Field(default=None, description="Private key of --tls-cert.")
    tls_key_password_file: ExpandedPath | None = Field(
        default=None, description="File whose first line --tls-key is encrypted with."
    )
    tls_min_version: Literal["1.2", "1.3"] = Field(
        default="1.2", description="Oldest version of TLS spoken."
    )
    tls_ciphers: str | None = Field(
        default=None,
        description="Cipher suites of TLS 1.2, as OpenSSL names them. Default: Python's choice.",
    )
    tls_client_ca: ExpandedPath | None = Field(
        default=None, description="Certificates of the authorities that vouch for clients."
    )
    tls_client_certs: Literal["none", "optional", "required"] = Field(
        default="none",
        description="Whether clients show a certificate that --tls-client-ca signed.",
    )
    tls_crl: ExpandedPath | None = Field(
        default=None, description="Certificates that were revoked (CRLs, PEM)."
    )
    tls_identity: Literal["none", "cn", "dns", "email", "uri", "dn"] = Field(
        default="none",
        description="What of a client's certificate is its user, who then needs no password: the "
        "common name, a subject alternative name of that type, or the whole name.",
    )
    ws_path: Annotated[str, AfterValidator(_path)] = Field(
        default="/mqtt", description="Path of WebSocket listeners."
    )
    ws_origins: Origins = Field(
        default=(),
        description="Origins of web pages that may connect by WebSocket. Default: all. May be "
        "given several times.",
    )
    unix_mode: Annotated[str, AfterValidator(_mode)] = Field(
        default="660", description="Mode of the file of Unix sockets, octal."
    )
    proxy_protocol: bool = Field(
        default=False,
        description="Every connection begins with a header of the PROXY protocol (v1 or v2), as "
        "load balancers send it, that says where the client is.",
    )
    proxy_from: Networks = Field(
        default=(),
        description="Networks from which --proxy-protocol is taken; others are turned away. "
        "Default: all. May be given several times.",
    )

    @property
    def certified(self) -> bool:
        """Return whether all clients, of all the listeners, have shown a good certificate."""
        required = self.tls_client_certs == "required"
        return required and all(one.endpoint.encrypted for one in self.listen)

    @property
    def reachable(self) -> bool:
        """Return whether clients may be on other machines; those of a proxy are."""
        return self.proxy_protocol or not all(one.loopback for one in self.listen)


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
"""Settings that a listener can have for itself."""


def listed_twice(listeners: Iterable[Listen]) -> Listen | None:
    """Return the first listener whose address or file one before it has; None: there is none."""
    seen = set()
    for one in listeners:
        place = one.endpoint.place
        if place is None:
            key = os.path.abspath(one.endpoint.path)  # noqa: PTH100 -- resolves no links
        elif place.port:
            key = f"{place.host.lower()} {place.port}"
        else:  # any free port
            continue
        if key in seen:
            return one
        seen.add(key)
    return None


def problem(own: "Settings") -> str | None:
    """Return what is wrong with the settings of one listener, and what to do; None: nothing."""
    place = own.listen[0]
    if place.endpoint.encrypted:
        wrong = _tls_problem(own, place)
        if wrong is not None:
            return wrong
        if own.tls_identity != "none":
            return None
    if own.vouched or own.anonymous:
        return None
    users = "password_file (make one with: foldmq passwd FILE USER)"
    if own.allow_anonymous is False:
        certificates = ", or tls_identity" if own.certified else ""
        return (
            f"listen = {place}: allow_anonymous = false lets no client connect: set {users}, "
            f"jwt_keys or auth_subject{certificates}"
        )
    if own.reachable:
        return (
            f"listen = {place} can be reached from other machines: set {users}, or "
            "allow_anonymous = true to admit all clients"
        )
    return (
        f"listen = {place} lets no client connect, for there are no certificates without TLS: set "
        f"{users}, or allow_anonymous = true there"
    )


def _tls_problem(own: "Settings", place: Listen) -> str | None:
    """Return what a listener with TLS lacks, or what is set in vain; None: nothing."""
    if own.tls_cert is None or own.tls_key is None:
        return f"listen = {place}: set tls_cert and tls_key, the certificate and its private key"
    if own.tls_client_certs != "none" and own.tls_client_ca is None:
        return (
            f"tls_client_certs = {own.tls_client_certs}: set tls_client_ca, whose "
            "certificates are taken"
        )
    if own.tls_client_certs == "none":
        for name in ("tls_client_ca", "tls_crl"):
            if getattr(own, name) is not None:
                return f'{name} needs tls_client_certs = "required" or "optional" as well'
        if own.tls_identity != "none":
            return 'tls_identity needs tls_client_certs = "required" or "optional" as well'
    return None
