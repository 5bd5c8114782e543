"""Access to the NATS server that holds the logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client

    from eventstore.nats.connection import ConnectionOptions


@dataclass(frozen=True, slots=True)
class NatsAccess:
    """Address and credentials of a NATS server; secrets are never shown."""

    options: Mapping[str, str] = field(repr=False)
    """``nats`` (URLs, with commas), ``domain``, ``user``, ``password``, ``token``, and paths of
    files: ``creds``, ``nkey``, ``ca``, ``cert``, ``key``."""

    def connection(self) -> ConnectionOptions:
        """Return the options of the connection."""
        # Imported when connecting: it takes a third of a second.
        from eventstore.nats.connection import ConnectionOptions
        from eventstore.nats.server_urls import split_urls

        options = self.options
        return ConnectionOptions(
            urls=split_urls(options["nats"]),
            user=options.get("user"),
            password=options.get("password"),
            token=options.get("token"),
            credentials=_path(options, "creds"),
            nkey_seed=_path(options, "nkey"),
            tls_ca=_path(options, "ca"),
            tls_cert=_path(options, "cert"),
            tls_key=_path(options, "key"),
            domain=options.get("domain"),
            name="foldmq spark",
        )

    @property
    def where(self) -> str:
        """The servers, without secrets."""
        return f"NATS at {self.connection().where}"

    async def open(self) -> Client:
        """Connect; raises NatsUnavailable or BadNatsOptions."""
        from eventstore.nats.connection import check_server, connect, disconnect
        from eventstore.nats.jetstream import check_jetstream

        client = await connect(self.connection())
        try:
            check_server(client)
            await check_jetstream(client)
        except BaseException:
            await disconnect(client)
            raise
        return client


def _path(options: Mapping[str, str], name: str) -> Path | None:
    text = options.get(name)
    return Path(text) if text else None
