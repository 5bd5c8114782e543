"""The keys of persons: what is erased cannot be opened from any copy, and missing is not erased."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.encryption import NotOpened, Sealer
from eventstore.log.key_pages import (
    PAGE_KEYS,
    Change,
    KeyPages,
    KeyStoreDamaged,
    WrongMasterKey,
)


def master(generation: int) -> bytes:
    return bytes([generation]) * 32


class Store:
    """What is stored, and every copy that was ever stored."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.copies: list[tuple[str, bytes]] = []

    def apply(self, change: Change, count: int | None = None) -> None:
        """Store the first ``count`` blobs; without a crash all, and then remove the others."""
        for name, data in change.blobs[:count]:
            assert name not in self.blobs or name.startswith("root."), "names are used once"
            self.blobs[name] = data
            self.copies.append((name, data))
        if count is None:
            for name in change.outdated:
                del self.blobs[name]

    def load(self, *generations: int) -> KeyPages:
        found = KeyPages.load(self.blobs, {one: master(one) for one in generations})
        assert found is not None
        return found


def begun(pages: int = 2) -> tuple[KeyPages, Store]:
    keys, store = KeyPages(1, master(1)), Store()
    for _ in range(pages):
        store.apply(keys.extend())
    return keys, store


def all_keys(keys: KeyPages) -> dict[int, bytes | None]:
    return {number: keys.key(number) for number in range(keys.end)}


def opened(copies: Iterable[tuple[str, bytes]], masters: Iterable[bytes]) -> bytes:
    """Everything that can be opened of some blobs with master keys, and with what they open."""
    copies, keys, found = list(copies), {*masters}, b""
    while True:
        new = set()
        for (name, data), key in itertools.product(copies, keys):
            try:
                plain = Sealer(key).open(data, name)
            except NotOpened:
                continue
            found += plain
            if name.startswith("root."):
                entries = plain[17:]
                new |= {entries[at + 8 : at + 40] for at in range(0, len(entries), 40)}
        if new <= keys:
            return found
        keys |= new


def test_keys_are_there_after_a_restart() -> None:
    keys, store = begun()
    assert keys.end == 1 + 2 * PAGE_KEYS
    assert keys.key(0) is None
    assert keys.key(keys.end) is None
    values = [keys.key(number) for number in range(1, keys.end)]
    assert None not in values
    assert len(set(values)) == len(values)
    assert all_keys(store.load(1)) == all_keys(keys)
    assert KeyPages.load({}, {1: master(1)}) is None


def test_an_erased_key_opens_from_no_copy_once_the_old_master_key_is_destroyed() -> None:
    keys, store = begun()
    erased = keys.key(300)
    assert erased is not None
    after, change = keys.erase([300], master(2), 7)
    store.apply(change)
    assert store.load(2).erasure == after.erasure == 7
    assert all_keys(store.load(2)) == {**all_keys(keys), 300: None}
    assert erased in opened(store.copies, [master(1), master(2)])  # the control
    assert erased not in opened(store.copies, [master(2)])
    kept = keys.key(299)
    assert kept is not None
    assert kept in opened(store.copies, [master(2)])


@pytest.mark.parametrize("stored", range(3))
def test_a_crash_leaves_the_old_generation_or_the_new_one(stored: int) -> None:
    """Two pages and a root are stored; until the root is, the previous generation counts."""
    keys, store = begun()
    after, change = keys.erase([1, 300], master(2), 1)
    assert [name.partition(".")[0] for name, _ in change.blobs] == ["page", "page", "root"]
    store.apply(change, stored)
    found = store.load(1, 2)
    assert (found.generation, all_keys(found)) == (1, all_keys(keys))
    assert found.outdated(store.blobs) == sorted(name for name, _ in change.blobs[:stored])
    again, repeated = found.erase([1, 300], master(3), 1)
    for name in found.outdated(store.blobs):
        del store.blobs[name]
    assert again.generation == 2
    store.blobs.update(repeated.blobs)
    assert all_keys(KeyPages.load(store.blobs, {2: master(3)}) or keys) == all_keys(after)


def test_the_new_generation_counts_as_soon_as_its_root_is_stored() -> None:
    keys, store = begun()
    after, change = keys.erase([1], master(2), 1)
    store.apply(change, len(change.blobs))
    found = store.load(1, 2)
    assert (found.generation, all_keys(found)) == (2, all_keys(after))
    assert found.outdated(store.blobs) == sorted(change.outdated)


def test_an_erasure_can_be_repeated() -> None:
    keys, store = begun(1)
    after, change = keys.erase([5, 999, 0], master(2), 1)
    store.apply(change)
    again, change = after.erase([5, 999], master(3), 1)
    store.apply(change)
    assert all_keys(again) == all_keys(after) == all_keys(store.load(3))


def test_missing_is_not_erased() -> None:
    keys, store = begun()
    del store.blobs["page.1.1"]
    found = store.load(1)
    assert found.damaged == [range(257, 513)]
    assert found.end == keys.end
    assert found.key(256) == keys.key(256)
    for number in (257, 512):
        with pytest.raises(KeyStoreDamaged, match=f"key {number} is on a damaged page"):
            found.key(number)
    with pytest.raises(KeyStoreDamaged, match="page 1 of the key store is damaged"):
        found.erase([300], master(2), 1)
    after, change = found.erase([5], master(2), 1)
    store.apply(change)
    assert store.load(2).damaged == after.damaged == [range(257, 513)]


def test_any_changed_byte_of_a_page_or_root_is_found() -> None:
    keys, store = begun(1)
    for name in ("page.0.1", "root.1"):
        data = store.blobs[name]
        for at in {*range(0, len(data), 97), len(data) - 1}:
            store.blobs[name] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            if name == "root.1":
                with pytest.raises(KeyStoreDamaged, match="generation 1, is damaged"):
                    store.load(1)
            else:
                assert store.load(1).damaged
        store.blobs[name] = data
    assert all_keys(store.load(1)) == all_keys(keys)


def test_an_old_page_in_place_of_a_new_one_is_damage() -> None:
    """A page without an erased key cannot be replaced by the copy that has it."""
    keys, store = begun(1)
    old = store.blobs["page.0.1"]
    _, change = keys.erase([1], master(2), 1)
    store.apply(change)
    store.blobs["page.0.2"] = old
    assert store.load(2).damaged


def test_another_generation_of_the_master_key_is_refused() -> None:
    keys, store = begun(1)
    _, change = keys.erase([1], master(2), 1)
    store.apply(change)
    with pytest.raises(WrongMasterKey, match="generation 2, the master key has 1:") as caught:
        store.load(1)
    assert caught.value.exit_code == 78
    with pytest.raises(WrongMasterKey, match="the master key has none"):
        store.load()


@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.sets(st.integers(0, 800), max_size=4)), max_size=8))
def test_any_order_of_new_pages_and_erasures(steps: list[set[int] | None]) -> None:
    keys, store = begun(1)
    expected = all_keys(keys)
    for erasure, step in enumerate(steps, 1):
        if step is None:
            store.apply(keys.extend())
            expected = {**all_keys(keys), **expected}
        else:
            keys, change = keys.erase(step, master(keys.generation + 1), erasure)
            store.apply(change)
            expected |= {number: None for number in step if number < keys.end}
        assert all_keys(store.load(keys.generation)) == all_keys(keys) == expected
        assert keys.outdated(store.blobs) == []
