"""Logs that lost records and were salvaged; a complete checkpoint behind them repeats the state.

What is said of the time behind it is as true as in a whole log: what a broker did wrong there is
found, and nothing that the lost records explain is held against it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from brokencauses import LIMITS, drop, gone, limited, with_will
from brokenlogs import (
    Case,
    Stories,
    Story,
    at,
    checkpoint,
    closed,
    delivered,
    opened,
    published,
    queued,
    snapshot,
)
from brokenmqtt5 import GROUP, given, shared
from harness.logs import LogBuilder
from harness.salvages import salvaged

from eventstore.format.events import (
    Acked,
    Completed,
    Received,
    Released,
    SessionClosed,
    Subscribed,
    SubscriptionDenied,
)
from eventstore.format.node_events import (
    BrokerStarted,
    BrokerStopped,
    LimitsApplied,
    RetainedCleared,
    RetainedSnapshot,
)

HOLED = Stories()

_HOUR_MS = 3_600_000


def lacking(log: LogBuilder, *lost: int) -> LogBuilder:
    """Make of a log what a salvage makes of it when some records are lost."""
    with TemporaryDirectory() as folder:
        records = dict(enumerate(log.records, 1))
        log.records = list(salvaged(Path(folder), records, lost).values())
    return log


def _lacking(story: Story, *lost: int) -> Story:
    lacking(story.log, *lost)
    return story


def known_again(story: Story, *sessions: str, number: int = 1) -> Story:
    """A checkpoint of some sessions."""
    states = [snapshot(story, session) for session in sessions]
    return checkpoint(story, *states, sessions=len(states), retained=0, number=number)


def _behind() -> Story:
    """``p`` and ``s`` are known again; the record to lose is 2, the next one 4."""
    return known_again(Story()(Acked("s", [])), "p", "s")


def _retained() -> Story:
    """``r`` was retained, and cleared in record 3."""
    story = Story()(published("r", retain=True), payloads=1)
    return story(RetainedCleared(["r"]))


# ------------------------------------------------------------------------ what is found there


def _closes(session: str) -> SessionClosed:
    return closed(session, reason="broker_restarted")


HOLED |= {
    "never_delivered_there": _lacking(
        _behind()(published("x", "t"), payloads=2)(Acked("s", [])), 2
    ).breaks("undelivered", at(4, 1)),
    "never_delivered_before": _lacking(
        Story()(published("x", "t"), payloads=2)(Acked("s", []))(opened("z")), 3
    ).breaks("undelivered", at(2, 1)),
    "out_of_order_there": _lacking(
        _behind()(published("t", "t"), delivered(at(4, 1)), delivered(at(4), pid=2), payloads=2), 2
    ).breaks("order", at(4, 3)),
    "delivered_again_there": _lacking(
        _behind()(published("t", qos=2), payloads=1)(
            Released("p", [1], [at(4)]), delivered(at(4), qos=2)
        )(Received("s", [1]))(Completed("s", [1]))(delivered(at(4), qos=2, pid=2)),
        2,
    ).breaks("delivered_twice", at(8)),
    "replayed_though_replaced_there": _lacking(
        _behind()(published("r", retain=True), payloads=1)(
            published("r", retain=True, pid=2), payloads=1
        )(Subscribed("s", [("r", 1)]), delivered(at(4), topic_filter="r", retain=True)),
        2,
    ).breaks("retained", at(6, 1), "s", ("undelivered", at(6), "s")),
    # What the checkpoint behind the lost records does not repeat is not retained any more.
    "replayed_though_cleared_unseen": _lacking(
        known_again(_retained(), "p", "s")(
            Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", retain=True)
        ),
        3,
    ).breaks("retained", at(5, 1)),
    # The broker started again, and recorded the limits that had applied before.
    "permitted_to_all_there": _lacking(
        known_again(limited()(Acked("s", [])), "p", "s")(
            BrokerStarted("0.1"), LimitsApplied(LIMITS), _closes("p"), _closes("s")
        )(opened(resumed=True, generation=2), drop("not_permitted")),
        2,
    ).breaks("drop", at(5, 1)),
    "lost_though_it_is_there": _lacking(
        _behind()(published("t"), drop("lost", at(4)), payloads=1), 2
    ).breaks("drop", at(4, 1)),
    "lost_from_a_whole_log": Story()(published("t"), drop("lost", at(2)), payloads=1).breaks(
        "drop", at(2, 1)
    ),
}


# ------------------------------------------------------------- what the lost records explain


@HOLED.add
def permissions_set_unseen() -> Case:
    story = limited()(LimitsApplied({}, permissions="0123456789abcdef"))
    known_again(story, "p", "s")
    story(SubscriptionDenied("s", ["x"], [0x87]), published("t"), drop("not_permitted", at(4, 1)),
          payloads=1)  # fmt: skip
    return _lacking(story, 2).keeps()


@HOLED.add
def limits_of_an_unseen_start() -> Case:
    story = Story(bare=True)(Acked("p", []))(BrokerStarted("0.1"), opened("p"))
    known_again(story, "p")(LimitsApplied({}))
    return _lacking(story, 2).keeps()


@HOLED.add
def will_after_an_unseen_start() -> Case:
    """The broker was away for longer than the will had to wait."""
    story = with_will(delay=5)(gone())
    story(BrokerStarted("0.1"), time_ms=story.log.time_ms + 3 * _HOUR_MS)
    return _lacking(known_again(story, "p", "s", "x"), 4).keeps()


@HOLED.add
def retained_and_known_again() -> Case:
    story = Story()(published("r", retain=True), payloads=1)(Acked("s", []))
    for number, ref in enumerate((at(2), at(4, 3)), 1):
        begun = RetainedSnapshot(["r"], [1], [ref], 3, 0, 1)
        states = (snapshot(story, "p"), snapshot(story, "s"))
        checkpoint(story, *states, begun, sessions=2, retained=1, payloads=1, number=number)
    return _lacking(story, 3).keeps()


@HOLED.add
def acknowledged_by_a_member_unseen() -> Case:
    story = shared()(published("t"), *given("s", at(3)), payloads=1)(Acked("s", [1]))
    known_again(story, "p", "s", "r", GROUP)(closed())
    return _lacking(story, 4).keeps()


HOLED |= {
    # A message that waits was in the lost record: the salvage drops it.
    "lost_with_its_record": _lacking(
        known_again(Story()(closed())(published("t"), queued(at(3)), payloads=1), "p", "s"), 3
    ).keeps(),
    # The salvage discards it, though its connection continues.
    "will_lost_with_its_record": _lacking(known_again(with_will(), "p", "s", "x"), 2).keeps(),
    # The broker stopped, started and stopped again; the log lacks that start.
    "started_unseen": _lacking(
        known_again(
            Story()(closed("p"), closed(), BrokerStopped())(BrokerStarted("0.1")), "p", "s"
        )(BrokerStopped()),
        3,
    ).keeps(),
    # A filter that is granted later gets nothing, and no later checkpoint repeats it.
    "retained_cleared_unseen": _lacking(
        known_again(
            known_again(_retained(), "p", "s")(Subscribed("s", [("r", 1)])), "p", "s", number=2
        ),
        3,
    ).keeps(),
    "session_ended_unseen": _lacking(
        known_again(known_again(Story(clean=True)(closed()), "p"), "p", number=2), 2
    ).keeps(),
}
