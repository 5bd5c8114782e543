"""Opens the logs of a node or cluster with several; chooses the one that a session belongs to."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace

from cli.logsource.several_logs import log_names, log_of_session
from cli.logsource.source import (
    find_location,
    index_path,
    write_index_notice,
    write_notice,
)
from cli.logsource.source_flags import SourceFlags
from cli.settings import load_log_settings
from eventstore.nats import LOG_STREAM_PREFIX
from eventstore.reading import LogSource, with_index


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
async def open_node_logs(flags: SourceFlags) -> AsyncIterator[dict[str, LogSource]]:
    """Open all logs of a node or cluster with several, by name; none if it has one log.

    Raises as :func:`cli.logsource.source.open_source`.
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
            source = await location.open(client, stream)
            found[log] = await with_index(source, index_path(settings.data_dir, stream))
            if flags.verbose:
                write_index_notice(found[log], settings.data_dir)
        yield found
