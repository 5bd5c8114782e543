"""The sink ``postgres``: messages as rows of a table, each exactly once.

A transaction has the rows of a batch and the cursor up to which the table is complete. Messages
behind that cursor are copied; others are perhaps there already, after a crash or a failover, and
are inserted unless their key is. The key has the time, so a log that was restored from a backup
and numbers its records anew loses nothing.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import orjson

from eventstore.display import escaped
from eventstore.edited_files import client_context
from eventstore.format.positions import INDEX_BITS, MAX_INDEX
from outbox.sink import Destination, OutboxMessage, RefusedMessages, TryAgain
from outbox.sinks.secret_files import usable_files
from outbox.sinks.webhook_signature import read_token
from protocol.mqtt.message_properties import properties_object

_CURSOR: Final = "foldmq_cursor"
_KEY: Final = ("time", "log", "record", "entry")
_COLUMNS: Final = (
    *_KEY,
    *("topic", "client", "qos", "retain", "payload", "json", "properties"),
)
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    time timestamptz NOT NULL, log text NOT NULL, record bigint NOT NULL, entry integer NOT NULL,
    topic text NOT NULL, client text NOT NULL, qos smallint NOT NULL, retain boolean NOT NULL,
    payload bytea NOT NULL, json jsonb, properties jsonb,
    PRIMARY KEY (time, log, record, entry));
CREATE TABLE IF NOT EXISTS {cursor} (
    log text, sink text, through bigint NOT NULL, PRIMARY KEY (log, sink));
"""
_UNIQUE: Final = """
SELECT 1 FROM pg_index WHERE indrelid = $1::regclass AND indisunique AND indnkeyatts = $3 AND (
    SELECT array_agg(attname::text) FROM pg_attribute
    WHERE attrelid = indrelid AND attnum = ANY (indkey)) <@ $2::text[]
"""
_REFUSED: Final = ("22", "23", "54")
"""Classes of SQLSTATE that concern the rows: data, constraints, limits."""
_WRONG_SETTINGS: Final = ("28", "3D", "3F", "42")
"""Classes that concern the settings: who may connect, and what exists there."""
_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """The database and the table."""

    url: str
    table: str = "mqtt_messages"
    """With its schema before a dot, unless that is the default."""
    timeout: float = 30.0
    """Seconds for a connection and for each statement."""
    password_file: Path | None = None
    ca_file: Path | None = None


