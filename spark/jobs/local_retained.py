"""The rules of ``retained_rules`` for a small log, in the driver: plain Python, topic by topic."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.display import name as shown
from eventstore.format.positions import format_position
from projections.audit.rule_table import Rule, Violation
from protocol.mqtt.subscription_options import NO_LOCAL
from protocol.mqtt.topic_trie import TopicTrie
from protocol.mqtt.topics import matches
from spark.jobs.audit_outcome import BROKER, PROJECTIONS, RETAINED_CLAIM
from spark.jobs.fact_schema import (
    CLEARED,
    EXPIRED_SO,
    GRANT,
    REPEATED_SO,
    REPLAY,
    RETAINED,
    SET,
)
from spark.jobs.log_summary import BEYOND_ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from eventstore.format.positions import Position
    from spark.jobs.audit_outcome import StateClaim
    from spark.jobs.local_facts import LocalFacts
    from spark.jobs.local_sessions import RequiredReplay
    from spark.jobs.log_summary import LogSummary

_place: Final = attrgetter("at")


class RetainedInterval(NamedTuple):
    """The message of ``ref`` was retained from ``at`` to before ``until``; none without digest.

    The other fields are as in ``retained_rules.retained_intervals``.
    """

    at: Position
    until: Position
    ref: Position
    how: int
    qos: int
    old: Position | None
    digest: str
    before: str | None
    expires: int
    publisher: str


_Grant = tuple[str, int, str, int]
"""Session, QoS and No Local, filter, and the time of the record in milliseconds."""
History = dict[tuple[str, str], list[RetainedInterval]]
"""Node and topic -> its intervals, in order."""


def retained_history(facts: LocalFacts, logs: Mapping[str, LogSummary]) -> History:
    """Return the history of all retained messages, behind lost records if there are any.

    Nothing is audited until a checkpoint behind them has repeated what is retained.
    """
    changes: dict[tuple[str, str], list[RetainedInterval]] = defaultdict(list)
    columns = ("node", "topic", "at", "ref", "number", "check", "digest", "before", "expires")
    for node, topic, at, ref, number, old, digest, before, expires, publisher in facts.rows(
        RETAINED, *columns, "session"
    ):
        how, qos = number & 3, number >> 2
        changes[node, topic].append(
            RetainedInterval(at, BEYOND_ALL, ref, how, qos, old, digest, before, expires, publisher)
        )
    for released in facts.released:
        if released.digest is not None:
            at, ref, digest = released.at, released.ref, released.digest
            changes[released.node, released.topic].append(
                RetainedInterval(
                    *(at, BEYOND_ALL, ref, SET, 2, None, digest, None),
                    *(released.expires, released.session),
                )
            )
    found = {}
    for key, some in changes.items():
        some.sort(key=_place)
        ended = [one._replace(until=other.at) for one, other in pairwise(some)]
        known = [one for one in (*ended, some[-1]) if one.at >= logs[key[0]].complete]
        if known:
            found[key] = known
    return found


def history_violations(history: History, logs: Mapping[str, LogSummary]) -> Iterator[Violation]:
    """Yield wrong repetitions, wrong ends, and messages that a checkpoint left out."""
    for (node, topic), some in history.items():
        log = logs[node]
        before: RetainedInterval | None = None
        for one in some:
            wrong = None if one.at < log.whole else _wrong_change(before, one)
            if wrong is not None:
                yield wrong._replace(what=f"{wrong.what}: topic {shown(topic)}", node=node)
            before = one
        marks = [mark for mark in log.checkpoints if mark.begun >= log.whole]
        for one in some:
            mark = next((mark for mark in marks if mark.begun > one.at), None)
            if one.digest and mark is not None and one.until > mark.completed:
                ref = format_position(one.ref)
                what = f"the checkpoint does not repeat the retained message {ref}"
                what += f": topic {shown(topic)}"
                yield Violation(Rule.CHECKPOINT, mark.completed, what, node=node)


def _wrong_change(before: RetainedInterval | None, one: RetainedInterval) -> Violation | None:
    """Return the violation of a repetition or an end that does not fit what was retained."""
    nothing = before is None or not before.digest
    if one.how == REPEATED_SO:
        if before is not None and (before.ref, before.digest) == (one.old, one.before):
            return None
        what = f"repeats message {format_position(one.old or 0)}, but "
        if before is None or nothing:
            what += "nothing is retained on its topic"
        else:
            what += f"retained last on its topic was another one, {format_position(before.ref)}"
        return Violation(Rule.RETAINED, one.at, what)
    if one.how not in (CLEARED, EXPIRED_SO):
        return None
    if before is None or nothing:
        return Violation(Rule.EXPIRY, one.at, "a retained message ended, but there was none")
    # The time of a record is that of its first event, which may be a second before the others.
    if one.how == EXPIRED_SO and not 0 < before.expires <= one.expires:
        what = f"retained message {format_position(before.ref)} expired too early"
        return Violation(Rule.EXPIRY, one.at, what)
    return None


def replay_violations(
    facts: LocalFacts, history: History, logs: Mapping[str, LogSummary]
) -> Iterator[Violation]:
    """Yield deliveries of retained messages that were not retained, had expired or do not match."""
    known: dict[tuple[str, Position], list[tuple[str, RetainedInterval]]] = defaultdict(list)
    for (node, topic), some in history.items():
        for one in some:
            if one.digest:
                known[node, one.ref].append((topic, one))
    columns = ("node", "session", "at", "ref", "time_ms", "number", "topic", "expires")
    for row in facts.rows(REPLAY, *columns):
        node, session, place, ref, turn, number, topic_filter, second = row
        if place < logs[node].whole:
            continue
        there = [
            (topic, one.expires)
            for topic, one in known.get((node, ref), ())
            if one.at < place and one.until > turn
        ]
        topics = [topic for topic, _ in there]
        message = f"message {format_position(ref)}"
        if not topics:
            what = f"{message} was sent as retained, but is not"
            yield Violation(Rule.RETAINED, place, what, session=session, node=node)
        # The broker may have read the clock a second before the record began.
        for topic, expires in there:
            if 0 < expires < second - 1:
                what = f"retained {message} was sent {second - expires} s after it expired"
                what += f": topic {shown(topic)}"
                yield Violation(Rule.EXPIRY, place, what, session=session, node=node)
        # A queued message may wait in the queue of another filter, which it must not overtake.
        for topic in topics if number == 1 else ():
            if not matches(topic_filter, topic):
                what = f"retained {message} does not match the filter it was sent for"
                what += f": topic {shown(topic)}"
                yield Violation(Rule.NO_SUBSCRIPTION, place, what, session=session, node=node)


def required_replays(
    facts: LocalFacts, history: History, logs: Mapping[str, LogSummary]
) -> list[RequiredReplay]:
    """Return the QoS 1 and 2 messages that must be sent because a filter was granted."""
    steps: dict[str, list[tuple[Position, int, _Grant | None, str]]]
    steps = defaultdict(list)
    for (node, topic), some in history.items():
        steps[node] += [(one.at, number, None, topic) for number, one in enumerate(some)]
    columns = ("node", "session", "at", "time_ms", "number", "topic")
    for node, session, at, time_ms, number, topic_filter in facts.rows(GRANT, *columns):
        if at >= logs[node].whole:
            steps[node].append((at, -1, (session, number, topic_filter, time_ms), ""))
    found: list[RequiredReplay] = []
    for node, some_steps in steps.items():
        found += _required_of(node, sorted(some_steps, key=lambda step: step[0]), history)
    return found


def _required_of(
    node: str,
    steps: Sequence[tuple[Position, int, _Grant | None, str]],
    history: History,
) -> Iterator[RequiredReplay]:
    """Yield the messages owed in one log; changes of a topic and grants are in order."""
    there: TopicTrie[str] = TopicTrie()
    now: dict[str, RetainedInterval] = {}
    for at, number, grant, topic in steps:
        if grant is None:
            one = history[node, topic][number]
            if one.digest and one.qos:
                if topic not in now:
                    there.set(topic, topic)
                now[topic] = one
            elif now.pop(topic, None) is not None:
                there.discard(topic)
            continue
        session, bits, topic_filter, time_ms = grant
        for name in there.match(topic_filter):
            one = now[name]
            # It may have expired before the log records it: see ``checks`` for the additional
            # second.
            if 0 < one.expires <= time_ms // 1000 + 1:
                continue
            if not (bits & NO_LOCAL and one.publisher == session):
                yield node, session, at, one.ref, topic_filter


def claim_violations(
    claims: Iterable[StateClaim],
    history: History,
    logs: Mapping[str, LogSummary],
    complete: Mapping[str, Sequence[tuple[Position, str]]],
) -> Iterator[Violation]:
    """Yield wrong claims about retained messages, and retained messages that are not claimed.

    Projections contain the position of publication, not that of the effect, and may be newer than
    their mark: for them it suffices that the claim is true later.
    """
    named = set()
    for one in claims:
        if one.kind != RETAINED_CLAIM:
            continue
        named.add((one.where, one.node, one.name))
        log = logs.get(one.node)
        if log is None or not log.whole <= one.bound <= min(log.end, log.trusted):
            continue
        some = [held for held in history.get((one.node, one.name), ()) if held.digest]
        known = [held.digest for held in some if held.at < one.bound <= held.until]
        if one.digest == (known[0] if known else None):
            continue
        later = (held.digest == one.digest for held in some if held.at >= one.bound)
        if one.where == PROJECTIONS and any(later):
            continue
        if one.digest is None:
            what = "does not have a retained message that is in the log"
        elif not known:
            what = "has a retained message that is not in the log"
        else:
            what = "has another retained message than the log has"
        yield _claim(one.where, what, one.node, one.name, one.bound)
    for (node, topic), some in history.items():
        log = logs[node]
        for bound, where in complete.get(node, ()):
            if (where, node, topic) in named or not (
                log.whole <= bound <= min(log.end, log.trusted)
            ):
                continue
            for held in some:
                # Messages removed later may have been removed before the projections were read.
                lasts = where == BROKER or held.until == BEYOND_ALL
                if held.digest and lasts and held.at < bound <= held.until:
                    what = "does not have a retained message that is in the log"
                    yield _claim(where, what, node, topic, bound)


def _claim(where: str, what: str, node: str, topic: str, bound: Position) -> Violation:
    as_of = f"as of {format_position(bound)}: topic {shown(topic)}"
    return Violation(Rule.STATE, bound, f"the {where} {what}, {as_of}", node=node)
