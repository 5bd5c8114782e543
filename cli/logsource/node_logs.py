"""The logs of a node or cluster with several, and the one of them that a session belongs to."""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from cli.logsource.source import find_location, index_path
from cli.logsource.source_flags import SourceFlags
from cli.settings import LogLocationSettings, load_log_settings
from eventstore.datadir import DataDir
from eventstore.display import name
from eventstore.errors import UsageError
from eventstore.nats import LOG_STREAM_PREFIX
from eventstore.partitions import partition_names, partition_of
from eventstore.reading import LogSource, with_index
from protocol.mqtt5 import SHARE


def log_names(settings: LogLocationSettings) -> list[str]:
    """Return the names of the logs of a cluster, or of the processes of a data directory.

    None are returned if there is one log.
    """
    if settings.cluster is not None:
        several = settings.partitions > 1
        return partition_names(settings.cluster, settings.partitions) if several else []
    datadir = DataDir(settings.data_dir)
    elsewhere = settings.nats_url is not None and "data_dir" not in settings.model_fields_set
    return [] if elsewhere else datadir.log_names()


def flags_of_session(flags: SourceFlags, session: str | None) -> SourceFlags:
    """Return flags that name the log of a session, where a node has several logs.

    Of a shared subscription that is its home, unless they name another one, for the part there.
    Raises UsageError if they name another log than that of a client.
    """
    if session is None or flags.stream is not None:
        return flags
    names = log_names(load_log_settings(flags.settings, os.environ, flags.config))
    return replace(flags, node=log_of_session(names, session, flags.node) or flags.node)


def log_of_session(names: Sequence[str], session: str, chosen: str | None = None) -> str | None:
    """Return the log of a session, or the one that was chosen for a shared subscription.

    None is returned if there are no several logs, ``names``, or if the session belongs to none of
    them. Raises UsageError if another log was chosen than that of a client.
    """
    shared = session.startswith(SHARE)
    if not names or (session.startswith("$") and not shared):
        return None
    own = names[partition_of(session, len(names))]
    if chosen in names and chosen != own and not shared:
        raise UsageError(
            f"the session {name(session)} belongs to the log {own}, not to {chosen}: give --node "
            f"{own}, or leave it out"
        )
    return chosen or own


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
        found = {}
        for log in names:
            stream = LOG_STREAM_PREFIX + log
            source = await location.open(client, stream)
            found[log] = await with_index(source, index_path(settings.data_dir, stream))
        yield found
