"""A node that follows the log and takes it over when the leader is gone.

The subscription index of the state is kept as well, so that a node that takes over has it at once:
frozen sessions are in it by name, as in the index of a broker, and those changed by an event are
indexed again some time later, or when the node takes over.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from actors.kernel.clock import Clock
from actors.maintenance.state_reader import FollowedState, StateReader
from actors.routing.router import Router, routed
from cluster.failure_detector import ASK_SECONDS, Cause, FailureDetector, Step
from cluster.members import Members
from cluster.status import FOLLOWER_STATUS_EVERY, NodeStatus, Role, decode_status
from eventstore.errors import CorruptLog, EventStoreError, LogUnavailable
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import GENESIS, ChainChecker, Record, decode_record, encode_record
from eventstore.log.jetstream_log import Appended, EventLog
from eventstore.log.record_reader import LogTail
from eventstore.nats.cluster_messages import LeaderAnswer, NodeMessages
from eventstore.task_cancellation import end_tasks
from projections.state.format import BadProjection
from projections.state.loading import LoadedProjections
from projections.state.node_state import NodeState
from projections.state.session import SessionState

_YIELD_EVERY = 16
"""Records folded between two returns to the event loop."""
_FREEZE_EVERY = 1024
_FROZEN_AT_ONCE = 16
"""Sessions frozen between two returns to the event loop."""
_INDEXED_AT_ONCE = 64
"""Sessions indexed between two returns to the event loop."""


class FellBehind(EventStoreError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The log was cut behind the follower's position; the follower has to read it again."""

    exit_code = 75

    def __init__(self) -> None:
        super().__init__("the log was cut before this node had read it: start it again")


