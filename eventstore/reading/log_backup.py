"""Backs logs up, and restores them into a new data directory; every record is checked both times.

A backup of a node with several logs is consistent: no log has taken messages of another one that
the backup does not have.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import orjson

from eventstore.datadir import DataDir, new_node_id
from eventstore.encryption import StoreKey
from eventstore.errors import CorruptLog, EventStoreError, UsageError
from eventstore.format.node_events import Followed
from eventstore.format.positions import sequence_of
from eventstore.format.records import ChainChecker, Record, decode_record
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.partitions import directory_name, split_log_name
from eventstore.reading.backup_files import (
    SEGMENT_BYTES,
    BackedUpLog,
    BackupDirectory,
    BackupReader,
    BackupStream,
    BackupTarget,
    BadBackup,
    Manifest,
    framed_record,
    segment_name,
)
from eventstore.reading.fresh_log import (
    FreshLog,
    begin_log,
    finish_directory,
    fresh_store,
    new_directory,
)
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress, few_collections

RESTORED: Final = "restored"
"""A file beside the watermark: the last record of a log that was restored and not continued yet."""


class NoContinuation(EventStoreError):  # noqa: N818 - as in eventstore.errors
    """A log does not continue the backup that it was to be added to."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The result of a backup."""

    manifest: Manifest
    added: int
    """Number of records that this backup added."""


async def back_up(
    logs: Mapping[str, LogSource],
    target: Path | IO[bytes],
    where: str,
    software: str,
    time_ms: int,
    progress: Progress,
    key: StoreKey | None = None,
) -> BackupResult:
    """Back up logs into a directory, or a stream as a tar archive; with ``key``, encrypted.

    A directory with a backup of the same logs gets the records that it does not have. Raises
    NoContinuation when it has a backup of other ones, CorruptLog when a log is damaged, BadBackup
    when the backup is, DataDirError and DiskFull.
    """
    with ExitStack() as stack:
        before: Manifest | None = None
        output: BackupTarget
        directory: BackupDirectory | None = None
        if not isinstance(target, Path):
            output = BackupStream(target, where, key)
        else:
            output = directory = BackupDirectory(target, key)
            directory.prepare()
            stack.enter_context(DataDir(directory.path))
            before = directory.manifest()
            _check_same_key(before, key, where)
        names = sorted(source.stream.removeprefix(LOG_STREAM_PREFIX) for source in logs.values())
        parts = split_log_name(names[0]) if len(names) > 1 else None
        node, several = (parts[0], len(names)) if parts is not None else (names[0], 0)
        earlier = {copy.log: copy for copy in before.logs} if before is not None else {}
        if earlier and sorted(earlier) != names:
            raise NoContinuation(
                f"{where} has a backup of {', '.join(sorted(earlier))}, "
                f"this is {', '.join(names)}: name another directory"
            )
        copies = {}
        for source in logs.values():
            name = source.stream.removeprefix(LOG_STREAM_PREFIX)
            copies[name] = _Copy(source, name, earlier.get(name), output, directory, where)
        with few_collections():
            for copy in copies.values():
                await copy.check()
            ends = {name: copy.source.last for name, copy in copies.items()}
            while any(ends[name] > copy.log.last for name, copy in copies.items()):
                for name, copy in copies.items():
                    await copy.to(ends[name], progress)
                for copy in copies.values():  # what they have taken of each other
                    for name, through in copy.taken.items():
                        if name in ends:
                            ends[name] = max(ends[name], through)
        for copy in copies.values():
            copy.close()
        mark = key.mark if key is not None else ""
        backed_up = [copies[name].log for name in names]
        manifest = Manifest(node, several, time_ms, software, backed_up, mark)
        output.finish(manifest)
        return BackupResult(manifest, sum(copy.added for copy in copies.values()))


def _check_same_key(before: Manifest | None, key: StoreKey | None, where: str) -> None:
    """Raise NoContinuation if a directory has a backup with another key."""
    if before is None or before.key == (key.mark if key is not None else ""):
        return
    how = "is encrypted" if before.key else "is not encrypted"
    if before.key and key is not None:
        how = "is encrypted with another key"
    raise NoContinuation(
        f"{where} has a backup that {how}: name another directory, or set encryption_key_file as "
        "for that backup"
    )


