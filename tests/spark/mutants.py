"""Every kind of damage to every event type and field of a sound log, and the audit's findings.

python tests/spark/mutants.py          prints the table of docs/contribute/audit-detection.md
python tests/spark/mutants.py --write  writes it there
"""

import sys
from collections import Counter, defaultdict
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

ROOT: Final = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from collections.abc import Iterator

from forgeries import KINDS, Kind, forgeries
from harness.plainaudit import audit_plainly
from soundlog import Forged, sound_log

from eventstore.format.event_parsing import Event
from eventstore.format.records import (
    Record,
    decode_record,
)
from projections.audit.fact_scan import CheckedRecord
from projections.state.destinations import FOLDS

PAGE: Final = ROOT / "docs" / "contribute" / "audit-detection.md"
BEGIN: Final = "<!-- tests/spark/mutants.py -->"
END: Final = "<!-- end of the table -->"
HARMS: Final = ("lost", "twice", "moved", "again")
REFS: Final = ("refs", "waiting", "as_retained", "begun")
LEFT_OUT: Final = frozenset({"e", "v", "properties", "blocks_at"})
"""Fields that say what an event is, or that are not used."""
BASE: Final = 1 << 20


DESTINATIONS: Final = frozenset(kind.__name__ for kind in FOLDS)
"""The events of destinations: tests/projections/audit/test_destination_check.py forges them."""
ERASURES: Final = ("TopicsKeyed", "KeysSnapshot", "ErasureRequested", "Erased")
APART: Final = frozenset({"ClockJumped", "LogEndUnproven", "LogSalvaged", *DESTINATIONS, *ERASURES})
"""Events that say what is known of the log itself: they have tests of their own."""


class Mutant(NamedTuple):
    """A log to which one thing was done."""

    event: str
    harm: str
    """One of HARMS, or the name of the field that was changed."""
    records: list[Record]


def sound_records(forged: Forged | None = None) -> list[Record]:
    """Return the records of the sound log, perhaps with events that never happened."""
    log = sound_log(forged)
    return [decode_record(number, data) for number, data in enumerate(log.records, 1)]


def is_found(records: list[Record]) -> bool:
    """Return whether an audit finds something wrong."""
    return bool(audit_plainly("sound", (CheckedRecord(one.sequence, b"", one) for one in records)))


def mutants(whole: list[Record]) -> Iterator[Mutant]:
    """Yield the mutants of every event type: of the first of its events that each is done to."""
    first: dict[str, int] = {}
    for number, record in enumerate(whole):
        first.setdefault(record.raw_events[0]["e"], number)
    for kind in get_args(Event):
        name = kind.__name__
        if name in APART:
            continue
        number = first[name]
        for harm in HARMS:
            yield Mutant(name, harm, _HARMS[harm](whole, number))
        for one in fields(kind):
            if one.name in LEFT_OUT:
                continue
            found = _changed(whole, name, one.name)
            if found is not None:
                yield Mutant(name, one.name, found)


# --------------------------------------------------------------------------------------- harms


def _with(whole: list[Record], number: int, raw: list[dict[str, Any]]) -> list[Record]:
    return [*whole[:number], replace(whole[number], raw_events=raw), *whole[number + 1 :]]


def _lost(whole: list[Record], number: int) -> list[Record]:
    return _with(whole, number, [])


def _twice(whole: list[Record], number: int) -> list[Record]:
    raw = whole[number].raw_events
    return _with(whole, number, [*raw, *deepcopy(raw)])


def _moved(whole: list[Record], number: int) -> list[Record]:
    """Exchange an event with the next one of another turn; what refers to both follows."""
    other = next((at for at in range(number + 1, len(whole)) if whole[at].part == 0), number - 1)
    one, two = whole[number], whole[other]
    places = {one.sequence: two.sequence, two.sequence: one.sequence}
    moved = []
    for record in whole:
        told = {one.sequence: two, two.sequence: one}.get(record.sequence, record)
        raw = [_referring(event, places) for event in deepcopy(told.raw_events)]
        moved.append(replace(record, raw_events=raw, payload=told.payload))
    return moved


def _again(whole: list[Record], number: int) -> list[Record]:
    """Repeat an event in a turn of its own, at the end of the log."""
    source, last = whole[number], whole[-1]
    again = replace(
        source,
        sequence=last.sequence + 1,
        link=b"\1" * 32,
        previous=last.link,
        time_ms=last.time_ms,
        part=0,
        last=True,
        raw_events=deepcopy(source.raw_events),
    )
    return [*whole, again]