class Follower:
    """Folds a log up to the record that its leader reports as stored."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reader = StateReader(log, self._index_frozen, self._index_thawed)
        self.state = NodeState()
        """The fold of the log up to the last folded record."""
        self._router = Router()
        self._checker = ChainChecker()
        self._reading = asyncio.Lock()
        self.end = LogTail(0, GENESIS)
        """The last folded record."""
        self.stopped = False
        """Whether the last record says that the leader shut down cleanly."""

    @property
    def sequence(self) -> int:
        """Sequence of the last folded record."""
        return self._checker.sequence

    @property
    def link(self) -> bytes:
        """Link of the last folded record."""
        return self._checker.link

    async def begin(self, progress: Callable[[int, int], None]) -> None:
        """Read the log.

        Raises the EventStoreError that prevents it, FellBehind when the log is cut meanwhile.
        """
        try:
            read = await self._reader.read(self.state, self._reset, progress)
            self.state = read.state
            await self._index(frozen=read.loaded is None)
            self._checker = ChainChecker(read.tail.sequence, read.tail.link)
            if read.tail.sequence:
                for record in await self._log.read_some([read.tail.sequence]):
                    self._look(record)
        except CorruptLog:
            read_from = self._log.first
            await self._log.tail()
            if self._log.first > read_from:
                raise FellBehind from None
            raise

    async def read_to(self, last: int) -> None:
        """Fold the records up to a sequence.

        Raises CorruptLog when a record is damaged or does not follow the one before it, FellBehind
        when the log is cut before it is read, LogUnavailable when JetStream does not answer.
        """
        async with self._reading:
            if self.sequence >= last:
                return
            try:
                await self._read_to(last)
            except CorruptLog:
                await self._log.tail()
                if self._log.first > self.sequence + 1:
                    raise FellBehind from None
                raise

    async def _read_to(self, last: int) -> None:
        async for record in self._log.read(self.sequence + 1, last):
            await self._take(record)
            if record.sequence % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
                if len(self.state.dirty or ()) > _INDEXED_AT_ONCE:
                    await self._index_changes()
            if record.sequence % _FREEZE_EVERY == 0:
                await self._freeze_offline()
        if self.sequence < last:
            raise CorruptLog(self.sequence + 1, "is missing")

    async def add(self, record: Record) -> None:
        """Fold a record that this node has appended, unless it was read meanwhile."""
        async with self._reading:
            if self.sequence < record.sequence:
                await self._take(record)

    async def _take(self, record: Record) -> None:
        before = self.sequence, self.link
        self._checker.check(record)
        try:
            await self._reader.take(record)
        except BaseException as error:
            # The record was not folded and has to be read again: something that it refers to could
            # not be read, or the task was cancelled.
            self._checker = ChainChecker(*before)
            if isinstance(error, BadProjection):
                raise FellBehind from error
            raise
        self._look(record)

    def _look(self, record: Record) -> None:
        self.end = LogTail.of(record)
        self.stopped = bool(record.raw_events) and record.raw_events[-1]["e"] == "BrokerStopped"
        cuts = self.state.cuts
        if cuts and cuts[-1].first > self.state.begin:
            self.state.forget_before(cuts[-1].first)

    async def tail(self) -> LogTail:
        """Return the end of the log; raises as :meth:`EventLog.tail`."""
        return await self._log.tail()

    async def result(self) -> FollowedState:
        """Return the state, for a broker to adopt; do not use the follower afterwards."""
        async with self._reading:
            await self._index_changes()
        self.state.dirty = None
        self.state.begin = self._log.first
        return FollowedState(self.state, self.end, self._router)

    # The subscription index.

    def _reset(self) -> NodeState:
        self._router = Router()
        return NodeState()

    def _index_frozen(self, state: SessionState) -> None:
        self._router.freeze(state.session, [held.filter for held in routed(state)])

    def _index_thawed(self, _loaded: LoadedProjections) -> None:
        """Index sessions by their subscriptions as soon as an event is about to change them."""
        self.state.sessions.on_thaw = self._router.restore

    async def _index(self, *, frozen: bool) -> None:
        """Index the sessions that are not yet; with ``frozen``, also those that are frozen."""
        sessions = self.state.sessions
        for number, (name, state) in enumerate(sessions.items()):
            if name in sessions.live:
                self._router.restore(state)
            elif frozen:
                self._index_frozen(state)
            else:
                break  # the others come behind
            if number % _INDEXED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for name in self._router.active_sessions():
            if name not in sessions:
                self._router.remove_session(name)
        sessions.on_thaw = self._router.restore
        self.state.dirty = {}

    async def _index_changes(self) -> None:
        """Index the sessions that were changed by events."""
        sessions, router = self.state.sessions, self._router
        changed = self.state.dirty or {}
        number = 0
        while changed:
            number += 1
            if number % _INDEXED_AT_ONCE == 0:
                await asyncio.sleep(0)
            name, _ = changed.popitem()
            state = sessions.live.get(name)
            if state is not None:
                router.restore(state)
            elif name not in sessions:
                router.remove_session(name)
        while router.sweep():  # noqa: ASYNC110 - a part at a time
            await asyncio.sleep(0)

    async def _freeze_offline(self) -> None:
        """Freeze the sessions without a connection if there are many sessions in memory."""
        await self._index_changes()
        for number, state in enumerate(self._reader.freeze_offline(), 1):
            self._index_frozen(state)
            if number % _FROZEN_AT_ONCE == 0:
                await asyncio.sleep(0)


_log = structlog.get_logger("foldmq")

_TICK = 0.02
"""Seconds between two checks of the leader."""
_RETRY = 0.5
_SILENT = 5.0
"""Seconds without a leader that count as a problem."""
SUCCESSOR_SECONDS = 1.0
"""Seconds that a node waits before it takes over from a leader that handed over to another one."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """The result of a takeover: the values that a new leader starts with."""

    epoch: int
    followed: FollowedState
    """The fold of the log up to this node's BrokerStarted."""


