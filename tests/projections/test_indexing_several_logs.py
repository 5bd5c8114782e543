"""Answers about several logs with the indexes of some of them equal those without."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexedlogs import IndexedSource, as_log, build, listed, told, use
from playedlogs import same
from playedpartitions import FILTERS, PARTITION_STEPS, PlayedPartitions

from eventstore.format.event_parsing import entries
from eventstore.format.events import LOG_SESSION
from eventstore.format.positions import MAX_INDEX, position
from eventstore.reading import keys
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import silent
from projections.past import topic_records
from projections.past.event_reader import EventFilter
from projections.past.indexed_sessions import session_at
from projections.past.log_stories import (
    LogStory,
    not_taken,
    published_anywhere,
    stories_elsewhere,
)
from projections.past.message_search import find_stories
from projections.past.replay import fold
from projections.state.node_state import NodeState


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep many states, and always narrow topics."""
    monkeypatch.setattr(keys, "_RECORDS_BETWEEN", 3)
    monkeypatch.setattr(topic_records, "worth_reading", lambda _named, _others: True)


def sources(played: PlayedPartitions) -> dict[str, IndexedSource]:
    return {name: IndexedSource(node) for name, node in played.logs.items()}


def logs(found: Mapping[str, IndexedSource]) -> dict[str, LogSource]:
    return {name: as_log(source) for name, source in found.items()}


def compared(groups: list[list[LogStory]]) -> list[Any]:
    return [[(one.log, told([one.story]), one.note) for one in group] for group in groups]


async def stories(found: Mapping[str, LogSource]) -> list[Any]:
    """The histories of all messages of all logs, in all logs."""
    answers: list[Any] = []
    for name, source in found.items():
        for sequence in range(source.begin, source.last + 1):
            (record,) = await source.some([sequence])
            for index, event in record.events():
                if event.e != "MessagePublished":
                    continue
                at = position(sequence, index)
                for ref in range(at, at + entries(event)):
                    own = await find_stories(source, ref=ref)
                    answers += compared(await stories_elsewhere(found, name, own, silent))
    return answers


async def on_topics(played: PlayedPartitions, found: Mapping[str, LogSource]) -> list[Any]:
    """The last messages on topics, for the clients of all logs and without a client."""
    answers: list[Any] = []
    for topic in ("a/b", "a/#", "#"):
        for last in (1, 3):
            answers += compared(await published_anywhere(found, topic, last, None, silent))
            for at, client in enumerate(played.names):
                log = list(found)[at % 2]
                answers += compared(await not_taken(found, log, client, topic, last, None, silent))
    return answers


async def events(played: PlayedPartitions, found: Mapping[str, IndexedSource]) -> list[Any]:
    answers: list[Any] = []
    for source in found.values():
        sessions = [None, *played.names, *(LOG_SESSION + name for name in found), FILTERS[-1]]
        for session in sessions:
            for topic in (None, "a/b", "a/#"):
                if session is not None or topic is not None:
                    answers += await listed(source, EventFilter((), session, topic), 1)
    return answers


async def check_states(played: PlayedPartitions, found: Mapping[str, IndexedSource]) -> None:
    """Compare the states of clients with those of the whole log."""
    for source in found.values():
        for name in played.names:
            node = NodeState(source.begin)
            for sequence in range(1, source.last + 1):
                fold(node, source.record(sequence), name)
                seen = await session_at(as_log(source), name, LogPoint(sequence, MAX_INDEX))
                if seen is None:
                    assert source.index.empty
                    continue
                assert same(seen.state, node.sessions.peek(name)), (name, sequence)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@given(
    steps=PARTITION_STEPS,
    step=st.integers(1, 6),
    shares=st.tuples(*[st.sampled_from([0.0, 0.4, 1.0])] * 2),
)
def test_answers_are_those_without_indexes(
    steps: list[tuple[str, int, int]], step: int, shares: tuple[float, float]
) -> None:
    played = PlayedPartitions(steps)
    plain, indexed = sources(played), sources(played)
    with tempfile.TemporaryDirectory() as place:
        for share, (name, source) in zip(shares, indexed.items(), strict=True):
            last = round(share * source.last)
            if last:
                path = Path(place) / name
                use(source, build(sources(played)[name], path, last, step, restart=step % 2 == 0))
        for ask in (events, on_topics):
            found = [logs(one) if ask is on_topics else one for one in (plain, indexed)]
            expected, answer = (asyncio.run(ask(played, one)) for one in found)  # type: ignore[arg-type]
            assert answer == expected
        expected, answer = (asyncio.run(stories(logs(one))) for one in (plain, indexed))
        assert answer == expected
        asyncio.run(check_states(played, indexed))
