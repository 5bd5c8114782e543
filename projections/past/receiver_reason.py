"""The reason why the log records no delivery of a message to a client."""

from eventstore import display
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import format_position
from eventstore.reasons import close_text, drop_text_with_limit, expiry_text
from projections.past.event_text import denial_text
from projections.past.message_story import MessageStory
from projections.past.subscriber_state import (
    EarlierSession,
    Recorded,
    ReplayPast,
    SubscriberState,
    UnreadDrops,
)
from projections.views.replay_view import left_out_text, place_text, state_text


def receiver_reason(story: MessageStory) -> str:
    """Return why the log records no delivery of a message to the session."""
    subscriber = story.subscriber
    if story.share and not (subscriber is not None and story.share in subscriber.shared):
        return f"was not a receiver: the message was assigned to {display.name(story.share)} only"
    if subscriber is not None and subscriber.replays:
        replays = "; it ".join(replay_reason(story, replay) for replay in subscriber.replays)
        if not (subscriber.filters or subscriber.shared):
            return replays
        return f"{_standing(story, subscriber)}; it {replays}"
    return _standing(story, subscriber)


def _standing(story: MessageStory, subscriber: SubscriberState | None) -> str:
    """Return why no subscription sent the message to the session when it took effect."""
    if subscriber is None:
        cut = f": {story.beginning}" if story.beginning else ""
        return f"is not known at that time: the log does not go back that far{cut}"
    if not subscriber.known:
        return f"had no session at that time{_earlier(subscriber)}{_denied(subscriber)}"
    if story.share or (not subscriber.filters and subscriber.shared):
        return _shared_reason(story, subscriber)
    if not subscriber.filters:
        there = "was connected but" if subscriber.connected else "was offline and"
        return (
            f"{there} had no matching subscription{_changes(subscriber)}{_denied(subscriber)}"
            f"{_alike(story, subscriber)}"
        )
    if len(subscriber.no_local) == len(subscriber.filters):
        which = ", ".join(display.name(name) for name in subscriber.no_local)
        return f"published the message itself, and its subscription ({which}) has No Local"
    granted = ", ".join(f"{display.name(name)} QoS {qos}" for name, qos in subscriber.filters)
    if story.qos and any(qos for _, qos in subscriber.filters):
        return f"was subscribed ({granted}), but nothing is recorded for it"
    if not subscriber.connected:
        return f"was subscribed ({granted}) but offline: QoS 0 messages are not queued"
    if subscriber.unread is not None:
        return f"was subscribed ({granted}) and connected, but {_unread(subscriber.unread)}"
    return f"was subscribed ({granted}) and connected: sent at QoS 0, which is not recorded"


def replay_reason(story: MessageStory, replay: ReplayPast) -> str:
    """Return what a replay did with the message."""
    which = f"has a replay, {display.name(replay.filter)}, which"
    if replay.never:
        return f"{which} {_NEVER[replay.never]}"
    read = replay.read
    if read is None and replay.through >= story.effective_at:
        return f"{which} has read further, but the log does not show what became of the message"
    if read is None:
        reached = f"has reached {place_text(replay.through)}" if replay.through >= 0 else "is at"
        reached += "" if replay.through >= 0 else " its beginning"
        state = f" ({state_text(replay.state)})" if replay.state else ""
        return f"{which} {reached}{state}; this message is {format_position(story.effective_at)}"
    when = place_of(read)
    if read.unread:
        return f"{which} lost it: it was cut off unread, as recorded at {when}"
    sent = f"{display.count_of(read.sent, 'message')} sent{left_out_text(read.left_out)}"
    return f"{which} read it at {when}, with {sent}"


_NEVER = {
    "before": "begins behind this message",
    "after": "ends before this message",
    "last": "sends only the last message of each topic of that time",
}


def _earlier(subscriber: SubscriberState) -> str:
    """Return how the earlier session of a client ended."""
    earlier = subscriber.earlier
    if earlier is None:
        if subscriber.seen is None:
            return ""
        first = (
            "its first one began later" if subscriber.seen else "the log does not know this client"
        )
        return f": {first}"
    return f": {ended_session_text(earlier)}"


def ended_session_text(earlier: EarlierSession) -> str:
    """Return how the last session of a client ended, for the end of a sentence."""
    had = "with no matching subscription"
    if earlier.filters:
        had = f"which was subscribed to {', '.join(map(display.name, earlier.filters))}"
    reason, how = expiry_text(earlier.reason), "ended"
    if earlier.closed:
        reason, how = close_text(earlier.reason), "ended with its connection"
    return f"its last one, {had}, {how} at {place_of(earlier)} ({reason})"


def _unread(drops: UnreadDrops) -> str:
    """Return which messages were dropped for a client that read too slowly."""
    was = "was" if drops.dropped == 1 else "were"
    likely = "most likely" if drops.messages and drops.dropped >= drops.messages else "perhaps"
    reason = drop_text_with_limit("slow_reader", drops.limits)
    return (
        f"{display.count_of(drops.dropped, 'message')} of that time {was} dropped for it, "
        f"{likely} this one, at {place_of(drops)}: {reason}"
    )


def _denied(subscriber: SubscriberState) -> str:
    """Return the matching filters that were denied to the session."""
    return "".join(
        f"; it was denied {display.name(each.filter)} at {place_of(each)}: {denial_text(each.code)}"
        for each in subscriber.denied
    )


def _changes(subscriber: SubscriberState) -> str:
    """Return which matching subscriptions ended just before, or began just after."""
    changes = (
        (subscriber.ended, "was unsubscribed at"),
        (subscriber.begun, "was subscribed only at"),
    )
    return "".join(
        f"; {display.name(change.filter)} {what} {place_of(change)}"
        for change, what in changes
        if change is not None
    )


def place_of(event: Recorded) -> str:
    """Return the position and the time of what the log records."""
    return f"{format_position(event.at)}, {display.clock(event.time_ms)}"


def _alike(story: MessageStory, subscriber: SubscriberState) -> str:
    """Return the filters of the session that nearly match."""
    if not subscriber.alike or story.topic is None:
        return ""
    which = ", ".join(display.name(name) for name in subscriber.alike)
    verb = "matches" if len(subscriber.alike) == 1 else "match"
    return f"; {which} nearly {verb}: the topic is {display.name(story.topic)}"


def _shared_reason(story: MessageStory, subscriber: SubscriberState) -> str:
    """Return why a member of shared subscriptions has no record of a message."""
    members = [
        step.detail
        for copy in story.copies
        if copy.session in subscriber.shared
        for step in copy.steps
        if step.what == "assigned"
    ]
    which = ", ".join(display.name(name) for name in subscriber.shared)
    if members:
        others = ", ".join(
            shared_member_text(name).removeprefix("member ") for name in dict.fromkeys(members)
        )
        return f"shares {which}, which assigned it to {others}: each message goes to one member"
    return f"shares {which}, which has not assigned it to a member"


def shared_member_text(member: str) -> str:
    """Return the member of a shared subscription, or the log that has it."""
    if member.startswith(LOG_SESSION):
        return f"members in log {display.name(member.removeprefix(LOG_SESSION))}"
    return f"member {display.name(member)}"


def is_loss(subscriber: SubscriberState) -> bool:
    """Return whether a session lacks a message because of a denial or a drop."""
    return bool(subscriber.denied) or subscriber.unread is not None
