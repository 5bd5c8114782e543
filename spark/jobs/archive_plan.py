"""Plans an archive run before Spark starts: finds missing records, and rejects another log."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from nats.aio.client import Client

from eventstore.display import escaped
from eventstore.errors import CorruptLog, NoLog
from eventstore.format.records import Record, decode_record
from eventstore.home_paths import expand_home
from eventstore.log.record_reader import read_stored
from eventstore.nats.connection import disconnect
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from protocol.errors import FoldmqError
from spark.runtime.marked_errors import BadOption, OtherLog
from spark.runtime.sync_calls import run_sync
from spark.tables.archive_directory import open_writer
from spark.tables.archive_ledger import LEDGER_FILE, Ledger
from spark.tables.archive_log import NODE_DIRECTORY, ledger_of
from spark.tables.archive_store import open_store_writer
from spark.tables.archive_writer import ArchiveExtent, ArchiveWriter
from spark.tables.directories import Directory, directory_text
from spark.tables.discovery import find_in_nats, join_with_archive
from spark.tables.nats_access import NatsAccess
from spark.tables.nats_log import NatsLog, look_up
from spark.tables.object_store import is_s3, require_obstore
from spark.tables.options import SourceOptions

_SCHEME: Final = re.compile("(?:s3[an]?|file):", re.IGNORECASE)
"""The beginning of a URI that lacks slashes, and would be the name of a directory here."""


class CutBefore(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """Records were cut off a log before they were archived."""

    exit_code = 66


@dataclass(frozen=True, slots=True)
class PendingArchive:
    """A log and its directory in the archive."""

    access: NatsAccess
    stream: str
    archive: Path | Directory
    """A directory on this machine, or in a bucket."""
    archived: int
    """The last archived record, 0 if there is none."""
    first: int
    """The first record of the log."""
    last: int
    """The last record of the log."""
    problem: FoldmqError | None = None
    """Reason why the log cannot be archived."""

    @property
    def node(self) -> str:
        """Name of the directory of the node."""
        return node_folder(self.stream)

    @property
    def folder(self) -> Directory:
        """The directory of the node."""
        if isinstance(self.archive, Directory):
            return self.archive.within(self.node)
        return Directory(str(self.archive / self.node))

    @property
    def records(self) -> int:
        """Number of new records."""
        return self.last - max(self.archived, self.first - 1)


def archived_extent(log_plan: PendingArchive) -> ArchiveExtent:
    """Return the extent of an archived log without new records; raises as adding does."""
    if log_plan.problem is not None:
        raise log_plan.problem
    with open_archive(log_plan) as writer:
        check_same_log(log_plan.access, log_plan.stream, writer)
        return writer.outcome


def open_archive(log_plan: PendingArchive) -> AbstractContextManager[ArchiveWriter]:
    """Open the part of an archive that belongs to a log; raises as the functions that do it."""
    if isinstance(log_plan.archive, Directory):
        return open_store_writer(log_plan.archive, log_plan.stream, log_plan.node)
    return open_writer(log_plan.archive, log_plan.stream, log_plan.node)


def node_folder(stream: str) -> str:
    """Return the name of a log's directory in an archive."""
    return NODE_DIRECTORY + quote(stream.removeprefix(LOG_STREAM_PREFIX), safe="")


async def plan_archive(options: Mapping[str, str], directory: str) -> list[PendingArchive]:
    """Return the pending archives of the logs named by the options.

    Raises BadOption, NoLog or NatsUnavailable; an error in one of the logs, or in its part of the
    archive, is its ``problem``.
    """
    source = replace(SourceOptions.read(options), archive=None)
    archive, access = archive_place(directory), source.access
    if access is None:
        raise BadOption("an archive is made of logs in NATS: give option nats")
    client = await access.open()
    try:
        stored_logs = await find_in_nats(client, access, source.streams)
        logs = join_with_archive(source, stored_logs, [])
        return [
            await _compared(client, access, part, archive) for part in stored_logs if part in logs
        ]
    finally:
        await disconnect(client)


