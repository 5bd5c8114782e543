"""``foldmq erase``: the contents of personal topics are erased by destroying their keys."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from cli.commands.bulk_change import confirmed, operator_name
from cli.common import text
from cli.logs.broker_client import NoAnswer, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.topic_flags import check_filter

if TYPE_CHECKING:
    from cli.commands.bulk_change import ChangeOptions
    from cli.logs.source_flags import SourceFlags


def erase(flags: SourceFlags, topic_filter: str, manner: ChangeOptions) -> None:
    """Erase the contents of the topics that match, and print what was erased.

    Raises UsageError for an invalid filter, Refused if no topic matches, NoAnswer if the result is
    unknown.
    """
    check_filter(topic_filter)
    asyncio.run(_erase(flags, topic_filter, manner))


async def _erase(flags: SourceFlags, topic_filter: str, manner: ChangeOptions) -> None:
    async with open_brokers(flags) as brokers:
        if brokers.several:
            raise Refused("nothing is sealed in several logs: personal_topics needs one process")
        (broker,) = brokers.present
        plan = await broker.ask("erasures", filter=topic_filter)
        sent = await broker.ask("erasures.receivers", filter=topic_filter)
        if not plan["total"]:
            raise Refused(f"no topic with sealed contents matches {text.name(topic_filter)}")
        topics = text.count_of(plan["total"], "topic")
        what = f"erase the contents of {topics} for ever"
        if not await confirmed([f"  {text.name(topic)}" for topic in plan["topics"]], what, manner):
            sys.stderr.write(_sent_before(sent["receivers"]))
            return
        try:
            done = await broker.ask("change", do="erase", by=operator_name(), filter=topic_filter)
        except NoAnswer as error:
            raise NoAnswer(f"{error}; the contents may still be erased: try again") from None
    numbers = ", ".join(map(str, done["erasures"]))
    noun = "erasure" if len(done["erasures"]) == 1 else "erasures"
    sys.stdout.write(
        f"erased: {text.count_of(done['keys'], 'key')}, "
        f"{text.count_of(done['retained'], 'retained message')} ({noun} {numbers})\n"
        "copies of personal_key_file that were made before still have the keys: destroy them\n"
        + _sent_before(sent["receivers"])
    )


def _sent_before(receivers: list[str]) -> str:
    """Return a line with the destinations that may have contents; empty: there are none."""
    if not receivers:
        return ""
    names = ", ".join(map(text.name, receivers))
    return f"what was sent to these destinations before is not erased there: {names}\n"
