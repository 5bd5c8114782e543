"""The logs that a command reads: one, or all those of a node or cluster.

A log that needs no name, because it is the only one or the flags name it, has an empty one: errors
and lines of output then do not name it.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import replace

from cli.logs.log_brokers import log_names, log_of_session
from cli.logs.source import (
    find_location,
    index_path,
    only_stream,
    several_found,
    write_index_notice,
    write_notice,
)
from cli.logs.source_flags import SourceFlags
from cli.settings.log_settings import load_log_settings
from eventstore.display import count_of, name
from eventstore.errors import UsageError, naming_log
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.reading.indexed_reading import with_index
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from protocol.errors import FoldmqError

FEW = 1024
"""Records that a question reads without an index: writing it takes longer."""
_WORST_FIRST = (65, 66, 78, 73, 74, 69, 75)
"""Exit codes: damage and loss first, then what cannot be used, then what may work later."""


class IncompleteLogs(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """Some of several logs could not be read; the exit code is that of the worst error."""

    def __init__(self, count: int, errors: Sequence[FoldmqError]) -> None:
        of = f"{len(errors)} of {count_of(count, 'log')}"
        super().__init__(f"incomplete, without {of}: {'; '.join(map(str, errors))}")
        self.exit_code = min(errors, key=_rank).exit_code


def _rank(error: FoldmqError) -> int:
    code = error.exit_code
    return _WORST_FIRST.index(code) if code in _WORST_FIRST else len(_WORST_FIRST)


class Logs(dict[str, LogSource]):
    """Open logs by name, in order, and the errors of those that could not be opened or read."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = list(names)
        """The names of all logs, also of those that could not be opened."""
        self.errors: dict[str, FoldmqError] = {}

    @property
    def several(self) -> bool:
        """Whether these are the logs of a node or cluster with several."""
        return "" not in self.names

    @contextlib.contextmanager
    def of(self, log: str) -> Iterator[None]:
        """Record the error of one of several logs; raise that of a single one, without a name."""
        try:
            with naming_log(log):
                yield
        except FoldmqError as error:
            if not log:
                raise
            self.errors[log] = error

    def check_read(self) -> None:
        """Raise IncompleteLogs if some of the logs failed; if all did, the worst error."""
        errors = list(self.errors.values())
        if errors and len(errors) == len(self.names):
            raise min(errors, key=_rank)
        if errors:
            raise IncompleteLogs(len(self.names), errors)

    def check_comparable(self, *moments: PointSpec | None) -> None:
        """Raise UsageError for a position, if there are several logs."""
        for moment in moments:
            if self.several and moment is not None and moment.position is not None:
                raise UsageError(
                    f"{moment.text} is a position of one log, and there are {len(self)}: give a "
                    f"time, or --node, one of {', '.join(self)}"
                )

    def only(self, session: str) -> LogSource:
        """Return the only log; raises UsageError for a session that may be in any of several."""
        if self.several:
            raise UsageError(
                f"{name(session)} may be a session of any log: give --node, one of "
                f"{', '.join(self)}"
            )
        return self[""]

    def home(self, node: str | None) -> str:
        """Return the name of the log of a node; raises UsageError if several are left."""
        if not self.several:
            return ""
        if node is None:
            raise several_found(list(self), next(iter(self.values())).where)
        return node


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
    flags: SourceFlags,
    session: str | None = None,
    *,
    partly: bool = False,
    whole: bool = False,
    indexed: bool = False,
) -> AsyncIterator[Logs]:
    """Open the logs that the flags name.

    Of a node or cluster with several logs these are all, unless the flags name one, or there is a
    ``session``: then the one that it belongs to. With ``whole``, they are all if the flags name
    one of them; with ``indexed``, a missing index is built. Raises ConfigError,
    UsageError, NoLog, DataDirError, LostLog or NatsUnavailable; with ``partly``, the errors of some
    of several logs are in ``errors`` instead.
    """
    flags = flags_of_session(flags, session)
    settings = load_log_settings(flags.settings, os.environ, flags.config)
    names = log_names(settings) if flags.stream is None else []
    if whole and flags.node in names:
        flags = replace(flags, node=None)
    if flags.node is not None:
        names = []
    async with contextlib.AsyncExitStack() as stack:
        location = await find_location(stack, settings, flags)
        client = await location.connect(stack)
        streams = [LOG_STREAM_PREFIX + log for log in names]
        if not streams:
            streams = [only_stream(await location.streams(client), location.where)]
        logs = Logs(names or [""])
        if flags.verbose:
            write_notice(location.reading(streams))
        for log, stream in zip(logs.names, streams, strict=True):
            with logs.of(log) if partly else naming_log(log):
                source = await location.open(client, stream)
                path = index_path(settings.data_dir, stream)
                source = await with_index(source, path)
                if indexed and settings.index_bytes and source.not_indexed > FEW:
                    from cli.logs.index_writer import with_whole_index

                    source = await with_whole_index(source, path, settings.index_bytes)
                logs[log] = source
                if flags.verbose:
                    write_index_notice(logs[log])
        yield logs
