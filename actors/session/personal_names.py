"""Replaces names of persons, client identifiers and user names, by tokens.

A name that a pattern matches gets a key and a token when its client has logged in, and keeps both
until an erasure destroys the key. From then on nothing can tell whose token it was; the same name
gets another one.

Of several logs, each has tokens of its own. A client identifier gets one that belongs to its log,
as the identifier does; so does each identifier that begins as a token does.
"""

from __future__ import annotations

import re
from collections import Counter
from fnmatch import translate
from functools import partial
from typing import TYPE_CHECKING, Final

from actors.limits.key_shares import KeyShares
from eventstore.format.events import ASSIGNED_ID
from eventstore.format.name_entries import (
    CLIENT,
    LONGEST_NAME,
    MARK,
    USER,
    is_token,
    name_in,
    new_entry,
    parts_of,
)
from eventstore.partitions import partition_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from actors.session.content_sealing import ContentSealing

_ASSIGNED: Final = re.compile(f"{ASSIGNED_ID}[0-9a-f]{{20}}")
"""Identifiers that the broker assigns: random, and no person's name."""
_AT_ONCE: Final = 64
"""Names opened before others have their turn."""


class PersonalNames:
    """The names of a broker that have tokens."""

    def __init__(
        self,
        clients: Sequence[str],
        users: Sequence[str],
        sealing: ContentSealing,
        partition: tuple[int, int] = (0, 1),
    ) -> None:
        """``clients`` and ``users`` are patterns as for file names; those of a kind may be none.

        ``partition`` is the number of the log among those of the node, and their total number.
        """
        self._sealing = sealing
        self._number, self._logs = partition
        self._patterns = {
            kind: re.compile("|".join(map(translate, patterns)))
            for kind, patterns in ((CLIENT, clients), (USER, users))
            if patterns
        }
        self._entries: dict[tuple[str, str], str] = {}
        """The entry of each name, by kind and name."""
        self._named: dict[str, tuple[str, str]] = {}
        """Kind and name of each token."""
        self._shares = KeyShares()
        self._counts: Counter[str] = Counter()
        """Number of names by kind."""

    def load(self, topics: Iterable[str]) -> Iterator[None]:
        """Open the entries among topics with keys; yields between parts of them.

        Names whose keys are destroyed have no token any more. Raises ValueError for an entry that
        is not one.
        """
        for number, topic in enumerate(topics, 1):
            entry = parts_of(topic)
            key = self._sealing.newest_key(topic) if entry is not None else None
            if entry is not None and key is not None:
                self._add(entry.kind, name_in(entry, key), topic)
            if number % _AT_ONCE == 0:
                yield

    @property
    def replaces_users(self) -> bool:
        """Whether users may have tokens."""
        return USER in self._patterns

    def has_kind(self, kind: str) -> bool:
        """Return whether there is a name of a kind."""
        return self._counts[kind] > 0

    def client(self, client_id: str) -> str:
        """Return the name in the log of a client identifier; ``~`` if it has no token yet."""
        return self._shown(CLIENT, client_id)

    def user(self, user: str | None) -> str | None:
        """Return the name in the log of a user; ``~`` if it has no token yet."""
        return None if user is None else self._shown(USER, user)

    def _shown(self, kind: str, name: str) -> str:
        token = self.token(kind, name)
        if token or kind not in self._patterns:
            return token or name
        if self._matches(kind, name):
            return MARK
        return MARK + name if name.startswith(MARK) else name

    def _matches(self, kind: str, name: str) -> bool:
        if not name or (kind == CLIENT and _ASSIGNED.fullmatch(name)):
            return False  # an assigned identifier would use up a key for each connection
        if kind == CLIENT and self._logs > 1 and name.startswith(MARK):
            return True  # with a second mark it would belong to another log
        return self._patterns[kind].match(name) is not None

    def token(self, kind: str, name: str) -> str:
        """Return the token of a name; empty: it has none."""
        entry = parts_of(self._entries.get((kind, name), ""))
        return "" if entry is None else entry.token

    def entry(self, kind: str, name: str) -> str:
        """Return the entry of a name, in the place of a topic; empty: it has none."""
        return self._entries.get((kind, name), "")

    def admit(self, kind: str, name: str, parties: Sequence[Hashable], now: float) -> str:
        """Give a token to the name of a client that has logged in, if a pattern matches it.

        Records the key in this turn, which counts for ``parties``. Returns why it gets none:
        ``personal_keys`` if the name is too long or there is no room, ``new_names`` if the parties
        have used their share of the keys; otherwise nothing.
        """
        if kind not in self._patterns or self.token(kind, name) or not self._matches(kind, name):
            return ""
        free = self._sealing.free
        if len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME or free <= 0:
            return "personal_keys"
        if not self._shares.take(parties, free, now):
            return "new_names"
        is_usable = self._is_home if kind == CLIENT else _is_any
        entry = self._sealing.add_name(partial(new_entry, kind, name, is_usable))
        self._add(kind, name, entry)
        return ""

    def _is_home(self, token: str) -> bool:
        """Return whether a session with this name belongs to the log."""
        return partition_of(token, self._logs) == self._number

    def _add(self, kind: str, name: str, topic: str) -> None:
        entry = parts_of(topic)
        if entry is not None:
            self._entries[kind, name] = topic
            self._named[entry.token] = kind, name
            self._counts[kind] += 1

    def forget(self, topics: Iterable[str]) -> None:
        """Forget the names whose entries are among topics: their keys are to be destroyed."""
        for topic in topics:
            entry = parts_of(topic)
            named = self._named.pop(entry.token, None) if entry is not None else None
            if named is not None:
                del self._entries[named]
                self._counts[named[0]] -= 1

    def entries(self) -> Iterator[tuple[tuple[str, str] | None, str]]:
        """Yield kind and name of each entry, and the entry; None after a part of all."""
        for number, (named, entry) in enumerate([*self._entries.items()], 1):
            yield named, entry
            if number % _AT_ONCE == 0:
                yield None, ""

    def client_of(self, name: str) -> str:
        """Return the client identifier of a session; an erased one remains a token."""
        kind, client_id = self._named.get(name, (USER, ""))
        return client_id if kind == CLIENT else name

    def is_erased(self, name: str, user: str | None) -> bool:
        """Return whether the name of a session, or its user, is a token without a name."""
        return self._is_nameless(CLIENT, name) or self._is_nameless(USER, user or "")

    def _is_nameless(self, kind: str, shown: str) -> bool:
        return kind in self._patterns and is_token(shown) and shown not in self._named

    def are_current(self, client_id: str, name: str, user: str | None) -> bool:
        """Return whether a client that was admitted as ``name`` is still known by it, and its user.

        Not if one of them was erased before the client got its session, or had no token yet.
        """
        if self.client(client_id) != name or self._lacks_token(CLIENT, name):
            return False
        return not self.lacks_user(user)

    def lacks_user(self, user: str | None) -> bool:
        """Return whether a user should have a token, and has none."""
        return self._lacks_token(USER, self.user(user))

    def _lacks_token(self, kind: str, shown: str | None) -> bool:
        return kind in self._patterns and shown == MARK


def _is_any(_token: str) -> bool:
    return True
