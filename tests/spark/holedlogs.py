"""Logs that lost records and were salvaged; a complete checkpoint behind them repeats the state.

What is said of the time behind it is as true as in a whole log: what a broker did wrong there is
found, and nothing that the lost records explain is held against it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from brokencauses import LIMITS, drop, gone, limited, with_will
from brokenlogs import (
    Case,
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


def _behind(name: str) -> Story:
    """``p`` and ``s`` are known again; the record to lose is 2, the next one 4."""
    return known_again(Story(name)(Acked("s", [])), "p", "s")


# ------------------------------------------------------------------------ what is found there


def never_delivered_there(name: str) -> Case:
    story = _behind(name)(published("x", "t"), payloads=2)(Acked("s", []))
    return _lacking(story, 2).breaks("undelivered", at(4, 1))


def never_delivered_before(name: str) -> Case:
    story = Story(name)(published("x", "t"), payloads=2)(Acked("s", []))
    return _lacking(story(opened("z")), 3).breaks("undelivered", at(2, 1))


def out_of_order_there(name: str) -> Case:
    story = _behind(name)
    story(published("t", "t"), delivered(at(4, 1)), delivered(at(4), pid=2), payloads=2)
    return _lacking(story, 2).breaks("order", at(4, 3))


def delivered_again_there(name: str) -> Case:
    story = _behind(name)(published("t", qos=2), payloads=1)
    story(Released("p", [1], [at(4)]), delivered(at(4), qos=2))(Received("s", [1]))
    story(Completed("s", [1]))(delivered(at(4), qos=2, pid=2))
    return _lacking(story, 2).breaks("delivered_twice", at(8))


def replayed_though_replaced_there(name: str) -> Case:
    story = _behind(name)(published("r", retain=True), payloads=1)
    story(published("r", retain=True, pid=2), payloads=1)
    story(Subscribed("s", [("r", 1)]), delivered(at(4), topic_filter="r", retain=True))
    more = ("undelivered", at(6), "s")
    return _lacking(story, 2).breaks("retained", at(6, 1), "s", more)


def replayed_though_cleared_unseen(name: str) -> Case:
    """What the checkpoint behind the lost records does not repeat is not retained any more."""
    story = known_again(_retained(name), "p", "s")
    story(Subscribed("s", [("r", 1)]), delivered(at(2), topic_filter="r", retain=True))
    return _lacking(story, 3).breaks("retained", at(5, 1))


def permitted_to_all_there(name: str) -> Case:
    """The broker started again, and recorded the limits that had applied before."""
    story = limited(name)(Acked("s", []))
    known_again(story, "p", "s")
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), _closes("p"), _closes("s"))
    story(opened(resumed=True, generation=2), drop("not_permitted"))
    return _lacking(story, 2).breaks("drop", at(5, 1))


def _closes(session: str) -> SessionClosed:
    return closed(session, reason="broker_restarted")


def lost_though_it_is_there(name: str) -> Case:
    story = _behind(name)(published("t"), drop("lost", at(4)), payloads=1)
    return _lacking(story, 2).breaks("drop", at(4, 1))


def lost_from_a_whole_log(name: str) -> Case:
    story = Story(name)(published("t"), drop("lost", at(2)), payloads=1)
    return story.breaks("drop", at(2, 1))


# ------------------------------------------------------------- what the lost records explain


def lost_with_its_record(name: str) -> Case:
    """A message that waits was in the lost record: the salvage drops it."""
    story = Story(name)(closed())(published("t"), queued(at(3)), payloads=1)
    return _lacking(known_again(story, "p", "s"), 3).keeps()


def will_lost_with_its_record(name: str) -> Case:
    """The salvage discards it, though its connection continues."""
    return _lacking(known_again(with_will(name), "p", "s", "x"), 2).keeps()


def permissions_set_unseen(name: str) -> Case:
    story = limited(name)(LimitsApplied({}, permissions="0123456789abcdef"))
    known_again(story, "p", "s")
    story(SubscriptionDenied("s", ["x"], [0x87]), published("t"), drop("not_permitted", at(4, 1)),
          payloads=1)  # fmt: skip
    return _lacking(story, 2).keeps()


def started_unseen(name: str) -> Case:
    """The broker stopped, started and stopped again; the log lacks that start."""
    story = Story(name)(closed("p"), closed(), BrokerStopped())(BrokerStarted("0.1"))
    return _lacking(known_again(story, "p", "s")(BrokerStopped()), 3).keeps()


def limits_of_an_unseen_start(name: str) -> Case:
    story = Story(name, bare=True)(Acked("p", []))(BrokerStarted("0.1"), opened("p"))
    known_again(story, "p")(LimitsApplied({}))
    return _lacking(story, 2).keeps()


def will_after_an_unseen_start(name: str) -> Case:
    """The broker was away for longer than the will had to wait."""
    story = with_will(name, delay=5)(gone())
    story(BrokerStarted("0.1"), time_ms=story.log.time_ms + 3 * _HOUR_MS)
    return _lacking(known_again(story, "p", "s", "x"), 4).keeps()


def _retained(name: str) -> Story:
    """``r`` was retained, and cleared in record 3."""
    story = Story(name)(published("r", retain=True), payloads=1)
    return story(RetainedCleared(["r"]))


def retained_cleared_unseen(name: str) -> Case:
    """A filter that is granted later gets nothing, and no later checkpoint repeats it."""
    story = known_again(_retained(name), "p", "s")(Subscribed("s", [("r", 1)]))
    return _lacking(known_again(story, "p", "s", number=2), 3).keeps()


def retained_and_known_again(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)(Acked("s", []))
    for number, ref in enumerate((at(2), at(4, 3)), 1):
        begun = RetainedSnapshot(["r"], [1], [ref], 3, 0, 1)
        states = (snapshot(story, "p"), snapshot(story, "s"))
        checkpoint(story, *states, begun, sessions=2, retained=1, payloads=1, number=number)
    return _lacking(story, 3).keeps()


def session_ended_unseen(name: str) -> Case:
    story = Story(name, clean=True)(closed())
    return _lacking(known_again(known_again(story, "p"), "p", number=2), 2).keeps()


def acknowledged_by_a_member_unseen(name: str) -> Case:
    story = shared(name)(published("t"), *given("s", at(3)), payloads=1)(Acked("s", [1]))
    known_again(story, "p", "s", "r", GROUP)(closed())
    return _lacking(story, 4).keeps()


BROKEN_HOLED = (
    never_delivered_there, never_delivered_before, out_of_order_there, delivered_again_there,
    replayed_though_replaced_there, replayed_though_cleared_unseen, permitted_to_all_there,
    lost_though_it_is_there, lost_from_a_whole_log,
)  # fmt: skip
KEPT_HOLED = (
    lost_with_its_record, will_lost_with_its_record, permissions_set_unseen, started_unseen,
    limits_of_an_unseen_start, will_after_an_unseen_start, retained_cleared_unseen,
    retained_and_known_again, session_ended_unseen, acknowledged_by_a_member_unseen,
)  # fmt: skip