def _referring(event: dict[str, Any], places: dict[int, int]) -> dict[str, Any]:
    """Return an event with its references moved."""
    for name in REFS:
        if name in event:
            event[name] = _moved_value(event[name], places)
    return event


def _moved_value(value: Any, places: dict[int, int]) -> Any:
    if isinstance(value, int):
        return places.get(value >> 20, value >> 20) << 20 | value & (BASE - 1)
    return [
        _moved_value(one, places)
        if isinstance(one, int)
        else [_moved_value(one[0], places), *one[1:]]
        for one in value
    ]


_HARMS: Final = {"lost": _lost, "twice": _twice, "moved": _moved, "again": _again}


# -------------------------------------------------------------------------------------- fields


def _changed(whole: list[Record], name: str, field: str) -> list[Record] | None:
    """Return a log in which the first event that says so has another value of a field."""
    for number, record in enumerate(whole):
        (event,) = record.raw_events
        if event["e"] == name and field in event:
            changed = _other(field, event[field])
            if changed is not None and changed != event[field]:
                return _with(whole, number, [{**deepcopy(event), field: changed}])
    return None


def _other(field: str, value: Any) -> Any:
    """Return another value that a field may have; None: there is none."""
    if field in CHANGES:
        return CHANGES[field](value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, list):
            return [[_other("", first[0]), *first[1:]], *value[1:]]
        return [_other("", first), *value[1:]]
    if isinstance(value, dict):
        return {key: _other("", one) for key, one in value.items()}
    return None


CHANGES: Final[dict[str, Any]] = {
    "qos": lambda qos: [3 - one for one in qos] if isinstance(qos, list) else 3 - qos,
    "session": lambda name: "p" if name != "p" else "s",
    "reason": lambda reason: {
        "queue_messages": "queue_bytes", "keep_alive": "disconnect", "expired": "removed",
        "keep": "archived",
    }.get(reason, "error"),
    "limits": lambda limits: {**limits, "max_queued_messages": 9, "session_expiry": 700.0},
    "expiry": lambda expiry: None if expiry is None else expiry * 2,
    "user": lambda user: None if user is None else "mallory",
    "state": lambda state: (
        {**state, "generation": state["generation"] + 1} if isinstance(state, dict) else "damaged"
    ),
}  # fmt: skip


# --------------------------------------------------------------------------------------- table

WHY: Final = {
    "a": "the event and its neighbour concern different sessions or topics: their order is open",
    "b": "only the client knows what it sent, and nothing else depends on it",
    "c": "a repetition changes nothing",
    "d": "nothing else records the version, the setting or the file",
    "e": "it concerns NATS, an archive, the web page or an operator, which the log cannot verify",
    "f": "a crash at that moment, or a client that answers early, leaves the same log",
    "g": "nothing else in the log depends on it",
    "h": "acknowledgements to publishers are not recorded: another client may have published it",
    "i": "`foldmq log verify` finds it, which checks the order of leaders",
    "j": "it concerns another log: it is found if [all logs](../spark.md#several-logs) are audited",
    "k": "the log has only a digest of the permissions",
    "l": "QoS 0 messages and refused publications are in the log only as a number",
}
"""Why an audit does not tell."""

