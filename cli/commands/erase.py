"""``foldmq erase``: the contents of personal topics are erased by destroying their keys."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

from cli.commands.bulk_change import confirmed, operator_name
from cli.common import text
from cli.logs.broker_client import NoAnswer, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.point_resolution import parse_point
from cli.logs.topic_flags import check_filter
from eventstore.errors import UsageError

if TYPE_CHECKING:
    from cli.commands.bulk_change import ChangeOptions
    from cli.logs.source_flags import SourceFlags

_NEVER_MS: Final = 1 << 50
"""A time after all periods."""


def erase(flags: SourceFlags, topic_filter: str, before: str | None, manner: ChangeOptions) -> None:
    """Erase the contents of the topics that match, and print what was erased.

    ``before``: only those of periods that ended before this time. Raises UsageError for an invalid
    filter or time, Refused if nothing matches, NoAnswer if the result is unknown.
    """
    check_filter(topic_filter)
    before_ms = 0
    if before is not None:
        before_ms = parse_point(before).time_ms or 0
        if not before_ms:
            raise UsageError(f"--before {text.escaped(before)}: must be a time, not a position")
    asyncio.run(_erase(flags, {"filter": topic_filter, "before_ms": before_ms}, manner))


async def _erase(flags: SourceFlags, scope: dict[str, Any], manner: ChangeOptions) -> None:
    async with open_brokers(flags) as brokers:
        if brokers.several:
            raise Refused("nothing is sealed in several logs: personal_topics needs one process")
        (broker,) = brokers.present
        plan = await broker.ask("erasures", **scope)
        matching, before_ms = text.name(scope["filter"]), scope["before_ms"]
        left = _left(plan)
        if not plan["total"]:
            if before_ms:
                raise Refused(
                    f"no sealed contents of {matching} are in a period that ended before "
                    f"{text.clock(before_ms)}{left and f': {left}'}"
                )
            raise Refused(f"no topic with sealed contents matches {matching}")
        topics = text.count_of(plan["total"], "topic")
        ended = f" in periods that ended before {text.clock(before_ms)}" if before_ms else ""
        what = f"erase the contents of {topics}{ended} for ever"
        if not await confirmed([f"  {text.name(topic)}" for topic in plan["topics"]], what, manner):
            if left:
                sys.stderr.write(f"foldmq: {left}\n")
            return
        try:
            done = await broker.ask("change", do="erase", by=operator_name(), **scope)
        except NoAnswer as error:
            raise NoAnswer(f"{error}; the contents may still be erased: try again") from None
    numbers = ", ".join(map(str, done["erasures"]))
    noun = "erasure" if len(done["erasures"]) == 1 else "erasures"
    sys.stdout.write(
        f"erased: {text.count_of(done['keys'], 'key')}, "
        f"{text.count_of(done['retained'], 'retained message')} ({noun} {numbers})\n"
        + (f"{left}\n" if left else "")
        + "copies of personal_key_file that were made before still have the keys: destroy them\n"
    )


def _left(plan: dict[str, Any]) -> str:
    """Return what remains of the time for which an erasure was asked; empty: nothing."""
    if not plan["left"]:
        return ""
    topics = text.count_of(plan["left"], "topic")
    if plan["left_until_ms"] > _NEVER_MS:
        return f"contents of {topics} from before that time remain: their keys have no period"
    return (
        f"contents of {topics} from before that time remain, in periods that end by "
        f"{text.clock(plan['left_until_ms'])}: erase --before that time erases them, too"
    )
