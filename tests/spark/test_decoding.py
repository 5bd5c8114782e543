"""Records become the rows of eventstore's own reader, column by column."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eventstore.format.event_parsing
from eventstore.format.destination_events import OriginTaken
from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.event_parsing import Event, UnknownEvent, UnreadableEvent, parse_event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Refused,
    Released,
    ReplayOpened,
    ReplayReached,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
)
from eventstore.format.node_events import (
    BrokerStarted,
    ClockJumped,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    RetainedSnapshot,
)
from eventstore.format.positions import MAX_INDEX, position, to_runs
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from eventstore.format.stored_properties import block_columns
from protocol.mqtt.property_codec import encode_properties
from spark.runtime.marked_errors import BadOption
from spark.tables.columns import ENTRIES, EVENTS, GRAINS, Columns
from spark.tables.decoder import Decoder
from spark.tables.entry_columns import MAKERS
from spark.tables.row_filter import RowFilter

sys.path.append(str(Path(__file__).parents[1] / "eventstore"))

from asrows import entry_rows, event_rows, usual_fields
from samples import ALL_PAYLOADS, every_event

PROPERTIES = (
    "content_type", "response_topic", "correlation_data", "payload_format", "user_properties",
)  # fmt: skip
HOSTILE = ["", " ", "\x00\x1b[2J", "<b>&amp;", "\u202eabc", "a,b\"'\\", "\U0001f600", "x" * 65_535]


def record(
    *events: Event | dict[str, Any], payload: bytes = b"", sequence: int = 1, part: int = 0
) -> Record:
    data = encode_record(
        previous=GENESIS,
        node="n1",
        time_ms=1_700_000_000_000 + sequence,
        events=events,  # type: ignore[arg-type] # a broken event is given as its JSON object
        payloads=[payload],
        part=part,
    )
    return decode_record(sequence, data)


def rows(records: list[Record], grain: str, *names: str, wanted: RowFilter | None = None) -> Any:
    """The rows as dictionaries without nulls."""
    found = []
    for batch in Decoder(Columns.of(grain, names), wanted or RowFilter()).batches(records):
        batch.validate(full=True)
        found += [
            {name: value for name, value in row.items() if value is not None}
            for row in batch.to_pylist()
        ]
    return found


def without(found: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in names} for row in found]


def all_events() -> Record:
    return record(*every_event(), payload=b"".join(ALL_PAYLOADS))


def test_every_event_becomes_the_rows_that_its_fields_say() -> None:
    found = rows([all_events()], "entries")
    assert without(found, "time", "json") == entry_rows([all_events()])
    assert {row["type"] for row in found} == {kind.__name__ for kind in get_args(Event)}


def test_every_event_becomes_one_row_of_rows_events() -> None:
    found = rows([all_events()], "events")
    for row in found:
        row["json"] = orjson.loads(row["json"])
    assert without(found, "time") == event_rows([all_events()])


def test_the_time_of_a_row_is_that_of_its_record() -> None:
    for grain in ("entries", "events"):
        for row in rows([all_events()], grain, "time", "time_ms"):
            assert round(row["time"].timestamp() * 1000) == row["time_ms"]


@pytest.mark.parametrize("grain", ["entries", "events"])
def test_each_column_alone_is_as_with_all_others(grain: str) -> None:
    whole = rows([all_events()], grain)
    for name in GRAINS[grain]:
        assert rows([all_events()], grain, name) == [
            {name: row[name]} if name in row else {} for row in whole
        ]


def test_every_field_of_every_event_has_a_column() -> None:
    elsewhere = {
        "e",
        "v",
        "at",  # where the payload is
        "pids",  # packet_id
        "refs",  # ref
        "sizes",  # size
        "which",  # topic
        "digest",  # json
        "epoch",  # json
        "reasons",  # json
    }
    in_json = {ClockJumped, LogEndUnproven, LogSalvaged, ReplayOpened, ReplayReached}
    in_json |= {TopicsKeyed, KeysSnapshot, ErasureRequested, Erased, OriginTaken}
    for kind in {*get_args(Event)} - in_json:
        for field in usual_fields(kind):
            if field.name in elsewhere or field.name in MAKERS[kind.__name__]:
                continue
            told = {("topics", "topic"), ("count", "entries"), ("size", "queued_bytes")}
            columns = {column for name, column in told if name == field.name}
            assert columns & ({*MAKERS[kind.__name__]} | {"entries"}), (kind, field.name)


names = st.sampled_from(["c", "d", "sensor/1", *HOSTILE])
numbers = st.integers(0, 65_535)
positions = st.integers(1 << 20, 1 << 50)


@st.composite
def runs(draw: st.DrawFn, count: int, values: st.SearchStrategy[int] = positions) -> Any:
    """`count` integers as runs, some of them in one."""
    if count and draw(st.booleans()):
        first, step = draw(values), draw(st.integers(-3, 9).filter(bool))
        return [[first, count, step]] if count > 1 else [first]
    return to_runs(draw(st.lists(values, min_size=count, max_size=count)))


BLOCKS = st.sampled_from([b"", b"\1\1", b"\2\0\0\0\5", b"\2\0\0\0\7\1\1"])
EXPIRES = st.sampled_from([0, 1_700_000_005])


@st.composite
def messages(draw: st.DrawFn) -> Any:
    """An event that brings messages, and its payloads."""
    count = draw(st.integers(1, 5))
    sizes: Any = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count))
    if draw(st.booleans()):
        sizes = sizes[0]
    payload = draw(
        st.binary(
            min_size=sum(sizes) if isinstance(sizes, list) else sizes * count,
            max_size=sum(sizes) if isinstance(sizes, list) else sizes * count,
        )
    )
    topics = draw(st.lists(names, min_size=1, max_size=3))
    which = draw(
        st.one_of(
            st.just([]),
            st.lists(st.integers(0, len(topics) - 1), min_size=count, max_size=count),
        )
    )
    kind = draw(st.integers(0, 2))
    if kind == 0:
        pids = draw(st.one_of(st.just([]), runs(count, numbers)))
        properties = draw(
            st.one_of(
                st.none(),
                st.lists(
                    st.one_of(st.none(), st.just({"user": [["a", "b"]]})),
                    min_size=count,
                    max_size=count,
                ),
            )
        )
        event: Event = MessagePublished(
            draw(names), 1, draw(st.booleans()), topics, which, pids, sizes, 0, count,
            draw(st.booleans()), properties,
        )  # fmt: skip
    elif kind == 1:
        refs = draw(runs(count))
        waiting = draw(st.sampled_from([[], refs]))
        event = MessagesCarried(refs, topics, which, sizes, 0, count, waiting)
    else:
        each = draw(st.lists(names, min_size=count, max_size=count))
        qos = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        session = draw(st.one_of(st.none(), names))
        event = RetainedSnapshot(each, qos, draw(runs(count)), sizes, 0, count, session)
    chosen = draw(st.lists(BLOCKS, min_size=count, max_size=count))
    if draw(st.booleans()):
        distinct, event.blocks, event.block_of = block_columns(chosen)
        payload = b"".join(distinct) + payload
        if not isinstance(event, MessagePublished) and event.blocks:
            event.expires = draw(EXPIRES) or draw(runs(count, st.integers(0, 1 << 33)))
    return event, payload


@st.composite
def of_sessions(draw: st.DrawFn) -> Any:
    """An event about several messages that it does not bring, or about a session."""
    count = draw(st.integers(0, 6))
    session = draw(names)
    pids, refs = draw(runs(count, numbers)), draw(runs(count))
    vector = draw(st.dictionaries(st.sampled_from(["", "n-p1"]), positions))
    reasons, expires = draw(runs(count, numbers)), draw(runs(count, st.integers(0, 1 << 33)))
    if draw(st.booleans()):
        reasons, expires = [], draw(EXPIRES)
    return draw(
        st.sampled_from(
            [
                Delivered(session, "a/+", 1, pids, refs, True, draw(st.integers(-1, 500))),
                Queued(session, "a/+", 2, refs, draw(st.integers(0, 500))),
                Released(session, pids, refs),
                Acked(session, pids),
                Received(session, pids),
                Completed(session, pids),
                Redelivered(session, pids, "ack_wait"),
                MessageDropped(session, "queue_bytes", count, refs, "a/+", -1),
                MessageDropped(session, "slow_reader", count, topics=["a", "b/é"][:count]),
                Subscribed(session, [("a/+", 1)] * count),
                Unsubscribed(session, ["a/+"] * count),
                SessionClosed(session, "disconnect"),
                SessionClosed(session, "disconnect", expiry=draw(st.integers(0, 1 << 32))),
                Queued(session, "a", 1, refs, 5, expires=expires, behind=draw(st.integers(-1, 9))),
                Acked(session, pids, reasons=reasons),
                Refused(session, pids, reasons or [0x80] * count),
                Expired(session, "a", refs, draw(st.integers(0, 500))),
                Assigned(session, "ann", refs, draw(st.integers(-1, 500))),
                Returned(session, "a", pids, refs),
                RetainedExpired(["a"] * count),
                Subscribed(session, [("a/+", 1)] * count, options=[8] * count, identifier=count),
                ReplayOpened(session, "$replay/5/a", vector, start_ms=count, last=count > 3),
                ReplayReached(session, "$replay/5/a", vector, sent=count, left_out={"erased": 1}),
                ReplayReached(session, "$replay/5/a", {}, gap={"": [1, 5]}, state="live"),
            ]
        )
    ), b""


@st.composite
def records(draw: st.DrawFn) -> Record:
    """A record of any events, each with the offset of its payloads."""
    chosen, area = [], b""
    for event, payload in draw(st.lists(st.one_of(messages(), of_sessions()), max_size=8)):
        if payload or hasattr(event, "at"):
            event.at = len(area) + sum(event.blocks)
        area += payload
        chosen.append(event)
    return record(*chosen, payload=area, sequence=draw(st.integers(1, 9)))


@given(st.lists(records(), min_size=1, max_size=4))
def test_random_events_become_the_same_rows_as_by_eventstores_own_reading(
    found: list[Record],
) -> None:
    for sequence, one in enumerate(found, 1):
        one.sequence = sequence
    assert without(rows(found, "entries"), "time", "json") == entry_rows(found)
    events = rows(found, "events")
    for row in events:
        row["json"] = orjson.loads(row["json"])
    assert without(events, "time") == event_rows(found)


@given(records())
def test_the_json_of_an_entry_is_an_event_of_one_message_with_the_same_row(one: Record) -> None:
    found = rows([one], "entries")
    area = bytes(one.payload)
    for row in found:
        event = parse_event(orjson.loads(row["json"]))
        alone = rows([record(event, payload=area)], "entries")
        assert without(alone, "seq", "index", "position", "time", "time_ms", "steady_ms", "entry",
                       "entries", "json") == without([row], "seq", "index", "position", "time",
                                          "time_ms", "steady_ms", "entry", "entries",
                                          "json")  # fmt: skip


@given(records())
def test_the_json_of_an_entry_is_that_of_its_event_if_it_has_one_entry(one: Record) -> None:
    events = {row["index"]: row for row in rows([one], "events")}
    for row in rows([one], "entries"):
        if row["entries"] == 1:
            assert row["json"] == events[row["index"]]["json"]


def test_the_fields_of_an_event_may_come_in_any_order() -> None:
    raw = {"v": 1, "refs": [[5, 2, 1]], "e": "Released", "pids": [7, 8], "session": 'p"pids":[0'}
    texts = [orjson.loads(row["json"]) for row in rows([record(raw)], "entries", "json")]
    assert texts == [{**raw, "pids": [7], "refs": [5]}, {**raw, "pids": [8], "refs": [6]}]


def test_names_of_clients_arrive_as_they_are() -> None:
    events: list[Event] = [SessionClosed(name, name) for name in HOSTILE]
    found = rows([record(*events)], "entries", "session", "reason")
    assert found == [{"session": name, "reason": name} for name in HOSTILE]


def test_a_large_event_is_cut_into_several_batches() -> None:
    count = 100_000
    event = Queued("d", "a", 1, [[5, count, 2]], count)
    batches = list(
        Decoder(Columns.of("entries", ["ref", "index", "json"]), RowFilter()).batches(
            [record(event)]
        )
    )
    assert len(batches) > 2
    assert [ref for batch in batches for ref in batch["ref"].to_pylist()] == list(
        range(5, 5 + 2 * count, 2)
    )
    assert sum(orjson.loads(text)["size"] for text in batches[-1]["json"].to_pylist()) == 0


@pytest.mark.parametrize("column", ["session", "json", "topic"])
def test_rows_that_repeat_a_long_name_are_cut_into_batches_of_few(column: str) -> None:
    """A client names its session and its topics, with up to 64 KiB."""
    name = "n" * 60_000
    published = MessagePublished(name, 1, False, [name], [], [[1, 1500, 1]], 0, 0, 1500)
    found = record(published, Acked(name, [[1, 1500, 1]]))
    batches = list(Decoder(Columns.of("entries", [column]), RowFilter()).batches([found]))
    assert sum(batch.num_rows for batch in batches) == 3000
    assert max(batch.nbytes for batch in batches) < 100 << 20
    assert len(batches) > 3


def test_payloads_of_events_in_any_order_and_overlapping() -> None:
    one = WillArmed("c", "t", 1, False, 3, 4)
    two = MessagePublished("c", 1, False, ["t"], [], [1, 2], [2, 3], 0, 2)
    three = WillArmed("c", "t", 1, False, 5, 1)
    found = rows([record(one, two, payload=b"abcdefgh")], "entries", "payload")
    assert found == [{"payload": b"efg"}, {"payload": b"ab"}, {"payload": b"cde"}]
    found = rows([record(one, three, payload=b"abcdefgh")], "entries", "payload")
    assert found == [{"payload": b"efg"}, {"payload": b"bcdef"}]


def test_a_field_that_an_older_log_lacks_has_its_default() -> None:
    raw = {
        "session": "c",
        "resumed": False,
        "clean": True,
        "level": 4,
        "e": "SessionOpened",
        "v": 1,
    }
    found = rows([record(raw)], "entries", "generation", "keep_alive", "address", "level")
    assert found == [{"generation": 1, "keep_alive": 0, "address": "", "level": 4}]


def test_an_older_version_is_upcast(monkeypatch: pytest.MonkeyPatch) -> None:
    def upcast(raw: dict[str, Any]) -> dict[str, Any]:
        return {"session": raw["client"], "pids": raw["pids"], "e": "Acked", "v": 1}

    monkeypatch.setitem(eventstore.format.event_parsing.UPCASTERS, ("Acked", 0), upcast)
    old = {"client": "d", "pids": [[3, 2, 1]], "e": "Acked", "v": 0}
    found = rows([record(old, Acked("d", [9]))], "entries", "session", "packet_id", "version")
    assert [row["packet_id"] for row in found] == [3, 4, 9]
    assert {row["version"] for row in found} == {1}
    texts = rows([record(old)], "events", "json")
    assert orjson.loads(texts[0]["json"]) == {"session": "d", "pids": [[3, 2, 1]], "e": "Acked",
                                              "v": 1}  # fmt: skip


RIGHT: dict[str, Any] = {
    "session": "d", "filter": "a", "qos": 1, "pids": [1, 2], "refs": [[1048576, 2, 1]],
    "retain": False, "queued": -1, "e": "Delivered", "v": 1,
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "session": "c", "qos": 1, "retain": False, "topics": ["t"], "which": [], "pids": [1],
    "sizes": 3, "at": 0, "count": 1, "will": False, "properties": None, "e": "MessagePublished",
    "v": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({**RIGHT, "session": 5}, "field session = 5"),
        ({**RIGHT, "qos": "x"}, "field qos = 'x'"),
        ({**RIGHT, "pids": [1.5, 2]}, "field pids"),
        ({**RIGHT, "pids": 7}, "field pids"),
        ({**RIGHT, "retain": None}, "field retain = None"),
        ({**RIGHT, "pids": [1]}, "another number of pids than of entries"),
        ({**RIGHT, "pids": [1, 2, 3]}, "another number of pids than of entries"),
        ({**RIGHT, "refs": [[1, 1 << 40, 1]]}, "a count that cannot be"),
        ({**RIGHT, "refs": [[1, -2, 1]]}, "a count that cannot be"),
        ({**RIGHT, "refs": [[1 << 63]]}, "a run that is none"),
        ({**RIGHT, "refs": [[1 << 62, 2, 1 << 62]]}, "a run that is none"),
        ({**RIGHT, "refs": [(1 << 64) - 1, 2]}, "an integer beyond 64 bits"),
        ({**RIGHT, "refs": [[1, 2]]}, "a run that is none"),
        ({**RIGHT, "refs": [[1, 2, 0]]}, "a run that is none"),
        ({**RIGHT, "qos": 1 << 40}, "too large"),
        ({**PUBLISHED, "sizes": 4}, "a payload outside"),
        ({**PUBLISHED, "at": -1}, "a payload outside"),
        ({**PUBLISHED, "sizes": -1}, "a payload outside"),
        ({**PUBLISHED, "sizes": [1, 2]}, "another number of sizes"),
        ({**PUBLISHED, "which": [3]}, "a topic that is not there"),
        ({**PUBLISHED, "which": [0, 0]}, "another number of which"),
        ({**PUBLISHED, "topics": []}, "a topic that is not there"),
        ({**PUBLISHED, "topics": [5]}, "field topics"),
        ({**PUBLISHED, "count": 1 << 30}, "a count that cannot be"),
        ({**PUBLISHED, "count": -1}, "a count that cannot be"),
        ({**PUBLISHED, "properties": [None, None]}, "another number of properties"),
        ({"e": "WillFired", "v": 1}, "field session"),
    ],
)
def test_an_event_that_is_not_as_it_must_be_is_named(raw: dict[str, Any], told: str) -> None:
    good = record(BrokerStarted("1"), payload=b"abc", sequence=6)
    bad = record(BrokerStarted("1"), raw, payload=b"abc", sequence=7)
    with pytest.raises(UnreadableEvent) as caught:
        rows([good, bad], "entries")
    assert str(caught.value).startswith("record 7")
    assert told in str(caught.value)
    assert not isinstance(caught.value, UnknownEvent)


@pytest.mark.parametrize(
    "raw",
    [
        {**RIGHT, "pids": [1]},
        {**PUBLISHED, "count": 2, "pids": [1, 2], "sizes": 1, "which": [0, 0, 0]},
        {**PUBLISHED, "count": 2, "sizes": [1, 2, 3]},
        {"session": "d", "pids": [1, 2], "reasons": [1], "e": "Acked", "v": 1},
    ],
)
def test_an_event_that_cannot_be_split_is_named_before_the_first_row(raw: dict[str, Any]) -> None:
    bad = record(Acked("d", [3]), raw, payload=b"abcdef", sequence=7)
    with pytest.raises(UnreadableEvent, match=r"^record 7 holds a"):
        rows([bad], "entries", "json")


def test_an_event_without_entries_has_no_rows() -> None:
    empty = RetainedSnapshot([], [], [], 0, 0, 0)
    assert rows([record(empty, Acked("d", [3]))], "entries", "index", "topic") == [{"index": 0}]


@pytest.mark.parametrize(
    "raw",
    [
        {"e": "FromTheFuture", "v": 1},
        {"session": "c", "e": "WillFired", "v": 2},
        {"session": "c", "e": "WillFired", "v": "1"},
        {"session": "c", "e": ["WillFired"], "v": 1},
        {"session": "c", "v": 1},
    ],
)
@pytest.mark.parametrize("grain", ["entries", "events"])
def test_an_event_of_a_later_foldmq_is_refused_with_its_position(
    raw: dict[str, Any], grain: str
) -> None:
    with pytest.raises(UnknownEvent, match=r"record 7, entry 1: .* is not known to this foldmq"):
        rows([record(BrokerStarted("1"), raw, sequence=7)], grain)


def test_integers_are_accepted_as_by_pydantic() -> None:
    found = rows([record({**RIGHT, "qos": "1", "pids": [3.0, 4]})], "entries", "qos", "packet_id")
    assert found == [{"qos": 1, "packet_id": 3}, {"qos": 1, "packet_id": 4}]


def test_only_wanted_types_and_sessions_give_rows_at_their_own_positions() -> None:
    whole = rows([all_events()], "entries")
    for wanted in (
        RowFilter(types=frozenset({"Acked", "SessionOpened"})),
        RowFilter(sessions=frozenset({"d"})),
        RowFilter(types=frozenset({"Acked"}), sessions=frozenset({"c"})),
        RowFilter(types=frozenset({"BrokerStarted"}), sessions=frozenset({"c"})),
        RowFilter(types=frozenset(), sessions=None),
    ):
        kept = [
            row
            for row in whole
            if (wanted.types is None or row["type"] in wanted.types)
            and (wanted.sessions is None or row.get("session") in wanted.sessions)
        ]
        assert rows([all_events()], "entries", wanted=wanted) == kept


def test_rows_between_two_positions() -> None:
    found = [record(*every_event()[:3], sequence=number) for number in (1, 2, 3)]
    whole = [row["position"] for row in rows(found, "entries")]
    for first in (0, position(1, 1), position(2, 0), position(3, 2), position(9, 0)):
        for last in (None, position(1, 0), position(2, 1), position(2, MAX_INDEX)):
            kept = [at for at in whole if first <= at and (last is None or at <= last)]
            for grain in ("entries", "events"):
                some = rows(found, grain, "position", wanted=RowFilter(first=first, last=last))
                assert [row["position"] for row in some] == kept


def test_a_session_that_is_not_opened_by_name_has_no_row() -> None:
    opened = SessionOpened("a", False, True, 4)
    assert rows([record(opened)], "entries", wanted=RowFilter(sessions=frozenset({"b"}))) == []


@pytest.mark.parametrize(
    ("grain", "wrong", "told"),
    [
        ("rows", [], "expected one of entries, events, records"),
        ("entries", ["nothing"], "there is no column 'nothing' in rows=entries"),
        ("events", ["type", "type"], "named twice"),
    ],
)
def test_columns_that_are_not_there_are_refused(grain: str, wrong: list[str], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        Columns.of(grain, wrong)


def test_the_columns_of_events_are_a_part_of_those_of_entries() -> None:
    assert {name for name in EVENTS if name not in ENTRIES} == set()


def test_each_event_marks_its_waiting_messages() -> None:
    ref = position(1, 0)
    carried = [
        MessagesCarried([ref], ["c"], [], 0, 0, 1, []),
        MessagesCarried([ref, ref + 1], ["c"], [], 0, 0, 2, [ref]),
    ]
    found = rows([record(*carried)], "entries", "ref", "waiting")
    assert [row["waiting"] for row in found] == [False, True, False]


# ------------------------------------------------------------------------------ properties


def test_properties_of_messages_are_columns() -> None:
    user = (("k", "v"), ("k", "\u00e4"))
    one = encode_properties({0x02: 60, 0x01: 1, 0x03: "text/plain"}, user)
    other = encode_properties({0x08: "reply/1", 0x09: b"\0\xff"})
    blocks, wrong = [one, other], b"\x99nonsense"
    published = MessagePublished(
        "c", 1, False, ["t"], [], [1, 2, 3, 4], 1, len(one + other), 4,
        blocks=[len(block) for block in blocks], block_of=[2, 0, 1, 2],
    )  # fmt: skip
    broken = replace(published, at=len(wrong), count=1, pids=[9], blocks=[len(wrong)], block_of=[])
    will = WillArmed("c", "w", 1, False, 1, len(other), blocks=[len(other)])
    records = [
        record(published, payload=one + other + b"abcd"),
        record(broken, payload=wrong + b"x", sequence=2),
        record(will, payload=other + b"x", sequence=3),
    ]
    names = ("block", "expires_at", *PROPERTIES)
    nothing = dict.fromkeys(names)
    of_one = {
        **nothing, "block": one, "expires_at": 1_700_000_060, "content_type": "text/plain",
        "payload_format": 1,
        "user_properties": [{"name": "k", "value": "v"}, {"name": "k", "value": "\u00e4"}],
    }  # fmt: skip
    of_other = {
        **nothing, "block": other, "response_topic": "reply/1", "correlation_data": b"\0\xff",
    }  # fmt: skip
    decoder = Decoder(Columns.of("entries", names), RowFilter())
    found = [row for batch in decoder.batches(records) for row in batch.to_pylist()]
    assert found == [of_other, nothing, of_one, of_other, {**nothing, "block": wrong}, of_other]
