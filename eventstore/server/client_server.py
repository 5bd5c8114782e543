"""The NATS server for NATS clients, which ``nats_listen`` enables.

It is separate from the server of the log, since NATS keeps JetStream for the account of existing
logs (the global one) only as long as there is no other account. So clients that connect here cannot
reach, read, fill or slow down the server of the log: the broker's bridge is the only path between
the two.

Clients have JetStream too, within ``store`` bytes of the disk. If they have to use TLS, the bridge
also does: :mod:`eventstore.server.client_tls`.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from eventstore.datadir import DataDir
from eventstore.errors import NatsUnavailable
from eventstore.nats.connection import PRIVATE_PREFIX, ConnectionOptions
from eventstore.server.client_tls import ClientServerTls, TlsFiles, bridge_context
from eventstore.server.process import NatsProcess, PortTaken, Sync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventstore.server.user import NatsUser

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
        probe: Callable[[], object] = lambda: None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(DataDir(datadir.path / DIRECTORY), sync=sync, log=log)
        self.max_payload = max_payload
        self._node = datadir.node()
        self._host = host
        self._wanted_port = port
        self._users = tuple(users)
        self._callout_user = callout_user
        self._tls = ClientServerTls(tls, self._datadir) if tls is not None else None
        self._store = store
        self._probe = probe
        self._unknown_password = secrets.token_urlsafe(24)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to which clients connect."""
        return self._host, self._port

    def access(self) -> ConnectionOptions:
        """Return foldmq's own connection options, once the server runs."""
        return ConnectionOptions(
            urls=(self.url,),
            user=self.user,
            password=self.password,
            tls_context=self._tls.context() if self._tls is not None else None,
        )

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
            "host": self._host,
            "port": self._port,
            "server_name": self._server_name(),
            **self._admission(),
            **(self._tls.configuration() if self._tls is not None else {}),
            "max_payload": self.max_payload,
            "max_pending": max(_MIN_PENDING, 2 * self.max_payload),
            "ping_interval": "20s",
            **self._logging(),
            "jetstream": self._jetstream(),
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

    def _jetstream(self) -> object:
        if not self._store:
            return False
        return {
            "store_dir": str(self._datadir.jetstream),
            "sync_interval": self._sync_interval(),
            "max_file_store": self._store,
            "max_memory_store": _MEMORY_STORE,
        }


def access_of(facts: Mapping[str, str]) -> ConnectionOptions:
    """Return the connection options for the server of another process, from its ``facts``."""
    context = None
    if "certificate" in facts:
        certificate = facts["certificate"]
        context = bridge_context(Path(certificate) if certificate else None)
    return ConnectionOptions(
        urls=(facts["url"],),
        user=facts["user"],
        password=facts["password"],
        tls_context=context,
    )
