"""``foldmq erase``: the contents of personal topics are erased by destroying their keys."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from cli.commands.bulk_change import confirmed, operator_name
from cli.common import text
from cli.logs.broker_client import NoAnswer, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.topic_flags import check_filter
from eventstore.errors import UsageError

_LONGEST = 60.0
"""Seconds after which it is no longer awaited that all logs have erased."""
_AGAIN = 0.05

if TYPE_CHECKING:
    from cli.commands.bulk_change import ChangeOptions
    from cli.logs.log_brokers import LogBrokers
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
        if len(brokers.logs) > 1 and not brokers.several:
            raise UsageError("an erasure is one of all logs: leave --node out")
        plans = await brokers.each(lambda broker: broker.ask("erasures", filter=topic_filter))
        receiving = await brokers.each(
            lambda broker: broker.ask("erasures.receivers", filter=topic_filter)
        )
        sent = {"receivers": sorted({name for _, each in receiving for name in each["receivers"]})}
        broker, plan = max(plans, key=lambda each: int(each[1]["total"]))
        if not plan["total"]:
            raise Refused(f"no topic with sealed contents matches {text.name(topic_filter)}")
        listed = sorted({topic for _, each in plans for topic in each["topics"]})
        topics = text.count_of(max(len(listed), plan["total"]), "topic")
        what = f"erase the contents of {topics} for ever"
        if not await confirmed([f"  {text.name(topic)}" for topic in listed], what, manner):
            sys.stderr.write(_sent_before(sent["receivers"]))
            return
        try:
            done = await broker.ask("change", do="erase", by=operator_name(), filter=topic_filter)
        except NoAnswer as error:
            raise NoAnswer(f"{error}; the contents may still be erased: try again") from None
        if brokers.several:
            await _until_followed(brokers)
    in_all = f" in all logs, in {broker.node}" if brokers.several else ""
    numbers = ", ".join(map(str, done["erasures"]))
    noun = "erasure" if len(done["erasures"]) == 1 else "erasures"
    sys.stdout.write(
        f"erased{in_all}: {text.count_of(done['keys'], 'key')}, "
        f"{text.count_of(done['retained'], 'retained message')} ({noun} {numbers})\n"
        "copies of personal_key_file that were made before still have the keys: destroy them\n"
        + _sent_before(sent["receivers"])
    )
    for log in map(text.name, brokers.absent):
        sys.stdout.write(
            f"log {log} does not answer: it erases before it serves clients again; until then, new "
            "contents of these topics may be erased, too\n"
        )
    brokers.check_complete()


async def _until_followed(brokers: LogBrokers) -> None:
    """Wait until each log that answers has erased what it had, and what it took meanwhile.

    Raises NoAnswer.
    """
    until = time.monotonic() + _LONGEST
    for _ in range(2):  # what others request, and what they took before they followed
        ends: dict[str, int] = {}
        while True:
            answers = {
                broker.node: answer
                for broker, answer in await brokers.each(
                    lambda broker: broker.ask("erasures.progress")
                )
            }
            ends = ends or {node: answer["durable"] for node, answer in answers.items()}
            if not any(
                answer["pending"]
                or any(answer["taken"].get(other, end) < end for other, end in ends.items())
                for answer in answers.values()
            ):
                break
            if time.monotonic() > until:
                raise NoAnswer("not all logs have erased the contents yet, but they will")
            await asyncio.sleep(_AGAIN)


def _sent_before(receivers: list[str]) -> str:
    """Return a line with the destinations that may have contents; empty: there are none."""
    if not receivers:
        return ""
    names = ", ".join(map(text.name, receivers))
    return f"what was sent to these destinations before is not erased there: {names}\n"
