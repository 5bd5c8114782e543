import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.positions import (
    MAX_INDEX,
    count_runs,
    format_position,
    from_runs,
    index_of,
    parse_position,
    position,
    sequence_of,
    to_runs,
)

numbers = st.integers(-(1 << 40), 1 << 62)
progressions = st.builds(
    lambda first, count, step: [first + step * at for at in range(count)],
    st.integers(0, 1 << 60),
    st.integers(0, 9),
    st.integers(-5, 5),
)
lists = st.one_of(
    st.lists(numbers),
    st.lists(progressions, max_size=6).map(lambda parts: [n for part in parts for n in part]),
)


@given(lists)
def test_runs_give_back_the_integers(values: list[int]) -> None:
    runs = to_runs(values)
    assert from_runs(runs) == values
    assert count_runs(runs) == len(values)
    assert len(runs) <= len(values)


@given(lists)
def test_a_run_encodes_at_least_three_integers(values: list[int]) -> None:
    for run in to_runs(values):
        assert isinstance(run, int) or (len(run) == 3 and run[1] >= 3 and run[2] != 0)


@pytest.mark.parametrize(
    ("values", "runs"),
    [
        ([], []),
        ([7], [7]),
        ([7, 8], [7, 8]),
        ([7, 8, 9], [[7, 3, 1]]),
        (range(10, 0, -2), [[10, 5, -2]]),
        ([5, 5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4, 9, 20, 30, 40, 50], [[1, 4, 1], 9, [20, 4, 10]]),
        ([65534, 65535, 1, 2, 3, 4], [65534, 65535, [1, 4, 1]]),
    ],
)
def test_runs(values: list[int], runs: list[object]) -> None:
    assert to_runs(values) == runs


@given(st.integers(1, 1 << 43), st.integers(0, MAX_INDEX))
def test_position_holds_sequence_and_index(sequence: int, index: int) -> None:
    packed = position(sequence, index)
    assert (sequence_of(packed), index_of(packed)) == (sequence, index)
    assert parse_position(format_position(packed)) == packed


@given(st.tuples(st.integers(1, 1 << 43), st.integers(0, MAX_INDEX)), st.data())
def test_positions_sort_as_the_log_does(one: tuple[int, int], data: st.DataObject) -> None:
    other = data.draw(st.tuples(st.integers(1, 1 << 43), st.integers(0, MAX_INDEX)))
    assert (position(*one) < position(*other)) == (one < other)


def test_a_sequence_alone_is_the_position_of_its_first_entry() -> None:
    assert parse_position("12") == position(12, 0)


@pytest.mark.parametrize("text", ["", ".", "1.", "x", "1.x", "-1", "1.-1", "1.1048576", "1.2.3"])
def test_invalid_positions(text: str) -> None:
    if text == "1.":
        assert parse_position(text) == position(1, 0)
        return
    with pytest.raises(ValueError, match=r".+"):
        parse_position(text)
