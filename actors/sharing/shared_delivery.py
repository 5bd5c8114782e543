"""Delivery of a shared subscription: assigns each message to one member that has room.

It replaces ``Delivery`` in the session of a shared subscription. Messages for which no member has
room wait in that session's queue, not in the queue of a member; so do messages returned by members
that left. A batch is divided as a whole: it causes one event for each member that gets a piece of
it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile

from actors.node.backpressure import BACKLOG
from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber
from actors.session.decisions import queueing, sharing
from actors.session.delivery import Delivery
from actors.session.delivery_encoder import remaining_properties
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import Batch, Outgoing
from actors.session.subscription_actor import Subscription
from actors.sharing.assignment_recorder import AssignmentRecorder
from actors.sharing.member_choice import Assignment, first_ones
from actors.sharing.shared_members import SharedMembers, capped_qos
from eventstore.format.events import MessageDropped
from eventstore.format.positions import Position
from eventstore.log.message_store import Message, StoredMessages
from projections.state.session import SubscriptionState
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK
from protocol.mqtt.shared_filters import split_share

_DIVIDED_AT_ONCE = 1024
"""Number of messages taken from the queue and divided in one step."""
_NO_WINDOW = 1 << 62


class SharedDelivery(Delivery):
    """Assigns the messages of one shared subscription to its members."""

    __slots__ = (
        "_home",
        "_members",
        "_pace",
        "_recorder",
        "_undivided",
    )

    def __init__(self, node: NodeContext, session: Session) -> None:
        super().__init__(node, session)
        exchange = node.exchange
        self._home = exchange.home_of(session.name) if exchange is not None else ""
        """The log that this part of a shared subscription belongs to; empty: this one."""
        self._members = SharedMembers(node, session.name)
        self._pace = DivisionPace(node, self._members)
        self._recorder = AssignmentRecorder(node, session, self._members, self._home)
        self._undivided = UndividedMessages()
        """QoS 0 messages that are not divided yet."""

    @property
    def _group(self) -> SharedGroup:
        return self._members.group

    def deliver(self, message: Outgoing) -> None:
        """Divide matching messages among members; queue those for which no member has room."""
        subscriber, batch, _ = message
        session = self._session
        if subscriber.ended or self._node.state.sessions.get(session.name) is not session.state:
            return
        session.last_active = self._node.clock.monotonic()
        if batch.expired:
            self._expire_unsent(message)
            return
        if not batch.qos:
            self._divide_qos0(message)
            return
        if self._home and not self._group.has_present:
            self.give_back()
            # Without queueing them.
            self._recorder.assign_to_log(self._home, batch.positions, -1, batch.qos)
            return
        if session.state.queued or self.loading or self._pace.has_compared:
            self._enqueue(message, range(len(batch)))
            if self._pace.has_compared:
                self.send_queued_later()
            return
        limit = self._node.delivery_limits.batch_bytes
        fitting = at_once = self._pace.step_size(batch.topics)
        if batch.size > limit:
            fitting = min(at_once, queueing.within(batch.payloads, limit))
        whole = batch if fitting == len(batch) else batch.select(range(fitting))
        assignment, more = self._divide(whole)
        self._current = (message, fitting - len(assignment.waiting))
        waiting = [*assignment.waiting, *range(fitting, len(batch))]
        if waiting:
            self._enqueue(message, waiting)
            if more or at_once < len(batch):
                self.send_queued_later()

    def _divide_qos0(self, message: Outgoing) -> None:
        """Divide QoS 0 messages after the remaining ones of earlier batches."""
        undivided = self._undivided
        if not undivided and not self._pace.has_compared:
            self._divide_some(message)
        elif undivided.has_room(self._node.options.max_outbound_bytes):
            undivided.add(message)
            self.send_queued_later()
        else:
            self._drop_qos0(message.batch.topics)

    def _divide_some(self, message: Outgoing) -> None:
        """Divide the first messages of a QoS 0 batch, and the rest later, before any other work."""
        batch = message.batch
        at_once = self._pace.step_size(batch.topics)
        if at_once < len(batch):
            later_batch = batch.select(range(at_once, len(batch)))
            self._undivided.add_first(message._replace(batch=later_batch))
            self.send_queued_later()
            batch = batch.select(range(at_once))
        self._drop_qos0([batch.topics[at] for at in self._divide(batch)[0].waiting])

    def _drop_qos0(self, topics: Sequence[bytes]) -> None:
        """Record that QoS 0 messages are dropped because no member accepts them."""
        if topics and any(member.may_read for member in self._group.ordered()):
            self._node.drop_unrecorded(self._session.name, "slow_reader", topics)

    def continue_sending(self) -> None:
        """Divide more queued messages, and some of the remaining QoS 0 messages."""
        super().continue_sending()
        if self._undivided:
            self._divide_some(self._undivided.pop())
            if self._undivided:
                self.send_queued_later()

    def _divide(self, batch: Batch, *, queued: bool = False) -> tuple[Assignment, bool]:
        """Divide the messages of a batch among members; return the assignment.

        Also returns whether members that were not examined may have room for waiting messages.

        ``queued``: the messages are the first of the queue, and leave it. Then messages after the
        first one without a member are not assigned.
        """
        group = self._group
        pace = self._pace
        members, more = self._members.find(batch, pace.piece_size, pace.members_at_once)
        assignment = self._members.assign(batch, members)
        if queued:
            assignment = first_ones(assignment)
        pace.count(len(batch) - len(assignment.waiting))
        longest = max(map(len, assignment.pieces), default=0)
        for member, part in zip(members, assignment.pieces, strict=True):
            if len(part):
                subscriber, session = member.subscriber, member.session
                if session is not None:
                    part_batch = batch if len(part) == len(batch) else batch.select(part)
                    qos = capped_qos(part_batch, subscriber)
                    session.delivery.deliver(Outgoing(subscriber, part_batch, qos))
                    if isinstance(subscriber.actor, Subscription):
                        subscriber.actor.matched += len(part_batch)
                elif not batch.qos:
                    self._pass_qos0(subscriber, batch.select(part))
                if len(part) == longest:
                    group.last_served = subscriber.session
        if batch.qos:
            recorded = self._recorder.record(batch, members, assignment, queued=queued)
            if queued:
                self.sent_from_queue += len(recorded) - len(assignment.refused)
            if recorded:
                self.release([batch.positions[number] for number in recorded])
        return assignment, more

    def _enqueue(self, message: Outgoing, numbers: Sequence[int]) -> None:
        """Queue messages, up to the limits of the queue."""
        self.make_room()
        subscriber, whole, _ = message
        batch = whole if len(numbers) == len(whole) else whole.select(numbers)
        covered = len(whole) - len(batch)
        limits = self._node.delivery_limits
        if self._home:  # messages taken from the home have no limit: only this log has them
            limits = limits._replace(queued_messages=_NO_WINDOW, queued_bytes=_NO_WINDOW)
        decision = queueing.deliver(
            self._session.state,
            subscriber.filter,
            batch.qos,
            batch.positions,
            batch.payloads,
            batch.size,
            limits,
            retain=False,
            ready=False,
            expires=batch.expires,
        )
        for event in decision.events:
            at = self._session.emit(event)
            if type(event) is MessageDropped:
                self._count_dropped(event, at)
        self._current = (message, covered + len(batch))
        self._node.router.groups.waiting.add(self._session.name)
        if self._group.online:
            self._hold(batch, 0, len(batch))
            self.slow_publishers(batch)

    def send_queued(self) -> None:
        """Divide queued messages among members that have room."""
        state, group = self._session.state, self._group
        group.notified = False
        if self._home and not group.has_present:
            self.give_back()
        for _ in range(self._pace.steps):
            if self.loading or not state.queued or not group.online:
                break
            if not self._divide_queued():
                break
        else:
            if state.queued:
                self.send_queued_later()
        if self._backlog is not None and (state.queued <= BACKLOG // 2 or not group.online):
            self._backlog.release()
        waiting = self._node.router.groups.waiting
        if state.queued or self._home:
            waiting.add(self._session.name)
        else:
            waiting.discard(self._session.name)
        if self._home:
            self._offer()

    def _divide_queued(self) -> bool:
        """Divide the first messages of the queue; return whether to continue with the next ones."""
        state, limits = self._session.state, self._node.delivery_limits
        if not self._members.has_room():
            return False
        typical = state.queued_bytes // state.queued
        most = max(1, min(_DIVIDED_AT_ONCE, limits.batch_bytes // (typical + 1)))
        runs = queueing.next_waiting(state, _NO_WINDOW, most)
        if not runs:
            return False
        run = runs[0]
        stored = self._own_buffer().find_first(run.refs)
        if not stored:
            self.load(self._own_buffer().to_load(run.refs), self.send_queued)
            return False
        if self._expire(run.subscription, stored):
            return True
        is_erased = self._node.is_erased
        kind, alike = next(
            groupby(
                takewhile(stored.__contains__, run.refs),
                lambda ref: (stored[ref].retain, is_erased(ref, stored[ref])),
            )
        )
        if kind[1]:
            self._drop_erased(run._replace(refs=[*alike]), stored)
            return True
        messages = [stored[ref] for ref in alike]
        del messages[self._pace.step_size([message.topic for message in messages]) :]
        del messages[
            queueing.within([message.payload for message in messages], limits.batch_bytes) :
        ]
        refs = run.refs[: len(messages)]
        assignment, more = self._divide(self._batch_of(run.qos, refs, messages), queued=True)
        return more or not assignment.waiting

    def _drop_erased(self, run: queueing.WaitingRun, stored: Mapping[Position, Message]) -> None:
        """Record that messages whose contents were erased leave the head of the queue."""
        size = sum(len(stored[ref].payload) for ref in run.refs)
        self._drop_waiting("erased", run, size)
        self.release(run.refs)

    def _batch_of(self, qos: int, refs: Sequence[Position], messages: Sequence[Message]) -> Batch:
        """Return queued messages as a batch; either all were published with RETAIN, or none."""
        now_ms = self._node.clock.steady_ms()
        blocks = remaining_properties(messages, now_ms)
        payloads = [message.payload for message in messages]
        expires = [message.expires for message in messages]
        return Batch(
            qos,
            [message.topic for message in messages],
            payloads,
            refs,
            size=sum(map(len, payloads)),
            blocks=blocks or None,
            published_retain=messages[0].retain,
            expires=expires if any(expires) else (),
        )

    def _expire(self, subscription: SubscriptionState, messages: dict[Position, Message]) -> bool:
        """Record which of these queued messages have expired; return whether any has."""
        queue, passed = subscription.queue, self._node.expired_until
        if queue is None or not 0 < queue.expiry() <= passed:
            return False
        expired_refs = [ref for ref in queue.expired(passed) if ref in messages]
        if expired_refs:
            size = sum(len(messages[ref].payload) for ref in expired_refs)
            self._record_expired(subscription.filter, expired_refs, size)
        return bool(expired_refs)

    def requeue(self, returned: dict[Position, Message]) -> None:
        """Queue unacknowledged messages of a member that left, in their former place."""
        self._put_back(returned, 1)

    def _put_back(self, returned: dict[Position, Message], qos: int) -> None:
        name, state = self._session.name, self._session.state
        topic_filter = split_share(name)[1]
        subscription = state.subscriptions.get(topic_filter)
        older = self._group.returned
        for event in sharing.requeued(name, subscription, topic_filter, returned, older, qos):
            self._session.emit(event)
        self._node.router.groups.has_messages(name)

    # Shared subscriptions with members in other logs.

    def add_assigned(self, message: Outgoing) -> None:
        """Queue or send messages that the home of the shared subscription assigned to this log.

        The home itself takes messages that another log returned: they are put before all waiting
        ones.
        """
        batch = message.batch
        if self._home or not batch.qos:
            self.deliver(message)
            if self._home:
                self._offer()
            return
        self._group.note_returned(batch.positions)
        blocks, expires = batch.blocks or (), batch.expires
        stored = StoredMessages(
            0, batch.topics, batch.payloads, batch.size, blocks, expires, batch.published_retain
        )
        numbers = range(len(batch))
        messages = dict(zip(batch.positions, map(stored.message, numbers), strict=True))
        self._put_back(messages, batch.qos)

    def give_back(self) -> None:
        """Return all queued messages to the log that is the home of the shared subscription.

        Called when no member in this log may receive them. The home assigns them again.
        """
        state = self._session.state
        subscription = state.subscriptions.get(split_share(self._session.name)[1])
        if subscription is None or not subscription.queue:
            return
        size = subscription.queued_bytes
        for qos, run in groupby([*subscription.queue], lambda packed: packed & QOS_MASK):
            refs = [packed >> FLAG_BITS for packed in run]
            # The bytes of each part are not known: the first event contains the sum.
            self._recorder.assign_to_log(self._home, refs, size, qos)
            self.release(refs)
            size = 0

    def release(self, refs: Iterable[Position]) -> None:
        """Drop messages from memory that have left the queue, and which logs refused them."""
        released_refs, refused = [*refs], self._group.refused
        super().release(released_refs)
        if refused:
            for ref in released_refs:
                refused.pop(ref, None)

    def _pass_qos0(self, subscriber: Subscriber, batch: Batch) -> None:
        """Send messages of QoS 0 to the members of another log."""
        exchange, remote = self._node.exchange, subscriber.remote
        if exchange is not None and remote is not None:
            exchange.pass_shared(remote.log, self._session.name, batch)

    def _offer(self) -> None:
        """Report the members of this part to its home."""
        if self._node.exchange is not None:
            self._node.exchange.offer(
                self._session.name, lambda: self._members.measure(self._session.state.queued)
            )


_STEPS = 4
"""Steps in one turn."""
_SERVED_AT_ONCE = 64
"""Maximum number of members served in one step; also the maximum number of messages of a step that
must examine more members than that."""
_CHECKED_AT_ONCE = 512
"""Maximum number of topics checked in such a step, divided by the number of different
permissions."""
_COMPARED_AT_ONCE = 4096
"""Maximum number of comparisons in one step: members times topics, or times distinct messages."""
_BUSY, _PIECE = 2_000, 64
"""Messages divided within a second above which pieces have a minimum size, and that size in
messages: smaller pieces would cost more than the gain in fairness."""


class DivisionPace:
    """Bounds the work of a step by the members and topics that have to be examined."""

    __slots__ = (
        "_compared_in",
        "_divided",
        "_divided_since",
        "_members",
        "_node",
        "members_at_once",
    )

    def __init__(self, node: NodeContext, members: SharedMembers) -> None:
        self._node = node
        self._members = members
        self._compared_in = -1
        """Number of the last turn in which all of many members were examined."""
        self._divided, self._divided_since = 0, 0.0
        """Messages divided since a monotonic time, over about a second."""
        self.members_at_once = _SERVED_AT_ONCE

    def step_size(self, topics: Sequence[bytes]) -> int:
        """Return how many messages are divided in one step, by their topics.

        The result is their number, unless many members must all be examined.
        """
        group = self._members.group
        count, online = len(topics), group.online
        if len(online) <= self.members_at_once:
            return count
        acls = {subscriber.acl for subscriber in online.values()}
        has_limit = self._members.have_packet_limit() or bool(group.refused)
        if not self._members.choice.examines_all and not has_limit and acls == {None}:
            return count
        self._compared_in = self._turn
        most = max(1, min(_CHECKED_AT_ONCE // len(acls), _COMPARED_AT_ONCE // len(online)))
        if has_limit:
            return min(count, most)
        seen: set[bytes] = set()
        for at, topic in enumerate(topics[: self.members_at_once]):
            seen.add(topic)
            if len(seen) > most:
                return at
        return min(count, self.members_at_once)

    @property
    def _turn(self) -> int:
        """Number of the turn; parts of longer work that run in separate turns count."""
        kernel = self._node.kernel
        return kernel.turns + kernel.parts

    @property
    def has_compared(self) -> bool:
        """True if all of many members were examined in this turn: the next step must wait."""
        return self._compared_in == self._turn

    @property
    def steps(self) -> int:
        """Number of steps in one turn."""
        return _STEPS if len(self._members.group.online) <= self.members_at_once else 1

    @property
    def piece_size(self) -> int:
        """Messages of the smallest piece: more if many were divided within a second."""
        busy = self._divided > _BUSY and self._node.clock.monotonic() - self._divided_since <= 1
        return _PIECE if busy else 1

    def count(self, count: int) -> None:
        """Count divided messages."""
        now = self._node.clock.monotonic()
        if now - self._divided_since > 1:
            self._divided, self._divided_since = 0, now
        self._divided += count


_MAX_MESSAGES = 65_536
"""Approximate maximum number of messages."""


class UndividedMessages:
    """A bounded queue of batches."""

    __slots__ = ("_batches", "_bytes", "_count")

    def __init__(self) -> None:
        self._batches: deque[Outgoing] = deque()
        self._count = self._bytes = 0
        """Number of messages, and the bytes of their packets or payloads."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._batches)

    def has_room(self, most_bytes: int) -> bool:
        """Return whether more messages may be added."""
        return self._count < _MAX_MESSAGES and self._bytes < most_bytes

    def add(self, message: Outgoing) -> None:
        """Add a batch after all others."""
        self._batches.append(message)
        self._add_size(message.batch, 1)

    def add_first(self, message: Outgoing) -> None:
        """Add the rest of a batch before all others."""
        self._batches.appendleft(message)
        self._add_size(message.batch, 1)

    def pop(self) -> Outgoing:
        """Remove and return the first batch."""
        message = self._batches.popleft()
        self._add_size(message.batch, -1)
        return message

    def _add_size(self, batch: Batch, sign: int) -> None:
        self._count += sign * len(batch)
        self._bytes += sign * sum(map(len, batch.packets or batch.payloads))
