"""Builds authentication and authorization from the settings."""

import asyncio
import dataclasses
import hashlib
import hmac
import time
from pathlib import Path

import structlog

from actors.access.backend_selection import BackendSelection
from actors.access.backends import make_backends
from actors.access.callout import Callout, CalloutMethod, CalloutOptions
from actors.access.enhanced import make_methods
from actors.access.login_backoff import BackoffOptions, LoginBackoff
from actors.access.passwords import PasswordFile
from actors.connection.pseudonyms import KEY_SIZE, pseudonym
from actors.kernel.clock import SystemClock
from cli.logs.key_files import cluster_key, read_cluster_key, store_key
from cli.settings.access_files import make_tokens
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from eventstore.datadir import DataDir
from eventstore.errors import EventStoreError
from eventstore.nats.connection import PRIVATE_PREFIX, ConnectionOptions
from eventstore.nats.request_client import RequestClient

log = structlog.get_logger("foldmq")

PSEUDONYM_KEY = "pseudonym.key"
"""File in the data directory."""
SCRAM_SECRET = "scram.key"  # noqa: S105 - the name of a file
"""File with the secret from which the salts of users without SCRAM keys are derived."""
KNOWN_LOGINS = "known.logins"
"""File with keyed hashes of the users who logged in, and of their addresses, and their key.

It is sealed if the data directory is encrypted: a thief could try names.
"""
_SECRET_SIZE = 32
_STORE_SECONDS = 15.0
"""Seconds between two writes of the users who logged in."""
_CACHE_DENIED = 5.0
"""Seconds to cache a refusal of the auth callout, so that a newly added client can soon log in."""


class Access:
    """Builds both from the settings, at the start and at each reload; keeps the login backoff."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        nats: ConnectionOptions | None,
        scram_secret: bytes = b"",
    ) -> None:
        """``nats`` is the NATS server of the auth callout."""
        self._node = node
        self._nats = nats
        self._scram_secret = scram_secret
        self._backoff = LoginBackoff(backoff_options(settings), time.monotonic)
        self._chain: BackendSelection | None = None
        key = store_key(settings.encryption_key_file)
        self._sealer = key.sealer(b"logins") if key is not None else None

    def authenticator(self, settings: Settings) -> BackendSelection:
        """Return the selection of authentication backends.

        Raises PasswordFileError and TokenKeyError for invalid files.
        """
        users = None
        if settings.password_file is not None:
            users = PasswordFile.load(settings.password_file, decoy_secret=self._scram_secret)
        callout, external = self._callout(settings), None
        if callout is not None and settings.auth_method is not None:
            external = settings.auth_method, CalloutMethod(callout)
        backends = make_backends(
            passwords=users,
            tokens=make_tokens(settings),
            callout=callout,
            claimed_names=_claimed(settings),
            ask_certified=settings.auth_subject is not None,
        )
        made = BackendSelection(
            backends,
            methods=make_methods(users, external),
            backoff=self._backoff,
            counts=self._chain.counts if self._chain is not None else None,
            hides_users=bool(settings.personal_users),
        )
        self._chain = made
        return made

    def reloaded(self, settings: Settings) -> None:
        """Apply new settings to the login backoff."""
        self._backoff.options = backoff_options(settings)

    def load_known_users(self, datadir: DataDir) -> None:
        """Read the users who logged in before this start; without the file, none are known."""
        file = datadir.path / KNOWN_LOGINS
        try:
            text = file.read_text("ascii")
            if self._sealer is not None:
                text = self._sealer.open(bytes.fromhex(text), KNOWN_LOGINS).decode("ascii")
            self._backoff.load_known_users(text)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning(
                "file ignored: no login takes precedence yet", file=str(file), why=str(error)
            )

    def store_known_users(self, datadir: DataDir) -> None:
        """Write the users who logged in, if there are new ones."""
        text = self._backoff.known_users()
        if text is None:
            return
        if self._sealer is not None:
            text = self._sealer.seal(text.encode("ascii"), KNOWN_LOGINS).hex() + "\n"
        try:
            datadir.write_private(datadir.path / KNOWN_LOGINS, text)
        except EventStoreError as error:
            log.warning("known users not stored", why=str(error))

    async def keep_known_users(self, datadir: DataDir) -> None:
        """Write new users every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(_STORE_SECONDS)
            await asyncio.to_thread(self.store_known_users, datadir)

    def _callout(self, settings: Settings) -> Callout | None:
        if settings.auth_subject is None or self._nats is None:
            return None
        options = CalloutOptions(
            timeout=settings.auth_timeout,
            cache_allowed=settings.auth_cache,
            cache_denied=min(settings.auth_cache, _CACHE_DENIED),
            node=self._node,
        )
        # A client that sees the reply subject could answer first: use a private inbox.
        named = dataclasses.replace(
            self._nats, name=f"foldmq-auth-{self._node}", inbox=f"{PRIVATE_PREFIX}inbox"
        )
        return Callout(options, RequestClient(named, settings.auth_subject), SystemClock().time_ms)


def _claimed(settings: Settings) -> bool:
    """Return whether identities are unverified: no permission or bridge depends on them."""
    certified = any(own.tls_identity != "none" for own in settings.listeners())
    return settings.permissions is None and not settings.bridge_user_map and not certified


def backoff_options(settings: Settings) -> BackoffOptions:
    """Return the options of the login backoff."""
    return BackoffOptions(
        failures=settings.login_failures,
        address_failures=settings.login_failures_per_address,
        window=settings.login_backoff,
        duration=settings.login_backoff,
    )


def users_digest(settings: Settings, secret: bytes) -> str:
    """Return 16 hexadecimal digits that identify the password file and the keys for tokens.

    Empty if there are neither. Nothing can be guessed from it without the secret.
    """
    files = [path for path in (settings.password_file, settings.jwt_keys) if path is not None]
    if not files:
        return ""
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for path in files:
        data = path.read_bytes()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def pseudonym_key(settings: Settings, datadir: DataDir) -> bytes:
    """Return the key of pseudonyms, created at the first call; empty without pseudonyms.

    All nodes of a cluster have the same one, derived from the cluster's key.
    """
    if settings.pseudonyms and settings.cluster is not None:
        return _derived_key(cluster_key(settings))
    return datadir.secret(PSEUDONYM_KEY, KEY_SIZE) if settings.pseudonyms else b""


def _derived_key(key: bytes) -> bytes:
    """Return the key of pseudonyms of the cluster with this key."""
    return hmac.new(key, b"foldmq pseudonyms", hashlib.sha256).digest()[:KEY_SIZE]


def scram_secret(datadir: DataDir) -> bytes:
    """Return the secret of SCRAM's decoys, created at the first call."""
    return datadir.secret(SCRAM_SECRET, _SECRET_SIZE)


def pseudonym_of(client_id: str, path: Path, cluster_key_file: Path | None = None) -> str:
    """Return the pseudonym of a client identifier in the log of a data directory, or of a cluster.

    Raises ConfigError if there are no pseudonyms, or for an invalid key of the cluster,
    DataDirError for a damaged key.
    """
    if cluster_key_file is not None:
        return pseudonym(client_id, _derived_key(read_cluster_key(cluster_key_file)))
    datadir = DataDir(path)
    if not (datadir.path / PSEUDONYM_KEY).exists():
        raise ConfigError(
            f"{datadir.path} has no {PSEUDONYM_KEY}: its broker does not use pseudonyms; for a "
            "cluster, give --cluster-key-file"
        )
    return pseudonym(client_id, datadir.secret(PSEUDONYM_KEY, KEY_SIZE))
