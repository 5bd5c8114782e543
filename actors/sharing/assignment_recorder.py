"""Records which members of a shared subscription get which messages."""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from actors.session.core import SessionCore
from actors.session.decisions import acknowledgements
from actors.session.node_context import NodeContext
from actors.session.session_messages import Batch
from actors.sharing.member_choice import Assignment, SharedMember
from actors.sharing.shared_members import SharedMembers, unreadable_topics
from eventstore.format.events import LOG_SESSION, Assigned
from eventstore.format.positions import Position, to_runs
from protocol.mqtt.shared_filters import split_share

_NO_MEMBER = -1
_NO_LOGS: list[str] = []


class AssignmentRecorder:
    """Records the assignments of one shared subscription.

    ``home`` is the log that this part of it belongs to; empty: this one.
    """

    __slots__ = ("_home", "_members", "_node", "_session")

    def __init__(
        self, node: NodeContext, session: SessionCore, members: SharedMembers, home: str
    ) -> None:
        self._node = node
        self._session = session
        self._members = members
        self._home = home

    def record(
        self,
        batch: Batch,
        members: Sequence[SharedMember],
        assignment: Assignment,
        *,
        queued: bool,
    ) -> list[int]:
        """Record the messages assigned to each member, and the refused ones.

        Returns the numbers of the messages that are no longer needed: if they were ``queued``, all
        of these, otherwise the refused ones.
        """
        pieces, waiting, refused = assignment
        by_topic = self._members.keep_topics(members)
        denied = unreadable_topics({batch.topics[number] for number in refused}, members)
        if not queued:
            for member, piece in zip(members, pieces, strict=True):
                self._record_piece(batch, member, piece, queued=False, by_topic=by_topic)
            if refused:
                self._record_refused(batch.select(refused), denied, queued=False)
            self._forget_refusals(batch, waiting)
            return [*refused]
        # Messages leave the queue in order, and are recorded in this order.
        owners = [
            (number, number_of_member)
            for number_of_member, piece in enumerate(pieces)
            for number in piece
        ]
        owners = sorted([*owners, *((number, _NO_MEMBER) for number in refused)])
        for number_of_member, group in groupby(owners, itemgetter(1)):
            numbers = [number for number, _ in group]
            if number_of_member == _NO_MEMBER:
                self._record_refused(batch.select(numbers), denied, queued=True)
            else:
                self._record_piece(
                    batch, members[number_of_member], numbers, queued=True, by_topic=by_topic
                )
        self._forget_refusals(batch, waiting)
        return [number for number, _ in owners]

    def _record_piece(
        self,
        batch: Batch,
        member: SharedMember,
        piece: Sequence[int],
        *,
        queued: bool,
        by_topic: bool,
    ) -> None:
        name, refs = self._session.name, [batch.positions[at] for at in piece]
        size = sum(len(batch.payloads[at]) for at in piece) if queued else -1
        remote = member.subscriber.remote
        if remote is not None:
            for at, count in self.assign_to_log(remote.log, refs, size, batch.qos):
                remote.assigned(at, count)
            return
        for part in acknowledgements.in_parts(refs):
            if part:
                # The bytes of each part are not known: the first event contains the sum.
                event = Assigned(
                    name, member.subscriber.session, to_runs(part), size, by_topic=by_topic
                )
                self._session.emit(event)
                size = min(size, 0)

    def _record_refused(self, batch: Batch, denied: set[bytes], *, queued: bool) -> None:
        """Record messages that no member may receive or accepts: dropped, or returned to the home.

        ``denied`` are the topics that no member may read.
        """
        name, node = self._session.name, self._node
        size = sum(map(len, batch.payloads)) if queued else -1
        if self._home:
            refused = self._members.group.refused
            own = node.options.node
            for ref in batch.positions:
                refused[ref] = [*refused.get(ref, ()), own]
            self.assign_to_log(self._home, batch.positions, size, batch.qos)
            return
        reason = "not_permitted" if denied.issuperset(batch.topics) else "packet_too_large"
        node.drop(name, reason, batch.positions, split_share(name)[1], size)

    def assign_to_log(
        self, log: str, refs: Sequence[Position], size: int, qos: int
    ) -> list[tuple[Position, int]]:
        """Record messages as assigned to a log; return position and number for each event."""
        name, refused = self._session.name, self._members.group.refused
        recorded = []
        for logs, alike in groupby(refs, lambda ref: refused.get(ref, _NO_LOGS)):
            for part in acknowledgements.in_parts([*alike]):
                event = Assigned(name, LOG_SESSION + log, to_runs(part), size, qos=qos)
                event.refused = logs
                recorded.append((self._session.emit(event), len(part)))
                size = min(size, 0)
        if refused:
            for ref in refs:
                refused.pop(ref, None)
        return recorded

    def _forget_refusals(self, batch: Batch, waiting: Sequence[int]) -> None:
        """Forget which logs refused messages, except for messages that still wait."""
        refused = self._members.group.refused
        if refused:
            stay = set(waiting)
            for number, ref in enumerate(batch.positions):
                if number not in stay:
                    refused.pop(ref, None)
