"""Explains what happened to a message: its history in all logs, as text and as JSON.

``find_histories`` reads it. If there is none, ``explain_no_message`` returns possible reasons.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from projections.explanation.log_stories import (
        LogStory,
        WantedStories,
        find_histories,
        not_taken,
        published_anywhere,
        stories_elsewhere,
    )
    from projections.explanation.missing_message import explain_no_message
    from projections.explanation.story_json import story_object
    from projections.explanation.story_text import TextStyle, log_story_lines, story_lines
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "log_stories": "LogStory WantedStories find_histories not_taken published_anywhere "
            "stories_elsewhere",
            "missing_message": "explain_no_message",
            "story_json": "story_object",
            "story_text": "TextStyle story_lines log_story_lines",
        },
    )

__all__ = [
    "LogStory",
    "TextStyle",
    "WantedStories",
    "explain_no_message",
    "find_histories",
    "log_story_lines",
    "not_taken",
    "published_anywhere",
    "stories_elsewhere",
    "story_lines",
    "story_object",
]
