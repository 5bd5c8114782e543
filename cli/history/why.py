"""``foldmq why``: explains what happened to a message."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from cli.common import Style, has_colours, painted, progress, text
from cli.history.missing_message import explain_no_message
from cli.history.why_logs import LogStory, not_taken, stories_elsewhere
from cli.logsource import (
    SourceFlags,
    check_filter,
    flags_of_session,
    open_node_logs,
    open_source,
    parse_point,
    point_at,
)
from eventstore.errors import CutOff, NotFound, UsageError
from eventstore.format import LOG_SESSION, PointSpec, Position, format_position, position
from eventstore.reading import LogSource, Progress
from eventstore.reasons import close_text, drop_text_with_limit, expiry_text, resend_text
from projections.audit import (
    DeliveryCopy,
    DeniedFilter,
    EarlierSession,
    MessageStory,
    StoryStep,
    SubscriberState,
    UnreadDrops,
)
from projections.replay import denial_text, find_stories, message_at, topic_matcher
from protocol.mqtt import ReasonCode
from protocol.mqtt5 import SHARE

Paint: TypeAlias = Callable[[str, Style | None], str]

_LISTED = 10
_FATES = {
    "queued": "still queued",
    "in_flight": "in flight: sent, not acknowledged",
    "releasing": "in flight: received (PUBREC), waiting for PUBCOMP",
    "acknowledged": "acknowledged",
    "refused": "refused by the client",
    "assigned": "given to a member of the shared subscription",
    "returned": "returned to the shared subscription",
    "expired": "expired in the queue",
    "dropped": "dropped",
    "gone": "not delivered: the session ended first",
}

_FATE_STYLES: dict[str, Style] = {
    "queued": "yellow",
    "in_flight": "yellow",
    "releasing": "yellow",
    "acknowledged": "green",
    "refused": "red",
    "expired": "red",
    "dropped": "red",
    "gone": "red",
}
TOO_LARGE = f"0x{ReasonCode.PACKET_TOO_LARGE:02x}"
"""The reason code with which the broker ends a delivery that the client no longer accepts."""

_SHORT = {"in_flight": "in flight", "releasing": "in flight", "gone": "session ended"}
_FOUND = {
    "queued": "queued",
    "in_flight": "sent, not acknowledged",
    "releasing": "received (PUBREC), waiting for PUBCOMP",
}
"""The state in which a checkpoint found a message published before the log begins."""


def run_why(
    flags: SourceFlags,
    client: str | None,
    topic: str | None,
    where: str | None,
    last: int,
    when: str | None = None,
    *,
    as_json: bool,
) -> None:
    """Print the history of messages; raises NotFound if there are none.

    ``when`` is the moment up to which messages are searched.
    """
    if (topic is None) == (where is None):
        raise UsageError("give either --position, or --topic with --client")
    if topic is not None and client is None:
        raise UsageError("--topic also needs --client, the receiver")
    if when is not None and topic is None:
        raise UsageError("--at needs --topic: --position names one message already")
    asyncio.run(_run(flags, client, topic, where, last, when, as_json=as_json))


async def _run(
    flags: SourceFlags,
    client: str | None,
    topic: str | None,
    where: str | None,
    last: int,
    when: str | None,
    *,
    as_json: bool,
) -> None:
    if topic is not None:
        check_filter(topic)
    moment = parse_point(when) if when is not None else None
    place = _position(where) if where is not None else None
    flags = flags_of_session(flags, client)
    async with contextlib.AsyncExitStack() as stack:
        logs = await stack.enter_async_context(open_node_logs(flags))
        if logs and flags.node is not None:
            source = logs[flags.node]
        else:
            source = await stack.enter_async_context(open_source(flags))
        for one in logs.values() or [source]:
            one.require_whole()
        ref = await message_at(source, place) if place is not None else None
        until = None
        if moment is not None:
            point = await point_at(source, moment)
            until = position(point.sequence, point.index)
        log = flags.node if logs else None
        wanted = WantedStories(topic, client, last, ref, until, moment)
        groups = await find_histories(source, logs, log, wanted, progress)
        found = [one for group in groups for one in group]
        explanation = ""
        if not found and topic is not None:
            explanation = await explain_no_message(source, topic, client, until)
    if not found and ref is not None:
        raise CutOff(
            f"position {format_position(ref)} was deleted, and no record refers to it: "
            f"{source.beginning()}"
        )
    if not found:
        cut = f"; {source.beginning()}" if source.cut is not None else ""
        by = f" until {text.escaped(when)}" if when is not None else ""
        which = f"logs of {', '.join(logs)} record" if logs else "log records"
        known = f"the {which} no message on {text.name(topic or '')}{by}{cut}"
        raise NotFound(f"{known}; {explanation}")
    _write(found, flags.node, client, as_json=as_json)


class WantedStories(NamedTuple):
    """The messages whose histories are wanted: the last ones on a topic, or one."""

    topic: str | None
    client: str | None
    last: int = 1
    ref: Position | None = None
    until: Position | None = None
    """Position up to which messages are searched."""
    moment: PointSpec | None = None
    """The same for other logs: a time."""


async def find_histories(
    source: LogSource,
    logs: Mapping[str, LogSource],
    log: str | None,
    wanted: WantedStories,
    progress: Progress,
) -> list[list[LogStory]]:
    """Return the histories of messages: of each those in all logs that have it.

    ``source`` is the log of the receiver, or that of the message; ``logs`` are all, if there are
    several, and ``log`` its name among them. Raises UsageError, and as ``LogSource.records``.
    """
    topic, client = wanted.topic, wanted.client
    stories = await find_stories(
        source,
        matches=topic_matcher(topic) if topic is not None else None,
        topic_filter=topic,
        last=wanted.last,
        ref=wanted.ref,
        client=client,
        until=wanted.until,
        progress=progress,
    )
    if not logs or log is None:
        return [[LogStory("", one)] for one in stories]
    groups = await stories_elsewhere(logs, log, stories, progress)
    if topic is not None and client is not None:
        groups += await not_taken(logs, log, client, topic, wanted.last, wanted.moment, progress)
        groups.sort(key=lambda group: group[0].story.time_ms or 0)
    return groups[-wanted.last :]


def _plain(said: str, _style: Style | None) -> str:
    return said


def _on_stdout(said: str, style: Style | None) -> str:
    return painted(said, style, sys.stdout)


def told_lines(
    found: LogStory, node: str | None, client: str | None, paint: Paint = _plain
) -> Iterator[str]:
    """Yield a history as text; ``node`` is the log that has the session of the client."""
    elsewhere = found.log not in ("", node)
    mine = None if elsewhere else client
    yield from story_lines(found.story, mine, brief=elsewhere and client is not None, paint=paint)
    if found.note:
        yield f"  {found.note}"


def _write(found: list[LogStory], node: str | None, client: str | None, *, as_json: bool) -> None:
    """Print histories; ``node`` is the log that has the session of the client."""
    paint = _on_stdout if has_colours(sys.stdout) else _plain
    for number, one in enumerate(found):
        log, story, note = one
        if as_json:
            mine = client if log in ("", node) else None
            more = {"log": log, **({"note": note} if note else {})} if log else {}
            sys.stdout.write(text.json_line({**more, **story_object(story, mine)}) + "\n")
            continue
        if number:
            sys.stdout.write("\n")
        if log:
            sys.stdout.write(f"log {log}\n")
        for line in told_lines(one, node, client, paint):
            sys.stdout.write(line + "\n")


def _position(where: str) -> Position:
    moment = parse_point(where)
    if moment.position is None:
        raise UsageError(f'not a position: "{text.escaped(where)}"; expected one such as 12.3')
    if "." not in moment.text:
        return moment.position & ~((1 << 20) - 1)
    return moment.position


def story_lines(
    story: MessageStory, client: str | None, *, brief: bool = False, paint: Paint = _plain
) -> Iterator[str]:
    """Yield the history of a message as text, with other sessions in short; ``brief``: all.

    ``paint`` returns a text in a style.
    """
    yield paint(_message(story), "bold")
    by = _publisher(story)
    if story.before:
        yield f"  published{by} before the log begins, which is with record {story.before}"
    else:
        yield f"  {paint(text.stamp(story.ref, story.time_ms or 0), 'dim')}  published{by}"
    for step in story.steps:
        yield f"  {paint(text.stamp(step.at, step.time_ms), 'dim')}  {_own_step(step)}"
    if story.effective:
        yield _matched(story, paint)
    elif not any(step.what == "discarded" for step in story.steps):
        yield "  waiting for PUBREL from its publisher before it is delivered"
    if brief:
        return
    mine = [copy for copy in story.copies if client is None or copy.session == client]
    if client is not None and story.effective and not any(not copy.retain for copy in mine):
        yield f"  {paint(f'{text.name(client)} {_reason(story)}', _reason_style(story))}"
    for copy in mine[:_LISTED] if client is None else mine:
        yield from copy_lines(copy, story.expires, paint)
    if client is not None and story.standing is not None:
        shared = [copy for copy in story.copies if copy.session in story.standing.shared]
        for copy in shared:
            yield from copy_lines(copy, story.expires, paint)


def _message(story: MessageStory) -> str:
    parts = [f"message {format_position(story.ref)}"]
    parts[0] += f" on {text.name(story.topic)}" if story.topic is not None else ""
    if story.qos is not None:
        parts.append(f"QoS {story.qos}{' retained' if story.retain else ''}")
    if story.size is not None:
        parts.append(text.size(story.size))
    if story.expires:
        parts.append(f"expires {text.clock(story.expires * 1000)}")
    return ", ".join(parts)


def _publisher(story: MessageStory) -> str:
    if story.session is None:
        return ""
    if story.session.startswith(LOG_SESSION):
        log = text.name(story.session.removeprefix(LOG_SESSION))
        if story.share:
            return f" in log {log}, assigned there to {text.name(story.share)} here, and taken"
        return f" in log {log} and taken from there"
    if story.will:
        return f" as the will of {text.name(story.session)}"
    return f" by {text.name(story.session)}" + (f" as packet {story.pid}" if story.pid else "")


def _own_step(step: StoryStep) -> str:
    if step.what == "released":
        return f"released (PUBREL of packet {step.pid}): it takes effect"
    if step.what == "expired":
        return "expired: it is no longer retained"
    if step.what == "carried":
        return "copied before the log was cut: a session still needs it"
    if step.what == "repeated":
        return f"copied by a checkpoint: retained as {format_position(step.at)} from here on"
    return "discarded: the session of its publisher ended before the PUBREL"


def _matched(story: MessageStory, paint: Paint) -> str:
    if not story.copies and story.before:
        return "  the log records no delivery since it begins"
    if not story.copies:
        return "  recorded for no session (QoS 0 deliveries are not recorded)"
    shown = (
        f"{text.name(copy.session, 40)} ({paint(_short(copy), _FATE_STYLES.get(copy.fate))})"
        for copy in story.copies[:_LISTED]
    )
    more = len(story.copies) - _LISTED
    rest = f" and {more:,} more" if more > 0 else ""
    return f"  recorded for {', '.join(shown)}{rest}"


def _short(copy: DeliveryCopy) -> str:
    return _SHORT.get(copy.fate, copy.fate)


def _reason(story: MessageStory) -> str:
    """Return why the log records nothing of a message for the session."""
    standing = story.standing
    if story.share and not (standing is not None and story.share in standing.shared):
        return f"is not concerned: it was passed on for {text.name(story.share)} alone"
    if standing is None:
        return "has no record from the time of publication: it was deleted"
    if not standing.known:
        return f"had no session at that moment{_earlier(standing)}{_denied(standing)}"
    if story.share or (not standing.filters and standing.shared):
        return _shared_reason(story, standing)
    if not standing.filters:
        there = "was connected but" if standing.connected else "was offline and"
        return f"{there} had no matching subscription{_denied(standing)}{_alike(story, standing)}"
    if len(standing.no_local) == len(standing.filters):
        which = ", ".join(text.name(one) for one in standing.no_local)
        return f"published it itself, and its subscription ({which}) has No Local"
    granted = ", ".join(f"{text.name(one)} QoS {qos}" for one, qos in standing.filters)
    if story.qos and any(qos for _, qos in standing.filters):
        return f"was subscribed ({granted}), but nothing is recorded for it"
    if not standing.connected:
        return f"was subscribed ({granted}) but offline: QoS 0 messages are not queued"
    if standing.unread is not None:
        return f"was subscribed ({granted}) and connected, but {_unread(standing.unread)}"
    return f"was subscribed ({granted}) and connected: sent at QoS 0, which is not recorded"


def _reason_style(story: MessageStory) -> Style | None:
    """Return the style of the reason: red for a loss."""
    standing = story.standing
    if standing is None or not standing.known:
        return "yellow"
    if standing.denied or standing.unread is not None:
        return "red"
    return None if standing.filters and standing.connected else "yellow"


def _earlier(standing: SubscriberState) -> str:
    """Return what became of the session that a client had before."""
    earlier = standing.earlier
    if earlier is None:
        if standing.seen is None:
            return ""
        first = (
            "its first one began later" if standing.seen else "the log does not know this client"
        )
        return f": {first}"
    had = "with no matching subscription"
    if earlier.filters:
        had = f"which was subscribed to {', '.join(map(text.name, earlier.filters))}"
    reason, how = expiry_text(earlier.reason), "ended"
    if earlier.closed:
        reason, how = close_text(earlier.reason), "ended with its connection"
    when = f"{format_position(earlier.at)}, {text.clock(earlier.time_ms)}"
    return f": its last one, {had}, {how} at {when} ({reason})"


def _unread(drops: UnreadDrops) -> str:
    """Return which messages were dropped for a client that read too slowly."""
    when = f"{format_position(drops.at)}, {text.clock(drops.time_ms)}"
    was = "was" if drops.dropped == 1 else "were"
    likely = "most likely" if drops.messages and drops.dropped >= drops.messages else "perhaps"
    return (
        f"{text.count_of(drops.dropped, 'message')} of that moment {was} dropped for it, {likely} "
        f"this one, at {when}: {drop_text_with_limit('slow_reader', drops.limits)}"
    )


def _denied(standing: SubscriberState) -> str:
    """Return the matching filters that were denied to the session."""
    return "".join(
        f"; it was denied {text.name(one.filter)} at {format_position(one.at)}, "
        f"{text.clock(one.time_ms)}: {denial_text(one.code)}"
        for one in standing.denied
    )


def _alike(story: MessageStory, standing: SubscriberState) -> str:
    """Return the filters of the session that nearly match."""
    if not standing.alike or story.topic is None:
        return ""
    which = ", ".join(text.name(one) for one in standing.alike)
    does = "does" if len(standing.alike) == 1 else "do"
    return f"; {which} {does} not match, but nearly: the topic is {text.name(story.topic)}"


def _shared_reason(story: MessageStory, standing: SubscriberState) -> str:
    """Return why a member of shared subscriptions has no record of a message."""
    members = [
        step.detail
        for copy in story.copies
        if copy.session in standing.shared
        for step in copy.steps
        if step.what == "assigned"
    ]
    which = ", ".join(text.name(one) for one in standing.shared)
    if members:
        others = ", ".join(_member(one).removeprefix("member ") for one in dict.fromkeys(members))
        return f"shares {which}, where it was given to {others}: each message goes to one member"
    return f"shares {which}, where it was given to no member"


def _member(member: str) -> str:
    """Return the member of a shared subscription, or the log that has it."""
    if member.startswith(LOG_SESSION):
        return f"members in log {text.name(member.removeprefix(LOG_SESSION))}"
    return f"member {text.name(member)}"


def copy_lines(copy: DeliveryCopy, expires: int = 0, paint: Paint = _plain) -> Iterator[str]:
    """Yield the delivery of a message to one session; ``expires`` is its expiry, 0: never."""
    fate = paint(_fate(copy, expires), _FATE_STYLES.get(copy.fate))
    origin = "as a retained message, " if copy.retain else ""
    granted = f" at QoS {copy.qos}" if copy.qos else ""
    held = f", subscription {text.name(copy.filter)}" if copy.filter else ""
    yield f"  for {text.name(copy.session)}{held}{granted}: {origin}{fate}"
    for step in copy.steps:
        yield f"    {paint(text.stamp(step.at, step.time_ms), 'dim')}  {_copy_step(step, copy)}"


def _fate(copy: DeliveryCopy, expires: int) -> str:
    """Return the outcome of a copy."""
    last = copy.steps[-1] if copy.steps else None
    shared = copy.session.startswith(SHARE)
    if copy.fate == "queued" and 0 < expires <= time.time():
        return "still queued, but expired: it will not be sent"
    if copy.fate == "queued" and shared:
        return "waits until a member is connected and has room"
    if copy.fate == "dropped" and last is not None:
        return f"dropped: {drop_text_with_limit(last.detail, last.limits, shared=shared)}"
    if copy.fate == "assigned" and last is not None:
        return f"given to its {_member(last.detail)}"
    if copy.fate == "refused" and last is not None:
        return f"not accepted: {_code_text(last.detail)}"
    return _FATES[copy.fate]


def _code_text(code: str) -> str:
    """Return a reason code, written as 0x87, with its name in the standard."""
    if code == TOO_LARGE:
        return "larger than the Maximum Packet Size of the client"
    try:
        name = ReasonCode(int(code, 16)).name.replace("_", " ").lower()
    except ValueError:
        return f"reason code {text.escaped(code)}"
    return f"reason code {code} ({name})"


def _copy_step(step: StoryStep, copy: DeliveryCopy) -> str:
    match step.what:
        case "held":
            packet = f" under packet {step.pid}" if step.pid else ""
            return f"found by a checkpoint: {_FOUND[step.detail]}{packet}"
        case "queued":
            return "queued"
        case "delivered":
            return f"sent as packet {step.pid}"
        case "redelivered":
            return f"sent again as packet {step.pid}: {resend_text(step.detail)}"
        case "acked" | "refused" if step.detail == TOO_LARGE:
            # No client may send this code: the broker ended the delivery, without sending it again.
            return f"packet {step.pid} not sent again: {_code_text(step.detail)}"
        case "acked" | "received" | "refused" | "completed":
            code = f" with {_code_text(step.detail)}" if step.detail else ""
            return f"{_ANSWERED[step.what]} of packet {step.pid}{code}"
        case "assigned":
            return f"given to the {_member(step.detail)}"
        case "returned":
            return "returned to the shared subscription: its member went without an answer"
        case "expired":
            return "expired in the queue"
        case "dropped":
            shared = copy.session.startswith(SHARE)
            return f"dropped: {drop_text_with_limit(step.detail, step.limits, shared=shared)}"
    return f"the session ended: {expiry_text(step.detail)}" if step.detail else "the session ended"


_ANSWERED = {
    "acked": "acknowledged: PUBACK",
    "received": "received: PUBREC",
    "refused": "refused: PUBREC",
    "completed": "complete: PUBCOMP",
}


def story_object(story: MessageStory, client: str | None) -> dict[str, object]:
    """Return the history of a message as a JSON object, with all sessions."""
    standing = story.standing
    return {
        "position": format_position(story.ref),
        "time": None if story.time_ms is None else text.iso(story.time_ms),
        "before_record": story.before or None,
        "topic": story.topic,
        "qos": story.qos,
        "retain": story.retain,
        "will": story.will,
        "size": story.size,
        **({"expires": text.iso(story.expires * 1000)} if story.expires else {}),
        "session": story.session,
        "packet_id": story.pid or None,
        "effective": story.effective,
        "steps": [_step_object(step) for step in story.steps],
        "client": client,
        "standing": None
        if standing is None
        else {
            "known": standing.known,
            "connected": standing.connected,
            "subscriptions": [{"filter": one, "qos": qos} for one, qos in standing.filters],
            **({"shared": [*standing.shared]} if standing.shared else {}),
            **({"no_local": [*standing.no_local]} if standing.no_local else {}),
            **(
                {"denied": [_denied_object(one) for one in standing.denied]}
                if standing.denied
                else {}
            ),
            **({"alike": [*standing.alike]} if standing.alike else {}),
            **({"seen": standing.seen} if standing.seen is not None else {}),
            **({"earlier": _earlier_object(standing.earlier)} if standing.earlier else {}),
            **({"unread": _unread_object(standing.unread)} if standing.unread else {}),
        },
        "copies": [
            {
                "session": copy.session,
                "filter": copy.filter,
                "qos": copy.qos,
                "retain": copy.retain,
                "fate": copy.fate,
                "steps": [_step_object(step) for step in copy.steps],
            }
            for copy in story.copies
        ],
    }


def _denied_object(one: DeniedFilter) -> dict[str, object]:
    return {
        "filter": one.filter,
        "reason_code": one.code,
        "position": format_position(one.at),
        "time": text.iso(one.time_ms),
    }


def _earlier_object(one: EarlierSession) -> dict[str, object]:
    return {
        "position": format_position(one.at),
        "time": text.iso(one.time_ms),
        "reason": one.reason,
        "subscriptions": [*one.filters],
    }


def _unread_object(one: UnreadDrops) -> dict[str, object]:
    return {
        "position": format_position(one.at),
        "time": text.iso(one.time_ms),
        "dropped": one.dropped,
        "messages": one.messages,
    }


def _step_object(step: StoryStep) -> dict[str, object]:
    return {
        "position": format_position(step.at),
        "time": text.iso(step.time_ms),
        "what": step.what,
        **({"packet_id": step.pid} if step.pid else {}),
        **({"detail": step.detail} if step.detail else {}),
    }
