"""Reading ahead: bounded, in order, with errors passed on, and ended however the source behaves."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from spark.tables.nats_log import read_ahead


def test_all_items_come_in_order() -> None:
    async def source() -> AsyncIterator[tuple[int, bytes]]:
        for number in range(5000):
            yield number, b"x"

    assert [number for number, _ in read_ahead(source)] == list(range(5000))


def test_an_error_of_the_source_is_raised_where_items_are_taken() -> None:
    async def source() -> AsyncIterator[tuple[int, bytes]]:
        yield 1, b""
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(read_ahead(source))


def test_reading_ahead_is_bounded() -> None:
    given: list[int] = []

    async def source() -> AsyncIterator[tuple[int, bytes]]:
        for number in range(100_000):
            given.append(number)
            yield number, b"x"

    items = read_ahead(source)
    next(items)
    items.close()  # type: ignore[attr-defined] # a generator
    assert len(given) < 10_000


def test_a_source_that_swallows_a_cancellation_is_ended_all_the_same() -> None:
    closed = threading.Event()

    async def source() -> AsyncIterator[tuple[int, bytes]]:
        swallowed = False
        try:
            number = 0
            while True:
                number += 1
                try:
                    await asyncio.sleep(0 if number < 600 else 3600)
                except asyncio.CancelledError:
                    if swallowed:
                        raise
                    swallowed = True
                yield number, b"x"
        finally:
            closed.set()

    before = threading.active_count()
    items = read_ahead(source)
    next(items)
    items.close()  # type: ignore[attr-defined] # a generator
    assert closed.is_set()
    assert threading.active_count() == before
