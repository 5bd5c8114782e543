"""``foldmq verify``: the running broker's state and its projections, compared with the log."""

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cli.common import text
from cli.compare.comparison import (
    BROKER,
    MARK,
    PROJECTIONS,
    RETAINED,
    SESSION,
    Check,
    Comparison,
    Difference,
    PageCheck,
    beyond,
    broker_checks,
    mark_checker,
    projection_checks,
)
from cli.compare.divergence import FieldDifference, Parting, find, show_message
from cli.compare.live_state import Asking, Attested, NoBroker, Page, Unanswered
from cli.compare.stored_projections import ProjectionReader, Projections
from cli.logsource.source import CutMeanwhile, Source, open_source
from cli.logsource.source_flags import SourceFlags, UsageError
from eventstore.format import Position, format_position
from eventstore.nats import LOG_STREAM_PREFIX

_TRIES = 2
"""How often to begin anew because the broker cut the log, before saying so."""
_LISTED = 20
_LOOKED_AT = 1000
"""Differences whose origin is looked for."""
_SHOWN = 5
"""Elements of a field that a line shows."""
_MOST_ELEMENTS = 100


@dataclass(slots=True)
class Outcome:
    """What was found."""

    said: Attested | None = None
    """None: the broker was not asked."""
    found: Projections | None = None
    partings: list[Parting] = field(default_factory=list)
    more: int = 0
    """Differences that were only counted."""
    only: str | None = None
    """The one session that was compared."""

    @property
    def damaged(self) -> list[int]:
        """Messages of the projections that cannot be read."""
        return self.found.damaged if self.found is not None else []

    @property
    def equal(self) -> bool:
        """Nothing differs."""
        return not self.partings and not self.more and not self.damaged

    @property
    def first(self) -> Position | None:
        """The first position where anything parts; None when no such is known."""
        known = (one.trail.parts_at for one in self.partings)
        return min((at for at in known if at is not None), default=None)


