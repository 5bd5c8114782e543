"""Writes v1.records and v1.json: a log that every later foldmq must still read.

Run this once for each version of the record format or of an event, under a new name; existing files
are never overwritten, and those in FROZEN belong to a release:
    python tests/eventstore/golden/make.py v2
With ``turn`` behind the name: the events of several sessions, which are read as events of single
ones. With ``mqtt5``: the additions of MQTT 5 to both. With ``limits``: limits, and denied
subscriptions. With ``cluster``: the additions of clusters. With ``packets``: bridges of other
brokers, and packet identifiers that are used again. With ``exchange``: messages from another log.
With ``destinations``: the events of a destination of the outbox, with ``retries``: of messages
that are sent to it again, with ``origins``: of messages that a bridge brought. With
``salvage``: records that were given up. With ``unproven``: starts that could not show that the
log was whole. With ``clock``: a jump of the clock, in a record that says so. With ``replay``:
subscriptions that read the log. With ``sealed``: keys of topics and their erasure, and a record
with sealed contents. With ``periods``: keys that are used for a period. With ``formats``: records
of format 2, plain and deflated, with destinations and without, and one of format 1.
"""

import sys
from pathlib import Path

import orjson

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2])]

from samples import (
    ALL_PAYLOADS,
    EXCHANGE_PAYLOADS,
    MQTT5_PAYLOADS,
    MQTT5_TURN_PAYLOADS,
    PAYLOADS,
    TURN_PAYLOADS,
    WILL,
    clock_events,
    cluster_events,
    destination_events,
    erasure_events,
    every_event,
    exchange_events,
    first_events,
    limit_events,
    mqtt5_events,
    mqtt5_turn_events,
    origin_events,
    packet_events,
    period_events,
    replay_events,
    retry_events,
    salvage_events,
    turn_events,
    unproven_events,
)

from eventstore.format.event_json import json_object
from eventstore.format.records import (
    GENESIS,
    NO_JUMPS,
    ClockJumps,
    decode_record,
    encode_record,
    link_of,
)

FIRST_PART = 9
"""Events of the first turn that lie in the first of its two records."""

ONE_TURN = {
    "limits": limit_events,
    "cluster": cluster_events,
    "packets": packet_events,
    "salvage": salvage_events,
    "unproven": unproven_events,
    "clock": clock_events,
    "destinations": destination_events,
    "retries": retry_events,
    "origins": origin_events,
    "replay": replay_events,
    "periods": period_events,
}
"""Logs of one turn without payloads."""


def main(name: str, what: str = "") -> None:
    events = first_events()
    turns = [
        (events[:FIRST_PART], [*PAYLOADS, WILL], 0, False),
        (events[FIRST_PART:-1], [], 1, True),
        (events[-1:], [], 0, True),
    ]
    if what == "turn":
        turns = [(turn_events(), TURN_PAYLOADS, 0, True)]
    if what == "mqtt5":
        turns = [
            (mqtt5_events(), MQTT5_PAYLOADS, 0, True),
            (mqtt5_turn_events(), MQTT5_TURN_PAYLOADS, 0, True),
        ]
    if what in ONE_TURN:
        turns = [(ONE_TURN[what](), [], 0, True)]
    elif what == "sealed":
        turns = [(erasure_events(), [], 0, True), (events[:FIRST_PART], [*PAYLOADS, WILL], 0, True)]
    elif what == "exchange":
        turns = [(exchange_events(), EXCHANGE_PAYLOADS, 0, True)]
    elif what == "formats":
        events = [event for event in every_event() if event.e != "LogSalvaged"]
        first: list[bytes] = [*PAYLOADS, WILL]
        turns = [
            (events[:1], [], 0, True),
            (events, ALL_PAYLOADS, 0, True),
            (events[:FIRST_PART], first, 0, True),
            (events[:FIRST_PART], first, 0, True),
        ]
    link = GENESIS
    log, expected = bytearray(), []
    for sequence, (some, payloads, part, last) in enumerate(turns, 1):
        data = encode_record(
            previous=link,
            node="golden",
            time_ms=1_700_000_000_000 + sequence,
            events=some,
            payloads=payloads,
            part=part,
            last=last,
            jumps=ClockJumps(-3_600_000, 1) if what == "clock" else NO_JUMPS,
            destinations=[(1, sequence - 1), (65_535, 1 << 40)] if sequence == 2 else [],
            record_format=1 if sequence == 4 or what != "formats" else 2,
            sealed=[(0, 2, 7), (4, 3, 8)] if what == "sealed" and sequence == 2 else [],
            salt=bytes(range(16)),
        )
        link = link_of(data)
        log += len(data).to_bytes(4, "big") + data
        expected.append(
            {
                "sequence": sequence,
                "link": link.hex(),
                "node": "golden",
                "time_ms": 1_700_000_000_000 + sequence,
                "part": part,
                "last": last,
                "payload": bytes(decode_record(sequence, data).payload).hex(),
                "events": [
                    json_object(event) for _, event in decode_record(sequence, data).events()
                ],
            }
        )
    with (HERE / f"{name}.records").open("xb") as records:
        records.write(log)
    with (HERE / f"{name}.json").open("xb") as described:
        described.write(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
