"""Compares what replays sent with the messages of the log: the rule ``replay``, and others.

A replay says at each cursor how many messages it sent and left out since the one before. As many
took effect between the two positions on matching topics: that shows a message that is missing, and
one too many, without the permissions of the client. At QoS 1 and 2 the log also names the messages.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

import orjson

from eventstore.display import name as shown
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import (
    Position,
    count_runs,
    format_position,
    from_runs,
    sequence_of,
)
from projections.audit.audit_results import AuditPlan, AuditResults, Row
from projections.audit.facts import READ
from projections.audit.log_summary import LogSummary
from projections.audit.replay_audit import ReplayStep
from projections.audit.rule_table import Rule
from projections.views.replay_view import place_text
from protocol.mqtt.topic_trie import FilterTrie

READ_COLUMNS: Final = (
    "kind", "node", "at", "session", "ref", "time_ms", "number", "topic", "expires", "data",
)  # fmt: skip
"""The columns of steps, and of messages that match the filter of a replay."""
FILTER_COLUMNS: Final = ("kind", "node", "topic")
_GRACE_MS: Final = 60_000
"""Milliseconds beyond ``slow_reader_time`` that a client may take to read its packets."""
_TOPICS: Final = 65_536


def filters_of(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the filters of replays by node; ``rows`` and results have ``FILTER_COLUMNS``."""
    yield from sorted({(kind, node, topic_filter) for kind, node, topic_filter in rows})


class ReplayedFilters:
    """The filters of the replays of all logs."""

    def __init__(self, filters: Iterable[tuple[str, str]]) -> None:
        self._tries: dict[str, FilterTrie[str]] = {}
        for node, topic_filter in sorted(set(filters)):
            self._tries.setdefault(node, FilterTrie()).insert(topic_filter, None, topic_filter)
        self.matching = lru_cache(_TOPICS)(self._matching)
        """Returns the filters of replays of a log, the first argument, that match a topic."""

    def _matching(self, node: str, topic: str) -> list[str]:
        trie = self._tries.get(node)
        return [] if trie is None else list(trie.match(topic))


