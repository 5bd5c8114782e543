"""What the files about users and their permissions contain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.access import rules_file
from actors.access.rules import Permissions
from actors.kernel.clock import SystemClock

if TYPE_CHECKING:
    from actors.access.jwt_tokens import Tokens
    from cli.settings.settings import Settings


def make_tokens(settings: Settings) -> Tokens | None:
    """Return what verifies JSON Web Tokens; raises TokenKeyError. None: nothing does."""
    if settings.jwt_keys is None:
        return None
    # They load the cryptography package: a tenth of the memory of an idle broker.
    from actors.access.jwt_keys import load_keys
    from actors.access.jwt_tokens import TokenOptions, Tokens

    options = TokenOptions(
        keys=load_keys(settings.jwt_keys),
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        user_claim=settings.jwt_user_claim,
        groups_claim=settings.jwt_groups_claim,
    )
    return Tokens(options, SystemClock().time_ms)


def make_permissions(settings: Settings) -> Permissions:
    """Return the rules of the permission file; raises PermissionFileError."""
    if settings.permissions is None:
        return Permissions()
    return rules_file.load(settings.permissions)
