"""``foldmq replay``: the state as of a point in time: totals, one session or retained messages."""

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, islice

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.point_resolution import (
    parse_point,
    point_at,
    points_in_logs,
    write_clock_notes,
)
from cli.logs.source_flags import SourceFlags
from cli.logs.topic_flags import check_filter
from eventstore.errors import NotFound, UsageError
from eventstore.format.positions import Position, format_position
from eventstore.format.stored_properties import expiry_ms
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from projections.past.indexed_sessions import session_at
from projections.past.log_states import JoinedRetained, LogStates, fold_logs, short_name
from projections.past.replay import AsOf, Replay
from projections.past.subscription_text import OF_MEMBERS, options_text
from projections.past.topic_lookup import MessageTopics
from projections.state.node_state import NodeState
from projections.state.session import InFlight, SessionState, SubscriptionState
from projections.state.waiting_queue import FLAG_BITS, QOS_MASK
from protocol.mqtt.message_properties import properties_object
from protocol.mqtt.shared_filters import SHARE

_LISTED = 20
_NEVER = 0xFFFF_FFFF
"""Session expiry in seconds of a session that does not expire."""
_OLDEST = 3
_SUMMED = (
    "connected",
    "subscriptions",
    "in_flight",
    "queued",
    "queued_bytes",
    "inbound",
    "wills",
)


def run_replay(
    flags: SourceFlags, at: str | None, session: str | None, topic: str | None, *, as_json: bool
) -> None:
    """Print the state as of a point in time; raises NotFound if the session did not exist."""
    moment = parse_point(at) if at is not None else None
    if topic is not None:
        check_filter(topic)
        if session is not None:
            raise UsageError("--session and --topic cannot be combined")
    asyncio.run(_run(flags, moment, session, topic, as_json=as_json))


async def _run(
    flags: SourceFlags,
    moment: PointSpec | None,
    session: str | None,
    topic: str | None,
    *,
    as_json: bool,
) -> None:
    async with open_logs(flags, session) as logs:
        await write_clock_notes(logs, moment)
        if session is not None:
            source = logs.only(session)
            point = await point_at(source, moment)
            lines = await _session(source, session, point, moment, as_json=as_json)
        else:
            logs.check_comparable(moment)
            points = await points_in_logs(logs, moment)
            time_ms = None if moment is None else moment.time_ms
            states = await fold_logs(logs, points, time_ms, progress)
            if topic is not None:
                lines = _retained(states, topic, as_json=as_json)
            else:
                lines = _everything(states) if as_json else summary_lines(states)
        for line in lines:
            sys.stdout.write(line + "\n")


async def _session(
    source: LogSource, name: str, point: LogPoint, moment: PointSpec | None, *, as_json: bool
) -> Iterator[str]:
    """Return a session in full; raises NotFound if it did not exist."""
    members: list[tuple[SessionState, SubscriptionState]] = []
    group = name.startswith(SHARE)
    known = None if group else await session_at(source, name, point)
    if known is not None:
        record = (await source.some([point.sequence]))[0]
        as_of = AsOf(point, record.time_ms, record.jumps.total_ms)
        found, carried = known.state, known.carried
    else:
        # The members of a shared subscription are in the events of their own sessions.
        replay = Replay(source, point.sequence, None if group else name, progress)
        as_of = await replay.to(point)
        found, carried = replay.state.sessions.get(name), replay.state.carried
        if group and found is not None:
            members = _members(replay.state, found)
    if found is None:
        raise NotFound(f"no session {text.name(name)} as of {as_of}")
    topics = MessageTopics(source, carried)
    await topics.load(_refs(found))
    if not as_json:
        return session_at_lines(found, as_of, topics, _until(as_of, moment), members)
    shown = session_object(found, topics, as_of.jumped_ms)
    if group:
        shown["members"] = [_member_object(*one) for one in members]
    return iter([text.json_line({**as_of.fields(), **shown})])