class PostgresSink:
    """Writes batches in transactions, over one connection."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._schema, _, self._table = options.table.rpartition(".")
        prefix = f'"{self._schema}".' if self._schema else ""
        self._quoted, self._cursor = f'{prefix}"{self._table}"', f'{prefix}"{_CURSOR}"'
        self._names = ("", "")
        self._connection: Any = None

    async def open(self, about: Destination) -> None:
        """Connect, and create the tables if they are missing.

        The log is read from its own cursor on: what the table has already is recognised.
        """
        self._names = (about.log, about.name)
        await self.close()
        await self._connect()

    async def send(self, batch: Sequence[OutboxMessage]) -> None:
        """Return when a batch is committed."""
        if self._connection is None:
            await self._connect()
        # Neither a value that jsonb cannot have may keep a message out, nor its own row, which the
        # table has already if the sink had another name, or another sink has the same message.
        rows = [self._row(message, json=True) for message in batch]
        try:
            await self._store(batch, rows)
        except RefusedMessages:
            if len(batch) > 1:
                raise
            await self._store(batch, [self._row(batch[0], json=False)], copy=False)

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(
                TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError
            ):
                await connection.close(timeout=1.0)

    async def _connect(self) -> None:
        options = self._options
        more: dict[str, Any] = {}
        with usable_files("password_file", "ca_file"):
            if options.password_file is not None:
                more["password"] = read_token(options.password_file.read_text("utf-8"))
            if options.ca_file is not None:
                more["ssl"] = client_context(options.ca_file)
        try:
            async with asyncio.timeout(options.timeout):
                self._connection = await asyncpg.connect(
                    options.url, command_timeout=options.timeout, timeout=options.timeout, **more
                )
                await self._prepare()
        except BaseException as error:
            self._drop()
            _judge(error)
            raise

    async def _prepare(self) -> None:
        connection = self._connection
        # One that exists needs no right to create it.
        exist = "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL"
        if not await connection.fetchval(exist, self._quoted, self._cursor):
            await connection.execute(_TABLES.format(table=self._quoted, cursor=self._cursor))
        if not await connection.fetchval(_UNIQUE, self._quoted, list(_KEY), len(_KEY)):
            raise TryAgain(
                f"table {self._options.table} has no unique key ({', '.join(_KEY)})",
                misconfigured=True,
            )
        await connection.execute(
            f"INSERT INTO {self._cursor} VALUES ($1, $2, 0) ON CONFLICT DO NOTHING",  # noqa: S608
            *self._names,
        )

    async def _store(
        self, batch: Sequence[OutboxMessage], rows: list[tuple[Any, ...]], *, copy: bool = True
    ) -> None:
        connection = self._connection
        try:
            async with connection.transaction():
                await self._write(connection, batch, rows, copy=copy)
        except BaseException as error:
            state = str(getattr(error, "sqlstate", ""))
            if state.startswith(_REFUSED):
                raise RefusedMessages(f"{state}: {_reason(error)}") from None
            # Perhaps it is committed: the cursor in the table tells.
            self._drop()
            _judge(error, quotes=not any(message.key for message in batch))
            raise

    async def _write(
        self,
        connection: Any,
        batch: Sequence[OutboxMessage],
        rows: list[tuple[Any, ...]],
        *,
        copy: bool,
    ) -> None:
        """Write rows and the cursor; without ``copy`` none of them need be new."""
        # The lock lets one of two processes wait that send the same log.
        through = await connection.fetchval(
            f"SELECT through FROM {self._cursor} WHERE log = $1 AND sink = $2 FOR UPDATE",  # noqa: S608
            *self._names,
        )
        if through is None:
            raise TryAgain(f"{_CURSOR} has no row of this sink any more")
        pairs = zip(batch, rows, strict=True)
        old = [row for message, row in pairs if message.at <= through or not copy]
        if old:
            places = ", ".join(f"${number}" for number in range(1, len(_COLUMNS) + 1))
            await connection.executemany(
                f"INSERT INTO {self._quoted} ({', '.join(_COLUMNS)}) VALUES ({places}) "  # noqa: S608
                f"ON CONFLICT ({', '.join(_KEY)}) DO NOTHING",
                old,
            )
        fresh = rows[len(old) :]
        if fresh:
            await connection.copy_records_to_table(
                self._table,
                schema_name=self._schema or None,
                columns=_COLUMNS,
                records=fresh,
            )
        if batch[-1].at > through:
            await connection.execute(
                f"UPDATE {self._cursor} SET through = $3 WHERE log = $1 AND sink = $2",  # noqa: S608
                *self._names,
                batch[-1].at,
            )

    def _row(self, message: OutboxMessage, *, json: bool) -> tuple[Any, ...]:
        properties = properties_object(message.block) if message.block else None
        return (
            datetime.fromtimestamp(message.time_ms / 1000, UTC),
            self._names[0],
            message.position >> INDEX_BITS,
            message.position & MAX_INDEX,
            message.topic,
            message.client,
            message.qos,
            message.retain,
            message.payload,
            _json(message.payload) if json else None,
            orjson.dumps(properties).decode() if properties else None,
        )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _json(payload: bytes) -> str | None:
    """Return a payload that is JSON, as text."""
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    return payload.decode()


def _judge(error: BaseException, *, quotes: bool = True) -> None:
    """Raise TryAgain for an error of the database or the network.

    Without ``quotes`` it has no text of the database, such as that of a trigger, which may have the
    content of a message.
    """
    if isinstance(error, TimeoutError):
        raise TryAgain("the database did not answer in time") from None
    if isinstance(error, asyncpg.PostgresError):
        wrong = str(error.sqlstate).startswith(_WRONG_SETTINGS)
        reason = _reason(error) if quotes else f"error {error.sqlstate}"
        raise TryAgain(reason, misconfigured=wrong) from None
    if isinstance(error, OSError | asyncpg.InterfaceError):
        raise TryAgain(_reason(error)) from None


def _reason(error: BaseException) -> str:
    """Return what an error says, without its details, which have the values of a row."""
    line = error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error
    return escaped(" ".join(str(line).split()), _REASON) or type(error).__name__
