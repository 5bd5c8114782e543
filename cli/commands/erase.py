"""``foldmq erase``: contents of personal topics, and names, are erased by destroying their keys."""

import asyncio
import sys
import time
from operator import itemgetter
from typing import Any, Final

from cli.commands.bulk_change import confirmed, operator_name
from cli.commands.command_flags import ChangeOptions
from cli.common import text
from cli.logs.broker_client import NoAnswer, NoLiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers, log_of_session
from cli.logs.point_resolution import parse_point
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from eventstore.errors import UsageError
from eventstore.format.name_entries import CLIENT

_LONGEST: Final = 60.0
"""Seconds after which it is no longer awaited that all logs have erased."""
_AGAIN: Final = 0.05
_COPIES: Final = (
    "copies of personal_key_file that were made before still have the keys: destroy them\n"
)

_NEVER_MS: Final = 1 << 50
"""A time after all periods."""


@run_to_end
async def erase(
    flags: SourceFlags, topic_filter: str, before: str | None, manner: ChangeOptions
) -> None:
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
    scope: dict[str, Any] = {"filter": topic_filter, "before_ms": before_ms}
    async with open_brokers(flags) as brokers:
        _check_all(brokers)
        plans = await brokers.each(lambda broker: broker.ask("erasures", **scope))
        receiving = await brokers.each(
            lambda broker: broker.ask("erasures.receivers", filter=topic_filter)
        )
        receivers = sorted({name for _, each in receiving for name in each["receivers"]})
        broker, plan = max(plans, key=lambda each: int(each[1]["total"]))
        matching = text.name(topic_filter)
        remainder = _left(max((each for _, each in plans), key=itemgetter("left_until_ms")))
        if not plan["total"]:
            if before_ms:
                raise Refused(
                    f"no sealed contents of {matching} are in a period that ended before "
                    f"{text.clock(before_ms)}{remainder and f': {remainder}'}"
                )
            raise Refused(f"no topic with sealed contents matches {matching}")
        listed = sorted({topic for _, each in plans for topic in each["topics"]})
        topics = text.count_of(max(len(listed), plan["total"]), "topic")
        ended = f" in periods that ended before {text.clock(before_ms)}" if before_ms else ""
        what = f"erase the contents of {topics}{ended} for ever"
        if not await confirmed([f"  {text.name(topic)}" for topic in listed], what, manner):
            if remainder:
                sys.stderr.write(f"foldmq: {remainder}\n")
            sys.stderr.write(_sent_before(receivers))
            return
        try:
            answer = await broker.ask("change", do="erase", by=operator_name(), **scope)
        except NoAnswer as error:
            raise NoAnswer(f"{error}; the contents may still be erased: try again") from None
        if brokers.several:
            await _until_followed(brokers)
    in_all = f" in all logs, in {broker.node}" if brokers.several else ""
    numbers = ", ".join(map(str, answer["erasures"]))
    noun = "erasure" if len(answer["erasures"]) == 1 else "erasures"
    sys.stdout.write(
        f"erased{in_all}: {text.count_of(answer['keys'], 'key')}, "
        f"{text.count_of(answer['retained'], 'retained message')} ({noun} {numbers})\n"
        + (f"{remainder}\n" if remainder else "")
        + _COPIES
        + _sent_before(receivers)
    )
    for log in map(text.name, brokers.absent):
        sys.stdout.write(
            f"log {log} does not answer: it erases before it serves clients again; until then, new "
            "contents of these topics may be erased, too\n"
        )
    brokers.check_complete()


@run_to_end
async def erase_name(flags: SourceFlags, kind: str, name: str, manner: ChangeOptions) -> None:
    """Erase a name that has a token, and print what was erased; ``kind``: client or user.

    Raises UsageError if it has none, NoAnswer if the result is unknown.
    """
    scope, shown = {"kind": kind, "name": name}, text.name(name)
    async with open_brokers(flags) as brokers:
        _check_all(brokers)
        plans = await brokers.each(lambda broker: broker.ask("erasures.name", **scope))
        logs = plans[0][1].get("logs", 1)  # an earlier version says nothing of it
        if not brokers.several and logs > 1:
            raise UsageError(
                f"--{kind}: the broker has {logs} logs, which all have names: give --config or "
                "--data-dir"
            )
        having = [(broker, plan) for broker, plan in plans if plan["token"] is not None]
        away = [*brokers.absent]
        if kind == CLIENT and brokers.several:  # the other logs have no token of it
            away = [log for log in away if log == log_of_session(brokers.logs, scope["name"])]
        if not having and not away:
            raise UsageError(
                f"--{kind} {shown}: has no token: personal_{kind}s never matched it at a login, or "
                "it was erased"
            )
        sessions = text.count_of(sum(plan["total"] for _, plan in having), "session")
        tokens = ", ".join(plan["token"] for _, plan in having) or f"a {kind}"
        what = f"erase the name of {tokens} for ever, and end {sessions}"
        names = [text.name(session) for _, plan in having for session in plan["sessions"]]
        answers: list[tuple[str, dict[str, Any]]] = []
        if await confirmed([f"  {name}" for name in names], what, manner):
            request = {"do": "erase", "by": operator_name(), **scope}
            try:
                if away:  # first, so that it is not forgotten
                    await plans[0][0].ask("change", logs=away, **request)
                for broker, _ in having:
                    answer = await broker.ask("change", **request)
                    answers.append((f" in {broker.node}" if brokers.several else "", answer))
            except (NoAnswer, NoLiveBroker) as error:
                again = f"{error}; the name may still be erased: try again"
                raise type(error)(again) from None
            for log in map(text.name, away):
                sys.stdout.write(
                    f"log {log} does not answer: it erases the name before it serves clients "
                    "again\n"
                )
    for place, answer in answers:
        sys.stdout.write(
            f"erased{place}: {answer['token']}, {text.count_of(answer['sessions'], 'session')} "
            f"(erasure {answer['erasures'][0]})\n"
        )
    if answers:
        sys.stdout.write(_COPIES)
    if away:
        brokers.check_complete()


def _check_all(brokers: LogBrokers) -> None:
    """Raise UsageError if one of several logs was chosen."""
    if len(brokers.logs) > 1 and not brokers.several:
        raise UsageError("an erasure is one of all logs: leave --node out")


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
