"""A node whose steps hypothesis chooses, folded in several ways."""

from collections.abc import Iterable

from specification import published

from actors.maintenance.checkpoints import repeat_retained, repeat_session
from actors.session.decisions import acknowledgements, queueing, subscribing
from actors.session.decisions.queueing import DeliveryLimits
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    Delivered,
    Expired,
    MessageDropped,
    Queued,
    Redelivered,
    Refused,
    ReplayOpened,
    ReplayReached,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import CheckpointBegun, CheckpointCompleted
from eventstore.format.positions import to_runs
from eventstore.format.records import GENESIS
from eventstore.format.stored_properties import block_columns, expiry_runs
from eventstore.log.journal import Journal
from eventstore.log.pending_record import PendingRecord
from projections.state.node_state import NodeState

LIMITS = DeliveryLimits(window=3, queued_messages=6, queued_bytes=40, batch_bytes=20)


NAMES = ["ann", "bob", "cy"]


FILTERS = ["a", "a/#", "+"]


REPLAYS = ["$replay/10m/a/#", "$replay/2.0/a/#"]


TOPICS = ["a", "a/b", "c"]


BLOCKS = [b"", b"\2\0\0\0\5\1\1", b"\1\0", b"\2\0\0\0\3"]


class Log:
    """A store that keeps everything and answers when it is asked to; also the clock."""

    def __init__(self) -> None:
        self.records: list[PendingRecord] = []
        self.now = 0

    def send(self, record: PendingRecord) -> None:
        self.records.append(record)

    def steady_ms(self) -> int:
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
        self.published: list[int] = []
        self.sizes: dict[int, int] = {}
        """Size of the payload of each message."""
        """Positions of what was published."""

    def emit(self, event: Event, payloads: tuple[bytes, ...] = ()) -> int:
        size = sum(map(len, payloads))
        at = self.journal.append(event, entries(event), payloads, size)
        self.live.apply(event, at, self.journal.steady_ms, payloads)
        return at

    def connect(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        clean = number % 4 == 0
        if state is not None and state.connected:
            self.disconnect(name, number)
            state = self.live.sessions.get(name)
        resumed = state is not None and not clean
        if number % 5 == 0:
            expiry = 0 if clean else 60 + number
            five = SessionOpened(name, resumed, clean, 5, generation=number, expiry=expiry)
            five.clean_start, five.receive_maximum, five.packet_maximum = clean, 1 + number, number
            self.emit(five)
            will = WillArmed(name, "w", number % 3, number % 2 == 0, 4, 0, number, blocks=[7])
            self.emit(will, (BLOCKS[1], b"gone"))
            return
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
        if state.level == 5:
            self.emit(SessionClosed(name, "disconnect", code=4, expiry=number % 3))
        else:
            self.emit(SessionClosed(name, "closed"))

    def expire(self, name: str, _number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None and not state.connected:
            self.emit(SessionExpired(name, "expired"))

    def subscribe(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None:
            wanted = [(one, (number + at) % 3) for at, one in enumerate(FILTERS[: number % 4])]
            for event in subscribing.subscribe(state, wanted, max_qos=2).events:
                self.emit(event)

    def subscribe5(self, name: str, number: int) -> None:
        if name in self.live.sessions:
            wanted = [(one, number % 3) for one in FILTERS[number % 3 :]]
            options = [4 * (number % 8) & 0x3C for _ in wanted]
            self.emit(Subscribed(name, wanted, options=options, identifier=number % 4))

    def unsubscribe(self, name: str, number: int) -> None:
        if name in self.live.sessions:
            self.emit(Unsubscribed(name, FILTERS[number % 3 :]))
            if number % 4 == 0:
                self.emit(Unsubscribed(name, REPLAYS))

    def replay(self, name: str, number: int) -> None:
        """Open a replay, or send what it reads next."""
        state = self.live.sessions.get(name)
        if state is None:
            return
        topic_filter = REPLAYS[number % 2]
        held = state.replays.get(topic_filter)
        if held is None or held.replay is None:
            self.emit(Subscribed(name, [(topic_filter, 1 + number % 2)]))
            start = {"": self.published[0]} if self.published and number % 3 else {}
            opened = ReplayOpened(name, topic_filter, start)
            opened.start_ms, opened.last = (0 if start else number), number % 5 == 0
            if number % 7 == 0:
                opened.until, opened.until_ms = {"p1": 7 << 20}, 10 + number
            self.emit(opened)
            return
        refs = [ref for ref in self.published if ref > held.replay.through.get("", 0)][:3]
        if refs and number % 3:
            pids = acknowledgements.take_packet_ids(state, len(refs))
            self.emit(Delivered(name, topic_filter, held.qos, to_runs(pids), to_runs(refs)))
        reached = ReplayReached(name, topic_filter, {"": refs[-1]} if refs else {})
        reached.sent, reached.state = len(refs), "" if refs else "live"
        if number % 4 == 0:
            reached.left_out = {"expired": number % 3 + 1, "no_local": 1}
            reached.gap = {"": [1 << 20, 2 << 20]}
            reached.through = {**reached.through, f"p{number % 3}": number << 20}
        self.emit(reached)

    def size(self, refs: Iterable[int]) -> int:
        """Return the size of the payloads of messages."""
        return sum(self.sizes[ref] for ref in refs)

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
        some: tuple[bytes, ...] = tuple(payload for _, payload in messages)
        if number % 2:
            blocks = [BLOCKS[(number + at) % len(BLOCKS)] for at in range(len(messages))]
            distinct, event.blocks, event.block_of = block_columns(blocks)
            some = (*distinct, *some)
        at = self.emit(event, some)
        self.published += range(at, at + len(messages))
        self.sizes.update((at + one, len(payload)) for one, (_, payload) in enumerate(messages))
        if qos:
            for receiver in list(self.live.sessions):
                self.route(receiver, number, at, [payload for _, payload in messages])

    def route(self, receiver: str, number: int, at: int, payloads: list[bytes]) -> None:
        state = self.live.sessions[receiver]
        for held in state.active()[:2]:
            if held.qos:
                delivery = queueing.deliver(
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

    def wait(self, name: str, number: int) -> None:
        """Queue messages that expire; some before others that wait."""
        state = self.live.sessions.get(name)
        refs = self.published[-1 - number % 5 :]
        if state is None or not refs or not state.subscriptions:
            return
        held = [*state.subscriptions.values()][number % len(state.subscriptions)]
        ends = [number * at % 4 for at in range(len(refs))]
        event = Queued(name, held.filter, 1, to_runs(refs), self.size(refs))
        event.expires = expiry_runs(ends) if number % 3 else number % 4
        if number % 5 == 0:
            event.behind = min(number % 3, len(held.queue or ()))
        self.emit(event)

    def expire_messages(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        for held in list(state.waiting.values()) if state is not None else ():
            gone = held.queue.expired(number % 4, 1 + number % 6) if held.queue else []
            if gone:
                self.emit(Expired(name, held.filter, to_runs(gone), self.size(gone)))
        topics = self.live.retained.expired(number)
        assert all(self.live.retained.match(topic)[0].expires <= number for topic in topics)
        if topics:
            self.emit(RetainedExpired(topics))
            assert not self.live.retained.expired(number)

    def refuse(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is None:
            return
        if not state.inflight:
            reason = ("slow_reader", "not_permitted")[number % 2]
            topics = [b"a", b"a/b", b"a", b"c"][number % 4 :]
            self.emit(queueing.dropped_unrecorded(name, reason, topics))
            return
        pids = [*state.inflight][:: 1 + number % 2]
        refs = [state.inflight[pid].ref for pid in pids]
        if number % 3:
            self.emit(Refused(name, to_runs(pids), [0x87] * len(pids)))
        else:
            self.emit(Returned(name, "a", to_runs(pids), to_runs(refs)))

    def acknowledge(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is None:
            return
        sent = [*state.inflight, *state.releasing][:: 1 + number % 2]
        for decide in (
            acknowledgements.completed,
            acknowledgements.received,
            acknowledgements.acked,
        ):
            event = decide(state, sent)
            if event is not None:
                self.emit(event)

    def release(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is not None:
            for event in acknowledgements.released(state, list(state.inbound)[:: (-1) ** number]):
                self.emit(event)

    def drain(self, name: str, number: int) -> None:
        state = self.live.sessions.get(name)
        if state is None:
            return
        for run in queueing.next_waiting(state, LIMITS.window, number):
            pids = acknowledgements.take_packet_ids(state, len(run.refs))
            size = self.size(run.refs)
            if number % 6 == 5:
                refs = to_runs(run.refs)
                self.emit(
                    MessageDropped(name, "lost", len(run.refs), refs, run.subscription.filter, size)
                )
            else:
                self.emit(
                    Delivered(
                        name,
                        run.subscription.filter,
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
    "checkpoint", "subscribe5", "wait", "wait", "expire_messages", "refuse", "replay",
    "replay",
]  # fmt: skip
