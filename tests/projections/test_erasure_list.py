"""The erasures that a log records."""

from __future__ import annotations

from typing import Any

from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.records import GENESIS, decode_record, encode_record, mentions
from projections.past.erasure_list import ERASURE_EVENTS, ErasureList

KEYED = TopicsKeyed(["a", "b"], [[1, 2, 1]], ["0", "1"])
FIRST = ErasureRequested(1, "ann@vm", "request", ["a", "b"], [[1, 2, 1]])
SECOND = ErasureRequested(2, "foldmq", "restored", ["c"], [3])


def listed(*records: list[Any]) -> ErasureList:
    erasures = ErasureList()
    for sequence, events in enumerate(records, 1):
        data = encode_record(
            previous=GENESIS, node="n", time_ms=1000 * sequence, events=events, payloads=[]
        )
        if mentions(data, ERASURE_EVENTS):
            erasures.take(decode_record(sequence, data))
    return erasures


def test_each_erasure_with_its_end() -> None:
    erasures = listed([KEYED], [FIRST], [Erased(1, 2)], [SECOND])
    first, second = erasures.entries
    assert first.fields() == {
        "erasure": 1,
        "requested": "1970-01-01T00:00:02.000Z",
        "by": "ann@vm",
        "cause": "request",
        "topics": ["a", "b"],
        "keys": 2,
        "before": None,
        "done": "1970-01-01T00:00:03.000Z",
    }
    assert (second.number, second.cause, second.fields()["done"]) == (2, "restored", None)
    assert erasures.cut_off == 0


def test_a_cut_log_counts_what_it_lost() -> None:
    erasures = listed([KeysSnapshot(["a"], [4], 4, 2, [3])], [Erased(2, 1)])
    assert (erasures.entries, erasures.cut_off, erasures.pending_before) == ([], 2, False)
    erasures = listed([KeysSnapshot(["a"], [4], 4, 2, [3])], [KeysSnapshot([], [], 4, 2, [3])])
    assert (erasures.cut_off, erasures.pending_before) == (2, True)
    erasures = listed([FIRST], [KeysSnapshot([], [], 4, 1, [1, 2])], [Erased(1, 2)])
    assert (len(erasures.entries), erasures.cut_off) == (1, 0)
    assert erasures.entries[0].done_ms == 3000
