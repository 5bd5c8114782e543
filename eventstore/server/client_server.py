"""The NATS server for NATS clients, which ``nats_listen`` enables.

It is separate from the server of the log, since NATS keeps JetStream for the account of existing
logs (the global one) only as long as there is no other account. So clients that connect here cannot
reach, read, fill or slow down the server of the log: the broker's bridge is the only path between
the two.

Clients have JetStream too, within ``store`` bytes of the disk. If they have to use TLS, the bridge
also does. Where they must present a certificate, it presents its own: that is generated at each
start, and the server trusts it beside the authorities of the clients' certificates.
"""

import asyncio
import datetime as dt
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from eventstore.datadir import DataDir
from eventstore.edited_files import has_mark
from eventstore.encryption import StoreKey
from eventstore.errors import BadNatsOptions, NatsUnavailable
from eventstore.nats.connection import PRIVATE_PREFIX, ConnectionOptions
from eventstore.server.process import NatsProcess, PortTaken, Sync
from eventstore.server.users_file import NatsUser

TRUSTED: Final = "trusted.pem"
"""Authorities of the clients' certificates, and the bridge's certificate."""
BRIDGE: Final = "bridge.pem"
"""The bridge's certificate and its private key."""
SERVER: Final = "server.pem"
SERVER_KEY: Final = "server-key.pem"
"""Copies of the server's certificate and key, if these begin with a byte order mark."""

_HANDSHAKE_SECONDS: Final = 5
_DAY: Final = dt.timedelta(days=1)
_LIFE: Final = 3650 * _DAY


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files for the server's TLS, all in PEM form."""

    certificate: Path
    """The server's certificate, followed by the chain to its authority."""
    key: Path
    client_ca: Path | None = None
    """Authorities of client certificates, which are then required; None: none are requested."""


class ClientServerTls:
    """The server's TLS, with its files in ``datadir``, and the TLS of the bridge's connection."""

    def __init__(self, tls: TlsFiles, datadir: DataDir) -> None:
        self._tls = tls
        self._datadir = datadir
        self._bridges: tuple[str, str] | None = None
        self._files = (tls.certificate, tls.key)

    def prepare(self) -> None:
        """Write the files that the server cannot use as they are.

        These are files with a byte order mark, and the authorities of the clients, if these must
        present a certificate. Raises BadNatsOptions when a file cannot be read.
        """
        self._files = (
            self._unmarked(self._tls.certificate, SERVER),
            self._unmarked(self._tls.key, SERVER_KEY),
        )
        if self._tls.client_ca is not None:
            trusted = _read(self._tls.client_ca)
            self._bridges = self._bridges or _self_signed()
            certificate, key = self._bridges
            self._datadir.write_private(self._datadir.path / TRUSTED, f"{trusted}\n{certificate}")
            self._datadir.write_private(self._datadir.path / BRIDGE, certificate + key)

    def configuration(self) -> dict[str, object]:
        """Return the TLS section of the server's configuration."""
        tls: dict[str, object] = {
            "cert_file": str(self._files[0].absolute()),
            "key_file": str(self._files[1].absolute()),
            "timeout": _HANDSHAKE_SECONDS,
        }
        if self._tls.client_ca is not None:
            tls |= {"ca_file": str(self._datadir.path / TRUSTED), "verify": True}
        return {"tls": tls}

    def _unmarked(self, file: Path, name: str) -> Path:
        """Return a file, or a copy of it without its byte order mark."""
        try:
            if not has_mark(file):
                return file
        except OSError as error:
            raise BadNatsOptions(f"cannot read {file}: {error.strerror}") from None
        self._datadir.write_private(self._datadir.path / name, _read(file))
        return self._datadir.path / name

    @property
    def bridge_certificate(self) -> Path | None:
        """The certificate and key that connections to the server present; None: they need none."""
        return self._datadir.path / BRIDGE if self._tls.client_ca is not None else None


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig", errors="replace")
    except OSError as error:
        raise BadNatsOptions(f"cannot read {file}: {error.strerror}") from None


def _self_signed() -> tuple[str, str]:
    """Return a self-signed certificate of the bridge and its private key (PEM)."""
    # Loaded for this alone: the cryptography package takes several MB.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    pem = serialization.Encoding.PEM
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "foldmq bridge")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(pem).decode(), private.decode()


DIRECTORY: Final = "nats-clients"
"""Directory of this server's files in the data directory."""

_NO_AUTH_USER: Final = "anybody"
_MEMORY_STORE: Final = 64 * 1024 * 1024
_MIN_PENDING: Final = 64 * 1024 * 1024


_DENIED_SUBJECTS: Final = (f"{PRIVATE_PREFIX}>",)


