"""Topics and topic filters given as flags."""

from eventstore.display import escaped
from eventstore.errors import UsageError
from protocol.mqtt.topics import TopicError, validate_topic_filter, validate_topic_name


def check_filter(topic_filter: str) -> None:
    """Raise UsageError unless the text is a topic filter."""
    try:
        validate_topic_filter(topic_filter)
    except TopicError as error:
        raise UsageError(f'topic "{escaped(topic_filter)}": {error}') from None


def check_topic(topic: str) -> None:
    """Raise UsageError unless the text is a topic to publish to."""
    try:
        validate_topic_name(topic)
    except TopicError as error:
        raise UsageError(f'topic "{escaped(topic)}": {error}') from None
