"""The bridges of several logs: the home of a topic, and the reports between them."""

from actors.bridge.several_logs.filter_reports import FilterReports
from actors.bridge.several_logs.topic_homes import TopicHomes, topic_header

__all__ = ["FilterReports", "TopicHomes", "topic_header"]