def _until(as_of: AsOf, moment: PointSpec | None) -> int:
    """Return the time that ages are relative to, in Unix milliseconds."""
    if moment is None:
        return round(time.time() * 1000)
    return as_of.record_ms if moment.time_ms is None else moment.time_ms


def _refs(state: SessionState) -> list[Position]:
    """Return the messages of a session whose topics are shown."""
    sent = [one.ref for one in chain(state.inflight.values(), state.releasing.values())]
    heads = [ref for held in state.subscriptions.values() for ref in islice(_queued(held), _OLDEST)]
    return [*sent, *heads, *state.inbound.values()]


def _queued(held: SubscriptionState) -> Iterator[Position]:
    return (waiting >> FLAG_BITS for waiting in held.queue or ())


# ----------------------------------------------------------------------------- totals


def totals(states: LogStates) -> dict[str, int]:
    """Return the totals of the logs; a session or retained message in two of them counts once."""
    sizes: dict[str, int] = {}
    differing = set()
    for one in states.retained():
        sizes.setdefault(one.message.topic, len(one.message.payload))
        if not one.everywhere:
            differing.add(one.message.topic)
    return {
        "sessions": len({one.session for _, one in states.sessions()}),
        **_sums(one for _, one in states.sessions()),
        "retained": len(sizes),
        "retained_bytes": sum(sizes.values()),
        **({"retained_differing": len(differing)} if states.several else {}),
    }


def _sums(sessions: Iterable[SessionState]) -> dict[str, int]:
    sums = dict.fromkeys(_SUMMED, 0)
    for one in sessions:
        sums["connected"] += one.connected
        sums["subscriptions"] += len(one.active())
        sums["in_flight"] += len(one.inflight) + len(one.releasing)
        sums["queued"] += one.queued
        sums["queued_bytes"] += one.queued_bytes
        sums["inbound"] += len(one.inbound)
        sums["wills"] += one.will is not None
    return sums


def summary_lines(states: LogStates) -> Iterator[str]:
    """Yield the state of the logs as text, largest sessions first."""
    logs = f" of {text.count_of(len(states.parts), 'log')}" if states.several else ""
    yield f"state{logs} as of {states.as_of} ({states.entries:,} entries folded)"
    all_of = totals(states)
    shared = {one.session for _, one in states.sessions() if one.session.startswith(SHARE)}
    yield from _total_lines(all_of, len(shared))
    differing = all_of.get("retained_differing")
    if differing:
        yield f"                 {text.count_of(differing, 'topic')} not the same in all logs"
    if states.several:
        yield ""
        for part in states.parts:
            count = text.count_of(sum(1 for _ in part.sessions()), "session")
            place = f"as of {part.as_of}" if part.as_of.point.sequence else str(part.as_of)
            yield f"  log {part.log}: {count}, {place}"
    yield from _session_lines(list(states.sessions()))


def _total_lines(all_of: dict[str, int], shared: int) -> Iterator[str]:
    away = all_of["sessions"] - all_of["connected"] - shared
    here = all_of["connected"]
    groups = f", {text.count_of(shared, 'shared subscription')}" if shared else ""
    yield f"  sessions       {all_of['sessions']:,}: {here:,} connected, {away:,} offline{groups}"
    yield f"  subscriptions  {all_of['subscriptions']:,}"
    yield f"  in flight      {text.count_of(all_of['in_flight'], 'message')}"
    queued = text.count_of(all_of["queued"], "message")
    yield f"  queued         {queued}, {text.size(all_of['queued_bytes'])}"
    yield f"  inbound QoS 2  {text.count_of(all_of['inbound'], 'message')}"
    yield f"  wills          {all_of['wills']:,}"
    retained = text.count_of(all_of["retained"], "topic")
    yield f"  retained       {retained}, {text.size(all_of['retained_bytes'])}"


