"""``foldmq doctor``: the current problems, with evidence, cause and the next command."""

import contextlib
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cli.commands.advice import Advice, Severity, advise, merge_advice, most_urgent_first
from cli.commands.broker_advice import (
    advise_on_broker,
    advise_on_disk,
    advise_on_followers,
    lagging_replicas,
)
from cli.commands.certificate_advice import advise_on_certificates
from cli.commands.outbox_advice import advise_on_destinations
from cli.commands.receivers import denied_subscriptions, outcome_text, preview
from cli.commands.refusal_advice import advise_on_refusals
from cli.commands.status import ask_statuses
from cli.common import text
from cli.common.colour import Style, painted
from cli.logs.broker_client import LiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.next_commands import SERVER_LOG, NextCommands
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from eventstore.errors import NotFound, UsageError

_WIDTH = 100
_LABEL = 10
_CODES = ("severity", "subject", "title", "evidence", "cause", "next")
_STYLES: dict[Severity, Style] = {"problem": "red", "warning": "yellow", "notice": "cyan"}
_ONE_LOG = ("foldmq top", "foldmq log")
"""Commands that show one of several logs."""
_NOT_SENT = ("queued", "dropped", "denied", "shared_waits", "offline_qos0")


@run_to_end
async def print_advice(flags: SourceFlags, about: str | None, *, as_json: bool) -> bool:
    """Print the problems; return whether there are none, apart from warnings.

    ``about`` is a client or a topic. Raises NotFound if it is neither.
    """
    async with open_brokers(flags) as brokers:
        advice, more, unsure = await diagnosis(brokers, flags, about)
    if as_json:
        for note in unsure:
            write_notice(note)
        for entry in advice:
            sys.stdout.write(text.json_line(advice_object(entry)) + "\n")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
        where = brokers.title if about is None else text.name(about)
        lines = [*summary(advice, where), *more, *unsure]
        for entry in advice:
            lines += ["", *advice_lines(entry, width)]
        sys.stdout.write("\n".join(lines) + "\n")
    return not any(entry.severity == "problem" for entry in advice)


async def diagnosis(
    brokers: LogBrokers, flags: SourceFlags, about: str | None
) -> tuple[list[Advice], list[str], list[str]]:
    """Return the problems, or those of a client or of a topic's receivers, and further lines.

    The third list says what is not certain of them, because records were lost. Raises NotFound if
    ``about`` is neither.
    """
    statuses = {status["node"]: status for status in await ask_statuses(brokers)}
    if about is None:
        advice, more = await _all(brokers, statuses)
        unsure: list[str] = []
    else:
        advice, more, unsure = await _about(brokers, about)
    commands = NextCommands(flags, pids_of(statuses))
    return [item._replace(next=commands.complete(item.next)) for item in advice], more, unsure


def advice_object(advice: Advice) -> dict[str, Any]:
    """Return a problem as a JSON object."""
    return dict(zip(_CODES, advice[: len(_CODES)], strict=True))


