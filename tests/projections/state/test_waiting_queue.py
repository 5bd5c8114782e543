"""The queue of runs, compared with a queue that contains every message."""

from collections import Counter, deque

import orjson
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.positions import from_runs, to_runs
from projections.state.waiting_queue import FLAG_BITS, WaitingQueue, waiting

REFS = st.lists(st.integers(0, 40), max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), REFS, st.integers(1, 6)),
        st.tuples(st.just("discard"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("append"), REFS, st.integers(1, 6)),
    ),
    max_size=20,
)


@given(STEPS)
def test_it_is_a_queue(steps: list[tuple[str, list[int] | int, int]]) -> None:
    queue, model = WaitingQueue(), deque[int]()
    for step, what, flags in steps:
        if isinstance(what, int):
            queue.discard(what)
            for _ in range(min(what, len(model))):
                model.popleft()
        elif step == "extend":
            assert queue.extend(to_runs(what), flags) == len(what)
            model.extend(ref << FLAG_BITS | flags for ref in what)
        else:
            other = WaitingQueue()
            other.extend(to_runs(what), flags)
            queue.append(other)
            model.extend(ref << FLAG_BITS | flags for ref in what)
        assert list(queue) == list(model)
        assert len(queue) == len(model)
        assert queue.ends() == ((model[0], model[-1]) if model else None)
        assert queue.oldest() == min((one >> FLAG_BITS for one in model), default=None)
        assert list(queue.refs()) == [one >> FLAG_BITS for one in model]
        assert list(WaitingQueue(orjson.loads(orjson.dumps(queue.runs())))) == list(model)


EXPIRING = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), REFS, st.lists(st.integers(0, 4), min_size=12, max_size=12)),
        st.tuples(st.just("insert"), REFS, st.lists(st.integers(0, 4), min_size=12, max_size=12)),
        st.tuples(st.just("alike"), REFS, st.lists(st.integers(0, 4), min_size=1, max_size=1)),
        st.tuples(st.just("expire"), REFS, st.lists(st.integers(0, 5), min_size=1, max_size=1)),
        st.tuples(st.just("remove"), REFS, st.just([0])),
        st.tuples(st.just("discard"), REFS, st.lists(st.integers(0, 9), min_size=1, max_size=1)),
    ),
    max_size=16,
)


@given(EXPIRING)
def test_messages_expire_at_any_place_in_the_queue(
    steps: list[tuple[str, list[int], list[int]]],
) -> None:
    queue, model = WaitingQueue(), list[tuple[int, int]]()
    for step, refs, numbers in steps:
        ends = numbers[: len(refs)]
        pairs = [(ref << FLAG_BITS | 1, end) for ref, end in zip(refs, ends, strict=False)]
        if step == "extend":
            assert queue.extend(to_runs(refs), 1, to_runs(ends)) == len(refs)
            model += pairs
        elif step == "insert":
            behind = min(numbers[0], len(model))
            assert queue.insert(behind, to_runs(refs), 1, to_runs(ends)) == len(refs)
            model[behind:behind] = pairs
        elif step == "alike":
            queue.extend(to_runs(refs), 1, numbers[0])
            model += [(ref << FLAG_BITS | 1, numbers[0]) for ref in refs]
        elif step == "discard":
            queue.discard(numbers[0])
            del model[: numbers[0]]
        else:
            gone = queue.expired(numbers[0]) if step == "expire" else refs
            if step == "expire":
                expected = [one >> FLAG_BITS for one, end in model if 0 < end <= numbers[0]]
                assert gone == expected
                assert queue.expired(numbers[0], 2) == expected[:2]
            left = Counter(gone)
            kept = []
            for one, end in model:
                if end and left[one >> FLAG_BITS] > 0:
                    left[one >> FLAG_BITS] -= 1
                else:
                    kept.append((one, end))
            assert queue.remove(gone) == len(model) - len(kept)
            model = kept
        assert list(queue) == [one for one, _ in model]
        assert len(queue) == len(model)
        ends = [end for _, end in model]
        assert queue.expiries(len(model)) == (ends if any(ends) else [])
        assert queue.expiries(2) == (ends[:2] if any(ends[:2]) else [])
        assert queue.expiry() == min(filter(None, ends), default=0)
        assert from_runs(queue.ref_runs()) == list(queue.refs())
        again = WaitingQueue(orjson.loads(orjson.dumps(queue.runs())))
        assert (list(again), again.expiries(99)) == (list(queue), queue.expiries(99))


def test_equal_expiry_times_are_stored_once() -> None:
    queue = WaitingQueue()
    for ref in range(100, 1100):
        queue.extend([ref], 1, 1 << 31)
    queue.extend([1100], 1)
    packed = waiting(100, 1, retain=False)
    last = waiting(1100, 1, retain=False)
    assert queue.runs() == [[packed, 1000, 1 << FLAG_BITS, 1 << 31], last]


def test_neighbours_take_the_room_of_one() -> None:
    queue = WaitingQueue()
    for ref in range(100, 1100):
        queue.extend([ref], 1)
    assert queue.runs() == [[waiting(100, 1, retain=False), 1000, 1 << FLAG_BITS]]
    queue.extend([1100], 2)
    assert len(queue.runs()) == 2
    queue.discard(999)
    assert list(queue) == [waiting(1099, 1, retain=False), waiting(1100, 2, retain=False)]
