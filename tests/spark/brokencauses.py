"""Logs with a false reason for a will, a drop, an end of a session or a queue; and valid ones."""

from typing import Any

from brokenlogs import (
    Case,
    Stories,
    Story,
    at,
    closed,
    delivered,
    opened,
    published,
    queued,
    snapshot,
)
from brokenmqtt5 import BLOCK, opened5

from eventstore.format.events import (
    LOG_SESSION,
    NATS_SESSION,
    Acked,
    Expired,
    MessageDropped,
    Queued,
    Received,
    Redelivered,
    Released,
    RetainedExpired,
    SessionClosed,
    SessionExpired,
    SessionTakenOver,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.node_events import (
    Bridged,
    BrokerStarted,
    CheckpointBegun,
    CheckpointCompleted,
    Followed,
    LimitsApplied,
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
)

CAUSES = Stories()

LIMITS = {
    "max_queued_messages": 2,
    "max_queued_bytes": 10,
    "max_ack_pending": 2,
    "max_outbound_bytes": 100,
    "session_expiry": 60.0,
    "slow_reader_time": 60.0,
    "max_topic_levels": 0,
    "check_payload_format": False,
}


def limited(**given: Any) -> Story:
    """As ``Story``, with limits; the next record is 2."""
    story = Story(bare=True)
    return story(
        BrokerStarted("0.1"),
        LimitsApplied({**LIMITS, **given.pop("limits", {})}, **given),
        opened("p"),
        opened("s"),
        Subscribed("s", [("t", 2)]),
    )


# ------------------------------------------------------------------------------------- wills


def with_will(delay: int = 0, retain: bool = False, qos: int = 1) -> Story:
    """``x`` has left a will; the next record is 3."""
    story = Story()
    came = opened5() if delay else opened("x")
    came.session = "x"
    return story(came, WillArmed("x", "w/1/2", qos, retain, 3, 0, delay), payloads=1)


def fires(
    story: Story,
    *more: Any,
    topic: str = "w/1/2",
    text: int = 0,
    after_ms: int = 10,
    **given: Any,
) -> Story:
    """Publish the will with the payload of this number."""
    event = published(topic, session="x", will=True, at=3 * text, **given)
    event.pids = []
    later = story.log.time_ms + after_ms
    return story(WillFired("x"), event, *more, payloads=text + 1, time_ms=later)


def gone(reason: str = "closed", **given: Any) -> SessionClosed:
    return SessionClosed("x", reason, 1, **given)


@CAUSES.add
def will_comes_twice() -> Case:
    story = with_will()
    again = published("w/1/2", session="x", will=True)
    again.pids = []
    return fires(story, again, gone()).breaks("will", at(3, 2), "x")


@CAUSES.add
def will_of_a_client_that_came_back() -> Case:
    story = with_will(delay=5)(gone())
    back = opened5(2)
    back.session = "x"
    return story(WillCancelled("x"), back).keeps()


@CAUSES.add
def will_forgotten() -> Case:
    """The delay passed long ago."""
    story = with_will(delay=5)(gone())
    story(Acked("p", []), time_ms=story.log.time_ms + 4_000_000)
    return story.breaks("will", at(2, 1), "x")


@CAUSES.add
def will_of_a_session_taken_over() -> Case:
    story = with_will(delay=5)
    back = opened5(2)
    back.session = "x"
    return story(SessionTakenOver("x", 1), WillCancelled("x"), gone("taken_over"), back).keeps()


def led_by_another(**given: Any) -> Story:
    """The leader is gone; the will waits 5 s for its client. The next record is 4."""
    story = with_will()
    return story(BrokerStarted("0.1"), gone("broker_restarted", **{"grace": 5, **given}))


@CAUSES.add
def will_forgotten_after_a_takeover() -> Case:
    story = led_by_another()
    story(opened("z"), time_ms=story.log.time_ms + 4_000_000)
    return story.breaks("will", at(2, 1), "x")


CAUSES |= {
    "will_published": fires(with_will(), gone()).keeps(),
    "will_discarded": with_will()(WillCancelled("x"), gone("disconnect")).keeps(),
    "will_vanishes": with_will()(gone()).breaks("will", at(3), "x"),
    "will_vanishes_with_its_message": with_will()(WillFired("x"), gone()).breaks(
        "will", at(3), "x"
    ),
    # It is in the log like every will, although its deliveries are not.
    "will_of_qos_0_vanishes_with_its_message": with_will(qos=0)(WillFired("x"), gone()).breaks(
        "will", at(3), "x"
    ),
    "will_of_qos_0_published": fires(with_will(qos=0), gone(), qos=0).keeps(),
    "will_of_qos_0_not_permitted": with_will(qos=0)(
        WillFired("x"), MessageDropped("x", "not_permitted", 1), gone()
    ).keeps(),
    "will_a_moment_before_its_delay": fires(with_will(delay=5)(gone()), after_ms=4999).breaks(
        "will", at(4), "x"
    ),
    "will_fires_twice": fires(fires(with_will(), gone())).breaks(
        "will", at(4), "x", ("will", at(4, 1), "x")
    ),
    "will_after_disconnect": fires(with_will(), gone("disconnect")).breaks("will", at(3, 2), "x"),
    "will_discarded_though_it_was_lost": with_will()(WillCancelled("x"), gone("keep_alive")).breaks(
        "will", at(3, 1), "x"
    ),
    "will_of_another_topic": fires(with_will(), gone(), topic="other").breaks(
        "will", at(3, 1), "x"
    ),
    "will_of_another_qos": fires(with_will(), gone(), qos=2).breaks("will", at(3, 1), "x"),
    "will_that_is_retained": fires(with_will(), gone(), retain=True).breaks("will", at(3, 1), "x"),
    "will_with_other_bytes": fires(with_will(), gone(), text=1).breaks("will", at(3, 1), "x"),
    "will_of_nobody": Story()(WillArmed("p", "q", 1, False, 3, 0), payloads=1).breaks(
        "will", at(2), "p"
    ),
    # 0x04: the client wants it to be published.
    "will_with_disconnect_code": fires(
        with_will(delay=5), gone("disconnect", code=4, expiry=0)
    ).keeps(),
    # 0x81: the client found something malformed, which discards no will.
    "will_with_disconnect_of_an_error": fires(
        with_will(delay=5), gone("disconnect", code=0x81, expiry=0)
    ).keeps(),
    "will_discarded_by_disconnect_of_an_error": with_will(delay=5)(
        WillCancelled("x"), gone("disconnect", code=0x81, expiry=0)
    ).breaks("will", at(3, 1), "x"),
    "will_waits": fires(with_will(delay=5)(gone()), after_ms=5000).keeps(),
    "will_does_not_wait": fires(with_will(delay=5)(gone()), after_ms=2000).breaks(
        "will", at(4), "x"
    ),
    # It is published with the end of the connection though it has a delay.
    "will_waits_for_the_connection": fires(with_will(delay=5), gone()).breaks(
        "will", at(3, 2), "x"
    ),
    "will_of_a_client_that_stayed_away": with_will(delay=5)(gone())(WillCancelled("x"))(
        Acked("p", [])
    ).breaks("will", at(4), "x"),
    "will_kept_by_a_new_connection": with_will()(
        SessionTakenOver("x", 1), gone("taken_over"), opened("x", resumed=True, generation=2)
    ).breaks("will", at(3, 1), "x", ("will", at(3, 2), "x")),
    "will_waits_after_a_takeover": fires(led_by_another(), after_ms=5000).keeps(),
    # Only the will is left of the session, until it is published.
    "will_of_a_clean_session_waits_after_a_shutdown": fires(
        Story()(opened("x", clean=True), WillArmed("x", "w/1/2", 1, False, 3, 0), payloads=1)(
            Subscribed("x", [("u", 1)])
        )(gone("broker_stopped", grace=5))(published("u"), payloads=1),
        SessionExpired("x", "expired"),
        after_ms=5000,
    ).keeps(),
    "will_does_not_wait_after_a_takeover": fires(led_by_another(), after_ms=2000).breaks(
        "will", at(4), "x"
    ),
    "will_at_a_takeover_though_it_waits": fires(
        with_will()(BrokerStarted("0.1")), gone("broker_restarted", grace=5)
    ).breaks("will", at(4, 2), "x"),
    # With a clean session too: its will is about the end of a connection that it did not end.
    "will_of_a_client_that_came_back_after_a_takeover": led_by_another()(
        WillCancelled("x"), opened("x", generation=2, clean=True)
    ).keeps(),
    "will_of_a_client_that_stayed_away_after_a_takeover": led_by_another()(WillCancelled("x"))(
        opened("z")
    ).breaks("will", at(4), "x"),
    # A client that was not heard for too long is no reason to wait.
    "will_that_waits_for_a_client_that_ended": fires(
        with_will()(gone("keep_alive", grace=5)), after_ms=5000
    ).breaks("session", at(3), "x"),
    "will_not_permitted": with_will()(
        WillFired("x"), MessageDropped("x", "not_permitted", 1), gone()
    ).keeps(),
}


# ------------------------------------------------------------------------------------- drops


def away(count: int, **given: Any) -> Story:
    """This many messages wait for ``s``, whose client is offline; the next record is 4."""
    story = limited(**given)(closed())
    refs = [at(3, number) for number in range(count)]
    return story(published(*["t"] * count), queued(*refs), payloads=count) if count else story


def drop(reason: str, *refs: int, queued: int = -1, count: int = 0) -> MessageDropped:
    filter_ = "t" if refs else ""
    return MessageDropped("s", reason, count or len(refs) or 1, [*refs], filter_, queued)


@CAUSES.add
def queue_full() -> Case:
    story = away(2)(published("t", pid=9), drop("queue_messages", at(4)), payloads=1)
    return story.keeps()


@CAUSES.add
def expired_when_the_queue_was_full() -> Case:
    """A message that had expired when it was released is queued, and expires at once."""
    story = away(2)
    event = published("t", qos=2, pid=9, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    waits = Queued("s", "t", 2, [at(4)], 3, expires=story.log.time_ms // 1000 + 5)
    gone_ms = story.log.time_ms + 9000
    story(Released("p", [9], [at(4)]), waits, Expired("s", "t", [at(4)], 3), time_ms=gone_ms)
    return story.keeps()


@CAUSES.add
def unsubscribed() -> Case:
    story = away(1)(opened(resumed=True, generation=2))
    return story(drop("unsubscribed", at(3), queued=3), Unsubscribed("s", ["t"])).keeps()


@CAUSES.add
def slow_reader() -> Case:
    return limited()(drop("slow_reader", count=7)).keeps()


@CAUSES.add
def not_permitted() -> Case:
    story = limited(permissions="0123456789abcdef")
    return story(published("t"), drop("not_permitted", at(2)), payloads=1).keeps()


def accepts_packets_of(most: int, **given: Any) -> Story:
    """A message of 3 bytes, and properties of ``BLOCK``; the packet has 18 bytes without more."""
    story = Story(bare=True)
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), opened("p"), opened5(packet_maximum=most))
    return story(Subscribed("s", [("t", 2)], **given))


def packet_dropped(story: Story, *more: Any) -> Story:
    """Drop a message as too large on arrival."""
    event = published("t", blocks=[len(BLOCK)], at=len(BLOCK))
    ref = story.log.last + 1 << 20
    story.log.record(event, drop("packet_too_large", ref), payloads=[BLOCK, b"one"])
    return story


@CAUSES.add
def packet_too_large() -> Case:
    return packet_dropped(accepts_packets_of(17)).keeps()


@CAUSES.add
def one_of_two_packets_fits() -> Case:
    story, event = accepts_packets_of(11), published("t", "t")
    event.sizes = [4, 3]
    dropped = drop("packet_too_large", at(3), at(3, 1))
    story.log.record(event, dropped, payloads=[b"four", b"two"])
    return story.breaks("drop", at(3, 2))


def queued_packet_too_large(most: int = 17) -> Story:
    """It waited for a client that now accepts less."""
    story = accepts_packets_of(0)(closed())
    event = published("t", blocks=[len(BLOCK)], at=len(BLOCK))
    waits = Queued("s", "t", 1, [at(4)], 3, expires=story.log.time_ms // 1000 + 5)
    story.log.record(event, waits, payloads=[BLOCK, b"one"])
    return story(opened5(2, packet_maximum=most), drop("packet_too_large", at(4), queued=3))


@CAUSES.add
def levels_within_the_limit() -> Case:
    event = drop("topic_levels")
    event.topics = ["a/b/c", "a/b"]
    story = limited(limits={"max_topic_levels": 2})(event)
    return story.breaks("drop", at(2))


@CAUSES.add
def too_many_levels() -> Case:
    event = drop("topic_levels")
    event.topics = ["a/b/c"]
    return limited(limits={"max_topic_levels": 2})(event).keeps()


@CAUSES.add
def topic_not_reserved() -> Case:
    event = drop("reserved_topic")
    event.topics = ["a/b"]
    return limited()(event).breaks("drop", at(2))


@CAUSES.add
def topic_reserved() -> Case:
    event = drop("reserved_topic")
    event.topics = ["$SYS/x"]
    return limited()(event).keeps()


@CAUSES.add
def unread_topic_of_another_filter() -> Case:
    event = drop("slow_reader")
    event.filter, event.topics = "t", ["a/b"]
    return limited()(event).breaks("drop", at(2))


@CAUSES.add
def unread_topic() -> Case:
    event = drop("slow_reader")
    event.filter, event.topics = "t", ["t"]
    return limited()(event).keeps()


def denied(code: int) -> SubscriptionDenied:
    return SubscriptionDenied("s", ["secret/#"], [code])


CAUSES |= {
    "dropped_for_fun": limited()(published("t"), drop("banana", at(2)), payloads=1).breaks(
        "drop", at(2, 1)
    ),
    "queue_not_full": away(1)(
        published("t", pid=9), drop("queue_messages", at(4)), payloads=1
    ).breaks("drop", at(4, 1)),
    "queue_full_of_bytes": away(1, limits={"max_queued_bytes": 5, "max_queued_messages": 9})(
        published("t", pid=9), drop("queue_bytes", at(4)), payloads=1
    ).keeps(),
    "queue_not_full_of_bytes": away(1)(
        published("t", pid=9), drop("queue_bytes", at(4)), payloads=1
    ).breaks("drop", at(4, 1)),
    "limits_of_a_reload": away(1)(LimitsApplied({**LIMITS, "max_queued_messages": 1}))(
        published("t", pid=9), drop("queue_messages", at(5)), payloads=1
    ).keeps(),
    # The drops at 4 messages say that the limit is reached, which is 2.
    "more_waits_than_the_limit": limited()(closed())(
        published(*"tttt"), queued(*[at(3, number) for number in range(4)]), payloads=4
    )(published("t", pid=9), drop("queue_messages", at(4)), payloads=1).breaks("queue", at(3, 4)),
    # Messages that wait stay, but new ones have no room.
    "more_waits_after_the_limit_was_lowered": away(2)(
        LimitsApplied({**LIMITS, "max_queued_messages": 1})
    )(published("t", pid=9), queued(at(5)), payloads=1).breaks("queue", at(5, 1)),
    "more_bytes_wait_than_the_limit": away(1, limits={"max_queued_bytes": 5})(
        published("t", pid=9), queued(at(4)), payloads=1
    ).breaks("queue", at(4, 1)),
    "not_unsubscribed": away(1)(opened(resumed=True, generation=2))(
        drop("unsubscribed", at(3), queued=3)
    )(Acked("p", [])).breaks("drop", at(5)),
    "slow_reader_at_qos_1": limited()(
        published("t"), drop("slow_reader", at(2)), payloads=1
    ).breaks("drop", at(2, 1)),
    "slow_reader_that_is_away": away(0)(drop("slow_reader")).breaks("drop", at(3)),
    "permitted_to_all": limited()(published("t"), drop("not_permitted", at(2)), payloads=1).breaks(
        "drop", at(2, 1)
    ),
    # While it waited, the permissions changed, or they were not asked.
    "queued_and_not_permitted": away(1, permissions="0123456789abcdef")(
        opened(resumed=True, generation=2), drop("not_permitted", at(3), queued=3)
    ).keeps(),
    # A message leaves the queue for a client only, and the client is away.
    "queued_and_not_permitted_while_offline": away(1, permissions="0123456789abcdef")(
        drop("not_permitted", at(3), queued=3)
    ).breaks("drop", at(4)),
    "of_another_user": limited()(opened(NATS_SESSION))(
        published("t", session=NATS_SESSION), drop("other_prefix", at(3)), payloads=1
    ).keeps(),
    "of_another_user_without_a_bridge": limited()(
        published("t"), drop("other_prefix", at(2)), payloads=1
    ).breaks("drop", at(2, 1)),
    "of_another_user_after_it_waited": limited()(opened(NATS_SESSION), closed())(
        published("t", session=NATS_SESSION), queued(at(3)), payloads=1
    )(drop("other_prefix", at(3), queued=3)).breaks("drop", at(4)),
    "packet_that_just_fits": packet_dropped(accepts_packets_of(18)).breaks("drop", at(3, 1)),
    # The subscription identifier 300 has three bytes.
    "packet_too_large_with_its_identifier": packet_dropped(
        accepts_packets_of(20, identifier=300)
    ).keeps(),
    "packet_that_just_fits_with_its_identifier": packet_dropped(
        accepts_packets_of(21, identifier=300)
    ).breaks("drop", at(3, 1)),
    "queued_packet_is_too_large": queued_packet_too_large().keeps(),
    "queued_packet_that_fits": queued_packet_too_large(18).breaks("drop", at(5, 1)),
    "levels_without_a_limit": limited()(drop("topic_levels")).breaks("drop", at(2)),
    "format_not_checked": limited()(drop("payload_format")).breaks("drop", at(2)),
    "denied_for_no_reason": limited()(denied(1)).breaks("drop", at(2)),
    "denied_though_all_is_permitted": limited()(denied(0x87)).breaks("drop", at(2)),
    "denied_by_the_permissions": limited(permissions="0123456789abcdef")(denied(0x87))(
        denied(0x97)
    ).keeps(),
    # A message that the session was not to get.
    "dropped_of_nobody": limited(permissions="0123456789abcdef")(
        published("x"), drop("not_permitted", at(2)), payloads=1
    ).breaks("drop", at(2, 1)),
    "bytes_of_a_queue": away(2)(opened(resumed=True, generation=2))(
        delivered(at(3), at(3, 1), queued=5)
    ).breaks("queue", at(5)),
}


# ------------------------------------------------------------------------ expiry, sessions


@CAUSES.add
def waits_too_long() -> Case:
    """The properties of the message say that it expires in five seconds, the queue ten."""
    story = Story()(closed())
    event = published("t", blocks=[len(BLOCK)], at=len(BLOCK))
    expires = (story.log.time_ms + 10) // 1000 + 10
    story.log.record(
        event, Queued("s", "t", 1, [at(3)], 3, expires=expires), payloads=[BLOCK, b"1" * 3]
    )
    return story.breaks("expiry", at(3, 1))


@CAUSES.add
def retained_expires_early() -> Case:
    story = Story()
    event = published("r", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    story(RetainedExpired(["r"]), time_ms=story.log.time_ms + 2000)
    return story.breaks("expiry", at(3), None)


@CAUSES.add
def retained_never_expires() -> Case:
    story = Story()(published("r", retain=True), payloads=1)
    story(RetainedExpired(["r"]), time_ms=story.log.time_ms + 9_000_000)
    return story.breaks("expiry", at(3), None)


def subscribed_after(seconds: int) -> Story:
    """A client subscribes and gets nothing, although a message of five seconds is retained."""
    story = Story()
    event = published("r", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    return story(Subscribed("s", [("r", 1)]), time_ms=story.log.time_ms + 1000 * seconds)


@CAUSES.add
def session_expired() -> Case:
    story = away(0)
    return story(SessionExpired("s", "expired"), time_ms=story.log.time_ms + 60_000).keeps()


@CAUSES.add
def session_expired_early() -> Case:
    story = away(0)
    story(SessionExpired("s", "expired"), time_ms=story.log.time_ms + 59_999)
    return story.breaks("session", at(3))


@CAUSES.add
def session_expired_never() -> Case:
    story = away(0, limits={"session_expiry": 0.0})
    story(SessionExpired("s", "expired"), time_ms=story.log.time_ms + 50_000)
    return story.breaks("session", at(3))


@CAUSES.add
def session_overdue() -> Case:
    story = away(0)
    story(Acked("p", []), time_ms=story.log.time_ms + 9_000_000)
    return story.breaks("session", at(1, 1))


@CAUSES.add
def taken_over_with_limits() -> Case:
    back = opened(resumed=True, generation=2)
    return limited()(SessionTakenOver("s", 1), closed(reason="taken_over"), back).keeps()


@CAUSES.add
def stopped() -> Case:
    """Or it was killed while it stopped."""
    story = limited()(closed(reason="broker_stopped"))
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), closed("p", reason="broker_restarted"))
    return story(opened(resumed=True, generation=2)).keeps()


@CAUSES.add
def repeated_without_a_checkpoint() -> Case:
    story = limited()
    story(snapshot(story, "s"), snapshot(story, "p"))
    return story.breaks("checkpoint", at(2), None)


def assigned_by_another_log() -> Story:
    """A message of a shared subscription is in record 2, at QoS 0: its part here divides it."""
    other = f"{LOG_SESSION}other"
    given = {"origins": [at(7)], "share": "$share/g/x"}
    event = published("x", session=other, qos=0, **given)
    return limited()(opened(other), event, Followed("other", at(7), "ab" * 32), payloads=1)


@CAUSES.add
def repeated_behind_a_checkpoint() -> Case:
    story = limited()
    both = [snapshot(story, "s"), snapshot(story, "p")]
    story(CheckpointBegun(1), *both, CheckpointCompleted(1, at(2), 2, 0))(both[0])
    return story.breaks("checkpoint", at(3), None)


@CAUSES.add
def checkpoint_begun_again() -> Case:
    story = limited()
    both = [snapshot(story, "s"), snapshot(story, "p")]
    story(CheckpointBegun(1), *both, CheckpointCompleted(1, at(2), 2, 0))
    return story(CheckpointBegun(1)).breaks("checkpoint", at(3), None)


@CAUSES.add
def repeated_by_a_checkpoint_that_was_not_completed() -> Case:
    """The broker was killed, and begins it again with the same number."""
    story = limited()
    story(CheckpointBegun(1))(snapshot(story, "s"))
    ends = [closed(session, reason="broker_restarted") for session in ("s", "p")]
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), *ends)
    both = [snapshot(story, "s"), snapshot(story, "p")]
    return story(CheckpointBegun(1), *both, CheckpointCompleted(1, at(5), 2, 0)).keeps()


