"""What a log says: its state as of a point, its events as text, the topics of its messages.

These read a log through ``eventstore.reading.LogSource`` and never write. They know no clock; a
``progress`` that is given shows how far they are.
"""

from projections.replay.event_reader import (
    EVENT_TYPES,
    EventEntry,
    EventFilter,
    EventReader,
    refs_of,
)
from projections.replay.event_text import event_object, options_text, payload_words, words
from projections.replay.message_search import find_stories, message_at
from projections.replay.replay import AsOf, Origins, Replay, fold, head
from projections.replay.salvage_needs import SalvageNeeds
from projections.replay.session_history import SessionEvent, SessionHistory, SessionMoment
from projections.replay.topic_lookup import Published, TopicBook, Topics, topic_matcher

__all__ = [
    "EVENT_TYPES",
    "AsOf",
    "EventEntry",
    "EventFilter",
    "EventReader",
    "Origins",
    "Published",
    "Replay",
    "SalvageNeeds",
    "SessionEvent",
    "SessionHistory",
    "SessionMoment",
    "TopicBook",
    "Topics",
    "event_object",
    "find_stories",
    "fold",
    "head",
    "message_at",
    "options_text",
    "payload_words",
    "refs_of",
    "topic_matcher",
    "words",
]
