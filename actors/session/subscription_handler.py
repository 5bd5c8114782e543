"""SUBSCRIBE and UNSUBSCRIBE: grants, retained messages, and the actors of subscriptions."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from actors.limits.token_bucket import Bucket
from actors.routing.option_semantics import bridge_options, is_no_local, sends_retained
from actors.routing.subscriber import is_shared
from actors.session.decisions import subscribing
from actors.session.node_context import owner_of
from actors.session.session_messages import NEXT_TURN, SAME_TURN, ChangeQos
from actors.session.subscription_actor import Subscription
from eventstore.format.events import LOG_SESSION
from eventstore.reading.moments import BadMoment
from protocol.mqtt.encoder import SUBSCRIBE_FAILURE, encode_suback, encode_unsuback
from protocol.mqtt.field_reader import check_topic_filter
from protocol.mqtt.packets import PacketType
from protocol.mqtt.reason_codes import FAILURE, ReasonCode, filters_string
from protocol.mqtt.replay_filters import STREAM_OFFSET, is_replay_filter
from protocol.mqtt.server_packet_encoder_v5 import NO_EXPLANATION, Explanation, encode_codes_v5
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import TopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from actors.routing.subscriber import Subscriber
    from actors.session.core import SessionCore
    from actors.session.delivery import Delivery
    from actors.session.interfaces import NatsBridge
    from actors.session.node_context import NodeContext
    from actors.session.session_messages import ClientConnection
    from eventstore.format.events import ReplayOpened
    from projections.state.retained import RetainedMessage
    from protocol.mqtt.packets import Subscribe, Unsubscribe


_FILTERS_AT_ONCE: Final = 32
"""Number of topic filters of a SUBSCRIBE or UNSUBSCRIBE that are handled in one turn."""
_AFTER_DISCONNECT: Final = 1024
"""Approximate number of topic filters that are granted although the client has left meanwhile."""
_INDEXED_AT_ONCE: Final = 512
"""Number of topic filters indexed in one turn for the options of their subscriptions (MQTT 5)."""
_FREED_AT_ONCE: Final = 4096
"""Number of topic filters of an answered packet whose memory is freed in one turn."""
_RETAINED_AT_ONCE: Final = 1024
"""Number of retained messages handled for a new subscription before the event loop may run."""
_FILTERS_TEXT: Final = 64 * 1024
"""Approximate maximum characters of the topic filters handled in one turn."""
_BURST: Final = 10_000
"""Subscription changes permitted without a pause if their number is unlimited."""


_KNOWN_AGAIN, _KNOWN_WITHIN = 0.01, 10.0
"""Seconds between two checks whether other logs know of subscriptions, and seconds after which the
client gets its SUBACK in any case."""


class SubscriptionHandler:
    """Changes the subscriptions of one session; starts and stops their actors."""

    __slots__ = ("_announced", "_changes", "_delivery", "_node", "_session", "throttled")

    def __init__(self, node: NodeContext, session: SessionCore, delivery: Delivery) -> None:
        self._node = node
        self._delivery = delivery
        self._session = session
        self._changes: tuple[float, int, Bucket] | None = None
        """Rate, burst and credit of changes of subscriptions; None: there were none."""
        self._announced: list[list[str]] = []
        """Filters that the bridges of other logs know before the client has subscribed."""
        self.throttled = False
        """Whether the client waits because it changed too many subscriptions."""

    def subscribe(self, connection: ClientConnection, packet: Subscribe) -> Iterator[object]:
        """Grant filters in parts, answer, and replay the retained messages of each subscription."""
        try:
            yield from self._subscribe(connection, packet)
        finally:
            self.withdraw_announced()

    def _subscribe(self, connection: ClientConnection, packet: Subscribe) -> Iterator[object]:
        session = self._session
        bridge = self._node.bridge if self._node.exchange is not None else None
        if bridge is not None:
            yield from self._announce(connection, packet, bridge)
        filters, codes, changes = packet.filters, bytearray(), 0
        replayed: dict[str, bool] = {}
        """Filter -> whether the replay left out retained messages of the client itself."""
        groups: list[str] = []
        reasons: dict[str, str] = {}
        at, indexes = 0, False
        while at < len(filters):
            part = filters[at : at + session.at_once(_FILTERS_AT_ONCE)]
            stop = at + self._granted_at_once([topic_filter for topic_filter, _ in part])
            # A client that has left meanwhile was connected when it subscribed [MQTT-3.8.4-1].
            if at or self._matches_much(filters[0][0]):
                yield NEXT_TURN
            # But the work for clients that leave immediately must be bounded.
            much = at >= _AFTER_DISCONNECT or (at and self._matches_much(filters[at][0]))
            if much and connection.gone:  # in this order: ``gone`` costs a system call
                yield from _free(filters)
                return
            grant = self._grant(connection, packet, at, stop, reasons)
            codes += bytes(grant.codes)
            # All are in the index before the event loop runs: no publication is missed.
            begun = []
            for topic_filter, granted in grant.granted.items():
                if topic_filter in session.state.replays:
                    self._node.replays.begin(session, topic_filter)
                else:
                    begun.append(self._subscribe_to(connection, topic_filter, granted))
            if grant.granted and connection.properties is not None:
                self._delivery.subscriptions_changed(grant.granted)
                indexes = indexes or self._delivery.complete_encoder(0)
            groups += [entry for entry in grant.granted if is_shared(entry)]
            is_end = stop == len(filters)
            unknown = is_end and not self._are_known(groups)
            if is_end and not unknown:
                self._answer(connection, _suback(connection, packet, codes, reasons))
                self._node.journal.order_behind(connection)
            for subscriber in begun:
                # A filter that occurs twice is replayed once, unless No Local applied then.
                no_local = is_no_local(subscriber.options)
                if subscriber.filter not in replayed or (
                    replayed[subscriber.filter] and not no_local
                ):
                    replayed[subscriber.filter] = no_local
                    shared = is_shared(subscriber.filter)
                    new = grant.granted[subscriber.filter]
                    if not shared and sends_retained(new.options, is_new=new.is_new):
                        yield from self._replay(subscriber)
            if unknown:
                # It must not miss messages that are published after its SUBACK.
                yield from self._wait(connection, partial(self._are_known, groups))
                self._answer(connection, _suback(connection, packet, codes, reasons))
                self._node.journal.order_behind(connection)
            at = stop
            changes += len(grant.granted) + sum(code >= FAILURE for code in grant.codes)
        self.withdraw_announced()
        while indexes and self._delivery.complete_encoder(_INDEXED_AT_ONCE):
            yield NEXT_TURN  # until then no queued message is sent
        yield from _free(filters)
        yield from self._throttle(changes)

    def _are_known(self, groups: Sequence[str]) -> bool:
        """Return whether the homes of shared subscriptions know that this log has members."""
        exchange = self._node.exchange
        return exchange is None or all(map(exchange.is_known, groups))

    def _announce(
        self,
        connection: ClientConnection,
        packet: Subscribe,
        bridge: NatsBridge,
    ) -> Iterator[object]:
        """Wait until the bridges of other logs have subscribed to filters, or the client leaves.

        The client must not miss messages that are published to NATS after its SUBACK.
        """
        filters, access = packet.filters, connection.access
        for begin in range(0, len(filters), _FILTERS_AT_ONCE):
            if begin:
                yield NEXT_TURN
                if begin >= _AFTER_DISCONNECT and connection.gone:
                    return
            part = [
                topic_filter
                for topic_filter, _ in filters[begin : begin + _FILTERS_AT_ONCE]
                if not is_shared(topic_filter)
                and (access is None or access.may_subscribe(topic_filter))
            ]
            bridge.announce(part)
            self._announced.append(part)
        changes = bridge.filter_changes
        if not bridge.is_known(changes):
            yield from self._wait(connection, lambda: bridge.is_known(changes))

    def withdraw_announced(self) -> None:
        """End what was announced: the client has subscribed, was refused, or its session failed."""
        bridge, announced = self._node.bridge, self._announced
        if announced and bridge is not None:
            self._announced = []
            self._node.in_parts(announced, 1, bridge.withdraw)

    def _wait(self, connection: ClientConnection, is_known: Callable[[], bool]) -> Iterator[object]:
        """Wait until other logs know of subscriptions, or until the client leaves."""
        clock = self._node.clock
        began = before = clock.monotonic()
        self.throttled = True
        while not is_known() and not connection.gone:
            yield _KNOWN_AGAIN
            now = clock.monotonic()
            if now - before < _KNOWN_AGAIN / 2 or now - began > _KNOWN_WITHIN:
                break  # the wait was ended, or takes too long
            before = now
        self.throttled = False

    def _granted_at_once(self, filters: Sequence[str]) -> int:
        """Return how many filters to grant in one turn: one that matches much is handled alone."""
        within = filters[: _handled_at_once(filters)]
        for count, topic_filter in enumerate(within):
            if self._matches_much(topic_filter):
                return count or 1
        return len(within)

    def _matches_much(self, topic_filter: str) -> bool:
        """Return whether many retained messages may match a filter."""
        many = len(self._node.state.retained) > _RETAINED_AT_ONCE
        return many and ("+" in topic_filter or "#" in topic_filter)

    def _grant(
        self,
        connection: ClientConnection,
        packet: Subscribe,
        begin: int,
        stop: int,
        reasons: dict[str, str],
    ) -> subscribing.Grant:
        """Decide on some filters of a SUBSCRIBE and record the grants.

        Reasons of refusals that say more than the code are added to ``reasons``, by filter.
        """
        session = self._session
        node, fresh = self._node, set[int]()
        refused = Counter[str]()
        router, owner = node.router, owner_of(connection)
        counted: set[str] = set()

        opened: dict[str, ReplayOpened] = {}

        def refuses(whole: str) -> int:
            if is_replay_filter(whole):
                return self._refuses_replay(connection, packet, whole, opened, reasons)
            topic_filter = whole
            code, full = self._refuses_share(connection, topic_filter), False
            if topic_filter.startswith(SHARE):
                most = node.options.bounds.max_shared_members
                full = node.router.groups.is_full(topic_filter, session.name, most)
            topic_filter = split_share(topic_filter)[1]
            code = code or node.permissions.refuses(connection, topic_filter)
            if code:
                return code
            if full:
                refused["shared_members"] += 1
                return ReasonCode.QUOTA_EXCEEDED
            new = whole not in counted and not router.has(session.name, whole)
            if new and not router.quota.allows(
                owner,
                router.subscriptions + len(counted),
                node.options.bounds.max_subscriptions_total,
            ):
                refused["subscriptions_total"] += 1
                return ReasonCode.QUOTA_EXCEEDED
            if not node.permissions.allows_pattern(session.name, connection, topic_filter, fresh):
                refused["wildcard_patterns"] += 1
                return ReasonCode.QUOTA_EXCEEDED
            if new:
                counted.add(whole)
                router.quota.begun(session.name, owner)
            return 0

        filters, options = self._requested(packet, begin, stop), packet.options[begin:stop]
        if session.state.bridge:
            options = [bridge_options(topic_filter) for topic_filter, _ in filters]
        grant = subscribing.subscribe(
            session.state,
            filters,
            max_qos=1 if node.options.downgrade_qos2_subscribe else 2,
            refuses=refuses,
            most=node.options.bounds.max_subscriptions or sys.maxsize,
            options=options,
            identifier=packet.identifier,
        )
        refused["subscriptions"] = grant.over
        for reason, count in refused.items():
            if count:
                now = node.clock.monotonic()
                node.limits.refused.add(reason, now, client=session.name, filters=count)
        if node.exchange is not None:
            node.exchange.settle(name for name, each in grant.granted.items() if each.is_new)
        for event in grant.events:
            session.emit(event)
        self._open_replays(grant, opened)
        return grant

    def _requested(self, packet: Subscribe, begin: int, stop: int) -> list[tuple[str, int]]:
        """Return some filters of a SUBSCRIBE, each with the QoS that may be granted.

        Deliveries at QoS 1 and 2 refer to messages of this log: several logs are read at QoS 0.
        """
        filters = packet.filters[begin:stop]
        if self._node.exchange is None:
            return filters
        return [(name, 0 if is_replay_filter(name) else qos) for name, qos in filters]

    def _refuses_replay(
        self,
        connection: ClientConnection,
        packet: Subscribe,
        topic_filter: str,
        opened: dict[str, ReplayOpened],
        reasons: dict[str, str],
    ) -> int:
        """Return the reason code with which a replay is refused; 0: it is permitted.

        A new one is added to ``opened``, and the reason of a malformed one to ``reasons``.
        """
        if topic_filter in opened:
            return 0
        try:
            answer = self._node.replays.refuses(
                self._session.state, connection, topic_filter, _offset(packet), len(opened)
            )
        except (TopicError, BadMoment) as error:
            reasons[topic_filter] = str(error)
            return ReasonCode.TOPIC_FILTER_INVALID
        if isinstance(answer, int):
            return answer
        opened[topic_filter] = answer
        return 0

    def _open_replays(self, grant: subscribing.Grant, opened: dict[str, ReplayOpened]) -> None:
        """Record the replays that were granted."""
        for topic_filter, event in opened.items():
            if topic_filter in grant.granted:
                # Below $stream there may be a subscription of an earlier version.
                self._node.router.unsubscribe(self._session.name, topic_filter)
                self._session.emit(event)

    def _refuses_share(self, connection: ClientConnection, topic_filter: str) -> int:
        """Return the reason code with which a shared subscription is refused; 0: it is permitted.

        Topics below $SYS are sent to each client individually, and cannot be shared. With several
        logs, filters below $log refer to these logs.
        """
        if not topic_filter.startswith(SHARE):
            return 0
        plain = split_share(topic_filter)[1]
        if plain.split("/", 1)[0] == "$SYS":
            return ReasonCode.TOPIC_FILTER_INVALID
        if self._node.exchange is not None and plain.startswith(LOG_SESSION):
            return ReasonCode.TOPIC_FILTER_INVALID
        if connection.properties is not None:
            return 0
        if not self._node.options.shared_for_mqtt3:
            return ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        try:
            check_topic_filter(topic_filter)
        except TopicError:
            return ReasonCode.TOPIC_FILTER_INVALID
        return 0

    def _subscribe_to(
        self, connection: ClientConnection, topic_filter: str, granted: subscribing.GrantedFilter
    ) -> Subscriber:
        session = self._session
        subscriber = self._node.router.subscribe(
            session.name, topic_filter, granted.qos, connection.access, granted.options
        )
        actor_before = subscriber.actor
        if isinstance(actor_before, Subscription):
            actor_before.renew(
                subscriber
            )  # also one that failed: its successor must not start twice
        actor = self.start_actor(subscriber)
        if actor_before is not None:
            session.kernel.tell(actor, ChangeQos(granted.qos))
        return subscriber

    def _replay(self, subscriber: Subscriber) -> Iterator[object]:
        """Send a subscription the retained messages that match it.

        With No Local, messages that the client published itself are left out. They are sent in the
        order of their age, all within the turn of the grant: nothing is published in between.
        """
        session = self._session
        node, actor = self._node, self.start_actor(subscriber)
        acl, denied = subscriber.acl, []
        own = session.name if is_no_local(subscriber.options) else None
        long = self._matches_much(subscriber.filter)
        messages: list[RetainedMessage] = []
        sorted_parts: list[list[RetainedMessage]] = []
        by_age = attrgetter("ref")
        for number, message in enumerate(node.state.retained.newest(subscriber.filter), 1):
            if message.publisher == own:
                pass  # No Local [MQTT-3.8.3-3]
            elif acl is None or acl.may_read(message.topic):
                messages.append(message)
            elif message.qos:
                denied.append(message.ref)
            if len(messages) == _RETAINED_AT_ONCE:
                messages.sort(key=by_age)
                sorted_parts.append(messages)
                messages = []
            if long and not number % _RETAINED_AT_ONCE:
                yield SAME_TURN
        if subscriber.qos and denied:
            node.drop(session.name, "not_permitted", sorted(denied), subscriber.filter)
        messages.sort(key=by_age)
        in_order = merge(*sorted_parts, messages, key=by_age) if sorted_parts else iter(messages)
        while part := list(islice(in_order, _RETAINED_AT_ONCE)):
            actor.enqueue(part)
            if long:
                yield SAME_TURN
        if subscriber.filter.startswith("$SYS/"):
            present = node.system_topics.retained(subscriber.filter, acl)
            if present is not None:
                actor.enqueue(present)

    def unsubscribe(self, connection: ClientConnection, packet: Unsubscribe) -> Iterator[object]:
        """Remove subscriptions in parts, then answer."""
        session = self._session
        filters, codes, changes = packet.filters, bytearray(), 0
        at = 0
        while at < len(filters):
            if at:
                yield NEXT_TURN
            part = filters[at : at + session.at_once(_FILTERS_AT_ONCE)]
            part = part[: _handled_at_once(part)]
            at += len(part)
            ended_filters = []
            for topic_filter in part:
                if topic_filter in session.state.replays and topic_filter not in ended_filters:
                    self._node.replays.end(session, topic_filter)
                    ended_filters.append(topic_filter)
                    codes.append(ReasonCode.SUCCESS)
                    continue
                subscriber = self._node.router.unsubscribe(session.name, topic_filter)
                if subscriber is None:
                    codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
                else:
                    actor = subscriber.actor
                    self.stop_actors((subscriber,))
                    if self._node.turn_work.pending:
                        # Messages that it matched may still be in mailboxes: it gets them.
                        subscriber.actor = actor
                    ended_filters.append(topic_filter)
                    codes.append(ReasonCode.SUCCESS)
            for event in subscribing.unsubscribe(session.state, ended_filters):
                session.emit(event)
            changes += len(ended_filters)
            if connection.properties is not None:
                self._delivery.subscriptions_changed(ended_filters)
        self._answer(connection, _unsuback(connection, packet, codes))
        yield from _free(filters)
        yield from self._throttle(changes)

    def _answer(self, connection: ClientConnection, data: bytes) -> None:
        """Send an answer; close the connection if the client does not accept its size."""
        if data:
            self._session.answer(connection, data)
        else:
            connection.close_soon("packet_too_large")

    def _throttle(self, changes: int) -> Iterator[object]:
        """Pause the client for some time if it changed too many subscriptions."""
        bounds = self._node.options.bounds
        now = self._node.clock.monotonic()
        rate, burst = bounds.subscribe_rate, bounds.max_subscriptions or _BURST
        if not rate:
            return
        if self._changes is None or self._changes[:2] != (rate, burst):
            self._changes = rate, burst, Bucket(rate, burst, now)
        wait = self._changes[2].take(changes, now)
        if wait:
            self._node.limits.refused.add("subscribe_rate", now, client=self._session.name)
            self.throttled = True
            yield wait
            self.throttled = False

    def remove_all(self) -> None:
        """Remove all subscriptions of the session."""
        self.stop_actors(self._node.router.remove_session(self._session.name))

    def start_actor(self, subscriber: Subscriber) -> Subscription:
        """Return the actor of a subscription, started if there is none."""
        session = self._session
        actor = subscriber.actor
        if isinstance(actor, Subscription) and not actor.stopped:
            return actor
        # There was none, or it failed in this turn.
        started = subscriber.actor = Subscription(session, self._delivery, subscriber)
        session.kernel.spawn(started, session)
        self._node.router.started(subscriber)
        return started

    def stop_actors(self, subscribers: Sequence[Subscriber]) -> None:
        """Stop the actors of subscriptions."""
        actors = []
        for subscriber in subscribers:
            actor, subscriber.actor = subscriber.actor, None
            self._node.router.stopped(subscriber)
            # A failed actor may not have been replaced yet, if the session was loading messages.
            if actor is not None and not actor.stopped:
                actors.append(actor)
        self._node.directory.stop_all(actors)


_OLDER: Final = bytes(SUBSCRIBE_FAILURE if code >= FAILURE else code for code in range(256))
"""Reason code of MQTT 5 -> return code of older levels."""


def _suback(
    connection: ClientConnection, packet: Subscribe, codes: bytearray, reasons: Mapping[str, str]
) -> bytes:
    """Encode a SUBACK for the protocol level of the client."""
    if connection.properties is None:
        return encode_suback(packet.packet_id, codes.translate(_OLDER))
    properties = connection.properties
    refusal = filters_string(packet.filters, codes, reasons) if max(codes) >= FAILURE else None
    return encode_codes_v5(
        PacketType.SUBACK,
        packet.packet_id,
        codes,
        NO_EXPLANATION if refusal is None else Explanation(refusal),
        limit=properties.maximum_packet_size,
        explain=properties.request_problem_information,
    )


def _unsuback(connection: ClientConnection, packet: Unsubscribe, codes: bytearray) -> bytes:
    """Encode an UNSUBACK, which in MQTT 5 reports which subscriptions existed."""
    if connection.properties is None:
        return encode_unsuback(packet.packet_id)
    limit = connection.properties.maximum_packet_size
    return encode_codes_v5(PacketType.UNSUBACK, packet.packet_id, codes, limit=limit)


def _offset(packet: Subscribe) -> str:
    """Return the beginning of the ``$stream`` filters of a SUBSCRIBE; empty: it has none."""
    return next((value for name, value in packet.user if name == STREAM_OFFSET), "")


def _free(filters: list[Any]) -> Iterator[object]:
    """Free the topic filters of an answered packet in parts: there may be 100,000 of them."""
    while len(filters) > _FREED_AT_ONCE:
        del filters[-_FREED_AT_ONCE:]
        yield NEXT_TURN


def _handled_at_once(filters: Sequence[str]) -> int:
    """Return how many of the topic filters are handled in one turn, by their length."""
    size = 0
    for count, topic_filter in enumerate(filters):
        size += len(topic_filter)
        if size > _FILTERS_TEXT:
            return count or 1
    return len(filters)