def pids_of(statuses: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Return the processes of brokers, from their replies to ``status``."""
    return [status["pid"] for status in statuses.values()]


async def _all(
    brokers: LogBrokers, statuses: Mapping[str, dict[str, Any]]
) -> tuple[list[Advice], list[str]]:
    """Return all problems, those of the brokers first, and further information."""
    advice, unlisted = await find_problems(brokers, statuses)
    return advice, [f"and {unlisted:,} more: name a client to see its own"] if unlisted > 0 else []


async def find_problems(
    brokers: LogBrokers, statuses: Mapping[str, dict[str, Any]]
) -> tuple[list[Advice], int]:
    """Return all problems, those of the brokers first, and the number of those not listed.

    ``statuses`` are the replies of the brokers to ``status``, by node. Raises NoLiveBroker if none
    answers.
    """

    async def ask(broker: LiveBroker) -> tuple[dict[str, Any], list[str]]:
        answer = await broker.ask("problems")
        return answer, await lagging_replicas(broker.client, broker.node)

    replies = await brokers.each(ask)
    answers = [(broker, answer) for broker, answer in replies if broker.node in statuses]
    advice = no_answers(brokers)
    for broker, (_, behind) in answers:
        status = statuses[broker.node]
        for entry in (*advise_on_broker(status, behind), *advise_on_destinations(status)):
            advice.append(_of_log(entry, brokers.name_of(broker)))
    advice += advise_on_certificates(statuses[broker.node] for broker, _ in answers)
    advice += advise_on_followers(statuses.values())
    problems = [replies for _, (replies, _) in answers]
    advice += advise_on_disk([statuses[broker.node] for broker, _ in answers], problems)
    advice += in_order(entry for listed in problems for entry in listed["problems"])
    for broker, (listed, _) in answers:
        for entry in advise_on_refusals(listed.get("refusals", ())):
            advice.append(_of_log(entry, brokers.name_of(broker)))
    return most_urgent_first(advice), sum(
        listed["total"] - len(listed["problems"]) for listed in problems
    )


def _of_log(advice: Advice, log: str) -> Advice:
    """Return advice on the broker of one of several logs; without a name, of the only one."""
    if not log:
        return advice
    command = advice.next
    if command.startswith(_ONE_LOG):
        command += f" --node {log}"
    of_log = f"log {text.name(log)}"
    subject = of_log if advice.subject == "the log" else f"{advice.subject} of {of_log}"
    return advice._replace(subject=subject, next=command)


def no_answers(brokers: LogBrokers) -> list[Advice]:
    """Return a problem for each of several brokers that does not answer."""
    return [
        Advice(
            "problem",
            f"the broker of log {text.name(node)}",
            "does not answer",
            str(why),
            "it is starting, hangs or cannot start: its clients are not served, and their problems "
            "are not listed here",
            SERVER_LOG,
        )
        for node, why in brokers.absent.items()
    ]


def in_order(problems: Iterable[dict[str, Any]]) -> list[Advice]:
    """Return problems of clients as text, the most urgent first."""
    return [advise(problem) for problem in merge_advice([*problems])]


async def _about(brokers: LogBrokers, about: str) -> tuple[list[Advice], list[str], list[str]]:
    """Return the problems of a client, or of the receivers of a topic; as :func:`diagnosis`."""
    # A topic may look like the name of a session of no log.
    owner = brokers.present[0]
    with contextlib.suppress(UsageError):
        owner = brokers.of_session(about)
    is_client, hint, session = False, "", dict[str, Any]()
    problems, refusals = [], ()
    with brokers.leaving_out(owner):
        answer = await owner.ask("problems", client=about)
        problems, refusals = answer["problems"], answer.get("refusals", ())
        try:
            session = await owner.ask("session", client=about, most=1)
            is_client = True
        except Refused as error:
            _, meant, name = str(error).rpartition("did you mean ")
            hint = meant + name if meant else ""
    if is_client or problems or refusals:
        unsure = [text.escaped(session["unsure"], 2000)] if session.get("unsure") else []
        return most_urgent_first([*in_order(problems), *advise_on_refusals(refusals)]), [], unsure
    try:
        rows, _ = await preview(brokers, about, 1)
    except Refused:
        hint = "; ".join(filter(None, [hint, *await brokers.unsure_notes()]))
        none = f"{text.name(about)} is neither a client of this broker nor a topic"
        raise NotFound("; ".join(filter(None, [none, hint]))) from None
    if not rows:
        brokers.check_complete()  # the session may be in a log whose broker does not answer
        denied = [*await denied_subscriptions(brokers, about), *await brokers.unsure_notes()]
        none = f"no session {text.name(about)}, and no subscription matches a topic of that name"
        raise NotFound("; ".join([none, *denied, *filter(None, [hint])]))
    advice = no_answers(brokers)
    lines = []
    for row in rows:
        hanging = [str(entry["client"]) for entry in row.get("stalled") or ()]
        if row["why"] in _NOT_SENT or hanging:
            lines.append(f"  {text.name(row['client'])}: {outcome_text(row)}")
            owner = next(
                entry for entry in brokers.present if entry.log == row.get("log", entry.log)
            )
            for client in hanging or [row["client"]]:
                theirs = await owner.ask("problems", client=client)
                advice += in_order(theirs["problems"])
    unsure = await brokers.unsure_notes()
    sent = text.count_of(sum(row["why"] in ("sent", "shared") for row in rows), "client")
    if not lines:
        every = f"a message now would be sent to {sent}, that is to all that subscribe to it"
        return advice, [every], unsure
    advice = list(dict.fromkeys(advice))
    first = f"a message now would be sent to {sent}; not sent at once, or not acknowledged:"
    return advice, [first, *lines], unsure


def summary(advice: list[Advice], where: str) -> Iterator[str]:
    """Yield the first line: the number of problems."""
    counts = Counter(entry.severity for entry in advice)
    notices = f", {text.count_of(counts['notice'], 'notice')}" if counts["notice"] else ""
    if not counts["problem"] and not counts["warning"]:
        yield painted(f"no problems found{notices}: {where}", "green", sys.stdout)
        return
    line = ", ".join(text.count_of(counts[entry], entry) for entry in ("problem", "warning"))
    yield painted(f"{line}{notices}: {where}", "bold", sys.stdout)


def advice_lines(advice: Advice, width: int) -> Iterator[str]:
    """Yield a problem as lines of at most ``width`` characters."""
    style = _STYLES[advice.severity]
    label = painted(advice.severity.ljust(_LABEL), style, sys.stdout)
    yield label + painted(f"{advice.subject} {advice.title}", "bold", sys.stdout)
    for name, sentence in (("evidence", advice.evidence), ("cause", advice.cause)):
        if sentence:
            yield from _labelled(name, sentence, width)
    # A command is not broken, so that it can be copied.
    yield f"{'next'.ljust(_LABEL)}{painted(advice.next, 'cyan', sys.stdout)}"


def _labelled(name: str, sentence: str, width: int) -> Iterator[str]:
    label = name.ljust(_LABEL)
    for line in textwrap.wrap(sentence, max(20, width - _LABEL), break_on_hyphens=False):
        yield label + line
        label = " " * _LABEL
