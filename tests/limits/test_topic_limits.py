"""Bounds on the levels and wildcards of topic filters."""

from typing import Any

import pytest

from actors.limits.client_limits import ClientLimits
from actors.limits.limit_options import LimitOptions


def limits(levels: int, wildcards: int) -> ClientLimits[Any]:
    return ClientLimits(LimitOptions(max_topic_levels=levels, max_wildcards=wildcards), {})


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("a/b/c/d", None),
        ("a/b/c/d/e", "topic_levels"),
        ("////", "topic_levels"),
        ("+/b/#", None),
        ("+/+/#", "wildcards"),
    ],
)
def test_filters(topic_filter: str, reason: str | None) -> None:
    assert limits(levels=4, wildcards=2).refuses_filter(topic_filter) == reason


def test_0_is_no_bound() -> None:
    assert limits(levels=0, wildcards=0).refuses_filter("+/" * 30_000 + "#") is None