CAUSES |= {
    "retained_expired_before_its_event": subscribed_after(6)(RetainedExpired(["r"])).keeps(),
    "retained_not_sent_before_it_expires": subscribed_after(2)(Acked("s", [])).breaks(
        "undelivered", at(3)
    ),
    "removed_by_nobody": away(0)(SessionExpired("s", "removed")).breaks("session", at(3)),
    "removed_by_an_operator": away(0)(
        OperatorActed("remove_session", "ops", "s", "s"), SessionExpired("s", "removed")
    ).keeps(),
    "kicked_by_nobody": limited()(closed(reason="kicked")).breaks("session", at(2)),
    "kicked_in_vain": limited()(OperatorActed("kick", "ops", "s", "s"))(Acked("p", [])).breaks(
        "session", at(2)
    ),
    "acted_for_fun": limited()(OperatorActed("banana", "ops", "s", "s")).breaks("session", at(2)),
    "ended_otherwise_after_a_start": Story()(
        BrokerStarted("0.1"), closed("p", reason="broker_restarted"), closed(reason="keep_alive")
    ).breaks("ownership", at(2, 2)),
    "pubrel_not_sent_again": limited()(published("t", qos=2), payloads=1)(
        Released("p", [1], [at(2)]), delivered(at(2), qos=2)
    )(Received("s", [1]))(closed())(opened(resumed=True, generation=2))(
        Subscribed("s", [("u", 1)])
    ).breaks("order", at(7)),
    "taken_over_by_nobody": limited()(SessionTakenOver("s", 1), closed(reason="taken_over"))(
        opened(resumed=True, generation=2)
    ).breaks("ownership", at(2, 1)),
    "stopped_without_a_stop": limited()(closed(reason="broker_stopped"))(
        opened(resumed=True, generation=2)
    ).breaks("ownership", at(2)),
    "sent_again_without_a_reconnect": limited()(published("t"), delivered(at(2)), payloads=1)(
        Redelivered("s", [1], "resumed")
    ).breaks("acknowledgement", at(3)),
    "sent_again_after_a_reconnect": limited()(published("t"), delivered(at(2)), payloads=1)(
        closed()
    )(opened(resumed=True, generation=2), Redelivered("s", [1], "resumed")).keeps(),
    "sent_to_nats_before_it_was_published": limited()(Bridged(at(2, 1))).breaks(
        "event", at(2), None
    ),
    "sent_to_nats": limited()(published("x"), payloads=1)(Bridged(at(2))).keeps(),
    "carried_though_it_never_was": limited()(published("x"), payloads=1)(
        MessagesCarried([at(2, 1)], ["x"], [], 3, 0, 1), payloads=1
    ).breaks("checkpoint", at(3), None),
    "carried_for_a_shared_subscription": assigned_by_another_log()(
        MessagesCarried([at(2, 1)], ["x"], [], 3, 0, 1), payloads=1
    ).keeps(),
    "carried_for_a_shared_subscription_with_another_topic": assigned_by_another_log()(
        MessagesCarried([at(2, 1)], ["y"], [], 3, 0, 1), payloads=1
    ).breaks("checkpoint", at(3), None),
    "carried_as_it_was": limited()(published("x"), payloads=1)(
        MessagesCarried([at(2)], ["x"], [], 3, 0, 1), payloads=1
    ).keeps(),
    "closed_for_fun": limited()(closed(reason="banana")).breaks("session", at(2)),
    "cleared_by_nobody": Story()(published("r", retain=True), payloads=1)(
        RetainedCleared(["r"])
    ).breaks("retained", at(3), None),
    "cleared_by_an_operator": Story()(published("r", retain=True), payloads=1)(
        OperatorActed("clear_retained", "ops", "r"), RetainedCleared(["r"])
    ).keeps(),
}


