"""Threads with lower priority or short time slices; all other threads stay unaffected."""

import ctypes
import os
import platform
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.kernel.os_priority import lower_thread_priority, set_short_time_slice


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is that of a process elsewhere")
def test_only_the_thread_itself_gives_way() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    with ThreadPoolExecutor(1, initializer=lower_thread_priority) as threads:
        assert threads.submit(niceness).result() == max(before, 5)
    assert niceness() == before


def slice_of_thread() -> int:
    """Nanoseconds for which the calling thread runs at a time; 0 where the system does not tell."""
    attributes = ctypes.create_string_buffer(48)
    number = {"x86_64": 315}.get(platform.machine(), 275)
    if ctypes.CDLL(None).syscall(number, 0, attributes, len(attributes), 0):
        return 0
    return int(struct.unpack_from("=Q", attributes, 24)[0])


@pytest.mark.skipif(sys.platform != "linux", reason="a system call of Linux")
def test_high_priority_threads_get_short_time_slices() -> None:
    def told() -> tuple[int, int, int]:
        set_short_time_slice()
        mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), slice_of_thread()
        lower_thread_priority()
        return *mine, slice_of_thread()

    usual = slice_of_thread()
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with ThreadPoolExecutor(1) as threads:
        kept, soon, aside = threads.submit(told).result()
    assert kept == niceness
    assert slice_of_thread() == usual
    if not usual or os.sched_getscheduler(0) != os.SCHED_OTHER:
        pytest.skip("this Linux, or the policy that the tests run with, has no such times")
    assert soon == 100_000
    assert aside == usual


@pytest.mark.skipif(sys.platform != "linux", reason="a system call of Linux")
def test_the_policy_of_an_operator_stays() -> None:
    def told() -> tuple[int, int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        before = slice_of_thread()
        set_short_time_slice()
        return os.sched_getscheduler(0), slice_of_thread() - before

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(told).result() == (os.SCHED_BATCH, 0)