def run(flags: SourceFlags, session: str | None, *, stored: bool, as_json: bool) -> bool:
    """Compare, print what differs; return whether all is equal.

    Raises NoBroker when the broker is to be asked and does not answer.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(CutMeanwhile):
            return asyncio.run(_run(flags, session, stored=stored, as_json=as_json))
    return asyncio.run(_run(flags, session, stored=stored, as_json=as_json))


async def _run(flags: SourceFlags, session: str | None, *, stored: bool, as_json: bool) -> bool:
    async with open_source(flags) as source:
        source.require_whole()
        node = await _node(source)
        asking: Asking | None = None
        if not stored:
            if not source.live:
                raise NoBroker(node, f"none runs on {source.where}")
            asking = Asking(source, node)
        outcome = await _Verification(source, node, asking, session).outcome()
    if as_json:
        sys.stdout.write(text.json_line(as_object(outcome)) + "\n")
    else:
        for line in lines(outcome):
            sys.stdout.write(line + "\n")
    return outcome.equal


async def _node(source: Source) -> str:
    """Return whose log it is."""
    if not source.last:
        return source.stream.removeprefix(LOG_STREAM_PREFIX)
    return (await source.some([source.last]))[-1].node


class _Verification:
    """One comparison; of one session alone with ``only``."""

    def __init__(self, source: Source, node: str, asking: Asking | None, only: str | None) -> None:
        self._source = source
        self._asking = asking
        self._only = only
        self._reader = ProjectionReader(source, node)
        self._node = node

    async def outcome(self) -> Outcome:
        """Ask, read, fold, and look for where it parts."""
        outcome = Outcome(only=self._only)
        last, checks = 0, list[Check]()
        if self._asking is not None:
            outcome.said, checks = await self._ask(self._asking)
            last = await self._asking.until_stored(outcome.said.end)
        reader = self._reader
        found = await (reader.all() if self._only is None else reader.one(self._only))
        outcome.found = found
        last = max(last, (await self._source.bounds())[1])
        differences = await self._compare(checks, found, last)
        if self._only is not None and not differences:
            self._check_known(outcome)
        outcome.partings = await self._origins(differences[:_LOOKED_AT], last)
        outcome.more = max(0, len(differences) - _LOOKED_AT)
        return outcome

    async def _ask(self, asking: Asking) -> tuple[Attested, list[Check]]:
        try:
            return await self._asked(asking)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise Unanswered(
                f"the broker of node {text.name(self._node)} answers what this foldmq does not "
                f"understand ({type(error).__name__}): is it of another version?"
            ) from None

    async def _asked(self, asking: Asking) -> tuple[Attested, list[Check]]:
        if self._only is None:
            said = await asking.all()
            return said, broker_checks(said)
        told = await asking.session(self._only)
        page = Page(told.bound, {self._only: told.digest}, {})
        said = Attested(self._node, told.bound, [page], int(told.digest is not None))
        return said, [PageCheck(page)]

    async def _compare(
        self, checks: list[Check], found: Projections, last: int
    ) -> list[Difference]:
        comparison = Comparison(self._source, checks, self._only)
        own = projection_checks(found, comparison, last, self._only)
        comparison.add(own)
        if found.mark is not None:
            comparison.on_record = mark_checker(found.mark)
        differences = await comparison.run(last)
        differences += [one for check in own for one in check.open.values()]
        too_far = beyond(found, last)
        if too_far is not None:
            differences.append(too_far)
        return differences

    def _check_known(self, outcome: Outcome) -> None:
        """Raise UsageError when nobody knows of the session."""
        here = outcome.said is not None and outcome.said.sessions
        if not here and (outcome.found is None or not outcome.found.sessions):
            raise UsageError(f"no session {text.name(self._only or '')}")

    async def _origins(self, differences: Iterable[Difference], last: int) -> list[Parting]:
        partings = [await self._parting(one) for one in differences]
        bound = max((one.bound for one in partings if one.difference.where == BROKER), default=0)
        if self._asking is not None and bound:
            last = max(last, await self._asking.until_stored(bound))
        await find(self._source, partings, last)
        found = [one for one in partings if not one.settled]
        found.sort(key=lambda one: (one.trail.parts_at is None, one.trail.parts_at or 0))
        return found

    async def _parting(self, one: Difference) -> Parting:
        """Get what the other side has, as far as it is still to be had."""
        if one.kind == MARK:
            parting = Parting(one, one.bound)
            parting.whole.parts_at = one.bound
            return parting
        if one.other is None:
            return Parting(one, one.bound)
        if one.where == PROJECTIONS:
            return await self._of_projections(one)
        if self._asking is None:
            return Parting(one, one.bound)
        if one.kind == RETAINED:
            bound, said = await self._asking.retained(one.name)
            shown = None if said is None else show_message(said["qos"], said["ref"], said["size"])
            return Parting(one, bound, message=shown)
        told = await self._asking.session(one.name)
        if told.state is None:
            return Parting(one, one.bound)
        return Parting(one, told.bound, told.state, told.pending)

    async def _of_projections(self, one: Difference) -> Parting:
        if one.kind == RETAINED:
            found = await self._reader.message(one.name)
            if found is None:
                return Parting(one, one.bound)
            shown = show_message(found.qos, found.ref, len(found.payload))
            return Parting(one, one.bound, message=shown)
        held = self._reader.found.sessions.get(one.name)
        if held is None:
            return Parting(one, one.bound)
        version, state = await self._reader.session(one.name)
        return Parting(one, one.bound, state if version == held.version else None)


# ----------------------------------------------------------------------------- for a person


def lines(outcome: Outcome) -> Iterator[str]:
    """Yield what was found for a person."""
    for one in outcome.partings[:_LISTED]:
        yield from _parting_lines(one)
    for sequence in outcome.damaged[:_LISTED]:
        yield f"message {sequence} of the projections cannot be read"
    rest = len(outcome.partings) - _LISTED + outcome.more
    if rest > 0:
        yield f"and {rest:,} more"
    said, found = outcome.said, outcome.found
    if said is not None and outcome.equal:
        counts = _counts(outcome, said.sessions, said.retained)
        yield f"equal: {counts} in the broker, as of {format_position(said.end)}"
    if found is not None and outcome.equal and (found.mark is not None or found.sessions):
        counts = _counts(outcome, len(found.sessions), len(found.retained))
        of_mark = f", as of record {found.mark.sequence}" if found.mark is not None else ""
        yield f"equal: {counts} in the projections{of_mark}"
    if found is not None and found.useless is not None:
        yield f"the projections would not be used at a start, but all of the log: {found.useless}"
    if not outcome.equal:
        yield _verdict(outcome)


def _counts(outcome: Outcome, sessions: int, retained: int) -> str:
    if outcome.only is not None:
        return f"session {text.name(outcome.only)} {'is' if sessions else 'is not'}"
    return f"{text.counted(sessions, 'session')} and {text.counted(retained, 'retained message')}"


def _verdict(outcome: Outcome) -> str:
    count = len(outcome.partings) + len(outcome.damaged) + outcome.more
    first = outcome.first
    said = f"parted: {text.counted(count, 'difference')}"
    return said if first is None else f"{said}, the first at {format_position(first)}"


def _subject(one: Difference) -> str:
    if one.kind == MARK:
        return "the mark"
    noun = "session" if one.kind == SESSION else "the retained message on"
    return f"{noun} {text.name(one.name)}"


def _parting_lines(parting: Parting) -> Iterator[str]:
    one, trail = parting.difference, parting.trail
    side, as_of = f"the {one.where}", format_position(one.bound)
    if one.kind == MARK and one.log is None:
        yield f"the projections reflect more than the log holds, which ends before {as_of}"
        return
    if one.kind == MARK:
        yield f"the projections are those of another log: record {as_of} is not the one they name"
        return
    subject = _subject(one)
    if one.other is None:
        yield f"{subject}: missing in {side}, as of {as_of}"
    elif one.log is None:
        yield f"{subject}: in {side}, but not by the log, as of {as_of}"
    else:
        yield f"{subject}: other in {side} than by the log, as of {as_of}"
    if trail.parts_at is None:
        yield "  at no position that the log tells of was it so"
    elif trail.equal_at is None:
        yield f"  they part at {format_position(trail.parts_at)}"
    else:
        yield (
            f"  equal up to {format_position(trail.equal_at)}, they part at "
            f"{format_position(trail.parts_at)}"
        )
    for known in parting.fields:
        yield from _field_lines(known, one.where)


def _field_lines(known: FieldDifference, where: str) -> Iterator[str]:
    at = known.trail.parts_at
    since = f", from {format_position(at)} on" if at is not None else ""
    yield f"  {known.name}{since}:" + ("" if known.log or known.other else " in another order")
    for side, some in (("log", known.log), (where, known.other)):
        if some:
            more = f" and {len(some) - _SHOWN:,} more" if len(some) > _SHOWN else ""
            yield f"    only in the {side}: " + "; ".join(some[:_SHOWN]) + more


# ----------------------------------------------------------------------------- for machines


def as_object(outcome: Outcome) -> dict[str, object]:
    """Give what was found as a JSON object."""
    said, found = outcome.said, outcome.found
    broker = None
    if said is not None:
        broker = {
            "as_of": format_position(said.end),
            "sessions": said.sessions,
            "retained": said.retained,
        }
    projections = None
    if found is not None:
        projections = {
            "as_of": found.mark.sequence if found.mark is not None else None,
            "sessions": len(found.sessions),
            "retained": len(found.retained),
            "useless": found.useless,
            "damaged": found.damaged[:_LOOKED_AT],
        }
    return {
        "equal": outcome.equal,
        "first": _position(outcome.first),
        "broker": broker,
        "projections": projections,
        "differences": [_object(one) for one in outcome.partings],
        "more": outcome.more,
    }


def _position(at: Position | None) -> str | None:
    return None if at is None else format_position(at)


def _object(parting: Parting) -> dict[str, object]:
    one, trail = parting.difference, parting.trail
    what = "missing" if one.other is None else "extra" if one.log is None else "differs"
    return {
        "where": one.where,
        "kind": one.kind,
        "name": one.name,
        "what": what,
        "as_of": format_position(one.bound),
        "equal_up_to": _position(trail.equal_at),
        "parts_at": _position(trail.parts_at),
        "fields": [
            {
                "field": known.name,
                "log": known.log[:_MOST_ELEMENTS],
                one.where: known.other[:_MOST_ELEMENTS],
                "equal_up_to": _position(known.trail.equal_at),
                "parts_at": _position(known.trail.parts_at),
            }
            for known in parting.fields
        ],
    }
