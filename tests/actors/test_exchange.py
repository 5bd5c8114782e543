"""QoS 0 batches between brokers, and the order of retained messages of several logs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.exchange.effect_recorder import RetainedVersion, RetainedVersions
from actors.exchange.qos0_exchange import Qos0Messages, decode_frames, encode_frame
from eventstore.partitions import partition_of

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"a", "ü/b".encode(), b"c"]),
        st.binary(max_size=9),
        st.sampled_from([b"", b"\x01\x01", b"\x26\x00\x01a\x00\x01b"]),
    ),
    min_size=1,
    max_size=9,
)


@given(st.lists(st.tuples(MESSAGES, st.booleans(), st.integers(0, 9)), max_size=4))
def test_batches_are_read_as_they_were_written(
    batches: list[tuple[list[tuple[bytes, bytes, bytes]], bool, int]],
) -> None:
    written = []
    for messages, retain, epoch in batches:
        topics, payloads, blocks = map(list, zip(*messages, strict=True))
        written.append(
            Qos0Messages(topics, payloads, blocks if any(blocks) else [], retain, epoch=epoch)
        )
    assert [*decode_frames(b"".join(map(encode_frame, written)))] == written


@given(st.binary(max_size=60), st.integers(0, 40))
def test_damaged_batches_raise_one_error(data: bytes, cut: int) -> None:
    frame = encode_frame(Qos0Messages([b"t"], [b"payload"], [], retain=False))
    for damaged in (data, frame[:cut], frame + data):
        try:
            found = [*decode_frames(damaged)]
        except ValueError:
            continue
        assert all(len(one.topics) == len(one.payloads) for one in found)


@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 3), st.integers(0, 2)),
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_all_logs_end_with_the_same_retained_message(
    changes: list[tuple[bytes, int, int]], chance: object
) -> None:
    def last(order: list[tuple[bytes, int, int]]) -> dict[bytes, RetainedVersion]:
        versions, found = RetainedVersions(), {}
        for topic, time_ms, number in order:
            version = RetainedVersion(time_ms, number)
            if versions.accepts(topic, version):
                found[topic] = version
        return found

    other = list(changes)
    chance.shuffle(other)  # type: ignore[attr-defined]
    assert last(changes) == last(other)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_partitions_are_used_alike(count: int) -> None:
    found = [partition_of(f"client-{number}", count) for number in range(2000)]
    assert all(found.count(number) > 1500 / count for number in range(count))
    assert set(found) == set(range(count))
