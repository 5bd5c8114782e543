"""Where the tools read the log from: a running broker's NATS, a foreign one, or a directory.

The data directory of a broker that does not run is locked, the embedded NATS server is started
on it, and ended when the reading is over. Nothing is ever written to a log.
"""

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from nats.aio.client import Client

from cli.common.text import clock, escaped, name
from cli.logsource.log_store import foreign_access
from cli.logsource.source_flags import SourceFlags, UsageError
from cli.settings.settings import Settings, load
from eventstore.datadir import DataDir
from eventstore.errors import CorruptLog, DataDirBusy, DataDirError, LostLog, NatsUnavailable
from eventstore.format import ChainChecker, Record, decode_record, sequence_of
from eventstore.log import (
    RecordedCut,
    Watermark,
    check_beginning,
    check_first,
    find_cut,
    read_records,
    read_some,
    read_stored,
)
from eventstore.nats import (
    LOG_STREAM_PREFIX,
    ConnectionOptions,
    check_jetstream,
    check_server,
    connect,
    disconnect,
    list_logs,
    read_bounds,
)
from eventstore.server import EmbeddedServer
from protocol.errors import FoldmqError

_LISTED = 10


class NoLog(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """There is no log to read."""

    exit_code = 66


class CutOff(NoLog):
    """What was asked for stood in a part of the log that was cut off."""


class CutMeanwhile(FoldmqError):  # noqa: N818
    """The broker cut off what was being read."""

    exit_code = 75

    def __init__(self, first: int) -> None:
        super().__init__(
            f"the log was cut while it was read, it begins with record {first} now: ask again"
        )


@dataclass(frozen=True, slots=True)
class Source:
    """A log that can be read."""

    client: Client
    stream: str
    where: str
    """The place, for a person."""
    live: bool
    """A broker may be writing to it."""
    first: int
    last: int
    """Stream sequences of the first and the last record when it was opened; last 0: none."""
    noted: tuple[int, bytes] | None
    """Sequence and link of a record that the broker noted as stored outside the log."""
    cut: RecordedCut | None = None
    """The newest cut that a log tells of which does not begin with record 1."""

    @property
    def begin(self) -> int:
        """Stream sequence with which the log begins, 1 for an empty one."""
        return max(1, self.first)

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        """Yield the records between two sequences in order, each checked against the one before.

        Raises CorruptLog for the first record that is damaged, missing or out of place, and
        CutMeanwhile when the broker cut the log further than where the reading was.
        """
        checker: ChainChecker | None = ChainChecker() if first == 1 else None
        async for record in read_records(self.client, self.stream, first, last):
            expected = first if checker is None else checker.sequence + 1
            if record.sequence != expected:
                await self.check_still_there(expected)
            if checker is None:
                if record.sequence != first:
                    raise CorruptLog(first, "is missing or cannot be read")
                check_first(record, self.cut)
                checker = ChainChecker.before(record)
            checker.check(record)
            if self.noted is not None and self.noted[0] == record.sequence:
                check_noted(self.noted, record)
            yield record
        seen = checker.sequence if checker is not None else first - 1
        if seen < last:
            await self.check_still_there(seen + 1)
            raise CorruptLog(seen + 1, "is missing or cannot be read")

    def stored(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (sequence, bytes) of what is stored between two sequences, not looked at."""
        return read_stored(self.client, self.stream, first, last)

    async def some(self, sequences: Iterable[int]) -> list[Record]:
        """Return the records with these sequences, and perhaps some between them.

        Raises CorruptLog when one is not there or bad, CutMeanwhile as above.
        """
        try:
            return await read_some(self.client, self.stream, sequences)
        except CorruptLog as error:
            await self.check_still_there(error.sequence)
            raise

    async def records_with(
        self, words: Sequence[bytes], progressed: Callable[[int], None]
    ) -> AsyncIterator[Record]:
        """Yield the records up to the newest cut in which one of some byte strings occurs.

        What is needed of the time before the cut is repeated in these. ``progressed`` is told
        the sequences that were read. Raises CorruptLog for a damaged record.
        """
        last = sequence_of(self.cut.at) if self.cut is not None else self.begin - 1
        async for sequence, data in self.stored(self.begin, last):
            if any(word in data for word in words):
                yield decode_record(sequence, data)
            progressed(sequence)

    async def bounds(self) -> tuple[int, int]:
        """Return the sequences of the first and the last record as of now."""
        return await read_bounds(self.client, self.stream)

    async def check_still_there(self, sequence: int) -> None:
        """Raise CutMeanwhile when the broker has cut a record off since the log was opened."""
        if self.live:
            first, _ = await self.bounds()
            if first > sequence >= self.first:
                raise CutMeanwhile(first)

    def beginning(self) -> str:
        """Say for a person where a log begins that was cut, and since when and why."""
        said = f"the log begins with record {self.first}"
        if self.cut is None:
            return said
        event = self.cut.event
        if event.first == self.first:
            said += f" of {clock(event.begins_ms)}"
        why = escaped(event.reason)
        return f"{said}: what was before it was cut off on {clock(self.cut.time_ms)} ({why})"

    def require_whole(self) -> None:
        """Raise CorruptLog unless the log begins and ends where it may.

        It may begin with record 1, and with a record before which it says that it was cut.
        """
        if self.last:
            check_beginning(self.first, self.cut)
        if self.noted is not None and self.noted[0] > self.last:
            raise CorruptLog(
                self.last + 1,
                f"is missing: the log had reached record {self.noted[0]} and ends before it",
            )

    async def require_noted(self) -> None:
        """Raise CorruptLog when the record that was noted outside the log is another one in it.

        For who does not read with :meth:`records`, which looks by itself. One that cannot be read
        is told of by who reads it.
        """
        if self.noted is not None and self.begin <= self.noted[0] <= self.last:
            sequence = self.noted[0]
            async for found, data in self.stored(sequence, sequence):
                try:
                    record = decode_record(found, data)
                except CorruptLog:
                    return
                check_noted(self.noted, record)


def check_noted(noted: tuple[int, bytes], record: Record) -> None:
    """Raise CorruptLog when the record is not the one that was noted under its sequence."""
    if noted[0] == record.sequence and noted[1] != record.link:
        raise CorruptLog(record.sequence, "is not the one that was acknowledged")


@dataclass(frozen=True, slots=True)
class Place:
    """A NATS server that has logs."""

    access: ConnectionOptions
    where: str
    """The place, for a person."""
    live: bool
    """A broker may be writing there."""
    named: str | None
    """The stream that was asked for, or that is the only one that can be meant."""
    datadir: DataDir | None = None
    """The data directory, if the server is the embedded one of it."""

    async def streams(self, client: Client) -> list[str]:
        """Return the streams that may be meant. Raises NoLog when there is none."""
        found = [self.named] if self.named is not None else await list_logs(client)
        if not found:
            raise NoLog(f"there is no foldmq log on {self.where}")
        return found

    async def open(self, client: Client, stream: str) -> Source:
        """Give a log to be read. Raises NoLog, LostLog, CorruptLog or NatsUnavailable."""
        mark = None
        if self.datadir is not None:
            mark = Watermark(self.datadir.path / "log.mark", stream)
        return await _opened(client, stream, self.where, live=self.live, mark=mark)

    def reading(self, streams: Iterable[str]) -> str:
        """Say for a person what is read, and where."""
        state = ""
        if self.datadir is not None:
            how = "running" if self.live else "not running: its NATS server is started to read"
            state = f" ({how})"
        return f"reading {', '.join(streams)} at {self.where}{state}"


@contextlib.asynccontextmanager
async def open_source(flags: SourceFlags) -> AsyncIterator[Source]:
    """Find the log that the flags name and give it open.

    Raises ConfigError, UsageError, NoLog, DataDirError, LostLog or NatsUnavailable.
    """
    settings = load(flags.settings, os.environ, flags.config)
    async with contextlib.AsyncExitStack() as stack:
        place = await find_place(stack, settings, flags)
        client = await connect_to(stack, place)
        stream = _only(await place.streams(client), place.where)
        source = await place.open(client, stream)
        if flags.verbose:
            say(place.reading([stream]))
        yield source


def say(line: str) -> None:
    """Write one line for a person on stderr."""
    sys.stderr.write(f"foldmq: {line}\n")


async def find_place(
    stack: contextlib.AsyncExitStack, settings: Settings, flags: SourceFlags
) -> Place:
    """Find the NATS server that has the log; ``stack`` ends one that is started for that.

    Raises UsageError, ConfigError, DataDirError or NatsUnavailable.
    """
    if settings.nats_url is None:
        return await _find_directory(stack, settings, flags)
    access = foreign_access(settings)
    stream = named_stream(flags)
    if stream is None and "data_dir" in settings.model_fields_set:
        stream = _stream_of(DataDir(settings.data_dir))
    return Place(access, f"NATS at {access.where}", live=True, named=stream)


async def _find_directory(
    stack: contextlib.AsyncExitStack, settings: Settings, flags: SourceFlags
) -> Place:
    datadir = DataDir(settings.data_dir)
    if not datadir.path.is_dir():
        raise DataDirError(datadir.path, "is not there")
    stored = sorted(datadir.jetstream.glob(f"jetstream/*/streams/{LOG_STREAM_PREFIX}*"))
    if not stored:
        raise DataDirError(
            datadir.path, "holds no log (is it on a NATS server elsewhere? Then give --nats-url)"
        )
    stream = named_stream(flags) or LOG_STREAM_PREFIX + datadir.node()
    if stream not in {path.name for path in stored}:
        raise DataDirError(datadir.path, f"holds no log {name(stream)}")
    try:
        datadir.lock()
    except DataDirBusy:
        access = _running_access(datadir)
        return Place(access, str(datadir.path), live=True, named=stream, datadir=datadir)
    stack.callback(datadir.unlock)
    for line in datadir.narrowed:
        say(line)
    server = EmbeddedServer(datadir, log=say if flags.verbose else lambda _line: None)
    await server.start()
    stack.push_async_callback(server.stop)
    access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
    return Place(access, str(datadir.path), live=False, named=stream, datadir=datadir)


def _running_access(datadir: DataDir) -> ConnectionOptions:
    """Return how to reach the embedded server of the broker that has the directory."""
    try:
        port = int(json.loads(datadir.nats_config.read_text("utf-8"))["port"])
    except (OSError, ValueError, KeyError, TypeError):
        raise NatsUnavailable(
            f"data directory {datadir.path} is in use, but its nats.conf does not tell where its "
            "NATS server listens: try again"
        ) from None
    known = datadir.credentials()
    return ConnectionOptions(
        urls=(f"nats://127.0.0.1:{port}",), user=known.user, password=known.password
    )


async def connect_to(stack: contextlib.AsyncExitStack, place: Place) -> Client:
    """Connect to the server, until ``stack`` is left. Raises NatsUnavailable."""
    client = await connect(place.access)
    stack.push_async_callback(disconnect, client)
    check_server(client)
    await check_jetstream(client)
    return client


async def source_on(client: Client, stream: str, where: str) -> Source:
    """Give the log of a running broker, whose NATS server somebody is connected to already.

    Raises NoLog, CorruptLog or NatsUnavailable.
    """
    return await _opened(client, stream, where, live=True)


async def _opened(
    client: Client, stream: str, where: str, *, live: bool, mark: Watermark | None = None
) -> Source:
    # the mark first: a broker that runs moves both
    noted = mark.read() if mark is not None else None
    try:
        first, last = await read_bounds(client, stream)
    except LostLog:
        if mark is not None:
            raise LostLog(stream, stored=True) from None
        raise NoLog(f"there is no log {name(stream)} on {where}") from None
    if first > last > 0:
        raise CorruptLog(1, f"is gone with all others: stream {stream} was emptied")
    cut: RecordedCut | None = None
    if first > 1:
        cut = await find_cut(partial(read_stored, client, stream), first, last)
    return Source(client, stream, where, live, first, last, noted, cut)


def named_stream(flags: SourceFlags) -> str | None:
    """Return the stream that the flags name, None: none. Raises UsageError."""
    if flags.stream is not None and flags.node is not None:
        raise UsageError("--node and --stream exclude each other: give one")
    stream = flags.stream if flags.node is None else LOG_STREAM_PREFIX + flags.node
    if stream is not None and (not stream.isprintable() or any(bad in stream for bad in " .*>/\\")):
        raise UsageError(f"not the name of a node or stream: {stream!r}")
    return stream


def _stream_of(datadir: DataDir) -> str | None:
    return LOG_STREAM_PREFIX + datadir.node() if (datadir.path / "node").is_file() else None


def _only(streams: list[str], where: str) -> str:
    if len(streams) > 1:
        nodes = ", ".join(stream.removeprefix(LOG_STREAM_PREFIX) for stream in streams[:_LISTED])
        more = ", ..." if len(streams) > _LISTED else ""
        raise UsageError(f"{where} has {len(streams)} logs: give --node, one of {nodes}{more}")
    return streams[0]
