"""The history of a message as text, for terminals and pages, and as a JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from eventstore import display
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import format_position
from eventstore.format.stored_properties import expiry_ms
from eventstore.reading.position_text import stamp
from eventstore.reasons import drop_text_with_limit, expiry_text, resend_text
from projections.past.message_story import DeliveryCopy, MessageStory, StoryStep
from projections.past.receiver_reason import (
    is_loss,
    receiver_reason,
    shared_member_text,
)
from projections.past.subscriber_state import (
    Recorded,
    ReplayPast,
    SubscriberState,
    SubscriptionChange,
)
from projections.views.replay_view import READING
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.replay_filters import is_replay_filter
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from projections.past.log_stories import LogStory

TextStyle: TypeAlias = Literal["bold", "dim", "red", "green", "yellow"]
Paint: TypeAlias = Callable[[str, TextStyle | None], str]
"""Returns a text in a style."""

_LISTED: Final = 10
"""Maximum sessions of a message that are listed."""
_OUTCOMES: dict[str, tuple[str, TextStyle | None]] = {
    "queued": ("still queued", "yellow"),
    "in_flight": ("in flight: sent, not acknowledged", "yellow"),
    "releasing": ("in flight: received (PUBREC), waiting for PUBCOMP", "yellow"),
    "acknowledged": ("acknowledged", "green"),
    "refused": ("refused by the client", "red"),
    "assigned": ("assigned to a member of the shared subscription", None),
    "returned": ("returned to the shared subscription", None),
    "expired": ("expired in the queue", "red"),
    "dropped": ("dropped", "red"),
    "gone": ("not delivered: the session ended before", "red"),
}
_SHORT = {"in_flight": "in flight", "releasing": "in flight", "gone": "session ended"}
_FOUND = {
    "queued": "queued",
    "in_flight": "sent, not acknowledged",
    "releasing": "received (PUBREC), waiting for PUBCOMP",
}
"""The state in which a checkpoint found a message published before the log begins."""
_TOO_LARGE: Final = f"0x{ReasonCode.PACKET_TOO_LARGE:02x}"
"""The reason code with which the broker ends a delivery that the client no longer accepts."""
_NOT_PERMITTED: Final = f"0x{ReasonCode.ADMINISTRATIVE_ACTION:02x}"
"""That of a delivery that the client may no longer read, or whose content was erased."""
_BY_THE_BROKER: Final = frozenset({_TOO_LARGE, _NOT_PERMITTED})
"""Codes that no client may send: the broker ended the delivery, without sending it again."""
_ANSWERED = {
    "acked": "acknowledged: PUBACK",
    "received": "received: PUBREC",
    "refused": "refused: PUBREC",
    "completed": "complete: PUBCOMP",
}


def log_story_lines(
    log_story: LogStory,
    node: str | None,
    client: str | None,
    now_ms: int,
    paint: Paint | None = None,
) -> Iterator[str]:
    """Yield a history in one of the logs as text.

    ``node`` is the log that has the session of the client; other arguments as in
    :func:`story_lines`.
    """
    elsewhere = log_story.log not in ("", node)
    mine = None if elsewhere else client
    brief = elsewhere and client is not None
    yield from story_lines(log_story.story, mine, now_ms, brief=brief, paint=paint)
    yield from (f"  {statement}" for statement in log_story.story.not_proven)
    if log_story.note:
        yield f"  {log_story.note}"


def story_lines(
    story: MessageStory,
    client: str | None,
    now_ms: int,
    *,
    brief: bool = False,
    paint: Paint | None = None,
) -> Iterator[str]:
    """Yield the history of a message as text, other sessions abbreviated, or all if ``brief``.

    ``now_ms`` is the time at which queued messages count as expired or not.
    """
    paint = paint or _plain
    yield paint(_message(story), "bold")
    by = _publisher(story)
    if story.before:
        yield f"  published{by} before record {story.before}, with which the log begins"
    else:
        yield f"  {paint(stamp(story.ref, story.time_ms or 0), 'dim')}  published{by}"
    for step in story.steps:
        yield f"  {paint(stamp(step.at, step.time_ms), 'dim')}  {_own_step(step)}"
    if story.effective:
        yield _matched(story, paint)
    elif not any(step.what in {"discarded", "replaced"} for step in story.steps):
        yield "  waiting for PUBREL from its publisher before it is delivered"
    if brief:
        return
    mine = [copy for copy in story.copies if client is None or copy.session == client]
    if client is not None and story.effective and not any(not copy.retain for copy in mine):
        reason = f"{display.name(client)} {receiver_reason(story)}"
        yield f"  {paint(reason, _reason_style(story))}"
    for copy in mine[:_LISTED] if client is None else mine:
        yield from _copy_lines(copy, paint, expired=_has_expired(story, now_ms))
    if client is not None and story.subscriber is not None:
        shared = [copy for copy in story.copies if copy.session in story.subscriber.shared]
        for copy in shared:
            yield from _copy_lines(copy, paint, expired=_has_expired(story, now_ms))


def _message(story: MessageStory) -> str:
    # A checkpoint may have copied a message from before the log: this is not its publication.
    parts = ["message" if story.before else f"message {format_position(story.ref)}"]
    parts[0] += f" on {display.name(story.topic)}" if story.topic is not None else ""
    if story.before:
        parts[0] += f" (earliest known position {format_position(story.ref)})"
    if story.qos is not None:
        parts.append(f"QoS {story.qos}{' retained' if story.retain else ''}")
    if story.size is not None:
        parts.append(display.size(story.size))
        if story.retain and not story.size and story.effective:
            parts.append("which removed the retained message on the topic")
    if story.expires:
        parts.append(f"expires {display.clock(expiry_ms(story.expires))}")
    return ", ".join(parts)


def _publisher(story: MessageStory) -> str:
    if story.session is None:
        return ""
    if story.session.startswith(LOG_SESSION):
        log = display.name(story.session.removeprefix(LOG_SESSION))
        if story.share:
            return f" in log {log}, assigned to {display.name(story.share)} here, and taken"
        return f" in log {log} and taken from there"
    if story.will:
        return f" as the will of {display.name(story.session)}"
    return f" by {display.name(story.session)}" + (f" as packet {story.pid}" if story.pid else "")


def _own_step(step: StoryStep) -> str:
    if step.what == "released":
        return f"released (PUBREL of packet {step.pid}): it takes effect"
    if step.what == "expired":
        return "expired: it is no longer retained"
    if step.what == "replaced":
        return "given up: its publisher used the packet identifier again without a PUBREL"
    if step.what == "carried":
        return "copied before the log was cut: a session still needs it"
    if step.what == "repeated":
        return f"copied by a checkpoint: retained as {format_position(step.at)} from here on"
    return "discarded: the session of its publisher ended before the PUBREL"


def _matched(story: MessageStory, paint: Paint) -> str:
    if not story.copies and story.before:
        return "  the log, from its beginning, records no delivery"
    if not story.copies:
        return "  recorded for no session (QoS 0 deliveries are not recorded)"
    shown = (
        f"{display.name(copy.session, 40)} ({paint(_short(copy), _OUTCOMES[copy.outcome][1])})"
        for copy in story.copies[:_LISTED]
    )
    more = len(story.copies) - _LISTED
    others = f" and {more:,} more" if more > 0 else ""
    return f"  recorded for {', '.join(shown)}{others}"


def _short(copy: DeliveryCopy) -> str:
    if copy.outcome == "refused" and copy.steps and copy.steps[-1].detail in _BY_THE_BROKER:
        return "not sent again"
    return _SHORT.get(copy.outcome, copy.outcome)


def _has_expired(story: MessageStory, now_ms: int) -> bool:
    return story.expires > 0 and expiry_ms(story.expires) <= now_ms


def _copy_lines(copy: DeliveryCopy, paint: Paint, *, expired: bool) -> Iterator[str]:
    """Yield the delivery of a message to one session."""
    outcome = paint(_outcome(copy, expired=expired), _OUTCOMES[copy.outcome][1])
    origin = "as a retained message, " if copy.retain else ""
    shared = copy.session.startswith(SHARE)  # each member has its own QoS
    granted = f" at QoS {copy.qos}" if copy.qos and not shared else ""
    kind = "replay" if is_replay_filter(copy.filter) else "subscription"
    held = f", {kind} {display.name(copy.filter)}" if copy.filter else ""
    yield f"  for {display.name(copy.session)}{held}{granted}: {origin}{outcome}"
    for step in copy.steps:
        yield f"    {paint(stamp(step.at, step.time_ms), 'dim')}  {_copy_step(step, copy)}"


def _outcome(copy: DeliveryCopy, *, expired: bool) -> str:
    """Return the outcome of a copy."""
    step = copy.steps[-1] if copy.steps else None
    shared = copy.session.startswith(SHARE)
    if copy.outcome == "queued" and expired:
        return "still queued, but expired: it will not be sent"
    if copy.outcome == "queued" and shared:
        return "waits until a member is connected and has room"
    if copy.outcome == "dropped" and step is not None:
        return f"dropped: {drop_text_with_limit(step.detail, step.limits, shared=shared)}"
    if copy.outcome == "assigned" and step is not None:
        return f"assigned to its {shared_member_text(step.detail)}"
    if copy.outcome == "refused" and step is not None:
        how = "not sent again" if step.detail in _BY_THE_BROKER else "not accepted"
        return f"{how}: {_code_text(step.detail)}"
    return _OUTCOMES[copy.outcome][0]


def _code_text(code: str) -> str:
    """Return a reason code, written as 0x87, with its name in the standard."""
    if code == _TOO_LARGE:
        return "larger than the Maximum Packet Size of the client"
    if code == _NOT_PERMITTED:
        return (
            "the permissions no longer let the client read this topic (permissions), or its "
            "content was erased"
        )
    try:
        name = ReasonCode(int(code, 16)).name.replace("_", " ").lower()
    except ValueError:
        return f"reason code {display.escaped(code)}"
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
        case "pubrel_repeated":
            return f"PUBREL of packet {step.pid} sent again: {resend_text(step.detail)}"
        case "acked" | "refused" if step.detail in _BY_THE_BROKER:
            return f"packet {step.pid} not sent again: {_code_text(step.detail)}"
        case "acked" | "received" | "refused" | "completed":
            code = f" with {_code_text(step.detail)}" if step.detail else ""
            return f"{_ANSWERED[step.what]} of packet {step.pid}{code}"
        case "assigned":
            return f"assigned to the {shared_member_text(step.detail)}"
        case "returned":
            return "returned to the shared subscription: the member left without acknowledging it"
        case "expired":
            return "expired in the queue"
        case "dropped":
            shared = copy.session.startswith(SHARE)
            return f"dropped: {drop_text_with_limit(step.detail, step.limits, shared=shared)}"
    return f"the session ended: {expiry_text(step.detail)}" if step.detail else "the session ended"


def _reason_style(story: MessageStory) -> TextStyle | None:
    """Return the style of the reason: red for a loss."""
    subscriber = story.subscriber
    if subscriber is None or not subscriber.known:
        return "yellow"
    if is_loss(subscriber):
        return "red"
    return None if subscriber.filters and subscriber.connected else "yellow"


def _plain(text: str, _style: TextStyle | None) -> str:
    return text


# ----------------------------------------------------------------------------- JSON


def story_object(story: MessageStory, client: str | None) -> dict[str, object]:
    """Return the history of a message as a JSON object, with all sessions."""
    return {
        "position": format_position(story.ref),
        "time": None if story.time_ms is None else display.iso(story.time_ms),
        "before_record": story.before or None,
        "topic": story.topic,
        "qos": story.qos,
        "retain": story.retain,
        "will": story.will,
        "size": story.size,
        **({"expires": display.iso(expiry_ms(story.expires))} if story.expires else {}),
        "session": story.session,
        "packet_id": story.pid or None,
        "effective": story.effective,
        **({"not_proven": story.not_proven} if story.not_proven else {}),
        "steps": [_step_object(step) for step in story.steps],
        "client": client,
        "standing": None if story.subscriber is None else _standing_object(story.subscriber),
        "copies": [
            {
                "session": copy.session,
                "filter": copy.filter,
                "qos": copy.qos,
                "retain": copy.retain,
                "fate": copy.outcome,
                "steps": [_step_object(step) for step in copy.steps],
            }
            for copy in story.copies
        ],
    }


def _standing_object(subscriber: SubscriberState) -> dict[str, object]:
    earlier, unread = subscriber.earlier, subscriber.unread
    fields = {
        "known": subscriber.known,
        "connected": subscriber.connected,
        "subscriptions": [{"filter": item, "qos": qos} for item, qos in subscriber.filters],
    }
    more = {
        "shared": subscriber.shared,
        "no_local": subscriber.no_local,
        "denied": [
            {"filter": item.filter, "reason_code": item.code, **_place(item)}
            for item in subscriber.denied
        ],
        "alike": subscriber.alike,
        "seen": subscriber.seen,
        "earlier": earlier
        and {**_place(earlier), "reason": earlier.reason, "subscriptions": [*earlier.filters]},
        "ended": _change_object(subscriber.ended),
        "begun": _change_object(subscriber.begun),
        "unread": unread
        and {**_place(unread), "dropped": unread.dropped, "messages": unread.messages},
        "replays": [_replay_object(item) for item in subscriber.replays],
    }
    return fields | {name: value for name, value in more.items() if value or value is False}


def _place(event: Recorded) -> dict[str, object]:
    return {"position": format_position(event.at), "time": display.iso(event.time_ms)}


def _change_object(change: SubscriptionChange | None) -> dict[str, object] | None:
    return change and {"filter": change.filter, **_place(change)}


def _replay_object(replay: ReplayPast) -> dict[str, object]:
    fields: dict[str, object] = {
        "filter": replay.filter,
        "through": format_position(replay.through) if replay.through >= 0 else None,
        "state": replay.state or READING,
    }
    if replay.never:
        fields["never"] = replay.never
    if replay.read is not None:
        fields |= {
            "read": format_position(replay.read.at),
            "read_at": display.iso(replay.read.time_ms),
            "sent": replay.read.sent,
            "left_out": dict(replay.read.left_out),
            "cut_off": replay.read.unread,
        }
    return fields


def _step_object(step: StoryStep) -> dict[str, object]:
    more = {"packet_id": step.pid, "detail": step.detail}
    return {
        **_place(step),
        "what": step.what,
        **{name: value for name, value in more.items() if value},
    }
