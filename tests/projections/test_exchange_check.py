"""What a log takes from others: messages and positions in one turn, each message once."""

import pytest

from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import Followed
from eventstore.format.positions import position, to_runs
from eventstore.format.records import GENESIS, decode_record, encode_record
from projections.audit.exchange_check import ExchangeCheck


def took(*origins: tuple[int, int], qos: int = 1, session: str = "$log/p") -> Event:
    count = len(origins)
    return MessagePublished(
        *(session, qos, False, ["t"], [], list(range(1, count + 1)), 0, 0, count),
        origins=to_runs([position(*one) for one in origins]),
    )


def followed(sequence: int, index: int = 0, log: str = "p", expired: int = 0) -> Event:
    gone = [position(expired, 0)] if expired else []
    return Followed(log, position(sequence, index), "ab" * 32, expired=gone)


def found(*records: list[Event] | tuple[list[Event], int, bool]) -> list[tuple[int, str]]:
    """Return what is wrong with records of these events, or (events, part, last)."""
    problems: list[tuple[int, str]] = []
    check = ExchangeCheck(lambda sequence, what: problems.append((sequence, what)))
    for sequence, one in enumerate(records, 1):
        events, part, last = one if isinstance(one, tuple) else (one, 0, True)
        data = encode_record(
            previous=GENESIS, node="q", time_ms=1, events=events, payloads=[], part=part, last=last
        )
        record = decode_record(sequence, data)
        check.take(record, record.events())
    return problems


@pytest.mark.parametrize(
    "records",
    [
        [[took((3, 0), (3, 1)), followed(3, 1)], [took((4, 0)), followed(4)], [followed(4)]],
        [[followed(9)], [took((2, 0), qos=2), followed(10)]],
        [[followed(9)], [followed(10, expired=10)]],
        [([took((3, 0))], 0, False), ([followed(3)], 1, True)],
        [([took((3, 0))], 0, False), [took((3, 0)), followed(3)]],
        [[took((3, 0)), followed(3)], [took((1, 0), session="$log/r"), followed(1, log="r")]],
    ],
)
def test_an_exchange_that_is_right(records: list[list[Event]]) -> None:
    assert found(*records) == []


@pytest.mark.parametrize(
    ("records", "sequence", "said"),
    [
        ([[took((3, 0))], [followed(3)]], 1, "takes messages of log p without their position"),
        ([[followed(3), took((4, 0))]], 1, "takes messages of log p without their position"),
        ([[followed(3)], [followed(2, 5)]], 2, "log p: position 2.5 follows 3.0"),
        ([[took((4, 1)), followed(4)]], 1, "log p: is before the message 4.1"),
        ([[followed(4)], [took((4, 0)), followed(5)]], 2, "the message 4.0 was taken before"),
        ([[followed(4, expired=5)]], 1, "records a later message as expired"),
        (
            [[took((4, 0), session="x"), followed(5)]],
            1,
            "the origins of its messages are inconsistent",
        ),
    ],
)
def test_an_exchange_that_is_wrong(records: list[list[Event]], sequence: int, said: str) -> None:
    ((at, what), *_) = found(*records)
    assert at == sequence
    assert said in what


def test_unreadable_records_are_no_error() -> None:
    problems: list[tuple[int, str]] = []
    check = ExchangeCheck(lambda sequence, what: problems.append((sequence, what)))
    events = [followed(9)], [followed(3)]
    for sequence, some in enumerate(events, 1):
        data = encode_record(previous=GENESIS, node="q", time_ms=1, events=some, payloads=[])
        record = decode_record(sequence, data)
        check.take(record, record.events())
        check.lose_track()
    assert problems == []
