"""The moment of an answer: the positions it is of, and the tag of one that never changes."""

import asyncio
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import orjson

from cli.common import package_version
from cli.logs.point_resolution import points_at
from cli.web.api.operation import Call, Operation, open_sources, positions_text
from cli.web.api.parameters import Params, moment
from cli.web.api.problem_types import NotYet
from eventstore.display import iso
from eventstore.errors import UsageError
from eventstore.format.positions import (
    MAX_INDEX,
    format_position,
    parse_position,
    position,
    sequence_of,
)
from eventstore.reading.log_points import LogPoint

_WAIT_SECONDS: Final = 5.0
_LOOKS: Final = 100


class Snapshot(NamedTuple):
    """The moment of an answer."""

    params: Params
    """The parameters, with absolute moments."""
    position: str
    """What the answer includes at least, or exactly if it has a tag."""
    tag: str = ""
    """A tag of the answer, which never changes; empty: it is of the present."""


async def wait_for(call: Call, after: str) -> None:
    """Wait until the logs include positions; raises NotYet, and UsageError for other text."""
    sequences = dict[str, int]()
    for part in after.split(","):
        log, _, where = part.rpartition(":")
        try:
            sequences[log] = sequence_of(parse_position(where))
        except ValueError:
            raise UsageError(f"after: {part} is not a position") from None
    names = await call.link.logs()
    if not sequences.keys() <= set(names):
        form = f"LOG:POSITION, of the logs {', '.join(names)}" if call.link.names else "a position"
        raise UsageError(f"after: must be {form}")
    for _ in range(_LOOKS):
        if all([await _last(call, log) >= at for log, at in sequences.items()]):
            return
        await asyncio.sleep(_WAIT_SECONDS / _LOOKS)
    raise NotYet(f"the log does not include {after} yet")


async def _last(call: Call, log: str) -> int:
    async with call.link.log(log) as source:
        return source.last


async def find_snapshot(call: Call, operation: Operation, params: Params) -> Snapshot:
    """Return the moment of an answer, before it is made.

    Raises UsageError for a moment that cannot be one, and as ``WebLogClient.log``.
    """
    moments = {name: getattr(params, name) for name in operation.moments}
    names = [params.log] if params.log and call.link.names else await call.link.logs()
    if not moments or None in moments.values():
        lasts = {log: await _last(call, log) for log in names}
        return Snapshot(params, positions_text(lasts))
    session = getattr(params, "id", None) or getattr(params, "session", None)
    log = await call.link.log_of(session, params.log) if session else params.log
    resolved = {}
    digest = blake2b(package_version.version.encode(), digest_size=16)
    points: Mapping[str, LogPoint] = {}
    async with open_sources(call, log) as logs:
        for name, value in moments.items():
            spec = moment(value)
            logs.check_comparable(spec)
            points = await points_at(logs, spec)
            resolved[name] = iso(spec.time_ms or 0) if logs.several else point_text(points[""])
            for log_name, point in points.items():
                source = logs[log_name]
                link = b""
                if source.first <= point.sequence and point.sequence:
                    link = (await source.some([point.sequence]))[0].link
                digest.update(
                    orjson.dumps([source.stream, point.sequence, point.index, link.hex()])
                )
    params = params.model_copy(update=resolved)
    about = params.model_dump(mode="json", exclude={"after"})
    digest.update(orjson.dumps([operation.name, about, call.payloads], option=orjson.OPT_SORT_KEYS))
    own = log if log and call.link.names else ""
    place = ",".join(_labelled(name or own, point_text(at)) for name, at in points.items())
    return Snapshot(params, place, digest.hexdigest())


def _labelled(log: str, place: str) -> str:
    return f"{log}:{place}" if log else place


def point_text(point: LogPoint) -> str:
    """Return a point as text: of a whole record its sequence."""
    if point.index == MAX_INDEX:
        return str(point.sequence)
    return format_position(position(point.sequence, point.index))


def matches_tag(header: str | None, tag: str) -> bool:
    """Return whether If-None-Match names a tag."""
    if header is None or not tag:
        return False
    tags: Iterable[str] = (part.strip().removeprefix("W/") for part in header.split(","))
    return header.strip() == "*" or f'"{tag}"' in tags
