"""The keys of persons: pages of random keys, and a root with the keys of all pages.

A page has 256 keys and is sealed under a *page key*. The root has all page keys and is sealed under
the *master key* of a *generation*. Erasing keys makes a new generation: the pages with these keys
are written again without them, under new page keys, then a root under a new master key; then the
old master key is destroyed. So old pages and roots, wherever copies of them are, can no longer be
opened, and what must really be destroyed is 32 bytes.

This module has no input or output: it returns what is to be stored, in order, under names that the
stored root does not need. A root names the pages that belong to it, so a root that is stored makes
all changes effective at once. Until then the previous one counts.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.encryption import NotOpened, Sealer
from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

KEY_BYTES: Final = 32
PAGE_KEYS: Final = 256
_PAGE_BYTES: Final = PAGE_KEYS * KEY_BYTES
_ERASED: Final = bytes(KEY_BYTES)
_ROOT: Final = "root."
_PAGE: Final = "page."
_HEAD: Final = struct.Struct(">BQQ")
"""Format, generation, and the last erasure."""
_ENTRY: Final = struct.Struct(">II32s")
"""Number, version and key of a page."""
_FORMAT: Final = 1


class KeyStoreDamaged(EventStoreError):  # noqa: N818 - as in eventstore.errors
    """The root of the key store, or a page, is damaged or missing: this is not an erasure."""

    exit_code = 65


class WrongMasterKey(EventStoreError):  # noqa: N818
    """The master key is not that of the key store."""

    exit_code = 78


class Blob(NamedTuple):
    """Bytes to store under a name."""

    name: str
    data: bytes


class Change(NamedTuple):
    """What is to be stored, in this order, and what is not needed once all of it is stored."""

    blobs: list[Blob]
    outdated: list[str]


@dataclass(slots=True)
class _Page:
    version: int
    key: bytes = field(repr=False)
    keys: bytes | None = field(repr=False)
    """None: the page is damaged or missing."""


class KeyPages:
    """The keys of one log, of one generation. Numbers of keys begin with 1."""

    def __init__(self, generation: int, master: bytes, erasure: int = 0) -> None:
        """Begin without keys; ``erasure`` is the number of the last erasure."""
        self.generation = generation
        self.erasure = erasure
        self._master = Sealer(master)
        self._pages: dict[int, _Page] = {}

    @classmethod
    def load(cls, blobs: Mapping[str, bytes], masters: Mapping[int, bytes]) -> KeyPages | None:
        """Return the keys in a store; None: it is empty.

        ``masters`` are the known master keys by generation. The newest root counts that one of them
        opens. Raises WrongMasterKey if none opens the newest root, KeyStoreDamaged if that is
        damaged.
        """
        roots = sorted(int(name.removeprefix(_ROOT)) for name in blobs if name.startswith(_ROOT))
        if not roots:
            return None
        generation = roots[-1]
        if generation not in masters:
            known = ", ".join(map(str, sorted(masters))) or "none"
            raise WrongMasterKey(
                f"the key store has generation {generation}, the master key has {known}: restore "
                "the master key of that generation"
            )
        found = cls(generation, masters[generation])
        found._read(blobs)
        return found

    @property
    def end(self) -> int:
        """The first number that no page has: keys up to it exist, or existed."""
        return 1 + PAGE_KEYS * len(self._pages)

    @property
    def damaged(self) -> list[range]:
        """The numbers of the keys on damaged pages."""
        pages = sorted(number for number, page in self._pages.items() if page.keys is None)
        return [range(1 + page * PAGE_KEYS, 1 + (page + 1) * PAGE_KEYS) for page in pages]

    def key(self, number: int) -> bytes | None:
        """Return a key by its number; None: it was erased, or never existed.

        Raises KeyStoreDamaged if its page is damaged.
        """
        page = self._pages.get((number - 1) // PAGE_KEYS)
        if page is None or number < 1:
            return None
        if page.keys is None:
            raise KeyStoreDamaged(f"key {number} is on a damaged page of the key store")
        at = (number - 1) % PAGE_KEYS * KEY_BYTES
        key = page.keys[at : at + KEY_BYTES]
        return None if key == _ERASED else key

    def extend(self) -> Change:
        """Add a page of new keys, and return what is to be stored before one of them is used."""
        number = len(self._pages)
        page = _Page(1, secrets.token_bytes(KEY_BYTES), secrets.token_bytes(_PAGE_BYTES))
        self._pages[number] = page
        return Change([_sealed(number, page), self._root()], [])

    def erase(
        self, numbers: Collection[int], master: bytes, erasure: int
    ) -> tuple[KeyPages, Change]:
        """Return the next generation, without some keys, and what is to be stored.

        ``master`` is its master key. Keys that do not exist are ignored: an erasure can be
        repeated. Raises KeyStoreDamaged if one of them is on a damaged page.
        """
        after = KeyPages(self.generation + 1, master, erasure)
        after._pages = dict(self._pages)
        blobs, outdated = [], [f"{_ROOT}{self.generation}"]
        for number, wanted in _by_page(numbers).items():
            page = self._pages.get(number)
            if page is None:
                continue
            if page.keys is None:
                raise KeyStoreDamaged(f"page {number} of the key store is damaged")
            new = _Page(
                page.version + 1, secrets.token_bytes(KEY_BYTES), _without(page.keys, wanted)
            )
            after._pages[number] = new
            blobs.append(_sealed(number, new))
            outdated.append(_name(number, page.version))
        return after, Change([*blobs, after._root()], outdated)

    def outdated(self, names: Iterable[str]) -> list[str]:
        """Return the names of a store that this generation does not need."""
        needed = {_name(number, page.version) for number, page in self._pages.items()}
        needed.add(f"{_ROOT}{self.generation}")
        return sorted(set(names) - needed)

    def _root(self) -> Blob:
        head = _HEAD.pack(_FORMAT, self.generation, self.erasure)
        entries = (
            _ENTRY.pack(number, page.version, page.key)
            for number, page in sorted(self._pages.items())
        )
        name = f"{_ROOT}{self.generation}"
        return Blob(name, self._master.seal(head + b"".join(entries), name))

    def _read(self, blobs: Mapping[str, bytes]) -> None:
        name = f"{_ROOT}{self.generation}"
        try:
            root = self._master.open(blobs[name], name)
        except NotOpened:
            raise KeyStoreDamaged(
                f"the root of the key store, generation {self.generation}, is damaged, or the "
                "master key is"
            ) from None
        version, _, self.erasure = _HEAD.unpack_from(root)
        if version != _FORMAT:
            raise WrongMasterKey(f"the key store has format {version}: use a later foldmq")
        for number, page_version, key in _ENTRY.iter_unpack(root[_HEAD.size :]):
            keys = None
            name = _name(number, page_version)
            if name in blobs:
                with contextlib.suppress(NotOpened):
                    keys = Sealer(key).open(blobs[name], name)
            self._pages[number] = _Page(page_version, key, keys)


def _name(number: int, version: int) -> str:
    return f"{_PAGE}{number}.{version}"


def _sealed(number: int, page: _Page) -> Blob:
    name = _name(number, page.version)
    return Blob(name, Sealer(page.key).seal(page.keys or b"", name))


def _by_page(numbers: Collection[int]) -> dict[int, list[int]]:
    """Return the places of keys on their pages."""
    found: dict[int, list[int]] = {}
    for number in sorted(numbers):
        if number > 0:
            page, place = divmod(number - 1, PAGE_KEYS)
            found.setdefault(page, []).append(place)
    return found


def _without(keys: bytes, places: Iterable[int]) -> bytes:
    left = bytearray(keys)
    for place in places:
        left[place * KEY_BYTES : (place + 1) * KEY_BYTES] = _ERASED
    return bytes(left)
