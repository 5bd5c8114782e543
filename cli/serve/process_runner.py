"""The process of ``foldmq serve``: its event loop, its tasks, and its restarts."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from actors.kernel.os_priority import set_short_time_slice
from cli.common import logging_setup
from cli.common.memory import keep_large_blocks
from cli.logs import next_commands
from cli.logs.source_flags import SourceFlags
from cli.serve.broker_process import ProcessMember, member_settings
from cli.serve.cluster_member import SteppedDown
from cli.serve.limits_factory import check_open_files
from cli.serve.listener_factory import SOCKETS_VARIABLE
from cli.serve.main_process import MainProcess
from cli.serve.partitioned_node import PartitionedNode
from cli.serve.service import Service
from cli.settings.log_settings import NATS_SETTINGS
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings
from eventstore.errors import RecordTooLarge
from eventstore.format.record_size import MIN_RECORD

_log = structlog.get_logger("foldmq")

# Passes the size of the refused record to the restarted process.
_REFUSED_VARIABLE = "_FOLDMQ_REFUSED_RECORD"


def run_service(flags: dict[str, object], config: Path | None) -> None:
    """Serve until SIGTERM or SIGINT; raises the FoldmqError that stops the broker earlier.

    The process restarts when the log refused a record as too large, with its size known, and when
    it no longer leads its cluster.
    """
    environment = dict(os.environ)
    process = ProcessMember.from_environment(os.environ)

    def load() -> Settings:
        loaded = load_settings(flags, os.environ, config)
        return loaded if process is None else member_settings(loaded, process.facts)

    settings = load()
    place = {name: flags[name] for name in NATS_SETTINGS if name in flags}
    if settings.nats_url is None:
        place["data_dir"] = settings.data_dir
    next_commands.select(SourceFlags(place, config), elsewhere=True)
    logging_setup.configure(
        settings.log_level, settings.log_format, complete=next_commands.completed
    )
    check_open_files(settings)
    keep_large_blocks()
    set_short_time_slice()  # before the NATS server is started
    ordered = False
    with asyncio.Runner(loop_factory=loop_factory(settings.event_loop)) as runner:
        try:
            if process is None and settings.partitions > 1:
                runner.run(PartitionedNode(settings, load, settings.partitions).run())
            elif process is None and settings.processes > 1:
                runner.run(MainProcess(settings, load, settings.processes).run())
            else:
                runner.run(Service(settings, load, _refused_before(), process).run())
        except RecordTooLarge as refused:
            if refused.size <= MIN_RECORD:
                raise
            reason, what = str(refused), "restarting from the log: clients are disconnected"
            environment[_REFUSED_VARIABLE] = str(refused.size)
        except SteppedDown as replaced:
            reason, what = str(replaced), "restarting to follow the log: clients are disconnected"
            ordered = replaced.ordered
            if replaced.sockets:
                environment[SOCKETS_VARIABLE] = replaced.sockets
        else:
            return
    (_log.info if ordered else _log.error)(what, reason=reason)
    # As after a kill. Nothing unwritten was acknowledged.
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - this very program


def _refused_before() -> int:
    """Return the size of the refused record that caused a restart of this process, or 0."""
    return int(os.environ.pop(_REFUSED_VARIABLE, "0"))


def loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop factory, None for asyncio's own.

    Raises ConfigError if uvloop is requested but not installed.
    """
    if choice == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if choice == "uvloop":
            raise ConfigError("event_loop = uvloop: uvloop is not installed") from None
        return None
    return uvloop.new_event_loop
