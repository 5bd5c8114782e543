"""Files of a stream that are removed, replaced or cut short while a server writes them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.stored_files import StoredFiles


class Store:
    """A directory of blocks that a server writes; three records a look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.newest = 0
        self.stored = 0
        self.first = 1
        self.begin_block()
        self.files = StoredFiles(folder)

    def block(self, number: int) -> Path:
        return self.folder / f"{number}.blk"

    def begin_block(self) -> None:
        self.newest += 1
        self.block(self.newest).touch()

    def write(self) -> None:
        self.stored += 3
        with self.block(self.newest).open("ab") as out:
            out.write(b"record %d " % self.stored * 10)

    def look(self) -> str | None:
        return self.files.damage(self.stored, self.first)

    def looks(self, count: int = 8) -> list[str]:
        """What is found in some looks, while records are written."""
        found = []
        for _ in range(count):
            self.write()
            found.append(self.look())
        return [one for one in found if one is not None]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three blocks, all of which were seen."""
    made = Store(tmp_path / "msgs")
    for _ in range(3):
        assert made.looks() == []
        made.begin_block()
    assert made.looks() == []
    return made


def cut_off_the_end(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


STRIKES: dict[str, Callable[[Store], object]] = {
    "is gone": lambda store: shutil.rmtree(store.folder),
    "was replaced": lambda store: shutil.copytree(
        store.folder.rename(store.folder.with_name("old")), store.folder
    ),
    "lacks block 1.blk": lambda store: store.block(1).unlink(),
    "lacks block 2.blk": lambda store: store.block(2).unlink(),
    "lacks block 4.blk": lambda store: store.block(4).unlink(),
    "has a block that was cut short: 1.blk": lambda store: cut_off_the_end(store.block(1)),
    "has a block that was cut short: 4.blk": lambda store: cut_off_the_end(store.block(4)),
}


@pytest.mark.parametrize("what", STRIKES)
def test_damage_is_found_at_the_next_look(store: Store, what: str) -> None:
    before = store.stored
    STRIKES[what](store)
    assert store.look() == what
    assert store.files.whole == before


@pytest.mark.parametrize("what", STRIKES)
def test_damage_does_not_go_by_itself(store: Store, what: str) -> None:
    STRIKES[what](store)
    assert [store.look() for _ in range(5)] == [what] * 5


def test_a_directory_that_comes_back(store: Store) -> None:
    away = store.folder.rename(store.folder.with_name("away"))
    assert store.look() == "is gone"
    away.rename(store.folder)
    assert store.looks() == []


def test_the_newest_block_cut_short_in_place_and_written_on(store: Store) -> None:
    """The server writes at its own offset: the size is as if nothing had happened."""
    size = store.block(4).stat().st_size
    with store.block(4).open("r+b") as file:
        file.truncate(0)
        file.truncate(size)
    assert store.looks(1) == ["has a block that was cut short: 4.blk"]


def test_a_block_cut_short_before_the_first_look(tmp_path: Path) -> None:
    made = Store(tmp_path / "msgs")
    made.write()
    size = made.block(1).stat().st_size
    with made.block(1).open("r+b") as file:
        file.truncate(0)
        file.truncate(size)
    assert made.looks(1) == ["has a block that was cut short: 1.blk"]


def test_the_last_records_cut_off_before_others_follow(tmp_path: Path) -> None:
    made = Store(tmp_path / "msgs")
    made.write()
    assert made.files.damage(made.stored, made.first, idle=True) is None
    cut_off_the_end(made.block(1))
    assert made.look() == "has a block that was cut short: 1.blk"


def test_a_record_that_is_being_written_may_be_removed(tmp_path: Path) -> None:
    """A server that starts again removes it; nothing else shows that it was not acknowledged."""
    made = Store(tmp_path / "msgs")
    made.write()
    assert made.look() is None
    cut_off_the_end(made.block(1))
    assert made.look() is None


def test_a_directory_replaced_before_the_first_look(tmp_path: Path) -> None:
    made = Store(tmp_path / "msgs")
    shutil.copytree(made.folder.rename(tmp_path / "old"), made.folder)
    assert made.look() == "was replaced"


def test_the_newest_block_replaced_by_a_copy(store: Store) -> None:
    """The server writes to the file without a name, and the copy stays as it is."""
    for _ in range(8):
        store.stored += 3
        found = store.look()
    assert found == "does not grow: 4.blk is not the file that is written"


def test_a_log_that_stands_still(store: Store) -> None:
    assert [store.look() for _ in range(20)] == [None] * 20


def test_acknowledgements_before_the_write_is_seen(store: Store) -> None:
    """Without a sync of each record, the server acknowledges first."""
    store.stored += 3
    assert store.look() is None
    store.stored -= 3
    assert store.looks() == []


def test_a_cut_removes_blocks_and_shortens_the_first(store: Store) -> None:
    store.first = 30
    assert store.looks(1) == []
    store.block(1).unlink()
    cut_off_the_end(store.block(2))
    assert store.looks() == []


def test_a_cut_does_not_explain_a_block_in_the_middle(store: Store) -> None:
    store.first = 30
    assert store.looks(1) == []
    store.block(2).unlink()
    assert set(store.looks()) == {"lacks block 2.blk"}


def test_a_cut_explains_blocks_for_a_minute_only(store: Store) -> None:
    store.first = 30
    assert store.looks(121) == []
    store.block(1).unlink()
    assert store.looks(1) == ["lacks block 1.blk"]


def test_a_server_that_starts_again_removes_a_record_that_is_not_complete(store: Store) -> None:
    with store.block(4).open("ab") as out:
        out.write(b"half of a record " * 20)
    assert store.looks(1) == []
    whole = store.block(4).stat().st_size
    with store.block(4).open("ab") as out:
        out.write(b"half of a record " * 100)
    assert store.look() is None
    with store.block(4).open("r+b") as file:
        file.truncate(whole)
    store.files.forget_end()
    assert store.looks() == []
