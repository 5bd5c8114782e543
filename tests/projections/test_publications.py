"""Which messages take effect in a log, where, and with which content."""

from hypothesis import given
from hypothesis import strategies as st
from playedlogs import played
from randomnode import NAMES, STEPS, TOPICS
from recordednode import Effect, Recorded

from eventstore.format.event_parsing import Event
from eventstore.format.events import LOG_SESSION, MessagePublished, Released
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.log.message_store import MessageStore, StoredMessages
from eventstore.reading.publications import Publications, Releases, publications_in, with_content


def effects_of(records: list[Record], topics: list[str] | None = None) -> list[Effect]:
    store, found, turns = MessageStore(1 << 62), list[Effect](), TurnAssembler()
    wanted = None if topics is None else topics.__contains__
    complete = [part for record in records for part in turns.take(record)[1]]
    for item in [item for record in complete for item in publications_in(record, wanted)]:
        if isinstance(item, StoredMessages):
            store.add(item)
            continue
        whole = [item]
        if isinstance(item, Releases):
            messages = [store.get(ref) for ref in item.refs]
            whole = [*with_content(item, [one for one in messages if one is not None])]
        for part in whole:
            assert isinstance(part, Publications)
            found += [
                Effect(
                    at, part.refs[number], part.session, part.topics[number].decode(),
                    part.payloads[number], part.qos, part.retain,
                    part.blocks[number] if part.blocks else b"", part.will,
                )
                for number, at in enumerate(part.positions)
            ]  # fmt: skip
    return [one for one in found if topics is None or one.topic in topics]


MANY = st.lists(
    st.tuples(st.sampled_from([*STEPS, "publish"]), st.sampled_from(NAMES), st.integers(0, 30)),
    max_size=50,
)


@given(MANY, st.sampled_from([600, 1 << 20]), st.none() | st.sets(st.sampled_from(TOPICS)))
def test_a_record_has_what_was_decided(
    steps: list[tuple[str, str, int]], max_record: int, topics: set[str] | None
) -> None:
    node = played(steps, max_record, Recorded, 5)
    records = [decode_record(one.sequence, one.data) for one in node.log.records]
    wanted = None if topics is None else sorted(topics)
    expected = [one for one in node.effects if topics is None or one.topic in topics]
    assert effects_of(records, wanted) == expected


def made(*events: Event, payloads: tuple[bytes, ...]) -> Record:
    data = encode_record(
        previous=GENESIS, node="n", time_ms=1000, events=[*events], payloads=payloads
    )
    return decode_record(3, data)


def test_copies_of_other_logs_are_left_out() -> None:
    copied = MessagePublished(LOG_SESSION + "n2", 1, False, ["a"], [], [1], 1, 0, 1)
    own = MessagePublished("ann", 1, False, ["a"], [], [1], 1, 1, 1)
    qos2 = MessagePublished(LOG_SESSION + "n2", 2, False, ["a"], [], [2], 1, 2, 1)
    released = Released(LOG_SESSION + "n2", [2], [position(3, 2)])
    record = made(copied, own, qos2, released, payloads=(b"1", b"2", b"3"))
    assert [one.payload for one in effects_of([record])] == [b"2"]


def test_messages_up_to_a_position_are_left_out() -> None:
    event = MessagePublished("ann", 1, False, ["a", "b"], [0, 1, 0], [1, 2, 3], 1, 0, 3)
    (messages,) = publications_in(made(event, payloads=(b"1", b"2", b"3")))
    assert isinstance(messages, Publications)
    assert messages.after(position(3, 0) - 1) is messages
    left = messages.after(position(3, 1))
    assert left is not None
    assert (left.positions, left.topics, left.payloads) == (
        range(position(3, 2), position(3, 3)),
        [b"a"],
        [b"3"],
    )
    assert messages.after(position(3, 2)) is None
    releases = Releases("ann", range(7, 9), [1, 2], 0, 0)
    assert releases.after(6) == releases
    left_releases = releases.after(7)
    assert left_releases is not None
    assert [*left_releases.refs] == [2]
    assert releases.after(8) is None
