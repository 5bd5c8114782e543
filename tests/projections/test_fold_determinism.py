"""The live fold, the fold of what was written, and the fold of one session agree."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from specification import published, snapshot

from actors.maintenance.checkpoints import repeat_retained, repeat_session
from actors.session import decisions
from actors.session.decisions import Limits
from eventstore.format.events import (
    CheckpointBegun,
    CheckpointCompleted,
    Event,
    MessageDropped,
    Redelivered,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
    entries,
)
from eventstore.format.positions import INDEX_BITS, from_runs, to_runs
from eventstore.format.records import GENESIS, ChainChecker, decode_record
from eventstore.log.journal import Journal, Pending
from projections.state.node import NodeState
from projections.state.snapshot import decode, encode

LIMITS = Limits(window=3, queued_messages=6, queued_bytes=40, batch_bytes=20)
NAMES = ["ann", "bob", "cy"]
FILTERS = ["a", "a/#", "+"]
TOPICS = ["a", "a/b", "c"]


class Log:
    """A store that keeps everything and answers when it is asked to; also the clock."""

    def __init__(self) -> None:
        self.records: list[Pending] = []
        self.now = 0

    def send(self, record: Pending) -> None:
        self.records.append(record)

    def time_ms(self) -> int:
        self.now += 7
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class Node:
    """Plausible events: what clients do is decided by the real decisions, and folded live."""

    def __init__(self, max_record: int) -> None:
        self.log = Log()
        self.journal = Journal(
            self.log, self.log, node="n", sequence=0, link=GENESIS, max_record=max_record
        )
        self.live = NodeState()
        self.pid = 0
        self.to_repeat: list[str] | None = None
        """What a checkpoint that is going on has not repeated yet: sessions, then topics."""
        self.begun = 0

    def emit(self, event: Event, payloads: tuple[bytes, ...] = ()) -> int:
        size = sum(map(len, payloads))
        at = self.journal.append(event, entries(event), payloads, size)
        self.live.apply(event, at, self.journal.time_ms, payloads)
        return at

    def connect(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        clean = number % 4 == 0
        if state is not None and state.connected:
            self.disconnect(name, number)
            state = self.live.sessions.get(name)
        resumed = state is not None and not clean
        self.emit(SessionOpened(name, resumed, clean, 4, generation=number))
        if number % 3 == 0:
            self.emit(WillArmed(name, "w", number % 3, False, 4, 0), (b"gone",))

    def disconnect(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is None or not state.connected:
            return
        if state.will is not None and number % 2:
            self.emit(WillCancelled(name))
        elif state.will is not None:
            self.emit(WillFired(name))
            will = published(2, [("w", b"gone")], retain=number % 4 == 0, will=True, session=name)
            self.emit(will, (b"gone",))
        self.emit(SessionClosed(name, "closed"))

    def expire(self, name: str, _number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None and not state.connected:
            self.emit(SessionExpired(name, "expired"))

    def subscribe(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None:
            wanted = [(one, (number + at) % 3) for at, one in enumerate(FILTERS[: number % 4])]
            for event in decisions.subscribe(state, wanted, max_qos=2).events:
                self.emit(event)

    def unsubscribe(self, name: str, number: int) -> None:
        if name in self.live.sessions:
            self.emit(Unsubscribed(name, FILTERS[number % 3 :]))

    def publish(self, name: str, number: int) -> None:
        if name not in self.live.sessions:
            return
        qos = number % 3
        messages = [
            (TOPICS[(number + at) % 3], bytes(number * at % 9)) for at in range(1 + number % 4)
        ]
        pids = []
        if qos:
            pids = [(self.pid + at) % 65_535 + 1 for at in range(len(messages))]
            self.pid += len(messages)
        event = published(qos, messages, pids, retain=number % 5 == 0, session=name)
        at = self.emit(event, tuple(payload for _, payload in messages))
        if qos:
            for receiver in list(self.live.sessions):
                self.route(receiver, number, at, [payload for _, payload in messages])

    def route(self, receiver: str, number: int, at: int, payloads: list[bytes]) -> None:
        state = self.live.sessions[receiver]
        for held in state.active()[:2]:
            if held.qos:
                delivery = decisions.deliver(
                    state,
                    held.filter,
                    held.qos,
                    range(at, at + len(payloads)),
                    payloads,
                    sum(map(len, payloads)),
                    LIMITS,
                    retain=number % 7 == 0,
                    ready=state.connected,
                )
                for event in delivery.events:
                    self.emit(event)

    def acknowledge(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is None:
            return
        sent = [*state.inflight, *state.releasing][:: 1 + number % 2]
        for decide in (decisions.completed, decisions.received, decisions.acked):
            event = decide(state, sent)
            if event is not None:
                self.emit(event)

    def release(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None:
            for event in decisions.released(state, list(state.inbound)[:: (-1) ** number]):
                self.emit(event)

    def drain(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is None:
            return
        for run in decisions.next_waiting(state, LIMITS.window, number):
            pids = decisions.take_packet_ids(state, len(run.refs))
            size = min(state.queued_bytes, number)
            if number % 6 == 5:
                refs = to_runs(run.refs)
                self.emit(MessageDropped(name, "lost", len(run.refs), refs, run.held.filter, size))
            else:
                self.emit(
                    decisions.Delivered(
                        name,
                        run.held.filter,
                        run.qos,
                        to_runs(pids),
                        to_runs(run.refs),
                        retain=run.retain,
                        queued=size,
                    )
                )

    def redeliver(self, name: str, _number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None and (state.inflight or state.releasing):
            pids = [*state.inflight, *state.releasing]
            self.emit(Redelivered(name, to_runs(pids), "resumed"))

    def freeze(self, name: str, _number: int) -> None:
        if name in self.live.sessions.live:
            self.live.sessions.freeze(name, self.journal.here)

    def checkpoint(self, _name: str, number: int) -> None:
        """Begin a checkpoint, or go on with it: other things happen between its events."""
        if self.to_repeat is None:
            if self.journal.behind is not None:
                self.begun = self.emit(CheckpointBegun(self.live.checkpoint + 1))
                if self.journal.behind is not None:
                    self.to_repeat = [*self.live.sessions.names(), "/", *TOPICS, "w"]
            return
        while self.to_repeat:
            one = self.to_repeat.pop(0)
            if one == "/":
                continue
            said = repeat_session(self.live, one) if one in NAMES else []
            said += [] if one in NAMES else repeat_retained(self.live, [one])
            for event, payloads in said:
                self.emit(event, tuple(payloads))
            if number % 3:
                return
        self.to_repeat = None
        self.emit(CheckpointCompleted(self.live.checkpoint, self.begun, 0, 0))

    def end_turn(self, _name: str, number: int) -> None:
        self.journal.end_turn()
        self.journal.flush()
        if number % 2:
            self.commit()

    def commit(self) -> None:
        if self.log.records:
            self.journal.committed(self.log.records[-1].sequence)

    def finish(self) -> None:
        self.journal.end_turn()
        self.journal.flush()
        while not self.journal.idle:
            self.commit()


STEPS = [
    "connect", "disconnect", "expire", "subscribe", "unsubscribe", "publish", "publish",
    "acknowledge", "release", "drain", "redeliver", "end_turn", "end_turn", "freeze", "checkpoint",
    "checkpoint",
]  # fmt: skip


def everything(node: NodeState) -> dict[str, Any]:
    return {
        "sessions": {name: snapshot(state) for name, state in node.sessions.items()},
        "retained": node.retained.match("#"),
        "size": (len(node.retained), node.retained.size),
    }


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES), st.integers(0, 30)), max_size=80
    ),
    max_record=st.sampled_from([600, 2000, 1 << 20]),
)
def test_live_written_and_single_folds_agree(
    steps: list[tuple[str, str, int]], max_record: int
) -> None:
    node = Node(max_record)
    for step, name, number in [("connect", "ann", 1), ("connect", "bob", 2), *steps]:
        getattr(node, step)(name, number)
    node.finish()

    checker = ChainChecker()
    replayed = NodeState()
    alone = {name: NodeState() for name in NAMES}
    for pending in node.log.records:
        record = decode_record(pending.sequence, pending.data)
        checker.check(record)
        replayed.apply_record(record)
        for name, one in alone.items():
            one.apply_record(record, only=name)

    assert everything(replayed) == everything(node.live)
    for name, one in alone.items():
        assert one.sessions.keys() == {name} & node.live.sessions.keys()
        for key, state in one.sessions.items():
            assert snapshot(state) == snapshot(node.live.sessions[key])
    for state in node.live.sessions.values():
        assert_consistent(state)

    # A log that begins with a checkpoint tells the same.
    for one in node.live.checkpoints:
        first = one.begun >> INDEX_BITS
        cut = NodeState(first)
        for pending in node.log.records[first - 1 :]:
            cut.apply_record(decode_record(pending.sequence, pending.data))
        assert not cut.partial
        assert everything(cut) == everything(node.live)
    # Snapshots are the state, whole or in parts.
    for name, state in node.live.sessions.items():
        parts = orjson.loads(orjson.dumps(encode(state)))
        assert snapshot(decode(name, parts)) == snapshot(state)


def assert_consistent(state: Any) -> None:
    """What must be true of every state, whatever happened."""
    assert not state.inflight.keys() & state.releasing.keys()
    outstanding: dict[str, int] = {}
    for sent in [*state.inflight.values(), *state.releasing.values()]:
        outstanding[sent.subscription.filter] = outstanding.get(sent.subscription.filter, 0) + 1
        assert state.subscriptions[sent.subscription.filter] is sent.subscription
    for name, held in state.subscriptions.items():
        assert held.outstanding == outstanding.get(name, 0)
        assert held.active or held.outstanding or held.queue
    assert state.queued == sum(len(held.queue or ()) for held in state.subscriptions.values())


@given(st.lists(st.integers(0, 1 << 60)))
def test_runs_round_trip(values: list[int]) -> None:
    assert from_runs(to_runs(values)) == values


@given(
    st.lists(
        st.tuples(st.integers(-50, 1 << 50), st.integers(1, 12), st.integers(-3, 3)), max_size=8
    )
)
def test_progressions_round_trip(progressions: list[tuple[int, int, int]]) -> None:
    values = [first + step * at for first, count, step in progressions for at in range(count)]
    assert from_runs(to_runs(values)) == values


def test_a_progression_is_one_run() -> None:
    assert to_runs(range(5, 5000)) == [[5, 4995, 1]]
    assert to_runs([9, 7, 5]) == [[9, 3, -2]]
    assert to_runs([4, 4, 4]) == [4, 4, 4]


def test_subscribed_is_one_of_the_events_that_take_part() -> None:
    """The steps above reach a state in which something of everything is there."""
    node = Node(1 << 20)
    for step, name, number in [
        ("connect", "ann", 3), ("subscribe", "ann", 3), ("publish", "ann", 11),
        ("publish", "ann", 13), ("drain", "ann", 9), ("acknowledge", "ann", 0),
    ]:  # fmt: skip
        getattr(node, step)(name, number)
    node.finish()
    kinds = {
        raw["e"]
        for pending in node.log.records
        for raw in decode_record(pending.sequence, pending.data).raw_events
    }
    assert {"SessionOpened", "WillArmed", Subscribed.__name__, "MessagePublished"} < kinds
    assert {"Delivered", "Acked"} < kinds
