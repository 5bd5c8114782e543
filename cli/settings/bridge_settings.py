"""The settings of NATS clients and of the bridge, and their contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from cli.settings.setting_types import (
    Elements,
    ExpandedPath,
    OptionalAddress,
    SettingsGroup,
    Size,
    also_needs,
    both_set,
    several,
)
from eventstore.display import escaped
from eventstore.nats.server_urls import url_problem

if TYPE_CHECKING:
    from cli.settings.settings import Settings

Texts = tuple[str, ...]


# The validators load what they need: the help page of ``serve`` has the fields, but no values.


def _filters(filters: Texts) -> Texts:
    from protocol.nats.mapping import Mapping

    Mapping(filters=filters)
    return filters


def _rules(rules: Texts) -> Texts:
    from protocol.nats.mapping import Mapping

    Mapping.parse(rules)
    return rules


def _user_rules(rules: Texts) -> Texts:
    from protocol.nats.mapping import parse_users

    parse_users(rules)
    return rules


def _header_names(names: Texts) -> Texts:
    from protocol.nats.property_headers import allowed_names

    allowed_names(names)
    return names


# The errors of protocol.nats.mapping are ValueErrors too.
TopicFilters = Annotated[
    Texts, Elements(several, noun="topic filter"), Field(min_length=1), AfterValidator(_filters)
]
MoreFilters = Annotated[Texts, Elements(several, noun="topic filter"), AfterValidator(_filters)]
SubjectRules = Annotated[Texts, Elements(several, noun="TOPIC=SUBJECT"), AfterValidator(_rules)]
UserRules = Annotated[Texts, Elements(several, noun="USER=SUBJECT"), AfterValidator(_user_rules)]
HeaderNames = Annotated[Texts, Elements(several, noun="header name"), AfterValidator(_header_names)]

# Settings that authenticate MQTT clients.
_AUTHENTICATING = ("password_file", "jwt_keys", "auth_subject")
# Settings of nats_listen only.
_FOR_CLIENTS = (
    "nats_users",
    "nats_tls_cert",
    "nats_tls_key",
    "nats_tls_client_ca",
    "nats_anonymous",
)

_GIB = 2**30

# The credentials of the bridge at the server of bridge_url.
_IDENTITY = (
    "bridge_user",
    "bridge_password",
    "bridge_password_file",
    "bridge_creds",
    "bridge_nkey",
)


class BridgeFields(SettingsGroup):
    """Settings of the NATS server for clients and of the bridge."""

    nats_listen: OptionalAddress = None
    """Address on which a second embedded NATS server accepts NATS clients, host:port, or "off".
    Default: off."""
    nats_users: ExpandedPath | None = None
    """File with the users that may connect to --nats-listen: lines NAME:PASSWORD, NAME:BCRYPT-HASH
    or a public nkey, or a users block of the nats-server configuration with permissions. Default:
    every client, if --nats-listen is on loopback and MQTT clients need no authentication."""
    nats_anonymous: bool = False
    """Allow every client that reaches --nats-listen to read and write all topics, even from other
    machines and if MQTT clients need authentication."""
    nats_tls_cert: ExpandedPath | None = None
    """Certificate of --nats-listen, with its chain, in PEM; NATS clients must then use TLS."""
    nats_tls_key: ExpandedPath | None = None
    """Private key of --nats-tls-cert, unencrypted."""
    nats_tls_client_ca: ExpandedPath | None = None
    """CA certificates that clients of --nats-listen are verified against; clients must then present
    a certificate."""
    nats_store: Size = Field(_GIB, ge=0)
    """Maximum disk space of JetStream streams created by clients of --nats-listen. 0 disables
    JetStream for them."""
    bridge: bool = True
    """Exchange messages with the NATS clients of --nats-listen, --bridge-url or --nats-url."""
    bridge_filters: TopicFilters = ("#",)
    """Topic filter of the messages exchanged with NATS, in both directions. May be repeated."""
    bridge_always: MoreFilters = ()
    """Topic filter of messages to receive from NATS even if no MQTT client subscribes to them, for
    retained messages. May be repeated."""
    bridge_map: SubjectRules = ()
    """Rule TOPIC=SUBJECT: in the subject of every topic at or below TOPIC, SUBJECT replaces TOPIC.
    An empty TOPIC stands for all other topics. May be repeated."""
    bridge_user_map: UserRules = ()
    """Rule USER=SUBJECT: messages of this user's MQTT clients are exchanged only on subjects that
    begin with SUBJECT. May be repeated."""
    bridge_qos: int = Field(0, ge=0, le=2)
    """QoS of messages from NATS without a QoS header. QoS 0 is recorded only with --record-qos0."""
    bridge_ttl: bool = False
    """Tell JetStream when messages expire (Nats-TTL). Streams without allow_msg_ttl refuse such
    messages."""
    bridge_client_headers: HeaderNames = ()
    """Header, such as Nats-Rollup, that MQTT clients may set with a user property although NATS
    servers act on it. May be repeated."""
    bridge_user: str | None = None
    """User name for --bridge-url."""
    bridge_password: str | None = Field(None, repr=False)
    """Password for --bridge-url; --bridge-password-file is safer."""
    bridge_password_file: ExpandedPath | None = None
    """File whose first line is the password for --bridge-url."""
    bridge_creds: ExpandedPath | None = None
    """Credentials file (JWT and seed) for --bridge-url."""
    bridge_nkey: ExpandedPath | None = None
    """File with an nkey seed for --bridge-url."""


def bridge_contradictions(settings: Settings) -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    yield from also_needs(settings, "bridge_url", *_IDENTITY)
    yield from both_set(settings, "bridge_password", "bridge_password_file")
    yield from _bad_addresses(settings)
    if settings.nats_listen is None:
        yield from also_needs(settings, "nats_listen", *_FOR_CLIENTS)
        return
    if settings.nats_url is not None:
        yield (
            "nats_listen is for the embedded NATS server: with nats_url, NATS clients connect "
            "to that server"
        )
    if settings.bridge_url is not None:
        yield (
            "nats_listen and bridge_url cannot be combined: the bridge connects to one NATS server"
        )
    yield from also_needs(settings, "nats_tls_key", "nats_tls_cert")
    yield from also_needs(settings, "nats_tls_cert", "nats_tls_key", "nats_tls_client_ca")
    yield from both_set(settings, "nats_users", "nats_anonymous")
    if settings.nats_users is None and not settings.nats_anonymous:
        yield from _open_to_all(settings)


def _open_to_all(settings: Settings) -> Iterator[str]:
    """Yield why anonymous NATS clients must be allowed explicitly."""
    remedy = (
        "set nats_users (a file with lines NAME:PASSWORD), or nats_anonymous = true to allow "
        "every client"
    )
    place = settings.nats_listen
    if place is not None and not place.loopback:
        yield f"nats_listen = {place} can be reached from other machines: {remedy}"
    vouching = _authenticating(settings)
    if vouching is not None:
        yield (
            f"nats_listen = {place} lets any client read and write all topics, although "
            f"{vouching} restricts who may connect by MQTT: {remedy}"
        )


def _authenticating(settings: Settings) -> str | None:
    """Return the setting that authenticates MQTT clients, or None."""
    for name in _AUTHENTICATING:
        if getattr(settings, name) is not None:
            return name
    for own in settings.listeners():
        if own.listen[0].endpoint.encrypted:
            if own.tls_identity != "none":
                return "tls_identity"
            if own.tls_client_certs == "required":
                return "tls_client_certs"
    return None


def _bad_addresses(settings: Settings) -> Iterator[str]:
    """Yield the errors in the URL that the bridge connects to."""
    name, advice = "bridge_url", ""
    if settings.bridge_url is None:
        name, advice = "nats_url", ", for the bridge; --no-bridge disables it"
    urls: str | None = getattr(settings, name)
    if not settings.bridge or urls is None or (name == "nats_url" and url_problem(urls)):
        return
    for url in filter(None, map(str.strip, urls.split(","))):
        wrong = _wrong(url)
        if wrong:
            # A password may contain a comma, so any part may belong to one.
            shown = f" = {escaped(url)}" if "@" not in urls else ""
            yield f"{name}{shown}: {wrong}: must be nats://HOST:PORT or tls://HOST:PORT{advice}"


def _wrong(url: str) -> str:
    """Return the error in the URL of a NATS server; empty if there is none."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        port = parts.port
    except ValueError:
        return "not a valid URL"
    if parts.scheme in ("ws", "wss"):
        return "the bridge does not support WebSocket"
    if parts.scheme not in ("nats", "tls"):
        return "not the URL of a NATS server"
    return "" if parts.hostname and port != 0 else "host or port is missing"
