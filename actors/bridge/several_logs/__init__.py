"""The bridges of several logs: which one records a message, and what they tell each other."""

from actors.bridge.several_logs.filter_reports import FilterReports
from actors.bridge.several_logs.topic_homes import TopicHomes, topic_header

__all__ = ["FilterReports", "TopicHomes", "topic_header"]