def _session_lines(sessions: Sequence[tuple[str, SessionState]]) -> Iterator[str]:
    """Yield the largest sessions, each with its log if there are several."""
    if not sessions:
        return
    listed = nsmallest(_LISTED, sessions, key=lambda each: _weight(each[1]))
    width = max(len(short_name(log)) for log, _ in listed)
    title = f"{'log':<{width + 2}}" if width else ""
    yield ""
    yield f"  {title}{'session':<32} {'':<9} {'subscr.':>9} {'in flight':>9} {'queued':>10}"
    for log, one in listed:
        sent = len(one.inflight) + len(one.releasing)
        state_word = "connected" if one.connected else "offline"
        if one.session.startswith(SHARE):
            state_word = "shared"
        where = f"{short_name(log):<{len(title)}}"
        yield (
            f"  {where}{text.name(one.session, 32):<32} {state_word:<9} {len(one.active()):>9,} "
            f"{sent:>9,} {one.queued:>10,}"
        )
    if len(sessions) > len(listed):
        yield f"  and {len(sessions) - len(listed):,} more sessions (--json lists all)"


def _weight(state: SessionState) -> tuple[int, int, bool, str]:
    sent = len(state.inflight) + len(state.releasing)
    return -state.queued, -sent, not state.connected, state.session


def _everything(states: LogStates) -> Iterator[str]:
    """Yield JSON objects: the totals, every session, and every retained message."""
    head = {"kind": "state", **states.fields(), "entries": states.entries, **totals(states)}
    yield text.json_line(head)
    for log, one in states.sessions():
        shown = session_object(one, None, states.jumped_ms[log])
        yield text.json_line({"kind": "session", **_labelled(log, shown)})
    for message in states.retained():
        yield text.json_line({"kind": "retained", **_retained_object(message, states)})


def _labelled(log: str, shown: dict[str, object]) -> dict[str, object]:
    return {"log": log, **shown} if log else shown


# ----------------------------------------------------------------------------- one session


def session_at_lines(
    state: SessionState,
    as_of: AsOf,
    topics: MessageTopics,
    now_ms: int,
    members: Sequence[tuple[SessionState, SubscriptionState]] = (),
) -> Iterator[str]:
    """Yield a session in full, as text; ``members`` are those of a shared subscription."""
    yield f"session {text.name(state.session)} as of {as_of}"
    if state.session.startswith(SHARE):
        yield f"  shared subscription of {text.count_of(len(members), 'member')}"
        for member, held in members:
            where = "connected" if member.connected else "offline"
            sent = f", {held.outstanding:,} in flight" if held.outstanding else ""
            yield f"    {text.name(member.session)}  {where}, {_granted(held)}{sent}"
    elif state.connected:
        yield f"  connected (connection {state.generation})"
    else:
        closed_ms = state.closed_ms + as_of.jumped_ms
        yield f"  offline since {text.clock(closed_ms)} ({text.duration(now_ms - closed_ms)})"
    user = f", user {text.name(state.user)}" if state.user is not None else ""
    yield f"  {'clean' if state.clean else 'persistent'} session{user}{_protocol(state)}"
    yield from _subscription_lines(state, topics)
    yield from _in_flight_lines(
        "in flight, not acknowledged", state.inflight, topics, now_ms - as_of.jumped_ms
    )
    yield from _in_flight_lines(
        "PUBREC received, waiting for PUBCOMP", state.releasing, topics, now_ms - as_of.jumped_ms
    )
    if state.inbound:
        yield f"  received at QoS 2, waiting for PUBREL: {len(state.inbound):,}"
        for pid, ref in state.inbound.items():
            yield f"    packet {pid:<6} {_message(ref, topics)}"
    if state.will is not None:
        retained = " retained" if state.will.retain else ""
        delay = f", {state.will.delay} s after the connection ends" if state.will.delay else ""
        yield (
            f"  will {text.name(state.will.topic)} QoS {state.will.qos}{retained} "
            f"(position {format_position(state.will.ref)}){delay}"
        )


