"""Reports about the members of shared subscriptions are made and applied in steps."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.exchange import member_reports
from actors.exchange.member_reports import MemberReports, SharedParts
from actors.routing.shared_groups import SharedGroups

LOGS = ["a", "b"]
GROUPS = [f"$share/g{number}/t" for number in range(6)]
OWN, THROUGH = "home", 10


class Home:
    """The home log of shared subscriptions with members in two other logs."""

    def __init__(self) -> None:
        self.groups = SharedGroups()
        for name in GROUPS:
            for log in LOGS:
                self.groups.log_joined(name, log)
        self.now = 0.0
        self.taken = dict.fromkeys(LOGS, 0)
        node = SimpleNamespace(
            journal=SimpleNamespace(last=THROUGH),
            clock=SimpleNamespace(monotonic=lambda: self.now),
            router=SimpleNamespace(groups=self.groups),
            kernel=SimpleNamespace(wake=lambda: None),
            spawn_task=self._spawn_task,
            in_parts=lambda names, _most, work: [work(name) for name in names],
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.reports = MemberReports(
            cast("Any", node), OWN, self.taken.__getitem__, lambda _name: ""
        )
        self.reports.begin()

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    def take(self, log: str, through: int) -> None:
        """Take a log up to a position."""
        self.taken[log] = max(self.taken[log], through)
        self.reports.reached(log)

    async def done(self) -> None:
        """Wait until nothing is left to do; fail as the work does."""
        await asyncio.gather(*self._tasks)

    def known(self) -> list[Any]:
        """Return all that is known about the members in other logs."""
        return [
            (name, log, remote.online, remote.room, [one.session for one in group.ordered()])
            for name in GROUPS
            for log in LOGS
            if (remote := (group := self.groups.find(name)).remote.get(log)) is not None
        ]


def report(at: int, offers: dict[str, tuple[int, int]]) -> bytes:
    return orjson.dumps((at, {OWN: THROUGH}, [(name, *rest) for name, rest in offers.items()]))


OFFERS = st.dictionaries(
    st.sampled_from(GROUPS), st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=6
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.sampled_from(LOGS), st.integers(0, 2), OFFERS),
        st.tuples(st.just("take"), st.sampled_from(LOGS), st.integers(0, 12)),
        st.tuples(st.just("run")),
    ),
    max_size=30,
)


@pytest.mark.parametrize(("at_once", "kept"), [(1, 64), (3, 2), (256, 1)])
@given(steps=STEPS)
def test_reports_in_steps_come_to_the_same_as_one_after_the_other(
    steps: list[Any], at_once: int, kept: int
) -> None:
    """The last report of each part counts that its log was taken up to, whatever the steps."""

    async def scenario() -> None:
        home = Home()
        ends: dict[str, int] = dict.fromkeys(LOGS, 0)
        last: dict[tuple[str, str], tuple[int, int]] = {}
        for step in steps:
            match step:
                case ("report", log, further, offers):
                    ends[log] += further
                    home.reports.heard(log, report(ends[log], offers))
                    last.update({(name, log): offer for name, offer in offers.items()})
                case ("take", log, through):
                    home.take(log, min(through, ends[log]))
                case _:
                    await asyncio.sleep(0)
        for log in LOGS:
            home.take(log, ends[log])
        await home.done()
        wanted = Home()
        for (name, log), (online, room) in last.items():
            wanted.groups.report(name, log, online, room, THROUGH)
        assert home.known() == wanted.known()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(member_reports, "_APPLIED_AT_ONCE", at_once)
        patch.setattr(member_reports, "_REPORTS", kept)
        asyncio.run(scenario())


async def test_members_leave_only_when_their_log_was_taken_up_to_their_report() -> None:
    home = Home()
    home.reports.heard("a", report(1, {GROUPS[0]: (2, 8)}))
    home.reports.heard("a", report(5, {GROUPS[0]: (0, 0)}))
    home.take("a", 4)
    await home.done()
    assert [one[1:4] for one in home.known()] == [("a", 2, 8)]
    home.take("a", 5)
    await home.done()
    assert [one[1:4] for one in home.known()] == [("a", 0, 0)]


async def test_the_rest_of_a_report_of_a_silent_log_is_not_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_reports, "_APPLIED_AT_ONCE", 1)
    home = Home()
    home.reports.heard("a", report(0, dict.fromkeys(GROUPS, (2, 8))))
    home.reports.heard("b", report(0, dict.fromkeys(GROUPS, (1, 4))))
    await asyncio.sleep(0)
    assert home.groups.of_log("a")
    home.now = 60
    home.reports.heard("b", report(0, {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    home.reports.run_periodically()
    await home.done()
    assert not home.groups.of_log("a")
    assert home.groups.of_log("b") == GROUPS


async def test_reports_that_come_faster_than_they_are_read_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_reports, "_APPLIED_AT_ONCE", 1)
    monkeypatch.setattr(member_reports, "_UNREAD", 300)
    home = Home()
    for number in range(1, 1000):
        home.reports.heard("a", report(0, {GROUPS[0]: (1, number), GROUPS[1]: (1, number)}))
    await home.done()
    rooms = {remote_room for _, _, _, remote_room, _ in home.known()}
    assert len(rooms) == 1
    assert 1 < rooms.pop() < 10


@pytest.mark.parametrize("largest", [1 << 20, 1500])
async def test_members_are_measured_in_steps(largest: int) -> None:
    """However many parts are reported, an iteration of the event loop measures few of them."""
    loop: Any = asyncio.get_running_loop()
    names = [f"$share/g{number}/t" for number in range(300)]
    sent: list[list[Any]] = []
    measured = 0

    def measure() -> tuple[int, int]:
        nonlocal measured
        measured += 1
        return 49, 5

    node: Any = SimpleNamespace(
        options=SimpleNamespace(node=OWN),
        journal=SimpleNamespace(last=3),
        failed=loop.create_future(),
    )
    parts = SharedParts(
        node, [OWN, "a"], lambda data: sent.append(orjson.loads(data)), largest, lambda _log: 7
    )
    for name in names:
        parts.part_began(name, 0)
        parts.offer(name, measure)
    async with asyncio.timeout(30):
        while not sent:  # noqa: ASYNC110 - a timer begins the reports
            await asyncio.sleep(0)
        most = measured
        while measured < len(names):
            before = measured
            await asyncio.sleep(0)
            most = max(most, measured - before)
    assert most <= member_reports._MEASURED_AT_ONCE // 50
    assert all(len(orjson.dumps(one)) <= largest for one in sent)
    assert all(one[:2] == [3, {"a": 7}] for one in sent)
    assert sorted(tuple(offer) for one in sent for offer in one[2]) == sorted(
        (name, 49, 5) for name in names
    )

    sent.clear()
    parts.run_periodically()
    parts.end()  # at once
    assert {tuple(offer) for one in sent for offer in one[2]} >= {(name, 0, 0) for name in names}
    sent.clear()
    parts.run_periodically()
    assert not sent  # the homes notice the silence
