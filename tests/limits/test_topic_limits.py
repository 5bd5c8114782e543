"""Bounds on subscriptions and on the depth of topics."""

import pytest

from actors.limits.client_limits import TopicLimits

LIMITS = TopicLimits(subscriptions=3, levels=4, wildcards=2)


@pytest.mark.parametrize(
    ("topic_filter", "held", "new", "reason"),
    [
        ("a/b/c/d", 0, True, None),
        ("a/b/c/d/e", 0, True, "topic_levels"),
        ("////", 0, True, "topic_levels"),
        ("+/b/#", 0, True, None),
        ("+/+/#", 0, True, "wildcards"),
        ("a", 2, True, None),
        ("a", 3, True, "subscriptions"),
        ("a", 3, False, None),
        ("+/+/+", 3, False, "wildcards"),
    ],
)
def test_filters(topic_filter: str, held: int, new: bool, reason: str | None) -> None:
    assert LIMITS.refuses_filter(topic_filter, held, new=new) == reason


def test_0_is_no_bound() -> None:
    free = TopicLimits(0, 0, 0)
    assert free.refuses_filter("+/" * 30_000 + "#", 1 << 30, new=True) is None