class Standby:
    """Follows a log: ``await lead()`` returns when this node has become its leader.

    ``name`` is the log's name, ``me`` this node's own status; ``on_following`` is called when the
    log has been read.
    """

    def __init__(
        self,
        log: EventLog,
        messages: NodeMessages,
        members: Members,
        clock: Clock,
        name: str,
        me: NodeStatus,
        on_following: Callable[[], object],
    ) -> None:
        self._log = log
        self._messages = messages
        self._members = members
        self._clock = clock
        self._name = name
        self._me = me
        self._on_following = on_following
        self._follower = Follower(log)
        self._detector = FailureDetector(clock.monotonic())
        self.leader: NodeStatus | None = None
        """The last status of the leader that this node follows; None: no leader is known."""
        self._news = asyncio.Event()
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking: asyncio.Task[None] | None = None
        """The request to the leader, while there is one."""
        self._logged_problem = ""
        self._epoch = 0
        """Epoch of the last leader that this node knows to have led."""
        self._successor = ""
        """The node that the leader handed over to; empty: to any."""
        self.role = Role.STARTING
        self.listen: list[str] = []
        """Addresses at which clients connect to this node, which passes them on."""
        self.count: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns the number of clients that this node passes on, and of those that wait."""

    @property
    def behind(self) -> int:
        """The number of records that the leader has stored and this node has not folded."""
        return max(0, self.leader.sequence - self._follower.sequence) if self.leader else 0

    @property
    def problem(self) -> str:
        """Why this node does not follow at present; empty if it does, or starts."""
        if self._logged_problem:
            return f"the log cannot be followed: {self._logged_problem}"
        silence = self._detector.silence(self._clock.monotonic())
        if self.role is Role.FOLLOWING and silence > _SILENT:
            return f"no leader was heard for {silence:.0f} s"
        return ""

    def status(self) -> NodeStatus:
        """Return this node's own status."""
        clients, parked = self.count()
        return dataclasses.replace(
            self._me,
            role=self.role,
            epoch=self._follower.state.epoch,
            sequence=self._follower.sequence,
            link=self._follower.link.hex(),
            time_ms=self._clock.time_ms(),
            listen=self.listen,
            clients=clients,
            parked=parked,
            problem=self.problem,
        )

    def take(self, data: bytes) -> None:
        """Process the status of a node."""
        status = decode_status(data)
        if status is None or status.node == self._me.node:
            return
        now = self._clock.monotonic()
        self._members.heard(status, now, self._me)
        leader = self.leader
        epoch = self._follower.state.epoch if leader is None else leader.epoch
        if status.role is Role.LEADING and status.epoch >= epoch:
            if leader is None or leader.node != status.node:
                _log.info("following", leader=status.node, host=status.host, epoch=status.epoch)
            self.leader, self._successor = status, ""
            self._epoch = status.epoch
            self._detector.heard(now)
            if self._log.watermark is not None:
                self._log.watermark.note(status.sequence, bytes.fromhex(status.link))
            self._news.set()
        elif status.role is Role.STOPPED and leader is not None and leader.node == status.node:
            self.leader = None
            self._successor = status.to
            self._detector.stopped()

    def suspect(self) -> None:
        """Ask the leader at once whether it is there: it closed a connection."""
        self._detector.suspect()

    async def lead(self, progress: Callable[[int, int], None]) -> Leadership:
        """Follow the leader until this node leads.

        Raises CorruptLog when the log is damaged or is not the log that the leader writes,
        FellBehind when the log has to be read again from its start, LogUnavailable when it cannot
        be read at first.
        """
        telling = asyncio.create_task(self._publish_status(), name="status")
        following: asyncio.Task[None] | None = None
        self._asking = None
        try:
            await self._follower.begin(progress)
            self._epoch = max(self._epoch, self._follower.state.epoch)
            self._on_following()
            self.role = Role.FOLLOWING
            self._detector = FailureDetector(self._clock.monotonic())
            following = asyncio.create_task(self._follow(), name="follow")
            return await self._until_leading(following)
        finally:
            tasks = (telling, following, self._asking)
            await end_tasks(task for task in tasks if task is not None)
            if following is not None and not following.cancelled():
                following.exception()  # what ends this method is something else, or the same

    async def _publish_status(self) -> None:
        while True:
            await self._messages.publish(self.status().encode())
            await asyncio.sleep(FOLLOWER_STATUS_EVERY)

    async def _follow(self) -> None:
        """Fold the records that the leader reports as stored."""
        while True:
            await self._news.wait()
            self._news.clear()
            leader = self.leader
            if leader is None:
                continue
            try:
                await self._follower.read_to(leader.sequence)
            except LogUnavailable as error:
                self._log_problem(str(error))
                await asyncio.sleep(_RETRY)
                self._news.set()
                continue
            self._logged_problem = ""
            self._check_link(leader)

    def _check_link(self, leader: NodeStatus) -> None:
        """Raise CorruptLog when the leader has another record at this node's position."""
        follower = self._follower
        if follower.sequence == leader.sequence and follower.link.hex() != leader.link:
            raise CorruptLog(
                leader.sequence, f"is not the one that the leader, node {leader.node}, stored"
            )

    def _log_problem(self, reason: str) -> None:
        if reason != self._logged_problem:
            self._logged_problem = reason
            _log.warning("the log cannot be followed", reason=reason)

    async def _until_leading(self, following: asyncio.Task[None]) -> Leadership:
        while True:
            if following.done():
                following.result()
            now = self._clock.monotonic()
            step = self._detector.step(now)
            if step is Step.ASK and (self._asking is None or self._asking.done()):
                # A leader that shuts down cleanly may say so while it is asked.
                self._asking = asyncio.create_task(self._ask(), name="ask leader")
            elif step is Step.TAKE_OVER:
                leadership = await self._try()
                if leadership is not None:
                    return leadership
            await asyncio.sleep(_TICK)

    async def _ask(self) -> None:
        answer: LeaderAnswer = await self._messages.ask_leader(ASK_SECONDS)
        self._detector.answered(answer, self._clock.monotonic())

    async def _try(self) -> Leadership | None:
        """Try to become the leader, unless another node does first."""
        detector = self._detector
        now = self._clock.monotonic()
        if self._successor != self._me.node:
            wait = self._members.wait_before_takeover(self._follower.sequence, now)
            await asyncio.sleep(wait + (SUCCESSOR_SECONDS if self._successor else 0.0))
        cause = detector.cause
        if cause is None:  # this leader or another one was heard
            return None
        if not self._follower.sequence:
            cause = Cause.FIRST
        elif self._follower.stopped:
            cause = Cause.STOPPED
        try:
            outcome = await take_over(
                self._log,
                self._follower,
                self._clock,
                name=self._name,
                node=self._me.node,
                software=self._me.version,
                cause=cause,
                replaces=self._epoch,
            )
        except LogUnavailable as error:
            self._log_problem(str(error))
            await asyncio.sleep(_RETRY)
            return None
        if outcome is Appended.STORED:
            epoch = self._follower.state.epoch
            _log.info("this node leads", epoch=epoch, cause=str(cause))
            self.role = Role.LEADING
            return Leadership(epoch, await self._follower.result())
        if outcome is Appended.REFUSED:
            _log.info("another node wrote to the log: this one goes on following it")
            self._epoch = max(self._epoch, self._follower.state.epoch)
            detector.refused(self._clock.monotonic())
        return None


