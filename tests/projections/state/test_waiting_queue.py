"""The queue of runs is a queue: compared with one that holds every message."""

from __future__ import annotations

from collections import deque

import orjson
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format import to_runs
from projections.state import FLAG_BITS, WaitingQueue, waiting

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


def test_neighbours_take_the_room_of_one() -> None:
    queue = WaitingQueue()
    for ref in range(100, 1100):
        queue.extend([ref], 1)
    assert queue.runs() == [[waiting(100, 1, retain=False), 1000, 1 << FLAG_BITS]]
    queue.extend([1100], 2)
    assert len(queue.runs()) == 2
    queue.discard(999)
    assert list(queue) == [waiting(1099, 1, retain=False), waiting(1100, 2, retain=False)]