def matching_messages(filters: Sequence[tuple[str, str]], rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the messages that match the filter of a replay: ``rows`` have ``READ_COLUMNS``.

    Copies of messages of other logs are left out.
    """
    replayed = ReplayedFilters(filters)
    for row in rows:
        _, node, _, session, _, _, _, topic, *_ = row
        if replayed.matching(node, topic) and not session.startswith(LOG_SESSION):
            yield row


class ReadMessage(NamedTuple):
    """A message that took effect and matches the filter of a replay."""

    at: Position
    ref: Position
    qos: int
    time_ms: int
    session: str
    topic: str
    expires: int


class _Messages:
    """The messages that match one filter, in the order in which they took effect."""

    def __init__(self) -> None:
        self.places: list[Position] = []
        self.rows: list[ReadMessage] = []
        self.by_ref: dict[Position, ReadMessage] = {}

    def add(self, message: ReadMessage) -> None:
        self.places.append(message.at)
        self.rows.append(message)
        self.by_ref[message.ref] = message

    def between(self, begin: Position, through: Position) -> list[ReadMessage]:
        """Return those that took effect after a position and up to another one."""
        return self.rows[bisect_right(self.places, begin) : bisect_right(self.places, through)]


def fold_replays(
    plan: AuditPlan, filters: Sequence[tuple[str, str]], rows: Iterable[Row]
) -> Iterator[Row]:
    """Yield the results; ``rows`` have ``READ_COLUMNS``, sorted by node, position and kind."""
    results = AuditResults(plan.since)
    replayed = ReplayedFilters(filters)
    for node, group in groupby(rows, key=itemgetter(1)):
        check = _LogReplays(plan.logs[node], results)
        for kind, _, at, session, ref, time_ms, number, topic, expires, data in group:
            if kind == READ:
                check.step(ReplayStep(*orjson.loads(bytes(data))), at, session)
            else:
                message = ReadMessage(at, ref, number & 3, time_ms, session, topic, expires or 0)
                check.add(message, replayed.matching(node, topic))
        yield from results.full()
    yield from results.rest()


class _LogReplays:
    """The replays of one log."""

    def __init__(self, log: LogSummary, results: AuditResults) -> None:
        self._log = log
        self._results = results
        self._messages: dict[str, _Messages] = {}
        self._lasts: dict[tuple[str, Position], frozenset[Position]] = {}
        """Filter and position -> where the last message of each topic up to it took effect."""
        self._at: Position = 0
        self._session = ""

    def add(self, message: ReadMessage, filters: Iterable[str]) -> None:
        """Add the next message, with the filters that it matches."""
        for topic_filter in filters:
            self._messages.setdefault(topic_filter, _Messages()).add(message)

    def step(self, step: ReplayStep, at: Position, session: str) -> None:
        """Check a step that ends at a position."""
        self._at, self._session = at, session
        messages = self._messages.get(step.topic_filter) or _Messages()
        begin = self._begin(step)
        if step.gap:
            begin = self._after_gap(step, begin)
        if begin is None:
            self._check_order(step, -1)
            return
        if step.stood:
            self._check_progress(step, self._chosen(step, messages, begin, at))
            return
        chosen = self._chosen(step, messages, begin, step.through)
        self._results.totals.counts[f"cases {Rule.REPLAY}"] += len(chosen)
        self._check_count(step, chosen)
        self._check_messages(step, messages, chosen, begin)
        if step.sent and not step.left_out:
            self._check_progress(step, chosen)

    def _begin(self, step: ReplayStep) -> Position | None:
        """Return the position behind which the step began; None: the log does not show it."""
        log = self._log
        if step.begin is not None:
            return step.begin if step.begin >= log.complete - 1 else None
        if step.opened is None or step.opened < log.complete:
            return None
        if any(step.opened < cut.at <= self._at for cut in log.cuts):
            return None  # what was cut off may have been read before
        if log.complete > log.begin:
            return None  # it begins before what was given up
        cuts = [cut.first for cut in log.cuts if cut.at < step.opened]
        return max([log.complete, *cuts]) - 1

    def _after_gap(self, step: ReplayStep, begin: Position | None) -> Position | None:
        """Check a part that was cut off unread; return the position behind which reading began."""
        log, (first, last) = self._log, (step.gap[0], step.gap[-1])
        cut = max(
            (cut.first for cut in log.cuts if sequence_of(cut.at) <= sequence_of(self._at)),
            default=0,
        )
        if last >= max(cut, log.begin) and not log.outline.holes:
            what = f"a replay passed over {format_position(first)} to {place_text(last)}"
            self._report(Rule.REPLAY, self._at, f"{what}, which was not cut off")
        if step.begin is not None and first <= step.begin:
            what = f"a replay did not read {format_position(first)}, which it had read"
            self._report(Rule.REPLAY, self._at, what)
        if last < log.complete - 1:
            return None
        return last if begin is None else max(begin, last)

    def _chosen(
        self, step: ReplayStep, messages: _Messages, begin: Position, through: Position
    ) -> list[ReadMessage]:
        """Return the messages that a step has to read."""
        end = through if step.until is None else min(through, step.until)
        chosen = messages.between(begin, end)
        reached = self._log.outline.reached
        if step.begin is None and step.start_ms:
            chosen = [
                message for message in chosen if reached(message.at, message.time_ms, step.start_ms)
            ]
        if step.until_ms:
            chosen = [
                message
                for message in chosen
                if not reached(message.at, message.time_ms, step.until_ms + 1)
            ]
        if step.last is not None and begin < step.last:
            lasts = self._last_messages(step, messages, step.last)
            chosen = [
                message
                for message in chosen
                if message.at > (step.last or 0) or message.at in lasts
            ]
        return chosen

    def _last_messages(
        self, step: ReplayStep, messages: _Messages, end: Position
    ) -> frozenset[Position]:
        """Return where the last message of each topic up to a position took effect."""
        key = step.topic_filter, end
        places = self._lasts.get(key)
        if places is None:
            of_topic = {message.topic: message.at for message in messages.between(-1, end)}
            places = self._lasts[key] = frozenset(of_topic.values())
        return places

    def _check_count(self, step: ReplayStep, chosen: Sequence[ReadMessage]) -> None:
        left_out = sum(step.left_out.values())
        read, counted = len(chosen), step.sent + left_out
        if read == counted or (step.elsewhere and read < counted):
            return
        if step.last_elsewhere and read > counted and (step.begin or 0) < (step.last or 0):
            return
        since = "the beginning" if step.begin is None else place_text(step.begin)
        what = (
            f"of {read:,} messages on {shown(step.topic_filter)} from {since} to "
            f"{place_text(step.through)}, {step.sent:,} were sent and {left_out:,} left out"
        )
        self._report(Rule.REPLAY, self._at, what)

    def _check_messages(
        self,
        step: ReplayStep,
        messages: _Messages,
        chosen: Sequence[ReadMessage],
        begin: Position,
    ) -> None:
        """Check the messages that were sent at QoS 1 and 2, and how many may be left out."""
        expired = sum(0 < message.expires <= step.time_ms // 1000 for message in chosen)
        own = sum(message.session == self._session for message in chosen) if step.no_local else 0
        for reason, most in (("expired", expired), ("no_local", own)):
            if step.left_out.get(reason, 0) > most and not step.elsewhere:
                what = f"a replay left out {step.left_out[reason]:,} messages as {reason}, but "
                self._report(Rule.REPLAY, self._at, f"{what}{most:,} are")
        places = {message.at for message in chosen}
        seen: set[Position] = set()
        for at, qos, runs in step.deliveries:
            for number, ref in enumerate(from_runs(runs), at):
                self._check_message(step, messages.by_ref.get(ref), ref, number, begin, places)
                message = messages.by_ref.get(ref)
                if ref in seen:
                    what = f"message {format_position(ref)} was sent twice by a replay"
                    self._report(Rule.DELIVERED_TWICE, number, what)
                elif message is not None and qos != min(message.qos, step.qos):
                    what = f"a replay sent message {format_position(ref)} at QoS {qos}"
                    self._report(Rule.QOS, number, what)
                seen.add(ref)
        self._check_order(step, begin, messages)
        numbered = sum(min(message.qos, step.qos) > 0 for message in chosen)
        named = sum(count_runs(runs) for _, _, runs in step.deliveries)
        if not step.elsewhere and step.sent - named > len(chosen) - numbered:
            what = f"a replay sent {step.sent:,} messages, but the log names {named:,}"
            self._report(Rule.REPLAY, self._at, what)

    def _check_message(
        self,
        step: ReplayStep,
        content: ReadMessage | None,
        ref: Position,
        number: Position,
        begin: Position,
        places: set[Position],
    ) -> None:
        message = f"message {format_position(ref)}"
        if content is None:
            if ref >= self._log.complete:
                what = f"a replay sent {message}, which matches nothing that it reads"
                self._report(Rule.NO_SUBSCRIPTION, number, what)
        elif content.at <= begin:
            what = f"a replay sent {message}, which was before its cursor"
            self._report(Rule.DELIVERED_TWICE, number, what)
        elif content.at > step.through:
            self._report(
                Rule.REPLAY, number, f"a replay sent {message}, which is behind its cursor"
            )
        elif content.at not in places:
            self._report(Rule.REPLAY, number, f"a replay sent {message}, which it does not read")
        elif step.no_local and content.session == self._session:
            what = f"a replay with No Local sent {message}, which its client published"
            self._report(Rule.NO_LOCAL, number, what)
        elif 0 < content.expires < step.time_ms // 1000 - 1:
            late = step.time_ms // 1000 - content.expires
            what = f"a replay sent {message} {late} s after it expired"
            self._report(Rule.EXPIRY, number, what)

    def _check_order(
        self, step: ReplayStep, begin: Position, messages: _Messages | None = None
    ) -> None:
        """Check that messages are sent in the order in which they took effect."""
        matched = messages or self._messages.get(step.topic_filter) or _Messages()
        before = begin
        for at, _, runs in step.deliveries:
            for number, ref in enumerate(from_runs(runs), at):
                message = matched.by_ref.get(ref)
                if message is None or message.at <= begin:
                    continue
                if message.at < before:
                    what = f"a replay sent message {format_position(ref)} behind a later one"
                    self._report(Rule.ORDER, number, what)
                before = max(before, message.at)

    def _check_progress(self, step: ReplayStep, chosen: Sequence[ReadMessage]) -> None:
        """Check that a replay did not stand still with messages to send."""
        if step.ready_ms < 0 or not chosen:
            return
        limits = self._log.outline.limits_at(self._at)
        reader_time = limits.slow_reader_time if limits is not None else None
        stood_ms = step.time_ms - max(step.ready_ms, chosen[0].time_ms)
        if reader_time and stood_ms > reader_time * 1000 + _GRACE_MS:
            what = f"a replay stood still for {stood_ms // 1000} s before message "
            what += f"{format_position(chosen[0].ref)}, with the client connected and room"
            self._report(Rule.PROGRESS, self._at, what)

    def _report(self, rule: str, at: Position, what: str) -> None:
        if at < self._log.unsure:
            self._results.violation(rule, self._log.node, self._session, at, what)
