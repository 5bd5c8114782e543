"""Deep comparison of the log's state with the broker's state in memory."""

import dataclasses
from collections import defaultdict
from typing import Any

from actors.maintenance.state_reader import FollowedState
from actors.routing.router import routed
from actors.routing.subscriber import Subscriber, is_shared
from eventstore.format.events import Acked, Delivered, MessageDropped, Refused
from eventstore.format.positions import from_runs
from eventstore.format.records import Record, decode_record
from eventstore.log.message_store import messages_of
from projections.state.node_state import NodeState
from projections.state.session import SessionState, SubscriptionState
from projections.state.session_table import OutstandingTotals
from protocol.mqtt.reason_codes import ReasonCode
from simulation.world import Disk, World


def fold(records: list[Record]) -> NodeState:
    """Fold a whole log, from where it begins."""
    node = NodeState(records[0].sequence if records else 1)
    for record in records:
        node.apply_record(record)
    assert not node.partial
    return node


def described(node: NodeState) -> dict[str, Any]:
    """Return everything that a node's state says as plain values; order where it matters."""
    return {
        "sessions": {name: _session(state) for name, state in node.sessions.items()},
        "archived": node.archived,
        "retained": [tuple(message) for message in node.retained.all()],
        "retained_size": (len(node.retained), node.retained.size),
        "not_released": {
            name: dict(pending) for name, pending in node.retained._pending.items() if pending
        },
    }


def _session(state: SessionState) -> dict[str, Any]:
    found = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    del found["saved"], found["links"]  # notes of others, not what happened
    found["subscriptions"] = {
        held.filter: _subscription(held) for held in state.subscriptions.values()
    }
    found["waiting"] = list(state.waiting)
    found["replays"] = list(state.replays)
    for table in ("inflight", "releasing"):
        found[table] = [
            (pid, sent._replace(subscription=sent.subscription.filter))
            for pid, sent in getattr(state, table).items()
        ]
    found["inbound"] = list(state.inbound.items())
    return found


def _subscription(held: SubscriptionState) -> dict[str, Any]:
    found = {field.name: getattr(held, field.name) for field in dataclasses.fields(held)}
    found["queue"] = list(held.queue or ())
    found["replay"] = held.replay and dataclasses.asdict(held.replay)
    return found


_REASONS = ("queue_", "not_permitted")
"""Why a message may be dropped that a session was to get."""


def compare_states(state: NodeState, other: NodeState) -> None:
    """Raise AssertionError where a state is not the one that was folded."""
    live, folded = described(state), described(other)
    for part, wanted in folded.items():
        if part == "sessions":
            assert live[part].keys() == wanted.keys(), f"{list(live[part])}, not {list(wanted)}"
            for name, session in wanted.items():
                different = {
                    key: (live[part][name][key], value)
                    for key, value in session.items()
                    if live[part][name][key] != value
                }
                assert not different, f"{name}: live and folded: {different}"
        assert live[part] == wanted, f"{part}: {live[part]}, folded: {wanted}"


def compare_index(found: FollowedState) -> None:
    """Raise AssertionError where a follower's subscription index is not that of its state."""
    router, sessions = found.router, found.state.sessions
    wanted = {
        (name, held.filter): None if name not in sessions.live else (held.qos, held.options)
        for name, state in sessions.items()
        for held in routed(state)
    }
    for (name, topic_filter), granted in wanted.items():
        if is_shared(topic_filter):
            assert name in router.groups.find(topic_filter).members, (name, topic_filter)
            continue
        one = router._index.get(topic_filter, name)
        indexed = (one.qos, one.options) if isinstance(one, Subscriber) else None
        assert one is not None, (name, topic_filter)
        assert indexed == granted, (name, topic_filter, indexed, granted)
    assert router.subscriptions == len(wanted), f"{router.subscriptions} indexed, not {wanted}"


def compare(world: World) -> None:
    """Raise AssertionError where the broker's state is not the fold of its log.

    Everything must be on disk. What sessions and the router have in memory must agree too.
    """
    broker = world.broker
    assert broker.node.journal.idle
    compare_states(broker.node.state, fold(world.disk.decoded()))
    router, sessions = broker.node.router, broker.node.state.sessions
    frozen, counted = OutstandingTotals(), sessions.frozen_totals
    for name, state in sessions.items():
        if name not in sessions.live:
            frozen.add(state)
    for figure in ("inbound", "inflight", "queued", "queued_bytes", "releasing"):
        assert getattr(counted, figure) == getattr(frozen, figure), figure
    filters = {
        (name, held.filter): held.qos for name, state in sessions.items() for held in routed(state)
    }
    assert router.subscriptions == len(filters), f"{router.subscriptions} routed, not {filters}"
    for held in router._subscribers.values():
        for one in held.values():
            assert filters[one.session, one.filter] == one.qos


def dropped(disk: Disk) -> dict[str, set[bytes]]:
    """Return the payloads that the log says were dropped, by client identifier."""
    payloads: dict[int, bytes] = {}
    refs: dict[str, list[int]] = defaultdict(list)
    delivered: dict[tuple[str, int], int] = {}
    for sequence, data in disk.stream.history.items():
        record = decode_record(sequence, data)
        for stored in messages_of(record):
            payloads.update(enumerate(stored.payloads, stored.first))
        for _, event in record.events():
            if isinstance(event, MessageDropped) and event.reason.startswith(_REASONS):
                refs[event.session] += from_runs(event.refs)
            elif isinstance(event, Delivered):
                for pid, ref in zip(from_runs(event.pids), from_runs(event.refs), strict=True):
                    delivered[event.session, pid] = ref
            elif isinstance(event, Acked | Refused) and event.reasons:
                # A delivery that is not sent again, because the permission was lost.
                for pid, code in zip(from_runs(event.pids), from_runs(event.reasons), strict=True):
                    if code == ReasonCode.ADMINISTRATIVE_ACTION:
                        refs[event.session].append(delivered[event.session, pid])
    return {name: {payloads[ref] for ref in positions} for name, positions in refs.items()}
