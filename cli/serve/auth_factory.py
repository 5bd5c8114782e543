"""Authentication and authorization, built from the settings."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from actors.authn.backends import backends
from actors.authn.callout import Callout, CalloutOptions
from actors.authn.chain import AuthenticatorChain
from actors.authn.jwt_keys import load_keys
from actors.authn.jwt_tokens import TokenOptions, Tokens
from actors.authn.login_backoff import BackoffOptions, LoginBackoff
from actors.authn.passwords import PasswordFile
from actors.authz import rules_file
from actors.authz.rules import Permissions
from actors.connection.pseudonyms import KEY_SIZE, pseudonym
from actors.kernel import SystemClock
from cli.settings import ConfigError
from eventstore.datadir import DataDir
from eventstore.nats import PRIVATE_PREFIX, RequestClient

if TYPE_CHECKING:
    from pathlib import Path

    from cli.settings import Settings
    from eventstore.nats import ConnectionOptions


PSEUDONYM_KEY = "pseudonym.key"
"""File of the data directory."""
_CACHE_DENIED = 5.0
"""Seconds for which a refusal from outside is cached: a client that is added soon gets in."""


class Access:
    """Makes what the settings ask for, again at each reload; the jail outlives them all."""

    def __init__(self, settings: Settings, node: str, nats: ConnectionOptions | None) -> None:
        """``nats`` says how to connect to where logins are asked about."""
        self._node = node
        self._nats = nats
        self._backoff = LoginBackoff(backoff_options(settings), time.monotonic)
        self._chain: AuthenticatorChain | None = None

    def authenticator(self, settings: Settings) -> AuthenticatorChain:
        """Return the authentication chain.

        Raises PasswordFileError and TokenKeyError for files that are not right.
        """
        found = backends(
            passwords=PasswordFile.load(settings.password_file) if settings.password_file else None,
            tokens=_tokens(settings),
            callout=self._callout(settings),
            claimed_names=_claimed(settings),
            ask_certified=settings.auth_subject is not None,
        )
        made = AuthenticatorChain(
            found,
            backoff=self._backoff,
            counts=self._chain.counts if self._chain is not None else None,
        )
        self._chain = made
        return made

    def reloaded(self, settings: Settings) -> None:
        """Apply new settings to the login lockout."""
        self._backoff.options = backoff_options(settings)

    def _callout(self, settings: Settings) -> Callout | None:
        if settings.auth_subject is None or self._nats is None:
            return None
        options = CalloutOptions(
            timeout=settings.auth_timeout,
            cache_allowed=settings.auth_cache,
            cache_denied=min(settings.auth_cache, _CACHE_DENIED),
            node=self._node,
        )
        # A client that sees a reply subject could answer first: foldmq has an inbox of its own.
        named = dataclasses.replace(
            self._nats, name=f"foldmq-auth-{self._node}", inbox=f"{PRIVATE_PREFIX}inbox"
        )
        return Callout(options, RequestClient(named, settings.auth_subject), SystemClock().time_ms)


def _claimed(settings: Settings) -> bool:
    """Return whether clients claim their identity: no permission or bridge depends on it."""
    certified = any(own.tls_identity != "none" for own in settings.listeners())
    return settings.permissions is None and not settings.bridge_user_map and not certified


def backoff_options(settings: Settings) -> BackoffOptions:
    """Return what gets failed logins jailed."""
    return BackoffOptions(
        failures=settings.login_failures,
        address_failures=settings.login_failures_per_address,
        window=settings.login_jail,
        duration=settings.login_jail,
    )


def _tokens(settings: Settings) -> Tokens | None:
    if settings.jwt_keys is None:
        return None
    options = TokenOptions(
        keys=load_keys(settings.jwt_keys),
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        user_claim=settings.jwt_user_claim,
        groups_claim=settings.jwt_groups_claim,
    )
    return Tokens(options, SystemClock().time_ms)


def make_permissions(settings: Settings) -> Permissions:
    """Return what the permission file allows; raises PermissionFileError for a bad one."""
    if settings.permissions is None:
        return Permissions()
    return rules_file.load(settings.permissions)


def pseudonym_key(settings: Settings, datadir: DataDir) -> bytes:
    """Return the key of pseudonyms, made at the first call; empty without pseudonyms."""
    return datadir.secret(PSEUDONYM_KEY, KEY_SIZE) if settings.pseudonyms else b""


def pseudonym_of(client_id: str, path: Path) -> str:
    """Return what stands for a client id in the log of a data directory.

    Raises ConfigError when there are no pseudonyms there, DataDirError for a damaged key.
    """
    datadir = DataDir(path)
    if not (datadir.path / PSEUDONYM_KEY).exists():
        raise ConfigError(f"{datadir.path} has no {PSEUDONYM_KEY}: there are no pseudonyms there")
    return pseudonym(client_id, datadir.secret(PSEUDONYM_KEY, KEY_SIZE))
