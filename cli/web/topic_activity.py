"""Message counts per topic over the last day, as far as the log holds them.

Messages of QoS 0 are not in the log, unless they are retained. The number of topics is limited;
messages on further topics are only counted. Of messages that were taken from another log, only the
bytes count.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from eventstore.format.events import LOG_SESSION

MAX_TOPICS: Final = 10_000
RATE_MINUTES: Final = 5
"""Number of last whole minutes whose mean is the rate."""
_MINUTE_MS: Final = 60_000
_SLOT_MS: Final = 3 * 3_600_000
"""Length of the slots in which messages are counted; a slot is dropped as a whole."""
_KEPT_MS: Final = 24 * 3_600_000


@dataclass(slots=True)
class TopicFigures:
    """The messages on one topic."""

    slots: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Messages and bytes by slot."""
    last_ms: int = 0
    publisher: str = ""
    """The session that published the last message."""


@dataclass(slots=True)
class Branch:
    """The topics that begin with the same levels."""

    level: str
    """The last of these levels."""
    path: str
    is_topic: bool = False
    """Whether a message was published on the path itself."""
    topics: int = 0
    """Topics at or below the path."""
    messages: int = 0
    size: float = 0.0
    """Bytes of the messages in the log."""
    rate: float = 0.0
    """Messages per second."""
    last_ms: int = 0
    publisher: str = ""
    retained: int = 0
    """Retained messages at or below the path."""
    set_by: str | None = None
    set_ms: int | None = None
    """The client that set the retained message of the path itself, and when."""


class TopicActivity:
    """The topics of the last day."""

    def __init__(self) -> None:
        self.left_out = 0
        """Messages on topics beyond the limit."""
        self._topics: dict[str, TopicFigures] = {}
        self._minutes: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._newest = 0

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._topics)

    def take(
        self, published: Sequence[tuple[str, int, int, str]], overhead: int, time_ms: int
    ) -> None:
        """Add the messages of a record: (topic, messages, payload bytes, session).

        ``overhead`` are the bytes of the record besides the payloads; they are shared among the
        messages.
        """
        total = sum(count for _, count, _, _ in published)
        share = overhead / total if total else 0.0
        slot, minute = time_ms // _SLOT_MS, time_ms // _MINUTE_MS
        self._newest = max(self._newest, minute)
        recent = minute >= self._newest - RATE_MINUTES
        for topic, count, size, session in published:
            figures = self._topics.get(topic)
            if figures is None:
                if len(self._topics) >= MAX_TOPICS:
                    self.left_out += count
                    continue
                figures = self._topics[topic] = TopicFigures()
            messages, stored = figures.slots.get(slot, (0, 0.0))
            own = 0 if is_copied(session) else count
            figures.slots[slot] = messages + own, stored + size + share * count
            if own and time_ms >= figures.last_ms:
                figures.last_ms, figures.publisher = time_ms, session
            if own and recent:
                self._minutes[minute][topic] += count

    def forget_before(self, time_ms: int) -> None:
        """Drop counts that ended a day before a time, and rates of older minutes."""
        slot = (time_ms - _KEPT_MS) // _SLOT_MS
        for topic, figures in list(self._topics.items()):
            if min(figures.slots) < slot:
                figures.slots = {key: value for key, value in figures.slots.items() if key >= slot}
                if not figures.slots:
                    del self._topics[topic]
        for minute in [
            number for number in self._minutes if number < time_ms // _MINUTE_MS - RATE_MINUTES
        ]:
            del self._minutes[minute]

    def figures(self, now_ms: int) -> Iterator[tuple[str, TopicFigures, float]]:
        """Yield the topics with their figures and messages a second."""
        rates = self._rates(now_ms)
        for topic, figures in self._topics.items():
            yield topic, figures, rates[topic] / (60 * RATE_MINUTES)

    def _rates(self, now_ms: int) -> Counter[str]:
        """Return the messages of the last whole minutes by topic."""
        now = now_ms // _MINUTE_MS
        rates: Counter[str] = Counter()
        for minute in range(now - RATE_MINUTES, now):
            rates.update(self._minutes.get(minute, {}))
        return rates


def topic_branches(
    logs: Iterable[TopicActivity],
    under: str | None,
    now_ms: int,
    retained: Iterable[Mapping[str, Any]],
) -> dict[str, Branch]:
    """Return the branches of all logs one level below a path by level; None: the first levels.

    ``retained`` are rows of retained messages below the path.
    """
    branches: dict[str, Branch] = {}
    seen_topics: set[str] = set()
    for log in logs:
        for topic, figures, rate in log.figures(now_ms):
            branch = _branch(branches, under, topic)
            if branch is None:
                continue
            branch.topics += topic not in seen_topics
            seen_topics.add(topic)
            branch.is_topic |= topic == branch.path
            for messages, size in figures.slots.values():
                branch.messages += messages
                branch.size += size
            branch.rate += rate
            if figures.last_ms >= branch.last_ms and figures.publisher:
                branch.last_ms, branch.publisher = figures.last_ms, figures.publisher
    for row in retained:
        branch = _branch(branches, under, row["topic"])
        if branch is None:
            continue
        branch.retained += 1
        branch.topics += row["topic"] not in seen_topics
        if row["topic"] == branch.path:
            branch.is_topic = True
            branch.set_by, branch.set_ms = row["set_by"], row["set_ms"]
    return branches


def is_copied(session: str) -> bool:
    """Return whether a publication by this session was taken from another log."""
    return session.startswith(LOG_SESSION)


def _branch(branches: dict[str, Branch], under: str | None, topic: str) -> Branch | None:
    """Return the branch of a topic below a path, created if missing; None: it is not below."""
    if under is None:
        below = topic
    elif topic.startswith(f"{under}/"):
        below = topic[len(under) + 1 :]
    else:
        return None
    level = below.partition("/")[0]
    branch = branches.get(level)
    if branch is None:
        branch = branches[level] = Branch(level, level if under is None else f"{under}/{level}")
    return branch


def messages_by_topic(raw: Mapping[str, Any]) -> Iterator[tuple[str, int, int, str]]:
    """Yield (topic, messages, payload bytes, session) for a MessagePublished."""
    sizes, topics, which = raw["sizes"], raw["topics"], raw["which"]
    session = raw["session"]
    if not which:
        total = sizes * raw["count"] if isinstance(sizes, int) else sum(sizes)
        yield topics[0], raw["count"], total, session
        return
    counts: Counter[int] = Counter(which)
    stored: Counter[int] = Counter()
    if isinstance(sizes, int):
        stored.update({number: sizes * count for number, count in counts.items()})
    else:
        for number, size in zip(which, sizes, strict=True):
            stored[number] += size
    for number, count in counts.items():
        yield topics[number], count, stored[number], session