class _Copy:
    """One log that is copied into a backup."""

    def __init__(
        self,
        source: LogSource,
        name: str,
        known: BackedUpLog | None,
        output: BackupTarget,
        directory: BackupDirectory | None,
        where: str,
    ) -> None:
        self.source = source
        self.added = 0
        self.taken: dict[str, int] = {}
        """Other logs -> the record up to which this log has taken their messages."""
        self.log = known or BackedUpLog(name, source.begin, "", source.begin - 1, "")
        self._where = where
        self._output = output
        self._buffer = bytearray()
        self._buffered = self.log.last + 1
        """First record in the buffer."""
        self._chain: ChainChecker | None = None
        self._continues = known is not None
        self._replaced = ""
        """Segment of the backup whose records are in the buffer."""
        if known is not None and directory is not None and known.segments:
            data = directory.read(known.segments[-1])
            if len(data) < SEGMENT_BYTES:
                self._buffer += data
                self._buffered = int.from_bytes(data[:8], "big")
                self._replaced = known.segments.pop()

    async def check(self) -> None:
        """Raise NoContinuation unless the log continues the backup, CorruptLog if it is damaged."""
        self.source.require_whole()
        if self._continues:
            await self._check_continues()

    async def to(self, last: int, progress: Progress) -> None:
        """Copy up to a record."""
        source, log = self.source, self.log
        if log.last >= last:
            return
        with progress("backing up", last) as update:
            async for sequence, data in source.stored(log.last + 1, last):
                if sequence != log.last + 1:
                    await source.check_still_there(log.last + 1)
                record = decode_record(sequence, data)
                if self._chain is None:
                    self._chain = self._begin(record)
                self._chain.check(record)
                self._take(record, data)
                update(sequence)
        if log.last < last:
            await source.check_still_there(log.last + 1)
            raise CorruptLog(log.last + 1, "is missing or cannot be read")

    def _begin(self, record: Record) -> ChainChecker:
        """Return the checker before the first record that is copied."""
        if self.log.link:
            return ChainChecker(self.log.last, bytes.fromhex(self.log.link))
        self.log.before = record.previous.hex()
        return ChainChecker() if self.log.first == 1 else ChainChecker.before(record)

    async def _check_continues(self) -> None:
        """Raise NoContinuation unless the log has the last record of the backup."""
        source, log = self.source, self.log
        wrong = ""
        if source.last < log.last:
            wrong = f"ends with record {source.last}, the backup with record {log.last}"
        elif source.begin > log.last + 1:
            wrong = f"begins with record {source.begin}, the backup ends with record {log.last}"
        elif source.begin <= log.last:
            records = await source.some([log.last])
            (record,) = [record for record in records if record.sequence == log.last]
            if record.link.hex() != log.link:
                wrong = f"has another record {log.last}"
        if wrong:
            raise NoContinuation(
                f"{self._where} has a backup that log {log.log} does not continue: the log "
                f"{wrong}; name another directory"
            )

    def _take(self, record: Record, data: bytes) -> None:
        if b'"Followed"' in record.header:
            for _, event in record.events():
                if isinstance(event, Followed):
                    self.taken[event.log] = sequence_of(event.through)
        self._buffer += framed_record(record.sequence, data)
        self.log.last, self.log.link = record.sequence, record.link.hex()
        self.added += 1
        if len(self._buffer) >= SEGMENT_BYTES:
            self.close()

    def close(self) -> None:
        """Write the records that are not written yet as a segment."""
        if self._buffer:
            name = segment_name(self.log.log, self._buffered, self.log.last)
            if name != self._replaced:
                self._output.add(name, bytes(self._buffer))
            self.log.segments.append(name)
            self._buffer.clear()
            self._buffered = self.log.last + 1


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The result of a restore."""

    manifest: Manifest
    node: str
    """The node of the new data directory."""
    records: int


async def restore(
    source: Path | IO[bytes],
    target: Path | str,
    progress: Progress,
    *,
    new_node: bool = False,
    key: StoreKey | None = None,
    new_key: StoreKey | None = None,
) -> RestoreResult:
    """Restore a backup into a new data directory; with ``new_node`` as another node.

    ``key`` opens an encrypted backup; the directory is encrypted with ``new_key``, or else with
    ``key``. Raises StoreKeyError, BadBackup when the backup is damaged, NoLog when there is none,
    DataDirError when ``target`` is not empty, DiskFull, and UsageError when one of several logs
    would get another node. In these cases ``target`` is unchanged.
    """
    reader = BackupReader(source, key)
    async with new_directory(target) as new:
        work = _Restore(reader, new, new_node_id() if new_node else None, new_key or key)
        records = await work.run(progress)
        manifest = reader.manifest
        if manifest is None:
            raise BadBackup(f"backup {reader.where} has no manifest")
        return RestoreResult(manifest, work.name_of(manifest.node), records)


class _Restore:
    """Writes the records of a backup."""

    def __init__(
        self, reader: BackupReader, new: DataDir, node: str | None, key: StoreKey | None
    ) -> None:
        self._reader = reader
        self._key = key
        self._new = new
        self._node = node
        self._logs: dict[str, FreshLog] = {}
        self._chains: dict[str, ChainChecker] = {}

    def name_of(self, log: str) -> str:
        """Return the name of a log, or of the node, in the new directory."""
        if self._node is None:
            return log
        if split_log_name(log) is not None:
            raise UsageError(
                "one of several logs cannot be restored as another node: each names the others, "
                "and would take their messages again; restore without --new-node, and read the "
                "result with foldmq log or replay"
            )
        return self._node

    async def run(self, progress: Progress) -> int:
        """Restore; return the number of records."""
        reader, count = self._reader, 0
        logs = reader.manifest.logs if reader.manifest is not None else []
        total = sum(log.last - log.first + 1 for log in logs)
        async with fresh_store(self._new, "restore", self._key) as client:
            with few_collections(), progress("restoring", total) as update:
                try:
                    for log, sequence, data in reader.records():
                        if log not in self._logs:
                            name = self.name_of(log)
                            self._logs[log] = await begin_log(client, name, sequence)
                        await self._take(log, sequence, data)
                        count += 1
                        update(count)
                    self._check_ends()
                except (CorruptLog, BadBackup) as error:
                    raise self._damaged(error) from None
            for log, backed_up in self._logs.items():
                await backed_up.check_end(self._chains[log].link)
        self._finish()
        return count

    async def _take(self, log: str, sequence: int, data: bytes) -> None:
        record = decode_record(sequence, data)
        chain = self._chains.get(log)
        if chain is None:
            chain = ChainChecker() if sequence == 1 else ChainChecker.before(record)
            self._chains[log] = chain
        chain.check(record)
        await self._logs[log].append(data)

    def _check_ends(self) -> None:
        """Raise CorruptLog unless everything that the manifest names was there."""
        manifest = self._reader.manifest
        for log in manifest.logs if manifest is not None else ():
            chain = self._chains.get(log.log)
            end = 0 if chain is None else chain.sequence
            if end != log.last or (chain is not None and chain.link.hex() != log.link):
                raise CorruptLog(end + 1, f"of log {log.log} is missing or is another one")

    def _damaged(self, error: CorruptLog | BadBackup) -> BadBackup:
        """Return the error that says what is damaged and what is intact."""
        what = str(error)
        if isinstance(error, CorruptLog):
            what = f"backup {self._reader.where} is damaged: record {error.sequence} {error.what}"
        ends = [f"log {log} up to record {chain.sequence}" for log, chain in self._chains.items()]
        return BadBackup(f"{what}; intact before it: {', '.join(ends) or 'nothing'}")

    def _finish(self) -> None:
        manifest = self._reader.manifest
        if manifest is None:
            raise BadBackup(f"backup {self._reader.where} is incomplete")
        new = self._new
        for log, chain in self._chains.items():
            name = self.name_of(log)
            own = new.path / (directory_name(name) or "") if manifest.several else new.path
            own.mkdir(mode=0o700, exist_ok=True)
            noted = {
                "stream": f"{LOG_STREAM_PREFIX}{name}",
                "sequence": chain.sequence,
                "link": chain.link.hex(),
                "from": self._reader.where,
            }
            new.write_private(own / RESTORED, orjson.dumps(noted).decode() + "\n")
        if manifest.several:
            new.write_private(new.processes, f"{manifest.several}\n")
        finish_directory(new, self.name_of(manifest.node))
