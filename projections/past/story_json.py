"""The history of a message as a JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore import display
from eventstore.format.positions import format_position
from eventstore.format.stored_properties import expiry_ms

if TYPE_CHECKING:
    from projections.past.message_story import MessageStory, StoryStep
    from projections.past.subscriber_state import (
        DeniedFilter,
        EarlierSession,
        SubscriptionChange,
        UnreadDrops,
    )


def story_object(story: MessageStory, client: str | None) -> dict[str, object]:
    """Return the history of a message as a JSON object, with all sessions."""
    subscriber = story.subscriber
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
        "steps": [_step_object(step) for step in story.steps],
        "client": client,
        "standing": None
        if subscriber is None
        else {
            "known": subscriber.known,
            "connected": subscriber.connected,
            "subscriptions": [{"filter": one, "qos": qos} for one, qos in subscriber.filters],
            **({"shared": [*subscriber.shared]} if subscriber.shared else {}),
            **({"no_local": [*subscriber.no_local]} if subscriber.no_local else {}),
            **(
                {"denied": [_denied_object(one) for one in subscriber.denied]}
                if subscriber.denied
                else {}
            ),
            **({"alike": [*subscriber.alike]} if subscriber.alike else {}),
            **({"seen": subscriber.seen} if subscriber.seen is not None else {}),
            **({"earlier": _earlier_object(subscriber.earlier)} if subscriber.earlier else {}),
            **({"ended": _change_object(subscriber.ended)} if subscriber.ended else {}),
            **({"begun": _change_object(subscriber.begun)} if subscriber.begun else {}),
            **({"unread": _unread_object(subscriber.unread)} if subscriber.unread else {}),
        },
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


def _denied_object(one: DeniedFilter) -> dict[str, object]:
    return {
        "filter": one.filter,
        "reason_code": one.code,
        "position": format_position(one.at),
        "time": display.iso(one.time_ms),
    }


def _earlier_object(one: EarlierSession) -> dict[str, object]:
    return {
        "position": format_position(one.at),
        "time": display.iso(one.time_ms),
        "reason": one.reason,
        "subscriptions": [*one.filters],
    }


def _change_object(one: SubscriptionChange) -> dict[str, object]:
    return {
        "filter": one.filter,
        "position": format_position(one.at),
        "time": display.iso(one.time_ms),
    }


def _unread_object(one: UnreadDrops) -> dict[str, object]:
    return {
        "position": format_position(one.at),
        "time": display.iso(one.time_ms),
        "dropped": one.dropped,
        "messages": one.messages,
    }


def _step_object(step: StoryStep) -> dict[str, object]:
    return {
        "position": format_position(step.at),
        "time": display.iso(step.time_ms),
        "what": step.what,
        **({"packet_id": step.pid} if step.pid else {}),
        **({"detail": step.detail} if step.detail else {}),
    }
