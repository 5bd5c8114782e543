"""The settings of authentication and authorization."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from cli.settings.setting_types import (
    Elements,
    ExpandedPath,
    Seconds,
    SettingsGroup,
    also_needs,
    several,
)

if TYPE_CHECKING:
    from cli.settings.settings import Settings


_SUBJECT = re.compile(r"foldmq(\.[A-Za-z0-9_-]+)+")


class AccessFields(SettingsGroup):
    """Settings of users, tokens, the auth callout and permissions."""

    password_file: ExpandedPath | None = None
    """Password file with the users that may connect, written by 'foldmq passwd'."""
    jwt_keys: ExpandedPath | None = None
    """Keys that verify JSON Web Tokens given as passwords: a JWKS file, or public keys in PEM."""
    jwt_issuer: str | None = None
    """Required issuer of the tokens."""
    jwt_audience: Annotated[tuple[str, ...], Elements(several, noun="name")] = ()
    """Accepted audience of the tokens. May be repeated."""
    jwt_user_claim: str = Field("sub", min_length=1)
    """Token claim that holds the user name."""
    jwt_groups_claim: str = Field("groups", min_length=1)
    """Token claim that holds the user's groups."""
    auth_subject: str | None = None
    """NATS subject of the auth callout, a service that decides which clients may connect; requested
    at --nats-listen, --bridge-url or --nats-url."""
    auth_nats_user: str | None = None
    """User of --nats-users (name or public nkey) that runs the auth callout; no other user can
    receive or answer its requests."""
    auth_timeout: Seconds = Field(2.0, gt=0, le=60)
    """How long to wait for the auth callout before refusing the login."""
    auth_cache: Seconds = Field(60.0, ge=0)
    """How long to cache an answer of the auth callout that specifies no lifetime. 0 disables
    caching."""
    auth_method: str | None = Field(None, min_length=1, max_length=256)
    """Authentication Method of MQTT 5 that the auth callout decides about, step by step. Default:
    none."""
    permissions: ExpandedPath | None = None
    """TOML file with the topics that clients may publish and subscribe to. Default: every client
    may use every topic."""
    denied_publish: Literal["drop", "close"] = "drop"
    """What to do with a publication that is not permitted: acknowledge and drop it, or close the
    connection."""
    clear_denied_retained: bool = False
    """When the permissions are reloaded, remove the retained messages whose publishers may no
    longer publish them."""
    pseudonyms: bool = False
    """Store a keyed hash instead of each client identifier, in the log and everywhere else."""

    @property
    def authenticates(self) -> bool:
        """Return whether anything besides certificates authenticates clients."""
        return any((self.password_file, self.jwt_keys, self.auth_subject))


def access_contradictions(settings: "Settings") -> Iterator[str]:
    """Yield one message for each contradiction among these settings, with the remedy."""
    tokens = [
        name for name in ("jwt_issuer", "jwt_audience", "web_api_jwt") if getattr(settings, name)
    ]
    yield from also_needs(settings, "jwt_keys", *tokens)
    yield from also_needs(settings, "web_api_jwt", "web_api_jwt_roles")
    if settings.auth_subject is not None and not any(
        (settings.nats_listen, settings.bridge_url, settings.nats_url)
    ):
        yield (
            "auth_subject also needs nats_listen, bridge_url or nats_url, where the auth "
            "callout connects"
        )
    if settings.auth_subject is not None and settings.nats_listen is not None:
        if settings.nats_users is None or settings.auth_nats_user is None:
            yield (
                "auth_subject with nats_listen also needs nats_users and auth_nats_user, the "
                "user of the auth callout: otherwise any NATS client could authorize itself"
            )
    elif settings.auth_nats_user is not None:
        yield "auth_nats_user also needs auth_subject and nats_listen"
    if settings.auth_subject is not None and not _SUBJECT.fullmatch(settings.auth_subject):
        yield (
            'auth_subject must begin with "foldmq." and consist of names separated by dots, '
            "such as foldmq.auth: the bridge would forward any other subject, with the "
            "passwords on it, to MQTT clients"
        )
    if settings.auth_method is not None and settings.auth_subject is None:
        yield "auth_method also needs auth_subject, the subject of the auth callout"
    if settings.auth_method == "SCRAM-SHA-256" and settings.password_file is not None:
        yield (
            f"auth_method = {settings.auth_method} cannot be combined with password_file, whose "
            "users log in by that method: choose another name"
        )
    if settings.bridge_user_map and not settings.authenticates and settings.tls_identity == "none":
        yield (
            "bridge_user_map also needs password_file, jwt_keys or auth_subject: without them a "
            "client can claim to be any user"
        )
