"""The options of the source, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from eventstore.display import escaped
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from spark.runtime.marked_errors import BadOption
from spark.tables.columns import Columns
from spark.tables.nats_access import NatsAccess
from spark.tables.point_options import EARLIEST, OffsetOption, PointOption
from spark.tables.row_filter import PushedFilters

FAILFAST, PERMISSIVE, DROPMALFORMED = "FAILFAST", "PERMISSIVE", "DROPMALFORMED"
_MODES: Final = (FAILFAST, PERMISSIVE, DROPMALFORMED)
_ACCESS: Final = (
    "nats",
    "domain",
    "user",
    "password",
    "token",
    "creds",
    "nkey",
    "ca",
    "cert",
    "key",
)
_LIMITS: Final = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "maxEventsPerTrigger")
_OTHERS: Final = (
    "stream",
    "node",
    "archive",
    "rows",
    "columns",
    "until",
    "from",
    "partitions",
    "types",
    "sessions",
    "pushdown",
    "mode",
    "clockSkew",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    *_LIMITS,
)
_KNOWN: Final = {name.lower(): name for name in (*_ACCESS, *_OTHERS)}
"""The options by their names in lower case."""
_CLOCK_SKEW: Final = 600


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The logs to read, and how to read them."""

    access: NatsAccess | None
    """None: only an archive is read."""
    streams: tuple[str, ...]
    """Names of logs; ``*``: all logs; empty: the only log."""
    archive: str | None = field(repr=False)  # a URI may have a password in it
    columns: Columns
    start: PointOption
    until: PointOption
    partitions: int | None
    pushed: PushedFilters
    """Row filters set by the options themselves."""
    pushdown: bool
    """Whether the filters of a query may be pushed down too."""
    mode: str
    clock_skew_ms: int
    """Maximum milliseconds by which the clock of a broker may have been set back."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of one batch of a stream: ``records``, ``bytes``, ``events``."""
    starting: OffsetOption = field(default_factory=lambda: OffsetOption("startingOffsets"))
    ending: OffsetOption = field(default_factory=lambda: OffsetOption("endingOffsets"))
    fail_on_data_loss: bool = True
    """Whether reading fails if requested records were cut off or their log is gone."""

    @classmethod
    def read(cls, values: Mapping[str, str]) -> SourceOptions:
        """Read options; raises BadOption. Names are case-insensitive."""
        options = {name.lower(): value for name, value in values.items() if value}
        options.pop("path", None)
        for name in options:
            if name not in _KNOWN:
                raise BadOption(f"there is no option {escaped(name)!r}{_meant(name)}")
        access = None
        if options.get("nats"):
            access = NatsAccess({name: options[name] for name in _ACCESS if name in options})
        archive = options.get("archive") or None
        if access is None and archive is None:
            raise BadOption(
                "nothing to read: give option nats (a URL), archive (a directory) or both"
            )
        mode = options.get("mode", FAILFAST).upper()
        if mode not in _MODES:
            raise BadOption(f"mode = {escaped(mode)}: expected one of {', '.join(_MODES)}")
        names = _list(options.get("columns", ""))
        rows = options.get("rows", "entries")
        if rows == "records" and ("types" in options or "sessions" in options):
            raise BadOption("rows=records has neither types nor sessions: they are of events")
        partitions = options.get("partitions")
        starting = OffsetOption.read("startingOffsets", options.get("startingoffsets"))
        ending = OffsetOption.read("endingOffsets", options.get("endingoffsets"))
        ending.reject(EARLIEST, "nothing is before the beginning of a log")
        for name, offsets in (("from", starting), ("until", ending)):
            if name in options and offsets.given:
                raise BadOption(f"{name} and {offsets.name} exclude each other: give one")
        return cls(
            access,
            _streams(options),
            archive,
            Columns.of(rows, names),
            PointOption.read("from", options.get("from")),
            PointOption.read("until", options.get("until")),
            None if partitions is None else _positive("partitions", partitions),
            PushedFilters(
                types=_types(options.get("types")),
                sessions=_names("sessions", options.get("sessions")),
            ),
            _boolean("pushdown", options.get("pushdown", "false")),
            mode,
            1000 * _positive("clockSkew", options.get("clockskew", str(_CLOCK_SKEW))),
            {
                name[3:-10].lower(): _positive(name, options[name.lower()])
                for name in _LIMITS
                if name.lower() in options
            },
            starting,
            ending,
            _boolean("failOnDataLoss", options.get("failondataloss", "true")),
        )


def _meant(name: str) -> str:
    """Return a suggestion for an unknown option: a similar name, or all options."""
    close = get_close_matches(name, _KNOWN, 1)
    if close:
        return f": did you mean {_KNOWN[close[0]]}?"
    return f": there are {', '.join(_KNOWN.values())}"


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    if "stream" in options and "node" in options:
        raise BadOption("stream and node exclude each other: give one")
    names = _list(options.get("stream", ""))
    if "node" in options:
        names = tuple(LOG_STREAM_PREFIX + node for node in _list(options["node"]))
    for name in names:
        if name != "*" and (not name.isprintable() or any(bad in name for bad in " .*>/\\")):
            raise BadOption(f"not the name of a node or stream: {escaped(name)}")
    return names


def _names(option: str, text: str | None) -> frozenset[str] | None:
    """Read names, separated by commas, or as a JSON array if names contain commas."""
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return frozenset(_list(text))
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadOption(f"{option} is not a JSON array of names")
    return frozenset(names)


def _types(text: str | None) -> frozenset[str] | None:
    types = _names("types", text)
    if not types:
        return types
    from eventstore.format.event_parsing import VERSIONS  # not before: it takes long to import

    for name in types:
        if name not in VERSIONS:
            raise BadOption(
                f"there is no event type {escaped(name)}: see docs/contribute/events.md"
            )
    return types


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadOption(f"{name} = {escaped(text)}: expected true or false")
    return text.lower() == "true"


def _positive(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise BadOption(f"{name} = {escaped(text)}: expected a number of 1 or more")
    return number
