"""The recovery of a broker, with its progress, and the error of a stop that lost the log."""

import gc
import time
from collections.abc import Awaitable, Callable

import structlog

from actors.session.node_context import NodeContext
from cli.common.memory import tune_collector
from cli.serve.banner import Progress
from cli.serve.systemd_notify import Notifier
from protocol.errors import FoldmqError

log = structlog.get_logger("foldmq")


class DrainError(FoldmqError):
    """The broker stopped without writing all of its log."""

    exit_code = 74  # EX_IOERR

    def __init__(self, seconds: float) -> None:
        super().__init__(
            "stopped with unwritten events, because the log could not be written for "
            f"{seconds:g} s; no acknowledged message is lost"
        )


async def take_over(node: NodeContext, adopting: Awaitable[object]) -> None:
    """Adopt the state that a follower has read; raises the error of a broker that failed."""
    begun = time.monotonic()
    await adopting
    if node.failed.done():  # another node took over meanwhile
        raise node.failed.result()
    gc.freeze()
    log.info("log taken over", seconds=round(time.monotonic() - begun, 3))


async def recover(
    node: NodeContext, replay: Callable[[Progress], Awaitable[object]], notifier: Notifier
) -> None:
    """Replay the log."""
    begun = time.monotonic()
    progress = Progress(tell=notifier.starting)
    try:
        await replay(progress)
    finally:
        progress.close()
    tune_collector()
    log.info(
        "log replayed",
        records=node.state.applied,
        entries=node.state.entries,
        seconds=round(time.monotonic() - begun, 3),
    )
