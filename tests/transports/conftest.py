"""Runs all asynchronous tests here on both event loops of foldmq."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops, by name."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
