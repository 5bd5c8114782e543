"""Histories of messages from all records of a log, with the subscriptions of one session."""

from eventstore.format.event_parsing import Event
from eventstore.format.positions import Position
from projections.past.message_story import MessageStory
from projections.past.story_builder import StoryBuilder
from projections.past.subscriber_state import DeniedFilters, describe_subscriber
from projections.state.single_session import SessionFold

_NEVER = 1 << 62


class ClientStories(StoryBuilder):
    """Follows messages, and folds the session of a client beside them."""

    def __init__(self, client: str, *refs: Position, begin: int = 1) -> None:
        super().__init__(refs, begin)
        self._fold = SessionFold(client, _NEVER)
        self._denied = DeniedFilters()

    def _follow(self, event: Event, at: Position, ms: int) -> None:
        super()._follow(event, at, ms)
        if getattr(event, "session", None) == self._fold.session and self._record is not None:
            self._fold.whole = _NEVER if self._partial else 0
            self._fold.take(event, at, self._record.steady_ms)
            self._denied.take(event, at, ms)

    def _takes_effect(self, story: MessageStory, at: Position) -> None:
        super()._takes_effect(story, at)
        state = self._fold.state
        if story.topic is not None and not (state is None and self._partial):
            denied = self._denied.filters()
            own = story.session == self._fold.session
            story.subscriber = describe_subscriber(state, story.topic, denied, own=own)
