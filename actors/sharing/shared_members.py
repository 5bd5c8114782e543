"""The members of a shared subscription that may receive messages, and the room that they have."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from actors.access.rules import TopicAcl
from actors.routing.remote_members import RemoteMembers
from actors.routing.shared_groups import SharedGroup
from actors.routing.subscriber import Subscriber
from actors.session.decisions import queueing
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import Batch, ClientConnection, Outgoing
from actors.sharing.member_choice import (
    CHOICES,
    Assignment,
    MemberChoice,
    Rows,
    SharedMember,
    has_packet_limit,
)

_OFFERED = 4096
"""Maximum room that is reported to the home of a shared subscription, in messages."""
_NONE: frozenset[int] = frozenset()


class SharedMembers:
    """The connected members of one shared subscription."""

    __slots__ = ("_name", "_node")

    def __init__(self, node: NodeContext, name: str) -> None:
        self._node = node
        self._name = name

    @property
    def group(self) -> SharedGroup:
        """The shared subscription."""
        return self._node.router.groups.find(self._name)

    @property
    def choice(self) -> MemberChoice:
        """How members are chosen now: a reload may change it."""
        return CHOICES[self._node.options.shared_strategy]

    def assign(self, batch: Batch, members: Sequence[SharedMember]) -> Assignment:
        """Assign the messages of a batch to members that :meth:`find` returned."""
        if not members:
            return Assignment([], range(len(batch)), ())
        barred = [member.barred for member in members]
        rooms = [member.room for member in members]
        alike = () if any(map(has_packet_limit, members)) or self.group.refused else batch.topics
        choice = self.choice
        rows = Rows(rooms, barred if any(barred) else (), alike, choice.pools(members))
        return choice.assign(batch.topics, rows)

    def keep_topics(self, members: Sequence[SharedMember]) -> bool:
        """Return whether the member for a topic depends only on the set of connected members."""
        return self.choice.keeps_topics(self.group, members)

    def find(self, batch: Batch, piece: int, most: int) -> tuple[list[SharedMember], bool]:
        """Return members that may receive messages of a batch, with their room.

        They are in the order of service: as many as are needed for all messages in pieces of size
        ``piece``, but at most ``most``, which are served in one step, unless all connected members
        matter. Also returns whether others may have room.
        """
        choice, count, group = self.choice, len(batch), self.group
        examines_all = choice.examines_all
        enough = min(-(-count // piece), most)
        members: list[SharedMember] = []
        barred_by: dict[TopicAcl | frozenset[bytes], set[int]] = {}
        with_room, total, restricted, more = 0, 0, examines_all, False
        for subscriber in choice.ordered(group):
            if subscriber.remote is not None:
                member = self._remote_member(subscriber, subscriber.remote, batch)
            else:
                own = self._own_member(subscriber, batch, barred_by)
                if own is None:
                    continue
                member = own
            restricted = restricted or bool(member.barred)
            members.append(member)
            if member.room and not member.barred:
                with_room += 1
                total += member.room
            enough_room = total >= count or with_room >= most
            if with_room >= enough and enough_room and not examines_all:
                more = True
                break
        return members if restricted else [member for member in members if member.room], more

    def _own_member(
        self,
        subscriber: Subscriber,
        batch: Batch,
        barred_by: dict[TopicAcl | frozenset[bytes], set[int]],
    ) -> SharedMember | None:
        """Return a member of this log with its room; None if it counts as disconnected."""
        session: Session | None = self._node.directory.find_session(subscriber.session)
        if session is None or session.connection is None or subscriber.ended:
            return None
        if not subscriber.may_read:
            return None  # even if it may read some topics
        qos = min(batch.qos, subscriber.qos)
        room = self._room(session, session.connection, subscriber, qos, len(batch))
        barred: AbstractSet[int] = _NONE
        if subscriber.acl is not None or session.delivery.packet_limit:
            barred = self._barred(batch, subscriber, session, barred_by)
        return SharedMember(subscriber, session, room, barred)

    def has_room(self) -> bool:
        """Return whether any member has room for a message of QoS 1."""
        for subscriber in self.group.rotated():
            if subscriber.remote is not None:
                if subscriber.remote.left:
                    return True
                continue
            session: Session | None = self._node.directory.find_session(subscriber.session)
            if session is not None and session.connection is not None and not subscriber.ended:
                qos = min(1, subscriber.qos)
                if self._room(session, session.connection, subscriber, qos, 1):
                    return True
        return False

    def measure(self, queued: int) -> tuple[int, int]:
        """Return how many members are connected, and how many messages they have room for.

        ``queued`` messages are subtracted from that room.
        """
        node = self._node
        window, online, room = node.delivery_limits.window, 0, -queued
        for subscriber in self.group.ordered():
            session: Session | None = node.directory.find_session(subscriber.session)
            if session is None or session.connection is None or not subscriber.may_read:
                continue
            online += 1
            if room < _OFFERED:
                qos = min(1, subscriber.qos)
                room += self._room(session, session.connection, subscriber, qos, window)
        return online, max(0, room)

    def have_packet_limit(self) -> bool:
        """Return whether any member is connected with a maximum packet size."""
        find = self._node.directory.find_session
        return any(
            session is not None and bool(session.delivery.packet_limit)
            for session in map(find, self.group.online)
        )

    def _remote_member(
        self, subscriber: Subscriber, remote: RemoteMembers, batch: Batch
    ) -> SharedMember:
        """Return a member of another log, with its share of the room there."""
        count, refused = len(batch), self.group.refused
        barred: AbstractSet[int] = _NONE
        if refused and batch.qos:
            log, positions = remote.log, batch.positions
            barred = {at for at in range(count) if log in refused.get(positions[at], ())}
        room = count
        if batch.qos:
            room = self.choice.room_there(remote, subscriber.place)
        return SharedMember(subscriber, None, room, barred)

    def _room(
        self,
        session: Session,
        connection: ClientConnection,
        subscriber: Subscriber,
        qos: int,
        count: int,
    ) -> int:
        """Return how many of ``count`` messages can be sent to a member at a QoS."""
        node, state = self._node, session.state
        if node.state.sessions.live.get(session.name) is not state:
            return 0
        if not qos:
            return count if connection.unsent < node.options.max_outbound_bytes else 0
        if not session.delivery.may_send(connection):
            return 0
        subscription = state.subscriptions.get(subscriber.filter)
        if subscription is None or not subscription.active:
            return 0
        return queueing.room(state, subscription, node.delivery_limits.window)

    def _barred(
        self,
        batch: Batch,
        subscriber: Subscriber,
        session: Session,
        cache: dict[TopicAcl | frozenset[bytes], set[int]],
    ) -> AbstractSet[int]:
        """Return the numbers of the messages that a member may not receive or does not accept.

        ``cache`` caches them by permissions, and by the denied topics: members with the same denied
        topics share one set.
        """
        barred: AbstractSet[int] = _NONE
        acl = subscriber.acl
        if acl is not None:
            numbers = cache.get(acl)
            if numbers is None:
                topics, read = batch.topics, acl.read
                denied = frozenset([topic for topic in set(topics) if not read[topic]])
                numbers = cache.get(denied)
                if numbers is None:
                    numbers = {at for at, topic in enumerate(topics) if topic in denied}
                cache[acl] = cache[denied] = numbers
            barred = numbers
        if session.delivery.packet_limit:
            large = session.delivery.too_large(
                Outgoing(subscriber, batch, capped_qos(batch, subscriber))
            )
            barred = barred | set(large) if large else barred
        return barred


def unreadable_topics(topics: AbstractSet[bytes], members: Sequence[SharedMember]) -> set[bytes]:
    """Return the topics that no member may read."""
    acls = (
        {member.subscriber.acl for member in members if member.session is not None}
        if topics
        else set()
    )
    return {topic for topic in topics if not any(acl is None or acl.read[topic] for acl in acls)}


def capped_qos(batch: Batch, subscriber: Subscriber) -> int:
    """Return the QoS at which a member gets a batch [MQTT-3.8.4-8]."""
    return batch.qos if batch.qos < subscriber.qos else subscriber.qos
