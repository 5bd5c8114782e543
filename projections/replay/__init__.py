"""Queries of a log: its state as of a point, its events as text, the topics of its messages.

They read a log through ``eventstore.reading.LogSource``, never write, and use no clock. A
``progress`` callback reports their progress.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from projections.replay.disk_use import DiskUse, sizes_by_levels
    from projections.replay.event_reader import (
        EVENT_TYPES,
        EventEntry,
        EventFilter,
        EventReader,
        cause_of,
        parts_left,
        refs_of,
    )
    from projections.replay.event_text import (
        denial_text,
        event_object,
        payload_words,
        reason_text,
        words,
    )
    from projections.replay.message_search import find_stories, message_at
    from projections.replay.origin_search import (
        OriginPlace,
        origin_of,
        origins_of,
        published_here,
        taken_from,
    )
    from projections.replay.receiver_past import ClientPast, client_past, may_concern
    from projections.replay.replay import AsOf, Origins, Replay, fold, head
    from projections.replay.salvage_needs import SalvageNeeds
    from projections.replay.session_history import SessionEvent, SessionHistory, SessionMoment
    from projections.replay.subscription_text import OF_MEMBERS, options_text
    from projections.replay.topic_lookup import MessageTopics, Published, Topics, topic_matcher
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "disk_use": "DiskUse sizes_by_levels",
            "event_reader": "EVENT_TYPES EventEntry EventFilter EventReader cause_of parts_left "
            "refs_of",
            "event_text": "denial_text event_object payload_words reason_text words",
            "message_search": "find_stories message_at",
            "origin_search": "OriginPlace origin_of origins_of published_here taken_from",
            "receiver_past": "ClientPast client_past may_concern",
            "replay": "AsOf Origins Replay fold head",
            "salvage_needs": "SalvageNeeds",
            "session_history": "SessionEvent SessionHistory SessionMoment",
            "subscription_text": "OF_MEMBERS options_text",
            "topic_lookup": "Published MessageTopics Topics topic_matcher",
        },
    )

__all__ = [
    "EVENT_TYPES",
    "OF_MEMBERS",
    "AsOf",
    "ClientPast",
    "DiskUse",
    "EventEntry",
    "EventFilter",
    "EventReader",
    "MessageTopics",
    "OriginPlace",
    "Origins",
    "Published",
    "Replay",
    "SalvageNeeds",
    "SessionEvent",
    "SessionHistory",
    "SessionMoment",
    "Topics",
    "cause_of",
    "client_past",
    "denial_text",
    "event_object",
    "find_stories",
    "fold",
    "head",
    "may_concern",
    "message_at",
    "options_text",
    "origin_of",
    "origins_of",
    "parts_left",
    "payload_words",
    "published_here",
    "reason_text",
    "refs_of",
    "sizes_by_levels",
    "taken_from",
    "topic_matcher",
    "words",
]
