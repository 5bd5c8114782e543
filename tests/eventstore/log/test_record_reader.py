"""Reading records: what happens to a reader that is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eventstore.log.record_reader import _BatchReader


def test_a_cancellation_that_arrives_together_with_a_message_is_not_lost() -> None:
    async def run() -> None:
        client: Any = None
        reader = _BatchReader(client, "FOLDMQ_LOG_n", None)
        message: Any = object()
        task = asyncio.create_task(reader._next())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await reader._on_message(message)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
