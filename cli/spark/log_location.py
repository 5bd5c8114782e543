"""The log that a job reads: found and checked before Spark starts, and passed as options."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nats.aio.client import Client

from cli.common import text
from cli.logs.point_resolution import cut_off, point_at
from cli.logs.source import find_location, named_stream, write_notice
from cli.settings.log_settings import LogSettings, load_log_settings
from cli.spark.spark_flags import MASTER, SparkFlags
from eventstore.errors import CutOff, UsageError
from eventstore.home_paths import expand_home
from eventstore.nats.connection import ConnectionOptions
from eventstore.reading.log_location import LogLocation
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from spark.runtime.session import is_local, is_submitted
from spark.tables.discovery import find_in_archive, join_with_archive
from spark.tables.options import SourceOptions
from spark.tables.planning import plan_ranges
from spark.tables.stored_log import StoredLog


@dataclass(frozen=True, slots=True)
class Found:
    """The location of the records."""

    options: Mapping[str, str] = field(repr=False)
    """Options of the data source, including passwords."""
    logs: list[LogSource] = field(default_factory=list)
    """The logs on a NATS server, open while they are checked; none: only an archive."""
    where: str = ""
    """The location, as text."""
    streams: tuple[str, ...] = ()
    """Names of the logs."""
    archived: list[StoredLog] = field(default_factory=list)
    """Logs of an archive without a NATS server."""

    @property
    def live(self) -> bool:
        """Whether a broker may be writing."""
        return any(log.live for log in self.logs)


async def find(
    stack: contextlib.AsyncExitStack, client: contextlib.AsyncExitStack, flags: SparkFlags
) -> Found:
    """Find the log; ``stack`` stops a server started to read it, ``client`` our connection.

    Raises ConfigError, UsageError, NoLog, DataDirError, LostLog, CorruptLog or NatsUnavailable, and
    the errors of reading an archive.
    """
    settings = load_log_settings(flags.source.settings, os.environ, flags.source.config)
    archive = {} if flags.archive is None else {"archive": absolute(flags.archive)}
    if archive and {"data_dir", "nats_url"}.isdisjoint(settings.model_fields_set):
        return _archive_alone(archive, flags)
    _require_reachable(settings, flags)
    if archive:
        find_in_archive(SourceOptions.read(archive))
    location = await find_location(stack, settings, flags.source)
    logs = await _logs(location, await location.connect(client))
    streams = [log.stream for log in logs]
    if flags.source.verbose:
        write_notice(location.reading(streams))
    options = {**_access(location.access), "stream": ",".join(streams), **archive}
    return Found(options, logs, location.where, tuple(streams))


def _archive_alone(archive: dict[str, str], flags: SparkFlags) -> Found:
    from spark.tables.directories import directory_text  # not before: it needs Arrow

    where = f"archive {directory_text(flags.archive or '')}"
    if flags.source.verbose:
        write_notice(f"reading {where}")
    query = {**archive, "stream": named_stream(flags.source) or "*"}
    options = SourceOptions.read(query)
    archived = join_with_archive(options, [], find_in_archive(options))
    names = tuple(stored.stream for stored in archived)
    return Found(query, where=where, streams=names, archived=archived)


def absolute(path: str) -> str:
    """Return an absolute directory for Spark's workers; a URI is unchanged.

    Raises NoHome, or UsageError for a name that cannot be passed to Spark.
    """
    place = path if "://" in path else str(expand_home(path).absolute())
    try:
        place.encode()
    except UnicodeEncodeError:
        from spark.tables.directories import directory_text

        raise UsageError(
            f"{directory_text(place)}: the name is not UTF-8, which Spark requires"
        ) from None
    return place


async def until(place: Found, at: PointSpec | None) -> dict[str, str]:
    """Return the option for the end of the log to read.

    Raises UsageError for a moment after the end of the log, CutOff for a deleted one; without a
    NATS server, BadOption or CutOff of the data source.
    """
    if at is None:
        return {}
    point = _moment_text(place, at)
    for log in place.logs:
        if "archive" not in place.options and await cut_off(log, at):
            raise CutOff(f"no records of {at.text}: {log.beginning()}")
        if at.position is not None:
            await point_at(log, at)
    return _known(place, {"until": point})


def since(place: Found, begin: PointSpec | None) -> dict[str, str]:
    """Return the option for the start of the log to read; raises as :func:`until`."""
    return {} if begin is None else _known(place, {"from": _moment_text(place, begin)})


def _known(place: Found, option: dict[str, str]) -> dict[str, str]:
    """Return an option; raises BadOption or CutOff if the archive does not contain that point."""
    options = SourceOptions.read({**place.options, **option})
    plan_ranges(place.archived, options, options.pushed)
    return option


def _moment_text(place: Found, moment: PointSpec) -> str:
    if moment.time_ms is not None:
        return text.iso(moment.time_ms)
    if len(place.streams) > 1:
        raise UsageError(
            f"a position belongs to one log, but there are {len(place.streams)} on "
            f"{place.where}: give --node, or a time"
        )
    return moment.text


async def _logs(location: LogLocation, client: Client) -> list[LogSource]:
    logs = [await location.open(client, stream) for stream in await location.streams(client)]
    for log in logs:
        log.require_whole()
        await log.require_noted()
    return logs


def _require_reachable(settings: LogSettings, flags: SparkFlags) -> None:
    """Raise UsageError if executors on other machines cannot reach the log."""
    elsewhere = is_submitted() or not is_local(flags.master or MASTER)
    if elsewhere and settings.nats_url is None:
        raise UsageError(
            "executors on other machines cannot read a local data directory: give --nats-url "
            "with a NATS server that they can reach, or --archive"
        )


def _access(access: ConnectionOptions) -> dict[str, str]:
    fields = {
        "nats": ",".join(access.urls),
        "user": access.user,
        "password": access.password,
        "creds": _path(access.credentials),
        "nkey": _path(access.nkey_seed),
        "ca": _path(access.tls_ca),
        "cert": _path(access.tls_cert),
        "key": _path(access.tls_key),
        "domain": access.domain,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _path(path: Path | None) -> str | None:
    return None if path is None else absolute(str(path))
