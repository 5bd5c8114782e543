"""Reports of topics to which no subscription matches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from actors.exchange.unwanted_topics import BoundedTopics, UnwantedTopics, read_report
from actors.routing.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("topic_filter", "wanted"),
    [("cmd/1", []), ("site/7", [b"site/7"]), ("site/+", None)],
)
def test_a_new_subscription_looks_up_few_topics(
    topic_filter: str, wanted: list[bytes] | None
) -> None:
    timers: list[Callable[[], None]] = []
    reports: list[bytes] = []
    router: Any = Router()
    node: Any = SimpleNamespace(
        router=router, timers=SimpleNamespace(after=lambda _, call: timers.append(call))
    )
    topics = UnwantedTopics(node, ["other"], lambda _, report: reports.append(report), 1 << 20)
    topics.add("other", [b"site/%d" % number for number in range(10_000)])
    timers.pop()()
    looked_up: list[Any] = []
    index = router.indexed
    node.router = SimpleNamespace(indexed=lambda topic: looked_up.append(topic) or index(topic))
    reports.clear()

    router.subscribe("client", topic_filter, 1)
    topics.subscribed([topic_filter])
    timers.pop()()
    assert [(read_report(report) or [b"begun"])[0] for report in reports] == (
        [] if wanted == [] else [wanted]
    )
    assert len(looked_up) <= 256


def test_topics_are_counted() -> None:
    topics = BoundedTopics()
    assert topics.add(b"%d" % number for number in range(16_384))
    topics.remove([b"1", b"none"])
    assert topics.add([b"2", b"new"])
    assert not topics.add([b"one too many"])
    assert not topics.topics