# Takeover of a log: read to its end and append ``BrokerStarted`` behind it.
#
# No lease and no clock is needed. Of two nodes that append behind the same record, one is refused.
# Later appends of the replaced leader are refused too: they name a sequence that is taken.


async def take_over(
    log: EventLog,
    follower: Follower,
    clock: Clock,
    *,
    name: str,
    node: str,
    software: str,
    cause: Cause,
    replaces: int | None = None,
) -> Appended:
    """Append the start of this node's leadership; the follower has folded it if it is stored.

    ``replaces`` is the epoch of the leader that is gone; None: any. REFUSED can also mean that
    another node has taken over from it although the record of this one is stored.

    ``name`` is the name of the log. Raises CorruptLog when the log ends before a record that this
    node, or a leader that it heard, knew to be stored, FellBehind, LogUnavailable.
    """
    tail = await log.tail()
    await follower.read_to(tail.sequence)
    if follower.sequence != tail.sequence:
        return Appended.REFUSED
    if replaces is not None and follower.state.epoch > replaces:
        return Appended.REFUSED
    behind = follower.end
    started = BrokerStarted(software, epoch=follower.state.epoch + 1, leader=node, cause=cause)
    data = encode_record(
        previous=behind.link,
        node=name,
        time_ms=max(clock.time_ms(), behind.steady_ms + behind.jumps.total_ms),
        events=[started],
        payloads=[],
        jumps=behind.jumps,
        record_format=1,
    )
    outcome = await log.append_behind(behind, data)
    if outcome is Appended.STORED:
        record = decode_record(behind.sequence + 1, data)
        await follower.add(record)
        if log.watermark is not None:
            log.watermark.note(record.sequence, record.link)
        if follower.sequence > record.sequence:
            # The acknowledgement was late: another node has taken over from this one meanwhile.
            return Appended.REFUSED
    return outcome
