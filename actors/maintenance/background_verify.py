"""Verifies in the background the part of the log that a restart did not read.

A restart folds only the end of the log. The rest is checked afterwards, gradually: it must be
complete, intact and in order. Damage there does not change the broker's state; it is logged in one
line, and a session that needs a lost message fails when it reads it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from eventstore.errors import CorruptLog, Fenced, LogUnavailable
from eventstore.format.records import ChainChecker

if TYPE_CHECKING:
    from actors.session.node_context import NodeContext

_log = structlog.get_logger("foldmq")

_AT_ONCE = 16
"""Records read between two pauses."""
_SHARE = 9
"""Length of a pause, relative to the work before it."""
_RETRY = 5.0


async def verify_in_background(node: NodeContext, last: int, link: bytes) -> None:
    """Check the records of the log up to ``last``, which must have this link."""
    log, now = node.log, node.clock.monotonic
    done = log.first - 1
    checker: ChainChecker | None = None
    while done < last:
        started = now()
        until = min(done + _AT_ONCE, last)
        damage: CorruptLog | None = None
        try:
            async for record in log.read(done + 1, until):
                if checker is None:
                    checker = ChainChecker(done, record.previous)
                checker.check(record)
                done = record.sequence
            if done < until:
                damage = CorruptLog(done + 1, "is missing or cannot be read")
        except LogUnavailable:
            await asyncio.sleep(_RETRY)
            continue
        except CorruptLog as error:
            damage = error
        except Fenced as error:
            node.fail(error)
            return
        if done + 1 < node.state.begin:  # the log was cut meanwhile
            done, checker = node.state.begin - 1, None
        elif damage is not None:
            _log_damage(damage)
            return
        await asyncio.sleep((now() - started) * _SHARE)
    if checker is not None and checker.link != link:
        _log_damage(CorruptLog(last, "is not the one that the projections reflect"))


def _log_damage(damage: CorruptLog) -> None:
    _log.error(
        "the log is damaged: the broker's state is intact, but older records are damaged",
        reason=f"record {damage.sequence} {damage.what}",
        advice="foldmq log verify",
    )
