"""The histories of messages: what the log records of a message and of its copy for each session.

``StoryBuilder`` assembles them from records.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from projections.stories.message_story import (
        DeliveryCopy,
        DeliveryOutcome,
        MessageStory,
        StoryStep,
        topic_of,
    )
    from projections.stories.story_builder import StoryBuilder
    from projections.stories.subscriber_state import (
        DeniedFilter,
        EarlierSession,
        SubscriberState,
        SubscriptionChange,
        UnreadDrops,
        describe_subscriber,
        filters_alike,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "message_story": "DeliveryCopy DeliveryOutcome MessageStory StoryStep topic_of",
            "story_builder": "StoryBuilder",
            "subscriber_state": "DeniedFilter EarlierSession SubscriberState SubscriptionChange "
            "UnreadDrops filters_alike describe_subscriber",
        },
    )

__all__ = [
    "DeliveryCopy",
    "DeliveryOutcome",
    "DeniedFilter",
    "EarlierSession",
    "MessageStory",
    "StoryBuilder",
    "StoryStep",
    "SubscriberState",
    "SubscriptionChange",
    "UnreadDrops",
    "describe_subscriber",
    "filters_alike",
    "topic_of",
]
