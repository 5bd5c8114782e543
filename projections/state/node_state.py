"""The fold of one node's whole log: its sessions and its retained index.

A log that was cut begins with a checkpoint, which repeats the whole state. Until its end the fold
is *partial*: a session is known from its snapshot, or from its beginning, on.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from eventstore import display
from eventstore.format.destination_events import (
    DestinationClosed,
    DestinationOpened,
    Forwarded,
    ForwardLost,
    ForwardRefused,
    OriginTaken,
)
from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.event_parsing import LogEvent, entries
from eventstore.format.events import (
    InboundReplaced,
    MessagePublished,
    Released,
    RetainedExpired,
    SessionClosed,
    SessionExpired,
    SessionOpened,
)
from eventstore.format.fast_parse import parse_events, parse_turn
from eventstore.format.node_events import (
    Bridged,
    BrokerStarted,
    BrokerStopped,
    CheckpointBegun,
    CheckpointCompleted,
    ClockJumped,
    Followed,
    LeaderProved,
    LimitsApplied,
    LogArchived,
    LogCut,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
    RetainedSnapshot,
    SessionSnapshot,
    WebAccessed,
)
from eventstore.format.positions import INDEX_BITS, Position, from_runs, position
from eventstore.format.records import Record
from eventstore.format.turn_events import (
    TurnAcked,
    TurnDelivered,
    TurnEvent,
    TurnPublished,
    TurnReleased,
)
from eventstore.format.turn_expansion import expanded
from projections.log_proof import UNSURE_SESSION, UNSURE_STATE, LogProof, is_continued
from projections.state import turn_fold
from projections.state.client_history import (
    HISTORY_EVENTS,
    ClientHistories,
    add_to_history,
)
from projections.state.destinations import Destinations
from projections.state.format import ProjectionMark
from projections.state.retained import RetainedIndex
from projections.state.session import EVOLVE, SessionState, settle
from projections.state.session_table import SessionTable
from projections.state.snapshot import Part, decode_session
from projections.state.topic_keys import TopicKeys

_NAMED: Final = 10
"""Sessions that a statement about the state names."""


class Checkpoint(NamedTuple):
    """A complete repetition of the state in the log."""

    number: int
    begun: Position
    """Position of its beginning: a log may be cut before this record."""
    time_ms: int


class FollowedLog(NamedTuple):
    """The position up to which this log has taken the messages of another one."""

    through: Position
    """Position in the other log."""
    link: str
    """Link of the record at that position, in hexadecimal."""


class Archived(NamedTuple):
    """The last event about an archive."""

    at: Position
    """Position of the event."""
    event: LogArchived


class NodeState:
    """Sessions by client identifier, the retained index, and where the log was cut.

    ``begin`` is the stream sequence of the first record that will be folded.
    """

    def __init__(self, begin: int = 1, *, of_rest: bool = False) -> None:
        """Begin with a record; ``of_rest``: the broker has also folded the records before it."""
        self._of_rest = of_rest
        self.sessions = SessionTable()
        self.retained = RetainedIndex()
        self.begin = begin
        self.applied = 0
        """Stream sequence of the last folded record."""
        self.entries = 0
        """Number of folded entries: each message of each event counts."""
        self.partial = begin > 1
        """Whether the state is not complete yet."""
        self.checkpoint = 0
        """Number of the last checkpoint that was begun."""
        self.checkpoints: list[Checkpoint] = []
        """Complete checkpoints: positions at which the log may begin."""
        self.cuts: list[LogCut] = []
        """Cuts of the log that it records itself."""
        self.proof = LogProof()
        """What is proven of the log, and what is not."""
        self.archived: Archived | None = None
        """The extent of the archive, as recorded in the log."""
        self.destinations = Destinations()
        """The destinations to which the outbox passes messages on."""
        self.keys = TopicKeys()
        """The keys of topics with sealed contents."""
        self.followed: dict[str, FollowedLog] = {}
        """The other logs of the node from which this one takes messages, by name."""
        self.jumped_ms = 0
        """Sum of the jumps of the clock up to the last start or folded record."""
        self.epoch = 0
        """Number of times a node of the cluster became the leader; 0: there is no cluster."""
        self.leader = ""
        """The last node of the cluster that became the leader; empty if that was cut off."""
        self.carried: dict[int, list[int]] = {}
        """Records that were cut off -> records that repeat their messages that are still needed."""
        self.dirty: dict[str, Position] | None = None
        """Changed sessions, with the version of their snapshot in the projections; None while
        changes are not tracked."""
        self.clients: ClientHistories | None = None
        """The histories of clients, to which folded records are added; None: they are not kept. The
        live broker updates them when it decides, not here."""
        self.doubtful: dict[str, None] = {}
        """Sessions whose state may depend on lost records; ``""`` stands for all."""
        self.salvaged = 0
        """Last record of a damaged log that was salvaged; 0: there is none."""
        self._unsure = 0
        """Last record that continues a state that lost records have changed; 0: none."""
        self._salvages: list[LogSalvaged] = []
        """Salvages that no start is known to have continued before their last record."""
        self._repeated: set[str] = set()
        """Sessions that are known again since the last checkpoint began."""
        self._begun: Checkpoint | None = None
        self._held: list[Record] = []
        self._parts: list[Part] = []
        self._newer: dict[str, Position] = {}

    def apply_record(self, record: Record, only: str | None = None) -> None:
        """Fold a record; the parts of a turn are held back until its last part is folded.

        With ``only``, the events of one session alone are folded. Raises UnreadableEvent for an
        event that this version does not know.
        """
        self.reach(record.sequence)
        if record.part == 0 and self._held:
            self._held = []
        self._held.append(record)
        if record.last:
            complete = self._held[0].part == 0
            held, self._held = self._held, []
            if complete:
                for part in held:
                    self._fold(part, only)
        self.applied = record.sequence

    def reach(self, sequence: int) -> None:
        """Go on to a record, which may be the first one behind a log that was salvaged."""
        if self._unsure and sequence > self._unsure:
            self._be_sure()

    def _fold(self, record: Record, only: str | None) -> None:
        base = position(record.sequence, 0)
        index = 0
        clients = self.clients
        self.jumped_ms = record.jumps.total_ms
        for raw in record.raw_events:
            turn = parse_turn(raw) if only is None and not self._unsure else None
            if turn is not None and self._has(turn.sessions, base + index):
                self.apply(turn, base + index, record.steady_ms)
                index += entries(turn)
                continue
            for at, event in parse_events(record.sequence, expanded(raw), index):
                index = at + entries(event)
                if only is not None and getattr(event, "session", None) not in (only, None):
                    continue
                pieces: Sequence[bytes] = ()
                # Comparing types is fastest; the types of events have no subtypes.
                if type(event) is RetainedSnapshot or (
                    type(event) is MessagePublished and event.retain
                ):
                    pieces = record.pieces(event)
                self.apply(event, base + at, record.steady_ms, pieces)
                if clients is not None and type(event) in HISTORY_EVENTS:
                    add_to_history(clients, event, base + at, record.time_ms)
        self.entries += index

    def _has(self, names: Sequence[str], at: Position) -> bool:
        """Return whether all sessions exist, in states that include nothing from ``at`` on."""
        sessions, newer = self.sessions, self._newer
        live = sessions.live
        for name in names:
            if name not in live and sessions.get(name) is None:
                return False
            if newer and at < newer.get(name, 0):
                return False
        return True

    def apply(
        self, event: LogEvent, at: Position, time_ms: int, pieces: Sequence[bytes] = ()
    ) -> SessionState | None:
        """Fold one event; return the state of its session, if the session continues.

        ``pieces`` are the parts of a retained MessagePublished or a RetainedSnapshot in the payload
        area: its distinct blocks of properties and its payloads. For other events it is ignored.
        """
        kind = type(event)
        other = _OF_THE_NODE.get(kind)
        if other is not None:
            other(self, event, at, time_ms, pieces)
            return None
        name: str = event.session  # type: ignore[union-attr,assignment]  # all others have one
        if self._newer and at < self._newer.get(name, 0):
            # The loaded snapshot includes this event; the retained index does not.
            if isinstance(event, MessagePublished) and event.retain:
                self.retained.published(event, at, time_ms, pieces)
            else:
                self.retained.other(event)
            return None
        table = self.sessions
        state = table.live.get(name)
        if state is None:
            state = table.get(name)
        if self.dirty is not None:
            self.dirty.setdefault(name, state.saved if state is not None else 0)
        if type(event) is SessionExpired:
            table.discard(name)
            self.doubtful.pop(name, None)
            self.retained.other(event)
            return None
        if self._unsure:
            self._settle(state, event, name)
        if state is None:
            state = self._new_session(name, event)
        EVOLVE[kind](state, event, at, time_ms)
        if type(event) is MessagePublished:
            if event.retain:
                self.retained.published(event, at, time_ms, pieces)
        elif type(event) is SessionClosed:
            return self._closed(state, event)
        elif type(event) in (Released, InboundReplaced, SessionOpened):
            self.retained.other(event)
            if self.doubtful and type(event) is SessionOpened and not event.resumed:
                self.doubtful.pop(name, None)
        return state

    def _new_session(self, name: str, event: LogEvent) -> SessionState:
        """Return a new state; keep it if the event begins the session."""
        state = SessionState(name)
        # What a session that is resumed had subscribed to was lost with its beginning.
        if type(event) is SessionOpened and not (self._unsure and event.resumed):
            self.sessions[name] = state
        return state

    def _closed(self, state: SessionState, event: SessionClosed) -> SessionState | None:
        """Remove a clean session whose connection ended, unless its will waits."""
        if state.clean:
            self.retained.session_ended(event)
            if state.will is None:
                self.sessions.discard(state.session)
                self.doubtful.pop(state.session, None)
                return None
        return state

    def unsure_session(self, name: str) -> str | None:
        """Return why the state of a session is not certain; None: it is."""
        if name not in self.doubtful and "" not in self.doubtful:
            return None
        return self.proof.unsure(UNSURE_SESSION)

    def unsure_state(self) -> str | None:
        """Return what is not certain of the state, and why; None: all of it is."""
        unsure = self.proof.unsure(UNSURE_STATE)
        count = len(self.doubtful)
        if unsure is None or not count or "" in self.doubtful:
            return unsure
        listed = ", ".join(map(display.name, islice(self.doubtful, _NAMED)))
        more = ", ..." if count > _NAMED else ""
        return f"{unsure}; affected: {display.count_of(count, 'session')}, {listed}{more}"

    @property
    def unsure(self) -> bool:
        """Whether later records continue a state that lost records have changed."""
        return self._unsure > 0

    def _settle(self, state: SessionState | None, event: LogEvent, name: str) -> None:
        """Prepare the state of a session that may lack lost events for its next event."""
        if isinstance(event, SessionOpened) and not event.resumed:
            self._known_again(name)
        elif state is not None:
            settle(state, event)  # type: ignore[arg-type] # an event of one session
        else:
            self.doubtful[name] = None

    def _known_again(self, name: str) -> None:
        self.doubtful.pop(name, None)
        self._repeated.add(name)

    def _be_sure(self) -> None:
        """Go on with this state: it was repeated, or a broker has continued it."""
        self._unsure = 0
        self.partial = self.partial and self._of_rest
        self._repeated = set()
        self.doubtful = {name: None for name in self.doubtful if name in self.sessions}

    def load(self, state: SessionState, bound: Position) -> None:
        """Load a session as of ``bound``: the state includes everything before this position."""
        self.sessions[state.session] = state
        self._newer[state.session] = bound

    def load_frozen(self, frozen: bytes, bound: Position, state: SessionState) -> None:
        """Load a frozen session as of ``bound``: it includes everything before this position."""
        self.sessions.put(frozen, state)
        self._newer[state.session] = bound

    def carriers_of(self, sequence: int) -> list[int]:
        """Return the records that contain the messages of a record."""
        if sequence >= self.begin:
            return [sequence]
        return self.carried.get(sequence, [sequence])

    def forget_before(self, first: int) -> None:
        """Drop everything that is only needed for records that were cut off."""
        self.begin = first
        self.cuts = self.cuts[-1:]
        self.checkpoints = [
            point for point in self.checkpoints if point.begun >> INDEX_BITS >= first
        ]
        kept = {old: [new for new in held if new >= first] for old, held in self.carried.items()}
        self.carried = {old: new for old, new in kept.items() if new}

    def starts_at(self, begin: int) -> None:
        """Begin with this record; the state is partial, unless it is the first record."""
        self.begin = begin
        self.partial = begin > 1

    def take_mark(self, mark: ProjectionMark) -> None:
        """Adopt the state in the projections' mark."""
        self.destinations.load(mark.destinations)
        if mark.bridged:
            self.destinations.bridged(mark.bridged)
        self.keys.load_mark(mark.keys)
        self.epoch = mark.epoch
        self.followed = {name: FollowedLog(through, link) for name, through, link in mark.followed}
        self.checkpoints = [Checkpoint(*values) for values in mark.checkpoints]
        if self.checkpoints:
            self.checkpoint = self.checkpoints[-1].number
        self.cuts = [] if mark.cut is None else [mark.cut]
        self.proof.doubts = [*mark.doubts]
        self.doubtful = dict.fromkeys(mark.doubtful)
        self.proof.cut(self.begin)
        archived = mark.archived
        if archived is not None and archived[0] >> INDEX_BITS >= self.begin:
            self.archived = Archived(*archived)

    def finish_loading(self) -> None:
        """Record that everything before the loaded states has been folded."""
        # What ended a clean session is in its loaded state; that it was clean is not in the event.
        for name in self.retained.publishers() if self._newer else ():
            state = self.sessions.peek(name)
            self.retained.keep_pending(name, state.inbound.values() if state is not None else ())
        self._newer = {}
        if self.clients is not None:
            self.clients.finish_loading()

    # Events of the node, not of a session.

    def _started(self, event: BrokerStarted, at: Position, ms: int, _: Sequence[bytes]) -> None:
        self.epoch, self.leader = event.epoch, event.leader
        self.proof.take(event, at >> INDEX_BITS, ms + self.jumped_ms)

    def _checkpoint_begun(
        self, event: CheckpointBegun, at: Position, time_ms: int, _: Sequence[bytes]
    ) -> None:
        self.checkpoint = event.checkpoint
        self.epoch = max(self.epoch, event.epoch)
        self._begun = Checkpoint(event.checkpoint, at, time_ms)
        self._repeated = set()

    def _checkpoint_completed(
        self, event: CheckpointCompleted, _at: Position, _ms: int, _: Sequence[bytes]
    ) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and begun.begun == event.begun:
            self.checkpoints.append(begun)
            if self._unsure:
                # What it does not repeat ended in the lost records.
                for name in [name for name in self.sessions.names() if name not in self._repeated]:
                    self.sessions.discard(name)
                    self.retained.other(SessionExpired(name, "lost"))
                messages = self.retained.before(begun.begun)
                self.retained.cleared([message.topic for message in messages])
                self._be_sure()
                self.doubtful = {}
                self.proof.settle()
            self.partial = False

    def _session_snapshot(
        self, event: SessionSnapshot, at: Position, _ms: int, _: Sequence[bytes]
    ) -> None:
        """Load a session's state if it is not known; otherwise the event repeats known state."""
        if not self.partial and not self._unsure:
            return
        if event.part == 0:
            self._parts = []
        self._parts.append(event.state)
        if event.last:
            parts, self._parts = self._parts, []
            if at >= self._newer.get(event.session, 0):
                self.sessions[event.session] = decode_session(event.session, parts)
                if self._unsure:
                    self._known_again(event.session)
                    self.retained.other(SessionExpired(event.session, "lost"))

    def _retained_snapshot(
        self, event: RetainedSnapshot, at: Position, _ms: int, pieces: Sequence[bytes]
    ) -> None:
        if event.session is None or self.partial or self._unsure:
            self.retained.repeated(event, at, pieces)

    def _carried(self, event: MessagesCarried, at: Position, _ms: int, _: Sequence[bytes]) -> None:
        carrier = at >> INDEX_BITS
        for sequence in {ref >> INDEX_BITS for ref in from_runs(event.refs)}:
            carriers = self.carried.setdefault(sequence, [])
            if carrier not in carriers:
                carriers.append(carrier)

    def _cut(self, event: LogCut, _at: Position, _ms: int, _: Sequence[bytes]) -> None:
        self.cuts.append(event)
        self.proof.cut(event.first)
        if self.archived is not None and self.archived.at >> INDEX_BITS < event.first:
            self.archived = None  # as a reader of the remaining log sees it

    def _unproven(self, event: LogEndUnproven, at: Position, ms: int, _: Sequence[bytes]) -> None:
        self.proof.take(event, at >> INDEX_BITS, ms + self.jumped_ms)
        if not event.salvaged:
            return
        end, salvaged, time_ms = event.end, event.salvaged, ms + self.jumped_ms
        self._salvages = [
            hole
            for hole in self._salvages
            if hole.until > end and not is_continued(hole.until, hole.known, end, salvaged, time_ms)
        ]
        self.salvaged = max((hole.until for hole in self._salvages), default=end)
        if not self._salvages:
            self._be_sure()
        elif self._unsure:
            self._unsure = self.salvaged

    def _salvaged(self, event: LogSalvaged, at: Position, ms: int, _: Sequence[bytes]) -> None:
        """Be unsure of the state: records are missing before the next one."""
        self.proof.take(event, at >> INDEX_BITS, ms + self.jumped_ms)
        # Behind the hole of a later salvage there may be that of an earlier one, which ends sooner.
        self._unsure = self.salvaged = max(self._unsure, event.until)
        self._salvages.append(event)
        self._begun = None
        self._parts = []
        self._repeated = set()
        self.doubtful = dict.fromkeys(self.sessions.names())

    def _archived(self, event: LogArchived, at: Position, _ms: int, _: Sequence[bytes]) -> None:
        self.archived = Archived(at, event)

    def _bridged(self, event: Bridged, _at: Position, _ms: int, _: Sequence[bytes]) -> None:
        self.destinations.bridged(event.through)

    def _destination(self, event: LogEvent, at: Position, _ms: int, _: Sequence[bytes]) -> None:
        self.destinations.fold(event, at)

    def _keys(self, event: LogEvent, at: Position, _ms: int, _: Sequence[bytes]) -> None:
        self.keys.fold(event, at)

    def _acted(self, event: OperatorActed, _at: Position, _ms: int, _: Sequence[bytes]) -> None:
        if self.destinations:
            self.destinations.act(event)

    def _followed(self, event: Followed, _at: Position, _ms: int, _: Sequence[bytes]) -> None:
        self.followed[event.log] = FollowedLog(event.through, event.link)

    def _cleared(
        self, event: RetainedCleared | RetainedExpired, _at: Position, _ms: int, _: Sequence[bytes]
    ) -> None:
        self.retained.cleared(event.topics)

    # Events shared by several sessions.

    def _turn(self, event: TurnEvent, at: Position, ms: int, _: Sequence[bytes]) -> None:
        states = turn_fold.states_of(self.sessions, event.sessions, self.dirty)
        turn_fold.FOLDS[type(event)](states, event, at, ms)

    def _nothing(self, _event: LogEvent, _at: Position, _ms: int, _: Sequence[bytes]) -> None:
        """Change nothing."""