def archive_place(directory: str) -> Path | Directory:
    """Return the place to write an archive to: a path, or a directory in an S3 bucket.

    Raises BadOption if it is not valid, or NoObjectStore.
    """
    if is_s3(directory):
        require_obstore()
        folder = Directory(directory)
        if not folder.names_objects():
            raise BadOption(
                f"{folder}: names in a bucket must be UTF-8, without control characters, and "
                "none may be empty, . or .."
            )
        if ledger_of(folder) is not None:
            raise _of_one_node(str(folder))
        return folder
    place = directory.removeprefix("file://")
    if "://" in place or _SCHEME.match(place):
        raise BadOption(
            f"an archive is written to a directory or to s3://, not to {directory_text(directory)}:"
            " write it to a directory that all machines of the cluster have mounted, and copy it "
            "from there, see docs/archive.md"
        )
    path = expand_home(place).absolute()
    if (path / LEDGER_FILE).exists():
        raise _of_one_node(escaped(str(path), 4096))
    return path


def _of_one_node(place: str) -> BadOption:
    return BadOption(f"{place} is what an archive has of one node: give the directory above it")


def check_same_log(access: NatsAccess, stream: str, writer: ArchiveWriter) -> NatsLog:
    """Return the current log. Raises OtherLog or CutBefore if it does not continue the archive.

    Also raises NoLog, CorruptLog or NatsUnavailable.
    """
    return run_sync(_same(access, stream, writer))


async def _same(access: NatsAccess, stream: str, writer: ArchiveWriter) -> NatsLog:
    client = await access.open()
    try:
        return await _checked(client, access, stream, writer.folder, writer.ledger)
    finally:
        await disconnect(client)


async def _compared(
    client: Client, access: NatsAccess, stored: NatsLog, archive: Path | Directory
) -> PendingArchive:
    log_plan = PendingArchive(access, stored.stream, archive, 0, stored.first, stored.last)
    try:
        ledger = ledger_of(log_plan.folder) or Ledger(stored.stream)
        now = await _checked(client, access, stored.stream, log_plan.folder, ledger)
    except FoldmqError as error:
        return replace(log_plan, problem=error)
    return replace(log_plan, archived=ledger.last, first=now.first, last=now.last)


async def _checked(
    client: Client, access: NatsAccess, stream: str, folder: Directory, ledger: Ledger
) -> NatsLog:
    """Return a log; raise NoLog, OtherLog or CutBefore unless it continues an archive."""
    stored = await look_up(client, access, stream)
    if stored is None:
        raise NoLog(f"there is no log {stream} on {access.where} any more")
    await _check(client, stored, folder, ledger)
    return stored


async def _check(client: Client, stored: NatsLog, archive: Directory, ledger: Ledger) -> None:
    stream, last = stored.stream, ledger.last
    elsewhere = "archive it into another directory"
    if ledger.stream != stream:
        raise OtherLog(f"the archive {archive} has log {escaped(ledger.stream)}, not {stream}")
    if not last:
        return
    if stored.last < last:
        raise OtherLog(
            f"the archive {archive} reaches record {last}, but log {stream} ends with "
            f"{stored.last}: it was lost, restored or begun anew; {elsewhere}"
        )
    if stored.first > last + 1:
        raise CutBefore(
            f"records {last + 1} to {stored.first - 1} of log {stream} were cut off before they "
            f"were archived in {archive}: {elsewhere}, and set keep_until_archived in the broker"
        )
    if stored.first <= last:
        same = (await _record(client, stream, last)).link.hex() == ledger.link
    else:
        same = (await _record(client, stream, last + 1)).previous.hex() == ledger.link
    if not same:
        raise OtherLog(
            f"log {stream} has another record {last} than the archive {archive}: it was lost, "
            f"restored or begun anew; {elsewhere}"
        )


async def _record(client: Client, stream: str, sequence: int) -> Record:
    async for stored_sequence, data in read_stored(client, stream, sequence, sequence):
        if stored_sequence == sequence:
            return decode_record(sequence, data)
    raise CorruptLog(sequence, f"is not in stream {stream} or cannot be read there")
