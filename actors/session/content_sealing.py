"""Seals what is published on personal topics: each of them has keys of its own.

A topic gets a key with its first message, and another one with the first message of each later
period, in the same turn. The payload and the properties of the message are passed on as they are;
the journal seals them in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.session.decisions.subscribing import by_text
from eventstore.format.erasure_events import TopicsKeyed
from eventstore.format.events import LOG_SESSION, MessagePublished, WillArmed
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import to_runs
from eventstore.format.sealing import SealedBytes, is_closed, key_check
from eventstore.format.turn_events import TurnPublished
from eventstore.format.turn_expansion import indices
from eventstore.log.key_file import KeyFileError, epoch_of
from protocol.mqtt.sparkplug import CERTIFICATES
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format.event_parsing import LogEvent
    from eventstore.format.positions import Position
    from eventstore.log.message_store import Message
    from eventstore.log.shared_keys import Keys
    from projections.state.topic_keys import TopicKeys
    from protocol.errors import FoldmqError

WITH_PAYLOADS: Final = frozenset(
    {MessagePublished, TurnPublished, WillArmed, RetainedSnapshot, MessagesCarried}
)
_REPEATS: Final = (RetainedSnapshot, MessagesCarried)
NO_KEYS: Final[Sequence[int]] = ()
_DUE: Final = -1
_KNOWN: Final = 65_536
"""Topics of which it is remembered that no pattern matches them."""
_AHEAD: Final = 1024
_MOST_KEYS = 1_000_000
"""Maximum number of keys that exist, some 300 bytes of memory each."""
_FORGOTTEN: Final = 65_536
"""Erased topics that are remembered: the last ones, while copies of messages may be in use."""
_PERIODS: Final = 30
"""Periods in personal_keep."""
_SHORTEST_MS: Final = 60_000
_UNBOUNDED_MS: Final = 30 * 86_400_000
"""Length of a period without personal_keep: a key of each is kept for ever."""


def period_ms(keep_ms: int) -> int:
    """Return for how long a key is used if contents are kept for a time; 0: for ever."""
    return max(_SHORTEST_MS, keep_ms // _PERIODS) if keep_ms else _UNBOUNDED_MS


class ContentSealing:
    """The personal topics of a broker, and the keys of their contents."""

    def __init__(
        self,
        filters: Sequence[str],
        keys: Keys,
        state: Callable[[], TopicKeys],
        emit: Callable[[LogEvent], Position],
        fail: Callable[[FoldmqError], None],
        now_ms: Callable[[], int],
        keep_ms: int,
    ) -> None:
        """Seal topics that ``filters`` match; ``state`` returns the keys in the log.

        ``fail`` ends the broker: it cannot store further keys. ``now_ms`` returns the steady time
        of records, ``keep_ms`` is the time for which contents are kept; 0: for ever.
        """
        self.keys = keys
        self._filters = filters
        self._state = state
        self._emit = emit
        self._fail = fail
        self._now_ms = now_ms
        self._period_ms = period_ms(keep_ms)
        self._plain: dict[str, None] = {}
        self._next = 0
        """The number of the next key; 0: not known yet."""
        self.forgotten: dict[bytes, Position] = {}
        """Topics whose contents before a position were erased since the start."""
        self.trouble = ""
        """Why the keys of the last erasure could not be destroyed; empty: they were."""

    def start(self, *, continues: bool) -> None:
        """Begin to hand out keys; ``continues``: no later state of this log is known to exist.

        Otherwise keys that a lost end of the log used are left out.
        """
        last_key, end = self._state().last, self.keys.end
        self._next = last_key + 1 if continues and epoch_of(last_key) == epoch_of(end) else end
        self.store_ahead()

    def store_ahead(self, count: int = _AHEAD) -> None:
        """Store new keys if fewer than ``count`` are left."""
        try:
            while self.keys.end - self._next < count:
                self.keys.extend()
        except KeyFileError as error:
            self._fail(error)
            raise

    def is_personal(self, topic: str) -> bool:
        """Return whether contents of a topic are sealed."""
        if topic in self._plain:
            return False
        if topic in self._state().by_topic or self.matches(self._filters, topic):
            return True
        if len(self._plain) >= _KNOWN:
            self._plain.clear()
        self._plain[topic] = None
        return False

    @staticmethod
    def matches(filters: Sequence[str], topic: str) -> bool:
        """Return whether a filter matches a topic, or that of which it has the certificates."""
        topic = topic.removeprefix(CERTIFICATES)
        return any(matches(pattern, topic) for pattern in filters)

    @classmethod
    def is_erased_by(cls, topic_filter: str, topic: str) -> bool:
        """Return whether an erasure with a filter is one of a topic."""
        return matches(topic_filter, topic) or cls.matches([topic_filter], topic)

    def prepare(
        self, event: Any, pieces: Sequence[bytes], size: int
    ) -> tuple[Sequence[bytes], int, Sequence[int]]:
        """Return the parts of an event's payload area, their size, and the number of each key.

        Topics without a key get one before. A block of properties that belongs to messages with
        different keys is repeated. What the state keeps, retained messages and wills, becomes
        SealedBytes. The keys are empty if nothing is sealed.
        """
        if type(event) in _REPEATS:
            return self._repeated(event, pieces, size)
        if type(event) is MessagePublished and event.session.startswith(LOG_SESSION):
            return self._taken(event, pieces, size)
        if type(event) is WillArmed:
            return _kept(pieces, size, self._numbers_of([event.topic]) * len(pieces))
        numbers = self._numbers_of(event.topics)
        if not any(numbers):
            return pieces, size, NO_KEYS
        if event.which or len(numbers) != event.count:
            numbers = [numbers[at] for at in indices(event.which, numbers, event.count)]
        pieces, size, keys = _with_keys(event, pieces, size, numbers)
        is_retained = type(event) is MessagePublished and event.retain
        return _kept(pieces, size, keys) if is_retained else (pieces, size, keys)

    def _numbers_of(self, topics: Sequence[str]) -> list[int]:
        """Return the number of the present key of each topic, 0 where contents are not sealed."""
        held, plain, now_ms = self._state().by_topic, self._plain, self._now_ms()
        numbers: list[int] = []
        for topic in topics:
            own = held.get(topic)
            if own is not None:
                key = own.keys[-1]
                numbers.append(key.number if not key.ends_ms or key.ends_ms > now_ms else _DUE)
            else:
                numbers.append(_DUE if topic not in plain and self.is_personal(topic) else 0)
        if _DUE in numbers:
            pairs = zip(topics, numbers, strict=True)
            self._add_keys([topic for topic, number in pairs if number == _DUE])
            numbers = list(map(self._state().number_of, topics))
        return numbers

    def _repeated(
        self, event: Any, pieces: Sequence[bytes], size: int
    ) -> tuple[Sequence[bytes], int, Sequence[int]]:
        """Keep what was sealed under its key, and what was not as it is."""
        if not any(isinstance(piece, SealedBytes) for piece in pieces):
            return pieces, size, NO_KEYS
        topics = event.topics
        if type(event) is not RetainedSnapshot:
            topics = [topics[at] for at in indices(event.which, topics, event.count)]
        payloads = pieces[len(event.blocks) :]
        numbers = [payload.key if isinstance(payload, SealedBytes) else 0 for payload in payloads]
        of = event.block_of or [1] * len(payloads)
        for at, payload in enumerate(payloads):
            if not payload and event.blocks:  # only its properties are sealed
                block = pieces[of[at] - 1] if of[at] else b""
                key = block.key if isinstance(block, SealedBytes) else 0
                own = [held.number for held in self._state().of(topics[at])]
                numbers[at] = key if key in own else self._state().number_of(topics[at])
        return _kept(*_with_keys(event, pieces, size, numbers))

    def _taken(
        self, event: MessagePublished, pieces: Sequence[bytes], size: int
    ) -> tuple[Sequence[bytes], int, Sequence[int]]:
        """Keep the keys that messages of another log got from :meth:`adopt`."""
        topics = [event.topics[at] for at in indices(event.which, event.topics, event.count)]
        payloads = pieces[len(event.blocks) :]
        numbers = [payload.key if isinstance(payload, SealedBytes) else 0 for payload in payloads]
        plain = {topic for topic, key in zip(topics, numbers, strict=True) if not key}
        personal = [topic for topic in plain if self.is_personal(topic)]
        self._add_keys(personal)
        for at, topic in enumerate(topics):
            if not numbers[at] and topic in personal:
                numbers[at] = self._state().number_of(topic)
        if not any(numbers):
            return pieces, size, NO_KEYS
        return _kept(*_with_keys(event, pieces, size, numbers))

    def adopt(self, topic: str, published_ms: int, named: set[int]) -> int:
        """Return the key for contents that another log has sealed; the topic gets it if needed.

        That is the key of the period in which they were published, in steady time, so that their
        age is the same in all logs. If that period is over, it is named again, unless it is among
        ``named``: readers of the record see from when the contents are.
        """
        self._plain.pop(topic, None)
        period = self._period_ms
        ends_ms = (published_ms // period + 1) * period
        if ends_ms > self._now_ms():
            self._add_keys([topic])
            return self._state().number_of(topic)
        fitting = [key for key in self._state().of(topic) if not 0 < key.ends_ms <= published_ms]
        if fitting and (
            self.is_full or fitting[0].begins_ms <= published_ms or fitting[0].ends_ms == ends_ms
        ):
            number, key = fitting[0].number, self.keys.key(fitting[0].number)
            ends_ms = fitting[0].ends_ms
        else:
            number, key = self._unused_key()
        if number not in named and 0 < ends_ms <= self._now_ms():
            named.add(number)
            event = TopicsKeyed([topic], [number], [key_check(key or b"")])
            event.begins_ms, event.ends_ms = ends_ms - period, ends_ms
            self._emit(event)
        return number

    def _add_keys(self, topics: Sequence[str]) -> None:
        """Record a key for each topic that has none for the present period, in this turn."""
        now_ms, state, period = self._now_ms(), self._state(), self._period_ms
        held = state.by_topic
        due = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in held or 0 < held[topic].keys[-1].ends_ms <= now_ms
        ]
        ends_ms = (now_ms // period + 1) * period
        for part in by_text(due, str):
            is_full = self.is_full
            keep = [topic for topic in part if is_full and topic in held]
            new = [topic for topic in part if not (is_full and topic in held)]
            unused = [self._unused_key() for _ in new]
            kept_numbers = [held[topic].keys[-1].number for topic in keep]
            numbers = [*kept_numbers, *(number for number, _ in unused)]
            keys = [*map(self.keys.key, kept_numbers), *(key for _, key in unused)]
            checks = [key_check(key or b"") for key in keys]
            event = TopicsKeyed([*keep, *new], to_runs(numbers), checks)
            event.begins_ms, event.ends_ms = now_ms, ends_ms
            self._emit(event)

    def add_name(self, entry_of: Callable[[bytes], str]) -> str:
        """Record a key for a name in this turn; ``entry_of`` returns its entry, as this does."""
        number, key = self._unused_key()
        entry = entry_of(key)
        self._emit(TopicsKeyed([entry], [number], [key_check(key)]))
        return entry

    def newest_key(self, topic: str) -> bytes | None:
        """Return the newest key of a topic or entry; None: it has none that exists."""
        return self.keys.key(self._state().number_of(topic))

    @property
    def free(self) -> int:
        """The number of keys for which there is room."""
        return _MOST_KEYS - self._state().count

    @property
    def is_full(self) -> bool:
        """Whether there is no room for further keys."""
        return self.free <= 0

    def refuses(self, raw: bytes) -> bool:
        """Return whether publications on a topic are refused: it needs a key, and there is no room.

        Topics that have one use it for longer.
        """
        if self._state().count < _MOST_KEYS:  # for each message: no property
            return False
        topic = raw.decode()
        return topic not in self._state().by_topic and self.is_personal(topic)

    def forget(self, topic: str, before: Position) -> None:
        """Note that the contents of a topic before a position are erased, unless a key is left."""
        name = topic.encode()
        self.forgotten.pop(name, None)
        self.forgotten[name] = before
        if len(self.forgotten) > _FORGOTTEN:
            del self.forgotten[next(iter(self.forgotten))]

    def _unused_key(self) -> tuple[int, bytes]:
        """Return the next key that exists, and its number.

        Those of a lost end of the log may be erased, and a crash damages those stored last.
        """
        while True:
            self.store_ahead(1)
            number = self._next
            self._next += 1
            key = self.keys.key(number)
            if key is not None:
                return number, key

    def is_erased(self, ref: Position, message: Message) -> bool:
        """Return whether the content of a message is erased."""
        if is_closed(message.payload) or is_closed(message.block):
            return True
        if not self.forgotten or message.topic not in self.forgotten:
            return False
        for part in (message.payload, message.block):
            if isinstance(part, SealedBytes):
                return all(
                    key.number != part.key for key in self._state().of(message.topic.decode())
                )
        return ref < self.forgotten[message.topic]


def _with_keys(
    event: Any, pieces: Sequence[bytes], size: int, numbers: Sequence[int]
) -> tuple[Sequence[bytes], int, Sequence[int]]:
    """Return the parts of an event's payload area, their size and keys; those of its messages."""
    count = len(event.blocks)
    if not count:
        return pieces, size, numbers
    distinct, of = pieces[:count], event.block_of or [1] * event.count
    pairs = [(block, number) for block, number in zip(of, numbers, strict=True) if block]
    places = {pair: at for at, pair in enumerate(dict.fromkeys(pairs), 1)}
    blocks = [distinct[block - 1] for block, _ in places]
    if len(blocks) > 1 or 0 in of:
        event.block_of = [
            places[block, number] if block else 0 for block, number in zip(of, numbers, strict=True)
        ]
    event.blocks = list(map(len, blocks))
    size += sum(event.blocks) - sum(map(len, distinct))
    return [*blocks, *pieces[count:]], size, [*(number for _, number in places), *numbers]


def _kept(
    pieces: Sequence[bytes], size: int, numbers: Sequence[int]
) -> tuple[Sequence[bytes], int, Sequence[int]]:
    """Return parts with keys as SealedBytes; those that could not be opened keep their keys."""
    kept = list(map(_keyed, pieces, numbers))
    return kept, size, [piece.key if isinstance(piece, SealedBytes) else 0 for piece in kept]


def _keyed(piece: bytes, number: int) -> bytes:
    """Return a part of the payload area with its key; 0: it has none."""
    if isinstance(piece, SealedBytes) and (piece.key == number or not piece.opened):
        return piece
    return SealedBytes.of(piece, number, opened=True) if number else bytes(piece)