UNTOLD: Final[dict[str, dict[str, str]]] = {
    "Acked": {"moved": "a", "reasons": "b"},
    "Assigned": {"by_topic": "d"},
    "Bridged": dict.fromkeys((*HARMS, "through"), "e"),
    "BrokerStarted": {"software": "d", "epoch": "i", "leader": "d", "cause": "d"},
    "BrokerStopped": {"lost": "f", "again": "f"},
    "CheckpointBegun": {"epoch": "i"},
    "CheckpointCompleted": {"moved": "a"},
    "Completed": {"moved": "a"},
    "Expired": {"moved": "a"},
    "Followed": dict.fromkeys((*HARMS, "log", "through", "link"), "j"),
    "LeaderProved": {"lost": "g", "twice": "c", "moved": "a", "again": "i", "epoch": "i"},
    "LimitsApplied": {"twice": "c", "again": "c", "permissions": "d", "users": "d"},
    "LogArchived": {"lost": "e", "twice": "c", "again": "c", "by": "e", "where": "e"},
    "LogCut": {"lost": "g", "twice": "c", "moved": "a", "again": "c", "reason": "d"},
    "MessagePublished": {"session": "h", "pids": "h"},
    "MessagesCarried": {"twice": "c", "again": "c"},
    "OperatorActed": {"by": "e"},
    "Received": {"reasons": "b"},
    "Redelivered": {"lost": "f", "twice": "c"},
    "Refused": {"moved": "a", "reasons": "b"},
    "RetainedExpired": {"moved": "a"},
    "SessionClosed": {"code": "b", "expiry": "b"},
    "SessionOpened": {
        "moved": "a", "again": "b",
        **dict.fromkeys(
            ("keep_alive", "address", "expiry", "clean_start", "receive_maximum", "packet_maximum"),
            "b",
        ),
    },
    "Subscribed": {"twice": "b"},
    "SubscriptionDenied": dict.fromkeys(
        ("lost", "twice", "session", "filters", "reasons"), "g"
    ),
    "Unsubscribed": {"moved": "a"},
    "WebAccessed": dict.fromkeys(
        (
            *HARMS, "outcome", "address", "name", "role", "reason", "count", "first_ms", "expires"
        ),
        "e",
    ),
}  # fmt: skip
"""Event type -> harm that no audit finds -> why."""


def outcome() -> dict[str, dict[str, bool]]:
    """Return for each event type and harm whether it is found."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    whole = sound_records()
    for mutant in mutants(whole):
        found[mutant.event][mutant.harm] = is_found(mutant.records)
    return found


class Tried(NamedTuple):
    """How often a kind of forged event was put into the log, and found."""

    kind: Kind
    tried: int
    found: int


def forged_outcome() -> list[Tried]:
    """Return how often each kind of forged event is found."""
    tried: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for kind, forged in forgeries():
        tried[f"{kind.event} {kind.what}"] += 1
        found[f"{kind.event} {kind.what}"] += is_found(sound_records(forged))
    names = [(kind, f"{kind.event} {kind.what}") for kind in KINDS]
    return [Tried(kind, tried[name], found[name]) for kind, name in names]


def table(found: dict[str, dict[str, bool]], forged: list[Tried]) -> str:
    """Return what stands in docs/contribute/audit-detection.md."""
    lines = [
        "| event | lost | twice | moved | again at the end | forged | a field changed |",
        "|---|---|---|---|---|---|---|",
    ]
    for event, harms in sorted(found.items()):
        cells = ["found" if harms[harm] else _untold(event, harm) for harm in HARMS]
        cells.append(_kinds([one for one in forged if one.kind.event == event]))
        named = [harm for harm in harms if harm not in HARMS]
        missed = [f"`{one}` {_untold(event, one)}" for one in named if not harms[one]]
        count = sum(harms[one] for one in named)
        told = f"{count} of {len(named)} found" if named else "has none"
        lines.append(f"| {event} | {' | '.join(cells)} | {', '.join([told, *missed])} |")
    total = [seen for harms in found.values() for seen in harms.values()]
    seen, places = (sum(one.found for one in forged), sum(one.tried for one in forged))
    of_kinds = f"of {len(forged)} kinds of forged events {seen} of {places}"
    lines += [
        "",
        f"{sum(total)} of {len(total)} are found; {of_kinds}.",
        "Why the others are not:",
        "",
    ]
    lines += [f"- *{letter}*: {why}." for letter, why in WHY.items()]
    lines += ["", "Forged events that are not found everywhere:", ""]
    lines += ["| event | what is forged | found | why not everywhere |", "|---|---|---|---|"]
    lines += [
        f"| {kind.event} | {kind.what} | {some} of {places} | *{kind.untold}* |"
        for kind, places, some in sorted(forged, key=lambda one: one.kind.event)
        if some < places
    ]
    return "\n".join(lines)


def _kinds(forged: list[Tried]) -> str:
    """Return how many kinds of forged events of a type are found everywhere."""
    letters = [one.kind.untold for one in forged if one.found < one.tried]
    told = f"{len(forged) - len(letters)} of {len(forged)} kinds found"
    return ", ".join([told, *(f"*{letter}*" for letter in sorted(set(letters)))])


def _untold(event: str, harm: str) -> str:
    return f"*{UNTOLD[event][harm]}*"


def page(text: str, told: str) -> str:
    """Return the page with the table in its place."""
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{told}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    written = table(outcome(), forged_outcome())
    if "--write" in sys.argv:
        PAGE.write_text(page(PAGE.read_text("utf-8"), written), "utf-8")
    else:
        print(written)
