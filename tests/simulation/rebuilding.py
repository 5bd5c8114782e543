"""Sessions that fail and are rebuilt."""

import asyncio
from typing import Any

import pytest

from actors.broker import supervision


def rebuilt_later(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the rebuild of sessions wait for an event."""
    may_rebuild, rebuild = asyncio.Event(), supervision.rebuild_session

    async def later(broker: Any, name: str) -> Any:
        await may_rebuild.wait()
        return await rebuild(broker, name)

    monkeypatch.setattr(supervision, "rebuild_session", later)
    return may_rebuild