_OF_THE_NODE: Final[
    Mapping[type, Callable[[NodeState, Any, Position, int, Sequence[bytes]], None]]
] = {
    Bridged: NodeState._bridged,
    BrokerStarted: NodeState._started,
    BrokerStopped: NodeState._nothing,
    CheckpointBegun: NodeState._checkpoint_begun,
    CheckpointCompleted: NodeState._checkpoint_completed,
    ClockJumped: NodeState._nothing,
    DestinationClosed: NodeState._destination,
    DestinationOpened: NodeState._destination,
    Erased: NodeState._keys,
    ErasureRequested: NodeState._keys,
    Forwarded: NodeState._destination,
    ForwardLost: NodeState._destination,
    ForwardRefused: NodeState._destination,
    Followed: NodeState._followed,
    KeysSnapshot: NodeState._keys,
    LimitsApplied: NodeState._nothing,
    LeaderProved: NodeState._nothing,
    LogArchived: NodeState._archived,
    LogCut: NodeState._cut,
    LogEndUnproven: NodeState._unproven,
    LogSalvaged: NodeState._salvaged,
    MessagesCarried: NodeState._carried,
    OperatorActed: NodeState._acted,
    OriginTaken: NodeState._destination,
    RetainedCleared: NodeState._cleared,
    RetainedExpired: NodeState._cleared,
    RetainedSnapshot: NodeState._retained_snapshot,
    SessionSnapshot: NodeState._session_snapshot,
    TopicsKeyed: NodeState._keys,
    TurnAcked: NodeState._turn,
    TurnDelivered: NodeState._turn,
    TurnPublished: NodeState._turn,
    TurnReleased: NodeState._turn,
    WebAccessed: NodeState._nothing,
}