# ------------------------------------------------------------------------------------ queues


@CAUSES.add
def stands_still() -> Case:
    story = away(1)(opened(resumed=True, generation=2))
    story(Acked("p", []), time_ms=story.log.time_ms + 700_000)
    return story.breaks("progress", at(4))


@CAUSES.add
def stands_still_while_others_are_acknowledged() -> Case:
    """What the client acknowledges, the last time 100 seconds before, moves no queue."""
    story = limited()(published("t"), delivered(at(2)), payloads=1)
    story(published("t", pid=9), queued(at(3)), payloads=1)
    story(Acked("s", [1]), time_ms=story.log.time_ms + 50_000)
    story(Acked("p", []), time_ms=story.log.time_ms + 100_000)
    return story.breaks("progress", at(3, 1))


@CAUSES.add
def others_pass_the_queue() -> Case:
    """They are sent at once, and so could the message have been that waits."""
    story = limited()(Subscribed("s", [("u", 1)]))
    story(published("t"), queued(at(3)), payloads=1)
    for number in range(2):
        sent = delivered(at(4 + number), topic_filter="u", pid=number + 1)
        later = story.log.time_ms + 1500
        story(published("u", pid=9), sent, payloads=1, time_ms=later)
    return story.breaks("progress", at(3, 1))


@CAUSES.add
def window_is_full() -> Case:
    story = limited()(published("t", "t", "t"), payloads=3, last=False)
    story(delivered(at(2), at(2, 1)), queued(at(2, 2)), part=1)
    return story(Acked("p", []), time_ms=story.log.time_ms + 700_000).keeps()


# ------------------------------------------------------------------------------- explanations


CAUSES |= {
    "delivered_before_it_was_published": Story()(delivered(at(3)))(
        published("t"), payloads=1
    ).breaks("order", at(2), "s", ("undelivered", at(3), "s")),
    "delivered_before_its_release": Story()(
        published("t", qos=2), delivered(at(2), qos=2), payloads=1
    )(Released("p", [1], [at(2)])).breaks("order", at(2, 1), "s", ("undelivered", at(3), "s")),
}
