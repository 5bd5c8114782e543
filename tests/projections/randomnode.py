"""A node whose steps hypothesis chooses, folded in several ways."""

from __future__ import annotations

from specification import published

from actors.maintenance.checkpoints import repeat_retained, repeat_session
from actors.session import decisions
from actors.session.decisions import DeliveryLimits
from eventstore.format import (
    GENESIS,
    CheckpointBegun,
    CheckpointCompleted,
    Event,
    MessageDropped,
    Redelivered,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
    entries,
    to_runs,
)
from eventstore.log import Journal, PendingRecord
from projections.state import NodeState

LIMITS = DeliveryLimits(window=3, queued_messages=6, queued_bytes=40, batch_bytes=20)


NAMES = ["ann", "bob", "cy"]


FILTERS = ["a", "a/#", "+"]


TOPICS = ["a", "a/b", "c"]


class Log:
    """A store that keeps everything and answers when it is asked to; also the clock."""

    def __init__(self) -> None:
        self.records: list[PendingRecord] = []
        self.now = 0

    def send(self, record: PendingRecord) -> None:
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
            self.live.sessions.freeze(name, self.journal.next_position)

    def checkpoint(self, _name: str, number: int) -> None:
        """Begin a checkpoint, or go on with it: other things happen between its events."""
        if self.to_repeat is None:
            if self.journal.last_closed is not None:
                self.begun = self.emit(CheckpointBegun(self.live.checkpoint + 1))
                if self.journal.last_closed is not None:
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
