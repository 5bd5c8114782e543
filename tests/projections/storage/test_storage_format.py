"""The messages of the projections: read back whole, or not at all."""

import random
from collections import Counter
from collections.abc import Iterator

import orjson
import pytest
from specification import snapshot

from eventstore.format.events import SessionOpened, Subscribed
from eventstore.format.node_events import LogArchived, LogCut
from eventstore.format.positions import position
from projections.log_proof import Doubt
from projections.state.client_history import ClientHistories, ClientHistory, decode_history
from projections.state.format import (
    GONE,
    HISTORY,
    MARK,
    RETAINED,
    SESSION,
    BadProjection,
    ProjectionMark,
    StoredEntry,
    decode_entry,
    key_of,
    mark_of,
    retained_body,
    version_tag,
)
from projections.state.loading import LoadedProjections, ProjectionLoader
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.state.session import SessionState
from projections.state.session_table import freeze, text_of

LIMIT = position(100, 0)
NAMES = ["ann", "b\u00f6b", "c" * 70_000]
CUT = LogCut(3, "ab" * 32, 99, "keep")
ARCHIVED = LogArchived(4, "cd" * 32, "ann@desk", "/archive")


def state_of(name: str) -> SessionState:
    node = NodeState()
    node.apply(SessionOpened(name, resumed=False, clean=False, level=4), position(1, 0), 1)
    node.apply(Subscribed(name, [("a/+", 1)]), position(1, 1), 1)
    node.sessions[name].connected = False
    return node.sessions[name]


def messages() -> Iterator[bytes]:
    """Three sessions, a topic that is gone, a topic, a newer version of a session, the mark."""
    digest = 0
    for number, name in enumerate([*NAMES, "ann"], 2):
        version = position(number, 1)
        if number == 5:
            digest ^= version_tag(key_of(SESSION, "ann"), position(2, 1))
        digest ^= version_tag(key_of(SESSION, name), version)
        frozen = freeze(state_of(name), version)
        assert frozen is not None
        yield StoredEntry(SESSION, name, version, digest, text_of(frozen)).encode()
    yield StoredEntry(GONE, "old", 0, digest, b"").encode()
    message = RetainedMessage("t", b"payload", 1, position(7, 3))
    digest ^= version_tag(key_of(RETAINED, "t"), message.ref)
    yield StoredEntry(RETAINED, "t", message.ref, digest, retained_body(message)).encode()
    history = ClientHistory(since_ms=5)
    history.connects, history.dropped = 2, Counter({"slow_reader": 4})
    digest ^= version_tag(key_of(HISTORY, "ann"), position(7, 4))
    yield StoredEntry(HISTORY, "ann", position(7, 4), digest, history.encode()).encode()
    mark = ProjectionMark(
        6, "ab" * 32, 3, 1, [4], [(1, position(3, 0), 99)], CUT, (position(5, 1), ARCHIVED)
    )
    yield StoredEntry(MARK, "", position(6, 0), digest, mark.body()).encode()


def stored() -> list[bytes]:
    """As JetStream keeps them: the older version of the session is gone."""
    return list(messages())[1:]


def load(data: list[bytes], limit: int = LIMIT) -> tuple[NodeState, LoadedProjections]:
    node = NodeState()
    node.clients = ClientHistories()
    loader = ProjectionLoader(node, lambda state, *, frozen: None, limit)
    for one in data:
        entry = decode_entry(one)
        loader.take(key_of(entry.kind, entry.name, entry.part), one)
    return node, loader.finish(7)


def test_stored_state_is_loaded() -> None:
    node, loaded = load(stored())
    assert sorted(node.sessions) == sorted(NAMES)
    assert not node.sessions.live
    for name in NAMES:
        assert snapshot(node.sessions[name]) == snapshot(state_of(name))
    assert node.retained.all() == [RetainedMessage("t", b"payload", 1, position(7, 3))]
    assert (loaded.mark.sequence, loaded.mark.checkpoints) == (6, [(1, position(3, 0), 99)])
    assert (loaded.mark.cut, loaded.mark.archived) == (CUT, (position(5, 1), ARCHIVED))
    assert loaded.last == 7
    assert node.clients is not None
    history = node.clients.find("ann")
    assert (history.connects, history.dropped, history.since_ms) == (2, {"slow_reader": 4}, 5)


def test_a_history_that_cannot_be_read_is_found() -> None:
    for body in (b"[]", b"{", b'{"connects": []}', b'{"dropped": [1]}'):
        damaged = StoredEntry(HISTORY, "ann", position(2, 0), 0, body).encode()
        with pytest.raises(BadProjection, match="history of a client cannot be read"):
            load([damaged])


