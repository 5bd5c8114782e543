"""Checks that the parts of one event are consistent: its columns, topics and payloads."""

from collections.abc import Callable
from typing import Any

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Refused,
    Released,
    Returned,
    Subscribed,
    WillArmed,
)
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import count_runs
from eventstore.format.stored_properties import WithBlocks, block_bounds


def event_problem(event: Event, area: int) -> str | None:
    """Return the problem of an event as text; None if there is none.

    ``area`` is the size of the payload area of its record, in bytes.
    """
    check = _CHECKS.get(type(event))
    return check(event, area) if check is not None else None


_LENGTHS = "its columns differ in length"


def _check_published(event: MessagePublished, area: int) -> str | None:
    count, sizes, which = event.count, event.sizes, event.which
    if (
        count < 1
        or (isinstance(sizes, list) and len(sizes) != count)
        or (which and len(which) != count)
        or (event.pids and count_runs(event.pids) != count)
    ):
        return _LENGTHS
    topics = len(event.topics)
    if not topics or (which and not 0 <= min(which) <= max(which) < topics):
        return "a topic is missing"
    size = sizes * count if isinstance(sizes, int) else sum(sizes)
    if not 0 <= event.at <= event.at + size <= area:
        return "its payloads are not in the record"
    return _check_blocks(event, area)


def _check_blocks(
    event: MessagePublished | MessagesCarried | RetainedSnapshot, area: int
) -> str | None:
    if not event.blocks:
        return _LENGTHS if event.block_of else None
    numbers = event.block_of
    if numbers and len(numbers) != event.count:
        return _LENGTHS
    if numbers and not 0 <= min(numbers) <= max(numbers) <= len(event.blocks):
        return "a block of properties is missing"
    if event.blocks_at and len(event.blocks_at) != len(event.blocks):
        return _LENGTHS
    return _check_inside(event, area)


def _check_inside(event: WithBlocks, area: int) -> str | None:
    inside = all(0 <= begin <= end <= area for begin, end in block_bounds(event))
    return None if inside else "its properties are not in the record"


def _check_expiry(event: MessagesCarried | RetainedSnapshot | Queued, count: int) -> str | None:
    expires = event.expires
    return _LENGTHS if isinstance(expires, list) and count_runs(expires) != count else None


def _check_repeated(event: MessagesCarried | RetainedSnapshot, area: int) -> str | None:
    count, sizes = event.count, event.sizes
    if (
        count < 1
        or (isinstance(sizes, list) and len(sizes) != count)
        or count_runs(event.refs) != count
    ):
        return _LENGTHS
    size = sizes * count if isinstance(sizes, int) else sum(sizes)
    if not 0 <= event.at <= event.at + size <= area:
        return "its payloads are not in the record"
    return _check_blocks(event, area) or _check_expiry(event, count)


def _check_retained(event: RetainedSnapshot, area: int) -> str | None:
    if not len(event.topics) == len(event.qos) == event.count:
        return _LENGTHS
    return _check_publishers(event) or _check_repeated(event, area)


def _check_carried(event: MessagesCarried, area: int) -> str | None:
    which, topics = event.which, len(event.topics)
    if which and len(which) != event.count:
        return _LENGTHS
    if not topics or (which and not 0 <= min(which) <= max(which) < topics):
        return "a topic is missing"
    return _check_publishers(event) or _check_repeated(event, area)


def _check_publishers(event: MessagesCarried | RetainedSnapshot) -> str | None:
    of = event.publisher_of
    if of and len(of) != event.count:
        return _LENGTHS
    if of and not 0 <= min(of) <= max(of) < len(event.publishers):
        return "a publisher is missing"
    return None


def _check_will(event: WillArmed, area: int) -> str | None:
    if not 0 <= event.at <= event.at + event.size <= area:
        return "its payload is not in the record"
    return _LENGTHS if len(event.blocks) > 1 else _check_inside(event, area)


def _check_reasons(event: Acked | Completed | Received | Refused, _area: int) -> str | None:
    wrong = event.reasons and count_runs(event.reasons) != count_runs(event.pids)
    return _LENGTHS if wrong else None


def _check_subscribed(event: Subscribed, _area: int) -> str | None:
    wrong = event.options and len(event.options) != len(event.filters)
    return _LENGTHS if wrong else None


def _check_columns(
    event: Delivered | Released | InboundReplaced | Returned, _area: int
) -> str | None:
    return None if count_runs(event.pids) == count_runs(event.refs) else _LENGTHS


def _check_dropped(event: MessageDropped, _area: int) -> str | None:
    return _LENGTHS if event.refs and count_runs(event.refs) != event.count else None


def _check_queued(event: Queued, _area: int) -> str | None:
    if not event.refs:
        return "it names no message"
    return _check_expiry(event, count_runs(event.refs))


_CHECKS: dict[type, Callable[[Any, int], str | None]] = {
    MessagePublished: _check_published,
    WillArmed: _check_will,
    Subscribed: _check_subscribed,
    Delivered: _check_columns,
    Released: _check_columns,
    InboundReplaced: _check_columns,
    Returned: _check_columns,
    Acked: _check_reasons,
    Received: _check_reasons,
    Refused: _check_reasons,
    Completed: _check_reasons,
    MessageDropped: _check_dropped,
    Queued: _check_queued,
    MessagesCarried: _check_carried,
    RetainedSnapshot: _check_retained,
}
