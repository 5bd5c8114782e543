"""What foldmq costs while nothing happens: memory, processor time, and bytes written."""

import argparse
import time
from typing import Any

from bench.brokers.broker_processes import (
    Foldmq,
    Running,
    cpu,
    proc_number,
    processes_of,
    running,
    written_bytes,
)
from bench.loads.recovery_loads import work_directory
from bench.measuring.metrics import Metric, Target, value
from bench.measuring.progress import report
from bench.measuring.rows import Row, own_rows
from bench.processes.watchers import idle_clients

SECONDS = 60.0
CLIENTS = 1000
_PAGE_ENDS = {"FOLDMQ_WEB_IDLE": "1s"}
"""The page's process, which a start of the benchmark awaits, has ended long before the end."""

IDLE_LOAD = (
    Metric("memory", "MB PSS", value("mb"), (Target(95, at_most=True, aim=True),), less=True),
    Metric("processor", "ms/s", value("ms_per_s"), (Target(5, at_most=True, aim=True),), less=True),
    Metric("written", "KiB/min", value("kib"), (Target(0, at_most=True, aim=True),), less=True),
    Metric("memory of a client", "KiB PSS", value("kib_per_client"), less=True),
    Metric("processor with clients", "ms/s", value("ms_per_s_with_clients"), less=True),
)


def idle(options: argparse.Namespace) -> list[Row]:
    """Measure a new broker for a minute, alone and with clients that send only pings."""
    runs = []
    for _ in range(options.rounds):
        with work_directory(options) as work, running(Foldmq, work, _PAGE_ENDS) as server:
            runs.append(_measured(server, options))
        report("idle", "foldmq", IDLE_LOAD, runs[-1])
    return own_rows("idle", IDLE_LOAD, runs, quick=options.quick)


def _measured(server: Running, options: argparse.Namespace) -> dict[str, Any]:
    seconds = SECONDS / 10 if options.quick else SECONDS
    time.sleep(seconds)
    alone = _quiet_minute(server, seconds)
    with idle_clients(server.port, CLIENTS):
        time.sleep(seconds / 4)
        crowd = _quiet_minute(server, seconds)
    return {
        **alone,
        "kib_per_client": (crowd["mb"] - alone["mb"]) * 1e6 / 1024 / CLIENTS,
        "ms_per_s_with_clients": crowd["ms_per_s"],
    }


def _quiet_minute(server: Running, seconds: float) -> dict[str, float]:
    before, written = _processor_ms(server), written_bytes(server.pid)
    time.sleep(seconds)
    return {
        "mb": sum(map(_pss, processes_of(server.pid))) / 1e6,
        "ms_per_s": (_processor_ms(server) - before) / seconds,
        "kib": (written_bytes(server.pid) - written) / 1024 * 60 / seconds,
    }


def _processor_ms(server: Running) -> float:
    return 1000 * sum(map(cpu, processes_of(server.pid)))


def _pss(pid: int) -> int:
    """Return the proportional set size in bytes: shared pages count by share."""
    return 1024 * proc_number(pid, "smaps_rollup", "Pss:")


IDLE_LOADS = {"idle": idle}
