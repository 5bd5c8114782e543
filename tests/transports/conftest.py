"""Runs all asynchronous tests here on both event loops of foldmq."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loops, by name."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
