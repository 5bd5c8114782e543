"""Sockets of clients that leave at the same moment are closed some at a time."""

from __future__ import annotations

import asyncio
from typing import cast

from actors.connection.socket_closer import _CLOSED_AT_ONCE, SocketCloser


async def test_many_are_closed_some_in_each_iteration_in_order() -> None:
    closed: list[int] = []

    class Closes:
        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            closed.append(self.number)

    closer = SocketCloser()
    many = 2 * _CLOSED_AT_ONCE + 1
    for number in range(many):
        closer.close_soon(cast("asyncio.Transport", Closes(number)))
    assert closed == []
    counts = []
    while len(closed) < many:
        await asyncio.sleep(0)
        counts.append(len(closed))
    assert closed == list(range(many))
    assert counts[0] == _CLOSED_AT_ONCE
    closer.close_soon(cast("asyncio.Transport", Closes(-1)))
    await asyncio.sleep(0)
    assert closed[-1] == -1