def _protocol(state: SessionState) -> str:
    """Return the MQTT 5 options of a client's session, or that the client is a bridge."""
    if state.level < 5:
        return ", bridge" if state.bridge else ""
    parts = ["MQTT 5"]
    if state.expiry is not None and not state.clean:
        parts.append(f"session expiry {expiry_text(state.expiry)}")
    if state.receive_maximum < 65_535:
        parts.append(f"receive maximum {state.receive_maximum}")
    if state.packet_maximum:
        parts.append(f"packets of {text.size(state.packet_maximum)} at most")
    return "".join(f", {part}" for part in parts)


def expiry_text(seconds: int | None) -> str:
    """Return a session expiry interval as text; None: the setting of the broker."""
    if seconds is None:
        return "the broker's setting (session_expiry)"
    return "never" if seconds == _NEVER else f"{seconds} s"


def properties_text(block: bytes) -> str:
    """Return the properties of a message by name, each after a comma."""
    found = properties_object(block)
    return "".join(f", {name.replace('_', ' ')} {_value(value)}" for name, value in found.items())


def _value(value: object) -> str:
    if isinstance(value, list):
        return " ".join(f"{text.name(str(one))}={text.name(str(other))}" for one, other in value)
    return text.name(str(value))


def _subscription_lines(state: SessionState, topics: MessageTopics) -> Iterator[str]:
    if not state.subscriptions:
        yield "  no subscriptions"
        return
    yield f"  subscriptions: {len(state.active()):,}"
    for held in state.subscriptions.values():
        sent = f", {held.outstanding:,} in flight" if held.filter.startswith(SHARE) else ""
        granted = OF_MEMBERS if held.filter == state.session else _granted(held)
        yield f"    {text.name(held.filter)}  {granted}{sent}"
        if held.queue:
            count = text.count_of(len(held.queue), "message")
            yield f"      queued: {count}, {text.size(held.queued_bytes)}; the oldest:"
            for ref in islice(_queued(held), _OLDEST):
                yield f"        {_message(ref, topics)}"


def _granted(held: SubscriptionState) -> str:
    identifier = f", identifier {held.identifier}" if held.identifier else ""
    if not held.active:
        return f"unsubscribed, deliveries pending{identifier}"
    return f"QoS {held.qos}{options_text(held.options)}{identifier}"


def _members(state: NodeState, group: SessionState) -> list[tuple[SessionState, SubscriptionState]]:
    """Return the sessions that share a subscription, each with its part of it."""
    found = ((one, one.subscriptions.get(group.session)) for one in state.sessions.values())
    return [(one, held) for one, held in found if held is not None]


def _member_object(member: SessionState, held: SubscriptionState) -> dict[str, object]:
    return {
        "session": member.session,
        "connected": member.connected,
        "qos": held.qos,
        **({"options": held.options} if held.options else {}),
        **({"identifier": held.identifier} if held.identifier else {}),
        "active": held.active,
        "in_flight": held.outstanding,
    }


def _in_flight_lines(
    title: str, table: dict[int, InFlight], topics: MessageTopics, now_ms: int
) -> Iterator[str]:
    if not table:
        return
    yield f"  {title}: {len(table):,}"
    for pid, sent in table.items():
        age = text.duration(now_ms - sent.sent_ms)
        qos = sent.flags & QOS_MASK
        yield f"    packet {pid:<6} {_message(sent.ref, topics)}, QoS {qos}, sent {age} ago"


def _message(ref: Position, topics: MessageTopics) -> str:
    known = topics.get(ref)
    about = f" {text.name(known.topic)}, {text.size(known.size)}" if known is not None else ""
    return f"message {format_position(ref)}{about}"


