"""The settings of authentication and authorization."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from cli.settings.setting_types import ExpandedPath, Seconds, several

if TYPE_CHECKING:
    from cli.settings.settings import Settings


_SUBJECT = re.compile(r"foldmq(\.[A-Za-z0-9_-]+)+")

Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(several)]


class AccessFields(BaseModel):
    """Users, tokens, the external check, permissions."""

    password_file: ExpandedPath | None = Field(
        default=None, description="Users who may connect, as written by 'foldmq passwd'."
    )
    jwt_keys: ExpandedPath | None = Field(
        default=None,
        description="Keys that JSON Web Tokens, given as passwords, are signed with: a JWKS file, "
        "or public keys (PEM).",
    )
    jwt_issuer: str | None = Field(default=None, description="Issuer that the tokens must have.")
    jwt_audience: Names = Field(
        default=(), description="Audience that the tokens must have; may be given several times."
    )
    jwt_user_claim: str = Field(
        default="sub", min_length=1, description="Claim of a token that is the user."
    )
    jwt_groups_claim: str = Field(
        default="groups", min_length=1, description="Claim of a token with the user's groups."
    )
    auth_subject: str | None = Field(
        default=None,
        description="NATS subject on which somebody answers who may connect, asked at "
        "--nats-listen, --bridge-url or --nats-url.",
    )
    auth_nats_user: str | None = Field(
        default=None,
        description="User of --nats-users (name or public nkey) who answers there; no other one "
        "gets or answers these questions.",
    )
    auth_timeout: Seconds = Field(
        default=2.0, gt=0, le=60, description="Time in which they must answer; then it is no."
    )
    auth_cache: Seconds = Field(
        default=60.0, ge=0, description="Time for which an answer holds that does not say; 0: none."
    )
    permissions: ExpandedPath | None = Field(
        default=None,
        description="TOML file with the topics that clients may publish and subscribe to. Default: "
        "all clients to everything.",
    )
    denied_publish: Literal["drop", "close"] = Field(
        default="drop",
        description="What a publication without permission gets: it is acknowledged and dropped, "
        "or the connection is closed.",
    )
    pseudonyms: bool = Field(
        default=False,
        description="Keep a keyed hash of each client identifier instead of itself, in the log and "
        "wherever else it would be seen.",
    )

    @property
    def vouched(self) -> bool:
        """Return whether anything but certificates authenticates clients."""
        return any((self.password_file, self.jwt_keys, self.auth_subject))


def contradictions(settings: "Settings") -> Iterator[str]:
    """Yield what cannot be together among these settings, and what to do."""
    for name in ("jwt_issuer", "jwt_audience"):
        if getattr(settings, name) and settings.jwt_keys is None:
            yield f"{name} needs jwt_keys as well"
    if settings.auth_subject is not None and not any(
        (settings.nats_listen, settings.bridge_url, settings.nats_url)
    ):
        yield (
            "auth_subject needs nats_listen, bridge_url or nats_url: whoever answers must be able "
            "to connect there"
        )
    if settings.auth_subject is not None and settings.nats_listen is not None:
        if settings.nats_users is None or settings.auth_nats_user is None:
            yield (
                "auth_subject with nats_listen needs nats_users and auth_nats_user, the one who "
                "answers: any other NATS client could let itself in"
            )
    elif settings.auth_nats_user is not None:
        yield "auth_nats_user needs auth_subject and nats_listen as well"
    if settings.auth_subject is not None and not _SUBJECT.fullmatch(settings.auth_subject):
        yield (
            "auth_subject must begin with foldmq. and be made of names and dots, as foldmq.auth: "
            "the bridge would show other subjects, with the passwords on them, to MQTT clients"
        )
    if settings.bridge_user_map and not settings.vouched and settings.tls_identity == "none":
        yield (
            "bridge_user_map needs password_file, jwt_keys or auth_subject: without them every "
            "client can say that it is that user"
        )