class ClientServer(NatsProcess):
    """The server for NATS clients of the broker in ``datadir``.

    It listens on ``host`` and ``port`` (0: any free one). ``users`` may connect; if there are none,
    all clients may. With ``tls`` clients use TLS. ``max_payload`` is the largest message in bytes,
    ``store`` the number of bytes that the clients' streams may take on the disk (0: they have no
    JetStream).

    ``probe`` is called before the first start of the server, when no earlier server listens on the
    address: it may raise the reason why the server cannot listen there. Only the user
    ``callout_user`` (name or public nkey) may use subjects below ``foldmq.``; None: all users may.
    ``user`` and ``password`` are the credentials of the bridge.
    """

    title: ClassVar[str] = "NATS server for clients"
    remedy: ClassVar[str] = (
        "save the streams of NATS clients with 'nats account backup', remove the directory, and "
        "restore them with 'nats account restore'"
    )

    def __init__(
        self,
        datadir: DataDir,
        host: str,
        port: int,
        *,
        users: Sequence[NatsUser] = (),
        callout_user: str | None = None,
        tls: TlsFiles | None = None,
        max_payload: int,
        store: int,
        sync: Sync = "always",
        key: StoreKey | None = None,
        probe: Callable[[], object] = lambda: None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(
            DataDir(datadir.path / DIRECTORY), max_payload=max_payload, sync=sync, key=key, log=log
        )
        self._node = datadir.node()
        self._host = host
        self._wanted_port = port
        self._users = tuple(users)
        self._callout_user = callout_user
        self._tls = ClientServerTls(tls, self._datadir) if tls is not None else None
        self._store_bytes = store
        self._probe = probe
        self._unknown_password = secrets.token_urlsafe(24)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to which clients connect."""
        return self._host, self._port

    def access(self) -> ConnectionOptions:
        """Return foldmq's own connection options, once the server runs."""
        return access_of(self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """The values that another process of foldmq needs to connect: see :func:`access_of`."""
        access = {"url": self.url, "user": self.user, "password": self.password}
        if self._tls is not None:
            access["certificate"] = str(self._tls.bridge_certificate or "")
        return access

    async def start(self) -> None:
        """Start as a :class:`NatsProcess`, in a directory that is created and locked for it.

        Also raises NatsUnavailable when the address cannot be listened on.
        """
        self._datadir.lock()
        for line in self._datadir.narrowed:
            self._log(line)
        try:
            if self._tls is not None:
                self._tls.prepare()
            await super().start()
        except BaseException:
            self._datadir.unlock()
            raise

    async def renew_tls(self) -> None:
        """Reload certificates after their files were renewed.

        Raises BadNatsOptions when the authorities of the clients cannot be read.
        """
        if self._tls is not None:
            await asyncio.to_thread(self._tls.prepare)
            self.reload()

    async def stop(self) -> None:
        """Stop the server and release its directory."""
        try:
            await super().stop()
        finally:
            self._datadir.unlock()

    async def _launch_first(self) -> None:
        self._probe()
        if not self._wanted_port:
            await super()._launch_first()
            return
        self._port = self._wanted_port
        try:
            await self._launch()
        except PortTaken:
            raise NatsUnavailable(
                f"cannot listen for NATS clients on {self._host} port {self._port}: another "
                "program listens there; stop it or choose another --nats-listen"
            ) from None

    def _server_name(self) -> str:
        return f"foldmq_{self._node}_clients"

    def _configuration(self) -> Mapping[str, object]:
        return {
            **self._common(),
            **self._admission(),
            **(self._tls.configuration() if self._tls is not None else {}),
            "max_pending": max(_MIN_PENDING, 2 * self.max_payload),
            "jetstream": self._store(self._store_bytes, _MEMORY_STORE)
            if self._store_bytes
            else False,
        }

    def _admission(self) -> dict[str, object]:
        users: list[dict[str, object]] = [{"user": self.user, "password": self.password}]
        users += [
            user.entry(_DENIED_SUBJECTS if self._callout_user not in (None, user.identity) else ())
            for user in self._users
        ]
        if self._users:
            return {"authorization": {"users": users, "timeout": 5}}
        # clients without credentials get this user; its password is random and known to no client
        users.append({"user": _NO_AUTH_USER, "password": self._unknown_password})
        return {"authorization": {"users": users, "timeout": 5}, "no_auth_user": _NO_AUTH_USER}


def access_of(facts: Mapping[str, str]) -> ConnectionOptions:
    """Return the connection options for the server of another process, from its ``facts``."""
    context = None
    if "certificate" in facts:
        # A child process at an address of this machine, which its certificate need not contain.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if facts["certificate"]:
            context.load_cert_chain(facts["certificate"])
    return ConnectionOptions(
        urls=(facts["url"],),
        user=facts["user"],
        password=facts["password"],
        tls_context=context,
    )
