"""Threads that give way do so by themselves: the event loop keeps its priority."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.limits.background import give_way


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is that of a process elsewhere")
def test_only_the_thread_itself_gives_way() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    with ThreadPoolExecutor(1, initializer=give_way) as threads:
        assert threads.submit(niceness).result() == max(before, 10)
    assert niceness() == before
