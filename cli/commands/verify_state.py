"""``foldmq verify``: the running broker's state and its projections, compared with the log."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.broker_client import require_stored
from cli.logs.logs import open_logs
from cli.logs.source_flags import SourceFlags
from cli.logs.state_client import NoBroker, StateClient
from eventstore.display import log_prefix
from eventstore.errors import CutMeanwhile
from eventstore.format.positions import Position, format_position
from eventstore.reading.log_source import LogSource
from projections.log_proof import NO_MARK, proof_object, spans_text, statement
from projections.past.comparison import MARK, SESSION, Difference
from projections.past.divergence import Divergence, FieldDifference
from projections.past.state_verification import StateVerification, VerificationOutcome

_TRIES = 2
"""Number of attempts if the broker deletes records meanwhile."""
_LISTED = 20
_LOOKED_AT = 1000
"""Maximum number of damaged messages in JSON output."""
_SHOWN = 5
"""Maximum number of elements of a field on a line."""
_MAX_ELEMENTS = 100


def run_verify_state(
    flags: SourceFlags, session: str | None, *, stored: bool, as_json: bool
) -> bool:
    """Compare and print differences; return whether there are none.

    Where a node has several logs, and none is named, compare each with its broker. Raises NoBroker
    if the broker is to be compared and does not answer; of several logs IncompleteLogs, at the end.
    """
    verification = _Verification(flags, session, stored=stored, as_json=as_json)
    for _ in range(_TRIES):
        with contextlib.suppress(CutMeanwhile):
            return asyncio.run(verification.run())
    return asyncio.run(verification.run(last=True))


class _Verification:
    """Compares each log with its broker, and prints the results."""

    def __init__(
        self, flags: SourceFlags, session: str | None, *, stored: bool, as_json: bool
    ) -> None:
        self._flags = flags
        self._session = session
        self._stored = stored
        self._as_json = as_json
        self._equal: dict[str, bool] = {}
        """Whether there is no difference, by log; these logs are not compared again."""

    async def run(self, *, last: bool = False) -> bool:
        """Return whether there are no differences.

        Raises CutMeanwhile if some logs were cut meanwhile, unless it is the last attempt: then
        they count as not compared. The others are not compared again.
        """
        async with open_logs(self._flags, self._session, partly=True) as logs:
            for log in [log for log in logs if log not in self._equal]:
                with logs.of(log):
                    outcome = await self._outcome(logs[log])
                    self._print(log, logs[log], outcome)
                    self._equal[log] = outcome.equal
        cut = [error for error in logs.errors.values() if isinstance(error, CutMeanwhile)]
        if cut and not last:
            raise cut[0]
        different = [log for log, equal in self._equal.items() if not equal]
        if logs.several and self._equal and not logs.errors and not self._as_json:
            count = len(self._equal)
            named = f"{len(different)} of {count} logs: {', '.join(different)}"
            named = f"different: {named}" if different else f"all {count} logs: equal"
            sys.stdout.write(named + "\n")
        logs.check_read()
        return not different

    async def _outcome(self, source: LogSource) -> VerificationOutcome:
        source.require_whole()
        node = await source.node()
        broker: StateClient | None = None
        if not self._stored:
            if not source.live:
                raise NoBroker(node, f"no broker is running on {source.where}")
            broker = StateClient(source, node)
        outcome = await StateVerification(source, node, broker, self._session, progress).outcome()
        await require_stored(source)
        return outcome

    def _print(self, log: str, source: LogSource, outcome: VerificationOutcome) -> None:
        if self._as_json:
            fields = verification_object(outcome)
            sys.stdout.write(text.json_line({"log": log, **fields} if log else fields) + "\n")
            return
        lines = [*verification_lines(outcome)]
        if outcome.reported is None and source.without_mark:
            lines.append(NO_MARK)
        for line in lines:
            prefix = "" if line.startswith(" ") else log_prefix(log)
            sys.stdout.write(f"{prefix}{line}\n")


# ----------------------------------------------------------------------------- text


def verification_lines(outcome: VerificationOutcome) -> Iterator[str]:
    """Yield the result as text."""
    for divergence in outcome.divergences[:_LISTED]:
        yield from _divergence_lines(divergence)
    for sequence in outcome.damaged[:_LISTED]:
        yield f"message {sequence} of the projections cannot be read"
    more = len(outcome.divergences) - _LISTED + outcome.more
    if more > 0:
        yield f"and {more:,} more"
    live, stored = outcome.reported, outcome.stored
    if live is not None and outcome.equal:
        counts = _counts(outcome, live.sessions, live.retained)
        yield f"equal: {counts} in the broker, as of {format_position(live.end)}"
    if stored is not None and outcome.equal and (stored.mark is not None or stored.sessions):
        counts = _counts(outcome, len(stored.sessions), len(stored.retained))
        of_mark = f", as of record {stored.mark.sequence}" if stored.mark is not None else ""
        yield f"equal: {counts} in the projections{of_mark}"
    if stored is not None and stored.useless is not None:
        yield f"a start would ignore the projections and read the whole log: {stored.useless}"
    if not outcome.equal:
        yield _verdict(outcome)
    if outcome.proven:
        yield f"this holds for the log {spans_text(outcome.proven)}"
    yield from map(statement, outcome.doubts)


def _counts(outcome: VerificationOutcome, sessions: int, retained: int) -> str:
    if outcome.only is not None:
        return f"session {text.name(outcome.only)} {'is' if sessions else 'is not'}"
    return f"{text.count_of(sessions, 'session')} and {text.count_of(retained, 'retained message')}"


def _verdict(outcome: VerificationOutcome) -> str:
    count = len(outcome.divergences) + len(outcome.damaged) + outcome.more
    first = outcome.first
    text_of_count = f"different: {text.count_of(count, 'difference')}"
    return (
        text_of_count
        if first is None
        else f"{text_of_count}, the first at {format_position(first)}"
    )


def _subject(difference: Difference) -> str:
    if difference.kind == MARK:
        return "the mark"
    noun = "session" if difference.kind == SESSION else "the retained message on"
    return f"{noun} {text.name(difference.name)}"


def _divergence_lines(divergence: Divergence) -> Iterator[str]:
    difference, trail = divergence.difference, divergence.trail
    side, as_of = f"the {difference.where}", format_position(difference.bound)
    if difference.kind == MARK and difference.log is None:
        yield f"the projections are newer than the log, which ends before {as_of}"
        return
    if difference.kind == MARK:
        yield f"the projections belong to another log: record {as_of} does not match"
        return
    subject = _subject(difference)
    if difference.other is None:
        yield f"{subject}: missing in {side}, as of {as_of}"
    elif difference.log is None:
        yield f"{subject}: in {side} but not in the log, as of {as_of}"
    else:
        yield f"{subject}: differs between {side} and the log, as of {as_of}"
    if trail.parts_at is None:
        yield "  no position of the log matches this state"
    elif trail.equal_at is None:
        yield f"  they diverge at {format_position(trail.parts_at)}"
    else:
        yield (
            f"  equal up to {format_position(trail.equal_at)}, they diverge at "
            f"{format_position(trail.parts_at)}"
        )
    for part in divergence.fields:
        yield from _field_lines(part, difference.where)


def _field_lines(part: FieldDifference, where: str) -> Iterator[str]:
    at = part.trail.parts_at
    since = f", from {format_position(at)} on" if at is not None else ""
    yield f"  {part.name}{since}:" + ("" if part.log or part.other else " in a different order")
    for side, elements in (("log", part.log), (where, part.other)):
        if elements:
            more = f" and {len(elements) - _SHOWN:,} more" if len(elements) > _SHOWN else ""
            yield f"    only in the {side}: " + "; ".join(elements[:_SHOWN]) + more


# ----------------------------------------------------------------------------- JSON


def verification_object(outcome: VerificationOutcome) -> dict[str, object]:
    """Return the result as a JSON object."""
    live, stored = outcome.reported, outcome.stored
    broker = None
    if live is not None:
        broker = {
            "as_of": format_position(live.end),
            "sessions": live.sessions,
            "retained": live.retained,
        }
    projections = None
    if stored is not None:
        projections = {
            "as_of": stored.mark.sequence if stored.mark is not None else None,
            "sessions": len(stored.sessions),
            "retained": len(stored.retained),
            "useless": stored.useless,
            "damaged": stored.damaged[:_LOOKED_AT],
        }
    return {
        "equal": outcome.equal,
        "first": _position(outcome.first),
        "broker": broker,
        "projections": projections,
        "differences": [_object(divergence) for divergence in outcome.divergences],
        "more": outcome.more,
        **proof_object(outcome.proven, outcome.doubts),
    }


def _position(at: Position | None) -> str | None:
    return None if at is None else format_position(at)


def _object(divergence: Divergence) -> dict[str, object]:
    difference, trail = divergence.difference, divergence.trail
    what = (
        "missing" if difference.other is None else "extra" if difference.log is None else "differs"
    )
    return {
        "where": difference.where,
        "kind": difference.kind,
        "name": difference.name,
        "what": what,
        "as_of": format_position(difference.bound),
        "equal_up_to": _position(trail.equal_at),
        "parts_at": _position(trail.parts_at),
        "fields": [
            {
                "field": part.name,
                "log": part.log[:_MAX_ELEMENTS],
                difference.where: part.other[:_MAX_ELEMENTS],
                "equal_up_to": _position(part.trail.equal_at),
                "parts_at": _position(part.trail.parts_at),
            }
            for part in divergence.fields
        ],
    }
