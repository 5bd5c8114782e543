"""Reads a log without its broker: its location, its records in order, points in it.

::

    async with contextlib.AsyncExitStack() as stack:
        location = await open_directory(stack, path, None, note=print, server_log=print)
        client = await location.connect(stack)
        source = await location.open(client, location.named)
        async for record in source.records(source.begin, source.last):
            ...
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from eventstore.reading.gc_pause import few_collections
    from eventstore.reading.indexed_reading import (
        fetch_listed,
        find_index,
        is_of,
        read_listed,
        with_index,
    )
    from eventstore.reading.log_location import LogLocation, open_directory, stream_of
    from eventstore.reading.log_points import (
        ClockSpan,
        LogPoint,
        all_until,
        clock_spans,
        last_between,
        last_until,
        time_of,
    )
    from eventstore.reading.log_source import LogSource, check_noted, open_log
    from eventstore.reading.polling import Polling
    from eventstore.reading.position_text import (
        PointSpec,
        packet_ids_text,
        parse_point,
        positions_text,
        several,
        stamp,
    )
    from eventstore.reading.progress import Progress, silent
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "gc_pause": "few_collections",
            "indexed_reading": "fetch_listed find_index is_of read_listed with_index",
            "log_location": "LogLocation open_directory stream_of",
            "log_points": (
                "ClockSpan LogPoint all_until clock_spans last_between last_until time_of"
            ),
            "log_source": "LogSource check_noted open_log",
            "polling": "Polling",
            "position_text": "PointSpec packet_ids_text parse_point positions_text several stamp",
            "progress": "Progress silent",
        },
    )

__all__ = [
    "ClockSpan",
    "LogLocation",
    "LogPoint",
    "LogSource",
    "PointSpec",
    "Polling",
    "Progress",
    "all_until",
    "check_noted",
    "clock_spans",
    "fetch_listed",
    "few_collections",
    "find_index",
    "is_of",
    "last_between",
    "last_until",
    "open_directory",
    "open_log",
    "packet_ids_text",
    "parse_point",
    "positions_text",
    "read_listed",
    "several",
    "silent",
    "stamp",
    "stream_of",
    "time_of",
    "with_index",
]
