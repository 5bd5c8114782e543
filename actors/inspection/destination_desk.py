"""Destinations of the outbox: what its process reports, what operators do, and what they see.

The process reports how far it came; the broker records that as events, unless the log knows better:
an operator or a cut may have moved the cursor, or the destination may have been opened anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.inspection.inspector import Refused, number, shown, text
from actors.node.operator_commands import OperatorCommand
from eventstore.format.destination_events import (
    NATS_DESTINATION,
    Forwarded,
    ForwardLost,
    ForwardRefused,
)
from eventstore.format.positions import INDEX_BITS, count_runs, position, to_runs
from projections.state.destinations import PAUSE, RESUME, RETRY, SKIP, SKIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.inspection.inspector import Answer, Work
    from actors.session.node_context import NodeContext
    from eventstore.format.positions import Position, Run
    from projections.state.destinations import DestinationState

_LAST: Final = 1 << 63
_MOST_GROUPS, _MOST_REFS, _MOST_LOST, _LONGEST_REASON = 2000, 100_000, 1000, 1024
_MOST_RETRIES, _RETRIED_AT_ONCE = 10_000, 100
_SILENT_MS: Final = 15_000
"""Milliseconds without a report after which the process counts as gone."""
_SHOWN: Final[Mapping[str, type]] = {
    "state": str,
    "error": str,
    "since_ms": int,
    "sent": int,
    "retries": int,
    "expired": int,
    "denied": int,
    "erased": int,
    "time_ms": int,
    "waiting_ms": int,
    "batch_seconds": float,
}
"""What the process reports for operators, besides the cursor."""


class DestinationDesk:
    """Requests about the destinations of one log."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._reports: dict[str, dict[str, Any]] = {}
        self.actions: dict[str, Callable[[Mapping[str, Any], str], Work]] = {
            "forwarded": self._forwarded,
            PAUSE: self._pause,
            RESUME: self._pause,
            SKIP: self._skip,
            RETRY: self._retry,
        }
        """Changes, by their name in a request."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each destination."""
        node = self._node
        durable = node.journal.durable if node.recovered else 0
        now, keep = node.clock.time_ms(), node.options.keep
        longer = {each.name: each.max_behind for each in node.options.destinations}
        rows = []
        for name, state in node.state.destinations.items():
            if name == NATS_DESTINATION and node.bridge is not None:
                self._reports[name] = node.bridge.report()
            report = self._reports.get(name, {})
            silent = not report or now - report["at_ms"] > _SILENT_MS
            waiting = report.get("waiting_ms", 0)
            rows.append(
                {
                    **_cursor(state),
                    "name": name,
                    "kind": state.kind,
                    "filters": state.filters,
                    "after": state.after,
                    "refused": state.refused,
                    "losses": state.losses,
                    "records_behind": max(0, durable - (state.through + 1 >> INDEX_BITS) + 1),
                    "kept_s": max(keep, longer.get(name, 0.0)) if keep else 0.0,
                    "behind_ms": max(0, now - waiting) if waiting else 0,
                    **{key: report.get(key) for key in _SHOWN},
                    "state": "paused" if state.paused else "away" if silent else report["state"],
                }
            )
        return rows

    def destinations(self, _request: Mapping[str, Any]) -> Answer:
        """Answer the destinations of the log, and the last record that is on disk."""
        return {"rows": self.rows(), "durable": self._node.journal.durable}

    def _state(self, request: Mapping[str, Any]) -> tuple[str, DestinationState]:
        name = text(request, "to")
        state = self._node.state.destinations.get(name)
        if state is None:
            names = ", ".join(map(shown, self._node.state.destinations)) or "none"
            raise Refused(f"there is no destination {shown(name)}; destinations: {names}")
        return name, state

    def _forwarded(self, request: Mapping[str, Any], by: str) -> Work:
        name, state = self._state(request)
        run = number(request, "run", 0, _LAST)
        through = number(request, "through", 0, _LAST)
        received = number(request, "received", 0, _LAST)
        count = number(request, "count", 0, _LAST)
        due = number(request, "number", 0, _LAST)
        refused, lost = _refused_groups(request), _lost_ranges(request)
        if 0 < received < through:
            received = through
        retried = _positions(request, "retried")
        reset = request.get("reset") is True and received != state.received
        if run != state.run or through < state.through:
            return _cursor(state)
        if received < state.received and not reset:
            return _cursor(state)
        if max(through, received) > position(self._node.journal.durable + 1, 0):
            raise Refused("through is behind the end of the log")
        self._reports[name] = _report(request, self._node.clock.time_ms())
        changed = through > state.through or received > state.received or reset
        if not (changed or refused or lost or retried):
            return _cursor(state)
        emit = self._node.emit
        for refs, reason, code in refused:
            emit(ForwardRefused(name, refs, reason, code=code))
        for after, until, messages, reason in lost:
            emit(ForwardLost(name, after, until, reason, messages=messages))
        command = OperatorCommand("forwarded", by, name, None)
        command.put_on_record(
            self._node,
            Forwarded(
                *(name, through),
                received=received,
                number=due,
                count=count,
                refs=to_runs(retried),
            ),
        )
        yield command.answer
        return _cursor(state)

    def _retry(self, request: Mapping[str, Any], by: str) -> Work:
        """Send refused messages again: as many of them as may wait for it."""
        name, state = self._state(request)
        if name == NATS_DESTINATION:
            raise Refused("the bridge to NATS refuses no messages: there are none to send again")
        waiting = frozenset(state.retry)
        fresh = [ref for ref in _positions(request, "refs") if ref not in waiting]
        accepted = fresh[: _MOST_RETRIES - len(waiting)]
        answer: dict[str, Any] = {"taken": len(accepted), "left": len(fresh) - len(accepted)}
        if accepted:
            command = OperatorCommand(RETRY, by, name, None)
            command.carry_out(self._node, accepted)
            yield command.answer
            answer["position"] = command.answer.result()
        return answer

    def _pause(self, request: Mapping[str, Any], by: str) -> Work:
        name, state = self._state(request)
        action = text(request, "do")
        if state.paused == (action == PAUSE):
            return _unchanged(
                request, f"{shown(name)} is {'already' if state.paused else 'not'} paused"
            )
        command = OperatorCommand(action, by, name, None)
        command.carry_out(self._node)
        yield command.answer
        return {"position": command.answer.result()}

    def _skip(self, request: Mapping[str, Any], by: str) -> Work:
        """Give up the messages up to a position, or all that the log has now."""
        name, state = self._state(request)
        node = self._node
        end = position(node.journal.durable + 1, 0) - 1
        until = number(request, "until", 0, _LAST) or end
        if until <= state.through:
            return _unchanged(request, f"{shown(name)} has all its messages up to there")
        if until > end:
            raise Refused("that position is behind the end of the log")
        if until == end:
            self._reports.setdefault(name, {"at_ms": 0})["waiting_ms"] = 0
            if name == NATS_DESTINATION and node.bridge is not None:
                node.bridge.skipped()
        after = state.through
        command = OperatorCommand(SKIP, by, name, None)
        command.carry_out(node)
        node.emit(ForwardLost(name, after, until, SKIPPED))
        yield command.answer
        return {"position": command.answer.result(), "after": after, "until": until}