def session_object(
    state: SessionState, topics: MessageTopics | None, jumped_ms: int
) -> dict[str, object]:
    """Return a session as a JSON object; topics of its messages only with ``topics``.

    ``jumped_ms`` is the sum of the jumps of the clock, which times in states do not include.
    """
    will = state.will
    return {
        "session": state.session,
        "connected": state.connected,
        "closed": None if state.connected else text.iso(state.closed_ms + jumped_ms),
        "clean": state.clean,
        "generation": state.generation,
        "level": state.level,
        "bridge": state.bridge,
        "expiry": state.expiry,
        "user": state.user,
        "subscriptions": [_subscription_object(one) for one in state.subscriptions.values()],
        "in_flight": _sent_objects(state.inflight, topics, jumped_ms),
        "releasing": _sent_objects(state.releasing, topics, jumped_ms),
        "inbound": [
            {"packet_id": pid, **_message_object(ref, topics)} for pid, ref in state.inbound.items()
        ],
        "queued": state.queued,
        "queued_bytes": state.queued_bytes,
        "will": None
        if will is None
        else {
            "topic": will.topic,
            "qos": will.qos,
            "retain": will.retain,
            "delay": will.delay,
            "position": format_position(will.ref),
        },
    }


def _subscription_object(held: SubscriptionState) -> dict[str, object]:
    oldest = next(_queued(held), None)
    return {
        "filter": held.filter,
        "qos": held.qos,
        **({"options": held.options} if held.options else {}),
        **({"identifier": held.identifier} if held.identifier else {}),
        "active": held.active,
        "queued": len(held.queue or ()),
        "queued_bytes": held.queued_bytes,
        "oldest": None if oldest is None else format_position(oldest),
    }


def _sent_objects(
    table: dict[int, InFlight], topics: MessageTopics | None, jumped_ms: int
) -> list[dict[str, object]]:
    return [
        {
            "packet_id": pid,
            **_message_object(sent.ref, topics),
            "qos": sent.flags & QOS_MASK,
            "sent": text.iso(sent.sent_ms + jumped_ms),
        }
        for pid, sent in table.items()
    ]


def _message_object(ref: Position, topics: MessageTopics | None) -> dict[str, object]:
    known = topics.get(ref) if topics is not None else None
    topic = {} if known is None else {"topic": known.topic, "size": known.size}
    return {"position": format_position(ref), **topic}


# ----------------------------------------------------------------------------- retained


def _retained(states: LogStates, topic_filter: str, *, as_json: bool) -> Iterator[str]:
    found = list(states.retained(topic_filter))
    if as_json:
        yield from (text.json_line(_retained_object(one, states)) for one in found)
        return
    topics = text.count_of(len({one.message.topic for one in found}), "retained message")
    yield f"{topics} on {text.name(topic_filter)} as of {states.as_of}"
    for one in found:
        message, log = one.message, short_name(one.log)
        only = "" if one.everywhere else f" (in {', '.join(map(short_name, one.logs))} only)"
        yield (
            f"{log and '  '}{log}  {format_position(message.ref):>9}  {text.name(message.topic)}  "
            f"QoS {message.qos}, {text.size(len(message.payload))}: "
            f"{text.payload_text(message.payload)}"
            f"{_until_text(message.expires, states.jumped_ms[one.log])}"
            f"{properties_text(message.block)}{only}"
        )


def _until_text(expires: int, jumped_ms: int) -> str:
    return f", expires {text.clock(expiry_ms(expires) + jumped_ms)}" if expires else ""


def _retained_object(one: JoinedRetained, states: LogStates) -> dict[str, object]:
    message, jumped_ms = one.message, states.jumped_ms[one.log]
    expires = text.iso(expiry_ms(message.expires) + jumped_ms) if message.expires else None
    properties = properties_object(message.block)
    shown = {
        "topic": message.topic,
        "qos": message.qos,
        "position": format_position(message.ref),
        **text.payload_field(message.payload),
        **({"expires": expires} if expires else {}),
        **({"properties": properties} if properties else {}),
        **({} if one.everywhere else {"only_in": list(one.logs)}),
    }
    return _labelled(one.log, shown)