def test_a_history_is_stored_whole() -> None:
    histories = ClientHistories()
    histories.opened("c", 1, "192.0.2.1")
    histories.closed("c", "taken_over", 2)
    histories.dropped("c", "queue_messages", 3, 4)
    histories.denied("c", "publish", "a/b", 2, 5, None)
    one = histories.find("c")
    read = decode_history(one.encode())
    assert read.encode() == one.encode()
    assert (read.takeovers, read.taken_ms, read.last_close) == (1, (2,), "taken_over")
    assert (read.denied, read.denied_count, read.dropped_ms) == ({"publish a/b": 2}, 2, 4)


def test_projections_of_another_version_are_not_used() -> None:
    data = bytearray(next(messages()))
    data[3] -= 1
    with pytest.raises(BadProjection, match="written by another version of foldmq"):
        decode_entry(bytes(data))


def test_a_mark_of_before_there_were_archives_is_read() -> None:
    mark = ProjectionMark(6, "ab" * 32, 3, 1, [4], [], CUT)
    raw = orjson.loads(mark.body())
    del raw["archived"]
    assert mark_of(StoredEntry(MARK, "", 0, 0, orjson.dumps(raw))) == mark


def test_a_mark_has_an_epoch_in_a_cluster_alone() -> None:
    """Earlier versions read no mark with an epoch."""
    alone = ProjectionMark(6, "ab" * 32, 3, 1)
    assert "epoch" not in orjson.loads(alone.body())
    led = ProjectionMark(6, "ab" * 32, 3, 1, epoch=4)
    assert mark_of(StoredEntry(MARK, "", 0, 0, led.body())) == led


def test_a_mark_has_the_doubts_about_the_log() -> None:
    """Earlier versions read no mark with doubts."""
    whole = ProjectionMark(6, "ab" * 32, 3, 1)
    assert "doubts" not in orjson.loads(whole.body())
    copied = ProjectionMark(6, "ab" * 32, 3, 1, doubts=[Doubt(4, "copy", 3, 3, 1, 2, 5)])
    assert mark_of(StoredEntry(MARK, "", 0, 0, copied.body())) == copied


def test_events_in_the_snapshot_are_not_applied_again() -> None:
    node, _ = load(stored())
    again = SessionOpened("ann", resumed=False, clean=True, level=3, generation=9)
    node.apply(again, position(4, 0), 5)
    assert node.sessions["ann"].generation == 1
    node.apply(again, position(5, 1), 5)
    assert node.sessions["ann"].generation == 9


@pytest.mark.parametrize("missing", range(7))
def test_a_missing_message_is_found(missing: int) -> None:
    data = stored()
    assert len(data) == 7
    gone = decode_entry(data.pop(missing))
    if gone.kind == GONE:
        load(data)
    else:
        with pytest.raises(BadProjection, match=r"incomplete|no mark"):
            load(data)


def test_an_older_version_that_came_back_is_found() -> None:
    old, *rest = messages()
    newest = [one for one in rest if decode_entry(one).name != "ann"]
    with pytest.raises(BadProjection, match="incomplete"):
        load([old, *newest])


def test_an_end_that_was_lost_takes_the_mark_with_it() -> None:
    with pytest.raises(BadProjection, match="no mark"):
        load(list(messages())[:3])


def test_more_than_the_log_holds_is_refused() -> None:
    with pytest.raises(BadProjection, match="more than the log"):
        load(stored(), position(5, 0))


def test_any_changed_byte_is_found() -> None:
    chance = random.Random(1)
    data = stored()
    for _ in range(300):
        at = chance.randrange(len(data))
        one = bytearray(data[at])
        one[chance.randrange(len(one))] ^= 1 << chance.randrange(8)
        with pytest.raises(BadProjection):
            load([*data[:at], bytes(one), *data[at + 1 :]])


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"cut": null}', b"\xff"])
def test_a_mark_that_is_none(body: bytes) -> None:
    with pytest.raises(BadProjection):
        mark_of(StoredEntry(MARK, "", 0, 0, body))


def test_names_of_any_length_have_keys_of_one_length() -> None:
    assert len({len(key_of(SESSION, name)) for name in ("", *NAMES)}) == 1
    assert key_of(SESSION, "a") != key_of(RETAINED, "a")
    assert key_of(SESSION, "a", 3) == key_of(SESSION, "a") + ".3"
