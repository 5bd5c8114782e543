"""The settings of listeners: what they speak, and how one of several gets settings of its own."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from cli.endpoints import Endpoint, endpoint
from cli.settingtypes import ExpandedPath, several
from cli.units import Address

_MODE = re.compile(r"0?[0-7]{3}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Listen(NamedTuple):
    """One listener as it is set: where, and what is different there."""

    endpoint: Endpoint
    own: tuple[tuple[str, object], ...] = ()
    """Settings that hold for this listener only, as they were written."""

    def __str__(self) -> str:
        """Give the endpoint."""
        return str(self.endpoint)

    @property
    def loopback(self) -> bool:
        """Tell whether only this machine can reach it."""
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
            raise ValueError(f'"{name}" cannot be set for one listener')
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
        description="Let clients connect without a user name. Default: only on listeners that "
        "nothing but this machine reaches, while nothing says who may connect.",
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


def tls_problem(settings: Any, where: Endpoint) -> str | None:
    """Say what a listener with TLS lacks, or what is set in vain; None: nothing."""
    if not where.encrypted:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        return f"listen = {where}: set tls_cert and tls_key, the certificate and its private key"
    if settings.tls_client_certs != "none" and settings.tls_client_ca is None:
        return (
            f"tls_client_certs = {settings.tls_client_certs}: set tls_client_ca, whose "
            "certificates are taken"
        )
    if settings.tls_client_certs == "none":
        for name in ("tls_client_ca", "tls_crl"):
            if getattr(settings, name) is not None:
                return f'{name} needs tls_client_certs = "required" or "optional" as well'
        if settings.tls_identity != "none":
            return 'tls_identity needs tls_client_certs = "required" or "optional" as well'
    return None