def _cursor(state: DestinationState) -> dict[str, Any]:
    """Return what the process continues with."""
    return {
        "run": state.run,
        "through": state.through,
        "received": state.received,
        "number": state.number,
        "paused": state.paused,
        "retry": state.retry[:_RETRIED_AT_ONCE],
    }


def _report(request: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    values = request.get("shown")
    if not isinstance(values, dict):
        raise Refused("shown must be an object")
    report: dict[str, Any] = {"at_ms": now_ms}
    for key, kind in _SHOWN.items():
        value = values.get(key)
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise Refused(f"shown.{key} must be a {kind.__name__}")
        report[key] = value[:_LONGEST_REASON] if isinstance(value, str) else value
    return report


def _refused_groups(request: Mapping[str, Any]) -> list[tuple[list[Run], str, int]]:
    groups = request.get("refused", [])
    if not isinstance(groups, list) or len(groups) > _MOST_GROUPS:
        raise Refused(f"refused must be a list of at most {_MOST_GROUPS}")
    checked: list[tuple[list[Run], str, int]] = []
    for group in groups:
        match group:
            case [list(refs), str(reason), int(code)] if _are_runs(refs):
                checked.append((refs, reason[:_LONGEST_REASON], code))
            case _:
                raise Refused("refused must have positions, a reason and a code each")
    return checked


def _are_runs(refs: list[Any]) -> bool:
    for run in refs:
        numbers = run if isinstance(run, list) else [run]
        if len(numbers) not in (1, 3) or not all(isinstance(each, int) for each in numbers):
            return False
    return 0 < count_runs(refs) <= _MOST_REFS


def _positions(request: Mapping[str, Any], field: str) -> list[Position]:
    refs = request.get(field, [])
    if (
        not isinstance(refs, list)
        or len(refs) > _MOST_RETRIES
        or not all(isinstance(ref, int) and 0 < ref < _LAST for ref in refs)
    ):
        raise Refused(f"{field} must be a list of at most {_MOST_RETRIES} positions")
    return refs


def _lost_ranges(request: Mapping[str, Any]) -> list[tuple[Position, Position, int, str]]:
    """Return the ranges of messages that are not sent, with the number and the reason of each."""
    lost = request.get("lost", [])
    if not isinstance(lost, list) or len(lost) > _MOST_LOST:
        raise Refused(f"lost must be a list of at most {_MOST_LOST}")
    ranges: list[tuple[Position, Position, int, str]] = []
    for each in lost:
        match each:
            case [int(after), int(until), int(count), "cut" | "erased" as reason] if (
                0 <= after < until < _LAST
            ):
                ranges.append((after, until, count, reason))
            case _:
                raise Refused("lost must have a range of positions, a number and a reason each")
    return ranges


def _unchanged(request: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Answer a request that changes nothing: other logs of the broker may have to be changed.

    Raises Refused if the request is for a single log.
    """
    if request.get("of_several_logs"):
        return {"unchanged": reason}
    raise Refused(reason)
