"""``foldmq actors tail``: a live trace of an actor, a client or a topic."""

import sys
from collections.abc import Mapping
from typing import Any

from cli.commands.actor_page import ACTOR_ID
from cli.common import text
from cli.logs.broker_client import NoLiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from cli.logs.trace_client import LiveTrace, Portion, open_trace, open_traces
from cli.logs.trace_text import trace_text
from eventstore.errors import UsageError
from projections.views.vocabulary import json_object


def trace_target(which: str | None, client: str | None, topic: str | None) -> dict[str, str]:
    """Return the target of the trace; raises UsageError unless exactly one is given."""
    given = {"actor": which, "client": client, "topic": topic}
    wanted = {key: value for key, value in given.items() if value is not None}
    if len(wanted) != 1:
        raise UsageError("give exactly one of ID, --client and --topic")
    if which is not None and not ACTOR_ID.fullmatch(which):
        raise UsageError(f"not an actor ID: {text.name(which)}; use --client for a client")
    if topic is not None:
        check_filter(topic)
    return wanted


@run_to_end
async def run_tail(
    flags: SourceFlags,
    wanted: Mapping[str, str],
    rate: int | None,
    count: int | None,
    *,
    as_json: bool,
) -> None:
    """Print a trace until it ends, or until ``count`` lines were printed.

    Raises Refused if there can be no such trace, NoLiveBroker if the broker ends.
    """
    async with open_brokers(flags) as brokers:
        asked: dict[str, Any] = {**wanted}
        if rate is not None:
            asked["rate"] = rate
        printer = _TracePrinter(brokers, count, who="topic" in wanted, as_json=as_json)
        if "topic" in wanted and brokers.several:
            await _follow_all(brokers, asked, printer)
            return
        client = wanted.get("client")
        broker = brokers.only("this is an actor") if client is None else brokers.of_session(client)
        async with open_trace(broker, **asked) as trace:
            log = f" in log {broker.node}" if brokers.logs else ""
            _print_notice(_begun(wanted, trace, log))
            async for portion in trace.portions():
                if printer.full(portion):
                    return
                if portion.cause == "broker":
                    raise NoLiveBroker(f"the broker of node {broker.node} has ended")
                if portion.cause == "lease":
                    raise Refused(f"the trace has ended: {text.escaped(str(portion.ended))}")
                if portion.ended is not None:
                    _print_notice(f"the trace has ended: {text.escaped(portion.ended, 400)}")


async def _follow_all(
    brokers: LogBrokers, asked: Mapping[str, Any], printer: "_TracePrinter"
) -> None:
    """Print the trace of a topic in all logs; raises NoLiveBroker if it ends without some."""
    async with open_traces(brokers, **asked) as traces:
        logs = ", ".join(one.node for one in brokers.present)
        _print_notice(f"tracing topic {text.name(asked['topic'])} in logs {logs}")
        async for portion in traces.portions():
            if portion.cause == "away":
                _print_notice(f"{portion.ended}; its lines are missing until it is back")
            elif portion.cause == "back":
                _print_notice(f"tracing log {portion.log}")
            if printer.full(portion):
                break
    brokers.check_complete()


def _begun(wanted: Mapping[str, str], trace: LiveTrace, log: str) -> str:
    """Return the target of the trace; ``log`` names its log if there are several."""
    ((kind, value),) = wanted.items()
    if kind != "client":
        return f"tracing {kind} {text.name(value)}{log}"
    about = trace.about
    if about.get("connected"):
        return f"tracing client {text.name(value)}{log}: {', '.join(map(str, about['actors'][:3]))}"
    away = "is offline" if about.get("known") else "is not known yet"
    return f"tracing client {text.name(value)}{log}, which {away}: waiting for it"


def _print_notice(what: str) -> None:
    sys.stderr.write(f"foldmq: {what}\n")
    sys.stderr.flush()


class _TracePrinter:
    """Prints a limited number of lines."""

    def __init__(self, brokers: LogBrokers, count: int | None, *, who: bool, as_json: bool) -> None:
        self._brokers = brokers
        self._left = count
        self._who = who
        self._as_json = as_json

    def full(self, portion: Portion) -> bool:
        """Print the lines of a portion; return whether the limit is reached."""
        if portion.lost:
            self._tell(portion.log, "lost", "some lines were lost in transit")
        elif portion.cause == "away":
            self._tell(portion.log, "lost", "its broker is gone")
        for line in portion.lines:
            sys.stdout.write(self._shown(line) + "\n")
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    sys.stdout.flush()
                    return True
        if portion.skipped:
            self._tell(
                portion.log,
                "skipped",
                f"skipped {text.count_of(portion.skipped, 'line')} above the rate limit",
                count=portion.skipped,
            )
        sys.stdout.flush()
        return False

    def _shown(self, line: dict[str, Any]) -> str:
        if not self._as_json:
            log = line.get("log", "")
            return trace_text(line, who=self._who, log=log and self._brokers.short(log))
        time_ms = line.pop("ms", None)
        stamp = {"time": text.iso(time_ms)} if isinstance(time_ms, int) else {}
        return text.json_line({**stamp, **{key: json_object(line[key], key) for key in line}})

    def _tell(self, log: str, kind: str, said: str, **about: int) -> None:
        """Print a note where lines are missing; ``log`` is empty in the trace of one."""
        if self._as_json:
            which = {"log": log} if log else {}
            line = text.json_line({**which, "kind": kind, **about})
        else:
            line = f"... {self._brokers.short(log)}: {said}" if log else f"... {said}"
        sys.stdout.write(line + "\n")
