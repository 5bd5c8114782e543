import gc

import pytest

from eventstore.reading import few_collections


def test_garbage_is_collected_seldom_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with few_collections():
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0] > 0
    assert gc.get_threshold() == before


def test_garbage_is_collected_as_before_after_a_failure() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), few_collections():
        raise ValueError("x")
    assert gc.get_threshold() == before
