"""Where the logs that a command reads are, found by flags and settings."""

import contextlib
import sys
from pathlib import Path

from cli.logs.key_files import store_key
from cli.logs.log_brokers import log_names
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import LogSettings
from cli.settings.setting_sources import ConfigError
from eventstore.display import log_prefix
from eventstore.errors import UsageError
from eventstore.format.positions import Position, sequence_of
from eventstore.nats.connection import ConnectionOptions
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.nats.server_urls import split_urls
from eventstore.partitions import directory_name
from eventstore.reading.log_location import LogLocation, open_directory, stream_of
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource

_LISTED = 10


def write_index_notice(source: LogSource) -> None:
    """Write which records of a log are indexed to stderr, if it has an index."""
    index = source.index
    if not index.empty:
        write_notice(f"records {index.first} to {index.last} are indexed in {index.path}")


def index_path(data_dir: Path, stream: str) -> Path:
    """Return the path of the index of a log.

    That of one of several logs is in the directory of its process, if there is one.
    """
    name = directory_name(stream)
    own = data_dir if name is None else data_dir / name
    return (own if own.is_dir() else data_dir) / "index" / stream


def write_missed(log: str, first: int) -> None:
    """Write that records of a log that is followed were deleted before ``first``."""
    write_notice(
        f"{log_prefix(log)}some records before record {first} were deleted before they could be "
        "shown"
    )


class PrintedRecords:
    """The first and the last record of each log of which something was printed."""

    def __init__(self) -> None:
        self.count = 0
        """How much was printed."""
        self.starts: dict[str, LogPoint] = {}
        self.ends: dict[str, LogPoint] = {}

    def add(self, log: str, at: Position) -> None:
        """Note that something of a position of a log is printed."""
        self.count += 1
        place = LogPoint(sequence_of(at))
        self.starts.setdefault(log, place)
        self.ends[log] = place


def write_notice(line: str) -> None:
    """Write one line for the operator to stderr."""
    sys.stderr.write(f"foldmq: {line}\n")


async def find_location(
    stack: contextlib.AsyncExitStack, settings: LogSettings, flags: SourceFlags
) -> LogLocation:
    """Return the NATS server with the log; ``stack`` stops a server that was started for it.

    Raises UsageError, ConfigError, DataDirError or NatsUnavailable.
    """
    stream = named_stream(flags)
    key = store_key(settings.encryption_key_file)
    if settings.nats_url is None:
        server_log = write_notice if flags.verbose else _ignore
        return await open_directory(
            stack, settings.data_dir, stream, key=key, note=write_notice, server_log=server_log
        )
    access = external_access(settings)
    if stream is None and settings.cluster is not None and settings.partitions == 1:
        stream = LOG_STREAM_PREFIX + settings.cluster
    several = [LOG_STREAM_PREFIX + log for log in log_names(settings)] if stream is None else []
    if stream is None and not several and "data_dir" in settings.model_fields_set:
        stream = stream_of(settings.data_dir)
    where = f"NATS at {access.where}"
    return LogLocation(access, where, live=True, named=stream, several=tuple(several), key=key)


def _ignore(_line: str) -> None:
    pass


def named_stream(flags: SourceFlags) -> str | None:
    """Return the stream that the flags name, or None; raises UsageError."""
    if flags.stream is not None and flags.node is not None:
        raise UsageError("--node and --stream cannot be combined")
    stream = flags.stream if flags.node is None else LOG_STREAM_PREFIX + flags.node
    if stream is not None and (not stream.isprintable() or any(bad in stream for bad in " .*>/\\")):
        raise UsageError(f"not a valid node or stream name: {stream!r}")
    return stream


def only_stream(streams: list[str], where: str) -> str:
    """Return the stream of the only log; raises UsageError if there are several."""
    if len(streams) > 1:
        raise several_found([stream.removeprefix(LOG_STREAM_PREFIX) for stream in streams], where)
    return streams[0]


def several_found(logs: list[str], where: str) -> UsageError:
    """Return the error that one of several logs has to be named."""
    listed = ", ".join(logs[:_LISTED]) + (", ..." if len(logs) > _LISTED else "")
    return UsageError(f"there are {len(logs)} logs on {where}: give --node, one of {listed}")


def external_access(settings: LogSettings) -> ConnectionOptions:
    """Return the options of a connection to the external NATS server with the log.

    Raises ConfigError if the password file cannot be read.
    """
    password = settings.nats_password
    if settings.nats_password_file is not None:
        password = password_in("nats_password_file", settings.nats_password_file)
    return ConnectionOptions(
        urls=split_urls(settings.nats_url or ""),
        domain=settings.nats_domain,
        user=settings.nats_user,
        password=password,
        credentials=settings.nats_creds,
        nkey_seed=settings.nats_nkey,
        tls_ca=settings.nats_ca,
        tls_cert=settings.nats_cert,
        tls_key=settings.nats_key,
    )


def password_in(name: str, path: Path) -> str:
    """Return the first line of a password file, set by ``name``; raises ConfigError."""
    try:
        return path.read_text("utf-8-sig").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise ConfigError(f"{name} = {path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} = {path}: not UTF-8 text") from None
