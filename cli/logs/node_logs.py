"""Opens the logs of a node or cluster with several; chooses the one that a session belongs to.

The errors of these logs name them.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from cli.logs.log_failures import LogFailures
from cli.logs.several_logs import log_names, log_of_session
from cli.logs.source import (
    find_location,
    index_path,
    open_source,
    write_index_notice,
    write_notice,
)
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import load_log_settings
from eventstore.display import name
from eventstore.errors import UsageError, naming_log
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.indexed_reading import with_index
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec


def flags_of_session(flags: SourceFlags, session: str | None) -> SourceFlags:
    """Return flags that name the log of a session, where a node has several logs.

    Of a shared subscription that is its home, unless they name another one, for the part there.
    Raises UsageError if they name another log than that of a client.
    """
    if session is None or flags.stream is not None:
        return flags
    names = log_names(load_log_settings(flags.settings, os.environ, flags.config))
    return replace(flags, node=log_of_session(names, session, flags.node) or flags.node)


@contextlib.asynccontextmanager
async def open_logs(
    flags: SourceFlags, session: str | None = None, failures: LogFailures | None = None
) -> AsyncIterator[dict[str, LogSource]]:
    """Open the logs that the flags name, by name; a single one has an empty name.

    Of a node or cluster with several logs these are all, unless the flags name one, or there is a
    ``session``: then the one that it belongs to. Raises as
    :func:`cli.logs.source.open_source`; errors of several logs are put in ``failures``, and
    these logs left out.
    """
    flags = flags_of_session(flags, session)
    if flags.node is None:
        async with open_node_logs(flags, failures) as logs:
            if logs or (failures is not None and failures.errors):
                yield logs
                return
    async with open_source(flags) as source:
        yield {"": source}


def check_comparable(logs: Mapping[str, LogSource], *moments: PointSpec | None) -> None:
    """Raise UsageError for a position, if there are several logs."""
    for moment in moments:
        if len(logs) > 1 and moment is not None and moment.position is not None:
            raise UsageError(
                f"{moment.text} is a position of one log, and there are {len(logs)}: give a time, "
                f"or --node, one of {', '.join(logs)}"
            )


def check_one_log(logs: Mapping[str, LogSource], session: str | None) -> None:
    """Raise UsageError for a session that may be in any of several logs."""
    if len(logs) > 1 and session is not None:
        raise UsageError(
            f"{name(session)} may be a session of any log: give --node, one of {', '.join(logs)}"
        )


@contextlib.asynccontextmanager
async def open_node_logs(
    flags: SourceFlags, failures: LogFailures | None = None
) -> AsyncIterator[dict[str, LogSource]]:
    """Open all logs of a node or cluster with several, by name; none if it has one log.

    Raises as :func:`cli.logs.source.open_source`; with ``failures``, errors of single logs are
    put there, and these logs left out.
    """
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    names = log_names(settings) if flags.stream is None else []
    if not names or (flags.node is not None and flags.node not in names):
        yield {}
        return
    async with contextlib.AsyncExitStack() as stack:
        location = await find_location(stack, settings, replace(flags, node=None))
        client = await location.connect(stack)
        if flags.verbose:
            write_notice(location.reading(LOG_STREAM_PREFIX + log for log in names))
        found = {}
        for log in names:
            stream = LOG_STREAM_PREFIX + log
            with naming_log(log) if failures is None else failures.of(log):
                source = await location.open(client, stream)
                found[log] = await with_index(source, index_path(settings.data_dir, stream))
            if flags.verbose and log in found:
                write_index_notice(found[log], settings.data_dir)
        yield found
