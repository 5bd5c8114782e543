"""Logs with a false reason for a will, a drop, an end of a session or a queue; and valid ones."""

from typing import Any

from brokenlogs import Case, Story, at, closed, delivered, opened, published, queued, snapshot
from brokenmqtt5 import BLOCK, opened5

from eventstore.format.events import (
    LOG_SESSION,
    NATS_SESSION,
    Acked,
    Expired,
    MessageDropped,
    Queued,
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


def limited(name: str, **given: Any) -> Story:
    """As ``Story``, with limits; the next record is 2."""
    story = Story(name, bare=True)
    return story(
        BrokerStarted("0.1"),
        LimitsApplied({**LIMITS, **given.pop("limits", {})}, **given),
        opened("p"),
        opened("s"),
        Subscribed("s", [("t", 2)]),
    )


# ------------------------------------------------------------------------------------- wills


def with_will(name: str, delay: int = 0, retain: bool = False, qos: int = 1) -> Story:
    """``x`` has left a will; the next record is 3."""
    story = Story(name)
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


def will_published(name: str) -> Case:
    return fires(with_will(name), gone()).keeps()


def will_discarded(name: str) -> Case:
    return with_will(name)(WillCancelled("x"), gone("disconnect")).keeps()


def will_vanishes(name: str) -> Case:
    return with_will(name)(gone()).breaks("will", at(3), "x")


def will_vanishes_with_its_message(name: str) -> Case:
    return with_will(name)(WillFired("x"), gone()).breaks("will", at(3), "x")


def will_of_qos_0_vanishes_with_its_message(name: str) -> Case:
    """It is in the log like every will, although its deliveries are not."""
    return with_will(name, qos=0)(WillFired("x"), gone()).breaks("will", at(3), "x")


def will_of_qos_0_published(name: str) -> Case:
    return fires(with_will(name, qos=0), gone(), qos=0).keeps()


def will_of_qos_0_not_permitted(name: str) -> Case:
    story = with_will(name, qos=0)
    return story(WillFired("x"), MessageDropped("x", "not_permitted", 1), gone()).keeps()


def will_a_moment_before_its_delay(name: str) -> Case:
    story = with_will(name, delay=5)(gone())
    return fires(story, after_ms=4999).breaks("will", at(4), "x")


def will_comes_twice(name: str) -> Case:
    story = with_will(name)
    again = published("w/1/2", session="x", will=True)
    again.pids = []
    return fires(story, again, gone()).breaks("will", at(3, 2), "x")


def will_fires_twice(name: str) -> Case:
    story = fires(with_will(name), gone())
    return fires(story).breaks("will", at(4), "x", ("will", at(4, 1), "x"))


def will_after_disconnect(name: str) -> Case:
    return fires(with_will(name), gone("disconnect")).breaks("will", at(3, 2), "x")


def will_discarded_though_it_was_lost(name: str) -> Case:
    return with_will(name)(WillCancelled("x"), gone("keep_alive")).breaks("will", at(3, 1), "x")


def will_of_another_topic(name: str) -> Case:
    return fires(with_will(name), gone(), topic="other").breaks("will", at(3, 1), "x")


def will_of_another_qos(name: str) -> Case:
    return fires(with_will(name), gone(), qos=2).breaks("will", at(3, 1), "x")


def will_that_is_retained(name: str) -> Case:
    return fires(with_will(name), gone(), retain=True).breaks("will", at(3, 1), "x")


def will_with_other_bytes(name: str) -> Case:
    return fires(with_will(name), gone(), text=1).breaks("will", at(3, 1), "x")


def will_of_nobody(name: str) -> Case:
    story = Story(name)(WillArmed("p", "q", 1, False, 3, 0), payloads=1)
    return story.breaks("will", at(2), "p")


def will_with_disconnect_code(name: str) -> Case:
    """0x04: the client wants it to be published."""
    story = with_will(name, delay=5)
    return fires(story, gone("disconnect", code=4, expiry=0)).keeps()


def will_with_disconnect_of_an_error(name: str) -> Case:
    """0x81: the client found something malformed, which discards no will."""
    story = with_will(name, delay=5)
    return fires(story, gone("disconnect", code=0x81, expiry=0)).keeps()


def will_discarded_by_disconnect_of_an_error(name: str) -> Case:
    story = with_will(name, delay=5)
    story(WillCancelled("x"), gone("disconnect", code=0x81, expiry=0))
    return story.breaks("will", at(3, 1), "x")


def will_waits(name: str) -> Case:
    story = with_will(name, delay=5)(gone())
    return fires(story, after_ms=5000).keeps()


def will_does_not_wait(name: str) -> Case:
    story = with_will(name, delay=5)(gone())
    return fires(story, after_ms=2000).breaks("will", at(4), "x")


def will_waits_for_the_connection(name: str) -> Case:
    """It is published with the end of the connection though it has a delay."""
    return fires(with_will(name, delay=5), gone()).breaks("will", at(3, 2), "x")


def will_of_a_client_that_came_back(name: str) -> Case:
    story = with_will(name, delay=5)(gone())
    back = opened5(2)
    back.session = "x"
    return story(WillCancelled("x"), back).keeps()


def will_of_a_client_that_stayed_away(name: str) -> Case:
    story = with_will(name, delay=5)(gone())(WillCancelled("x"))
    return story(Acked("p", [])).breaks("will", at(4), "x")


def will_forgotten(name: str) -> Case:
    """The delay passed long ago."""
    story = with_will(name, delay=5)(gone())
    story(Acked("p", []), time_ms=story.log.time_ms + 4_000_000)
    return story.breaks("will", at(2, 1), "x")


def will_of_a_session_taken_over(name: str) -> Case:
    story = with_will(name, delay=5)
    back = opened5(2)
    back.session = "x"
    return story(SessionTakenOver("x", 1), WillCancelled("x"), gone("taken_over"), back).keeps()


def will_kept_by_a_new_connection(name: str) -> Case:
    story = with_will(name)
    back = opened("x", resumed=True, generation=2)
    story(SessionTakenOver("x", 1), gone("taken_over"), back)
    return story.breaks("will", at(3, 1), "x", ("will", at(3, 2), "x"))


def led_by_another(name: str, **given: Any) -> Story:
    """The leader is gone; the will waits 5 s for its client. The next record is 4."""
    story = with_will(name)
    return story(BrokerStarted("0.1"), gone("broker_restarted", **{"grace": 5, **given}))


def will_waits_after_a_takeover(name: str) -> Case:
    return fires(led_by_another(name), after_ms=5000).keeps()


def will_of_a_clean_session_waits_after_a_shutdown(name: str) -> Case:
    """Only the will is left of the session, until it is published."""
    story = Story(name)(
        opened("x", clean=True), WillArmed("x", "w/1/2", 1, False, 3, 0), payloads=1
    )
    story(Subscribed("x", [("u", 1)]))(gone("broker_stopped", grace=5))(published("u"), payloads=1)
    return fires(story, SessionExpired("x", "expired"), after_ms=5000).keeps()


def will_does_not_wait_after_a_takeover(name: str) -> Case:
    return fires(led_by_another(name), after_ms=2000).breaks("will", at(4), "x")


def will_at_a_takeover_though_it_waits(name: str) -> Case:
    story = with_will(name)(BrokerStarted("0.1"))
    story = fires(story, gone("broker_restarted", grace=5))
    return story.breaks("will", at(4, 2), "x")


def will_of_a_client_that_came_back_after_a_takeover(name: str) -> Case:
    """With a clean session too: its will is about the end of a connection that it did not end."""
    back = opened("x", generation=2, clean=True)
    return led_by_another(name)(WillCancelled("x"), back).keeps()


def will_of_a_client_that_stayed_away_after_a_takeover(name: str) -> Case:
    story = led_by_another(name)(WillCancelled("x"))
    return story(opened("z")).breaks("will", at(4), "x")


def will_forgotten_after_a_takeover(name: str) -> Case:
    story = led_by_another(name)
    story(opened("z"), time_ms=story.log.time_ms + 4_000_000)
    return story.breaks("will", at(2, 1), "x")


def will_that_waits_for_a_client_that_ended(name: str) -> Case:
    """A client that was not heard for too long is no reason to wait."""
    story = with_will(name)(gone("keep_alive", grace=5))
    return fires(story, after_ms=5000).breaks("session", at(3), "x")


def will_not_permitted(name: str) -> Case:
    story = with_will(name)
    return story(WillFired("x"), MessageDropped("x", "not_permitted", 1), gone()).keeps()


# ------------------------------------------------------------------------------------- drops


def away(name: str, count: int, **given: Any) -> Story:
    """This many messages wait for ``s``, whose client is offline; the next record is 4."""
    story = limited(name, **given)(closed())
    refs = [at(3, number) for number in range(count)]
    return story(published(*["t"] * count), queued(*refs), payloads=count) if count else story


def drop(reason: str, *refs: int, queued: int = -1, count: int = 0) -> MessageDropped:
    filter_ = "t" if refs else ""
    return MessageDropped("s", reason, count or len(refs) or 1, [*refs], filter_, queued)


def dropped_for_fun(name: str) -> Case:
    story = limited(name)(published("t"), drop("banana", at(2)), payloads=1)
    return story.breaks("drop", at(2, 1))


def queue_full(name: str) -> Case:
    story = away(name, 2)(published("t", pid=9), drop("queue_messages", at(4)), payloads=1)
    return story.keeps()


def queue_not_full(name: str) -> Case:
    story = away(name, 1)(published("t", pid=9), drop("queue_messages", at(4)), payloads=1)
    return story.breaks("drop", at(4, 1))


def queue_full_of_bytes(name: str) -> Case:
    limits = {"max_queued_bytes": 5, "max_queued_messages": 9}
    story = away(name, 1, limits=limits)
    return story(published("t", pid=9), drop("queue_bytes", at(4)), payloads=1).keeps()


def queue_not_full_of_bytes(name: str) -> Case:
    story = away(name, 1)(published("t", pid=9), drop("queue_bytes", at(4)), payloads=1)
    return story.breaks("drop", at(4, 1))


def limits_of_a_reload(name: str) -> Case:
    story = away(name, 1)(LimitsApplied({**LIMITS, "max_queued_messages": 1}))
    return story(published("t", pid=9), drop("queue_messages", at(5)), payloads=1).keeps()


def more_waits_than_the_limit(name: str) -> Case:
    """The drops at 4 messages say that the limit is reached, which is 2."""
    refs = [at(3, number) for number in range(4)]
    story = limited(name)(closed())(published(*"tttt"), queued(*refs), payloads=4)
    story(published("t", pid=9), drop("queue_messages", at(4)), payloads=1)
    return story.breaks("queue", at(3, 4))


def more_waits_after_the_limit_was_lowered(name: str) -> Case:
    """Messages that wait stay, but new ones have no room."""
    story = away(name, 2)(LimitsApplied({**LIMITS, "max_queued_messages": 1}))
    story(published("t", pid=9), queued(at(5)), payloads=1)
    return story.breaks("queue", at(5, 1))


def more_bytes_wait_than_the_limit(name: str) -> Case:
    story = away(name, 1, limits={"max_queued_bytes": 5})
    return story(published("t", pid=9), queued(at(4)), payloads=1).breaks("queue", at(4, 1))


def expired_when_the_queue_was_full(name: str) -> Case:
    """A message that had expired when it was released is queued, and expires at once."""
    story = away(name, 2)
    event = published("t", qos=2, pid=9, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    waits = Queued("s", "t", 2, [at(4)], 3, expires=story.log.time_ms // 1000 + 5)
    gone_ms = story.log.time_ms + 9000
    story(Released("p", [9], [at(4)]), waits, Expired("s", "t", [at(4)], 3), time_ms=gone_ms)
    return story.keeps()


def unsubscribed(name: str) -> Case:
    story = away(name, 1)(opened(resumed=True, generation=2))
    return story(drop("unsubscribed", at(3), queued=3), Unsubscribed("s", ["t"])).keeps()


def not_unsubscribed(name: str) -> Case:
    story = away(name, 1)(opened(resumed=True, generation=2))
    story(drop("unsubscribed", at(3), queued=3))(Acked("p", []))
    return story.breaks("drop", at(5))


def slow_reader(name: str) -> Case:
    return limited(name)(drop("slow_reader", count=7)).keeps()


def slow_reader_at_qos_1(name: str) -> Case:
    story = limited(name)(published("t"), drop("slow_reader", at(2)), payloads=1)
    return story.breaks("drop", at(2, 1))


def slow_reader_that_is_away(name: str) -> Case:
    return away(name, 0)(drop("slow_reader")).breaks("drop", at(3))


def not_permitted(name: str) -> Case:
    story = limited(name, permissions="0123456789abcdef")
    return story(published("t"), drop("not_permitted", at(2)), payloads=1).keeps()


def permitted_to_all(name: str) -> Case:
    story = limited(name)(published("t"), drop("not_permitted", at(2)), payloads=1)
    return story.breaks("drop", at(2, 1))


def queued_and_not_permitted(name: str) -> Case:
    """While it waited, the permissions changed, or they were not asked."""
    story = away(name, 1, permissions="0123456789abcdef")
    return story(opened(resumed=True, generation=2), drop("not_permitted", at(3), queued=3)).keeps()


def queued_and_not_permitted_while_offline(name: str) -> Case:
    """A message leaves the queue for a client only, and the client is away."""
    story = away(name, 1, permissions="0123456789abcdef")
    return story(drop("not_permitted", at(3), queued=3)).breaks("drop", at(4))


def of_another_user(name: str) -> Case:
    story = limited(name)(opened(NATS_SESSION))
    event = published("t", session=NATS_SESSION)
    return story(event, drop("other_prefix", at(3)), payloads=1).keeps()


def of_another_user_without_a_bridge(name: str) -> Case:
    story = limited(name)(published("t"), drop("other_prefix", at(2)), payloads=1)
    return story.breaks("drop", at(2, 1))


def of_another_user_after_it_waited(name: str) -> Case:
    story = limited(name)(opened(NATS_SESSION), closed())
    story(published("t", session=NATS_SESSION), queued(at(3)), payloads=1)
    return story(drop("other_prefix", at(3), queued=3)).breaks("drop", at(4))


def accepts_packets_of(name: str, most: int, **given: Any) -> Story:
    """A message of 3 bytes, and properties of ``BLOCK``; the packet has 18 bytes without more."""
    story = Story(name, bare=True)
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), opened("p"), opened5(packet_maximum=most))
    return story(Subscribed("s", [("t", 2)], **given))


def packet_dropped(story: Story, *more: Any) -> Story:
    """Drop a message as too large on arrival."""
    event = published("t", blocks=[len(BLOCK)], at=len(BLOCK))
    ref = story.log.last + 1 << 20
    story.log.record(event, drop("packet_too_large", ref), payloads=[BLOCK, b"one"])
    return story


def packet_too_large(name: str) -> Case:
    return packet_dropped(accepts_packets_of(name, 17)).keeps()


def packet_that_just_fits(name: str) -> Case:
    return packet_dropped(accepts_packets_of(name, 18)).breaks("drop", at(3, 1))


def packet_too_large_with_its_identifier(name: str) -> Case:
    """The subscription identifier 300 has three bytes."""
    return packet_dropped(accepts_packets_of(name, 20, identifier=300)).keeps()


def packet_that_just_fits_with_its_identifier(name: str) -> Case:
    story = packet_dropped(accepts_packets_of(name, 21, identifier=300))
    return story.breaks("drop", at(3, 1))


def one_of_two_packets_fits(name: str) -> Case:
    story, event = accepts_packets_of(name, 11), published("t", "t")
    event.sizes = [4, 3]
    dropped = drop("packet_too_large", at(3), at(3, 1))
    story.log.record(event, dropped, payloads=[b"four", b"two"])
    return story.breaks("drop", at(3, 2))


def queued_packet_too_large(name: str, most: int = 17) -> Story:
    """It waited for a client that now accepts less."""
    story = accepts_packets_of(name, 0)(closed())
    event = published("t", blocks=[len(BLOCK)], at=len(BLOCK))
    waits = Queued("s", "t", 1, [at(4)], 3, expires=story.log.time_ms // 1000 + 5)
    story.log.record(event, waits, payloads=[BLOCK, b"one"])
    return story(opened5(2, packet_maximum=most), drop("packet_too_large", at(4), queued=3))


def queued_packet_is_too_large(name: str) -> Case:
    return queued_packet_too_large(name).keeps()


def queued_packet_that_fits(name: str) -> Case:
    return queued_packet_too_large(name, 18).breaks("drop", at(5, 1))


def levels_without_a_limit(name: str) -> Case:
    return limited(name)(drop("topic_levels")).breaks("drop", at(2))


def format_not_checked(name: str) -> Case:
    return limited(name)(drop("payload_format")).breaks("drop", at(2))


def levels_within_the_limit(name: str) -> Case:
    event = drop("topic_levels")
    event.topics = ["a/b/c", "a/b"]
    story = limited(name, limits={"max_topic_levels": 2})(event)
    return story.breaks("drop", at(2))


def too_many_levels(name: str) -> Case:
    event = drop("topic_levels")
    event.topics = ["a/b/c"]
    return limited(name, limits={"max_topic_levels": 2})(event).keeps()


def topic_not_reserved(name: str) -> Case:
    event = drop("reserved_topic")
    event.topics = ["a/b"]
    return limited(name)(event).breaks("drop", at(2))


def topic_reserved(name: str) -> Case:
    event = drop("reserved_topic")
    event.topics = ["$SYS/x"]
    return limited(name)(event).keeps()


def unread_topic_of_another_filter(name: str) -> Case:
    event = drop("slow_reader")
    event.filter, event.topics = "t", ["a/b"]
    return limited(name)(event).breaks("drop", at(2))


def unread_topic(name: str) -> Case:
    event = drop("slow_reader")
    event.filter, event.topics = "t", ["t"]
    return limited(name)(event).keeps()


def denied(code: int) -> SubscriptionDenied:
    return SubscriptionDenied("s", ["secret/#"], [code])


def denied_for_no_reason(name: str) -> Case:
    return limited(name)(denied(1)).breaks("drop", at(2))


def denied_though_all_is_permitted(name: str) -> Case:
    return limited(name)(denied(0x87)).breaks("drop", at(2))


def denied_by_the_permissions(name: str) -> Case:
    story = limited(name, permissions="0123456789abcdef")
    return story(denied(0x87))(denied(0x97)).keeps()


def dropped_of_nobody(name: str) -> Case:
    """A message that the session was not to get."""
    story = limited(name, permissions="0123456789abcdef")
    return story(published("x"), drop("not_permitted", at(2)), payloads=1).breaks("drop", at(2, 1))


def bytes_of_a_queue(name: str) -> Case:
    story = away(name, 2)(opened(resumed=True, generation=2))
    story(delivered(at(3), at(3, 1), queued=5))
    return story.breaks("queue", at(5))


# ------------------------------------------------------------------------ expiry, sessions


def waits_too_long(name: str) -> Case:
    """The properties of the message say that it expires in five seconds, the queue ten."""
    story = Story(name)(closed())
    event = published("t", blocks=[len(BLOCK)], at=len(BLOCK))
    expires = (story.log.time_ms + 10) // 1000 + 10
    story.log.record(
        event, Queued("s", "t", 1, [at(3)], 3, expires=expires), payloads=[BLOCK, b"1" * 3]
    )
    return story.breaks("expiry", at(3, 1))


def retained_expires_early(name: str) -> Case:
    story = Story(name)
    event = published("r", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    story(RetainedExpired(["r"]), time_ms=story.log.time_ms + 2000)
    return story.breaks("expiry", at(3), None)


def retained_never_expires(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    story(RetainedExpired(["r"]), time_ms=story.log.time_ms + 9_000_000)
    return story.breaks("expiry", at(3), None)


def subscribed_after(name: str, seconds: int) -> Story:
    """A client subscribes and gets nothing, although a message of five seconds is retained."""
    story = Story(name)
    event = published("r", retain=True, blocks=[len(BLOCK)], at=len(BLOCK))
    story.log.record(event, payloads=[BLOCK, b"one"])
    return story(Subscribed("s", [("r", 1)]), time_ms=story.log.time_ms + 1000 * seconds)


def retained_expired_before_its_event(name: str) -> Case:
    return subscribed_after(name, 6)(RetainedExpired(["r"])).keeps()


def retained_not_sent_before_it_expires(name: str) -> Case:
    return subscribed_after(name, 2)(Acked("s", [])).breaks("undelivered", at(3))


def session_expired(name: str) -> Case:
    story = away(name, 0)
    return story(SessionExpired("s", "expired"), time_ms=story.log.time_ms + 60_000).keeps()


def session_expired_early(name: str) -> Case:
    story = away(name, 0)
    story(SessionExpired("s", "expired"), time_ms=story.log.time_ms + 59_999)
    return story.breaks("session", at(3))


def session_expired_never(name: str) -> Case:
    story = away(name, 0, limits={"session_expiry": 0.0})
    story(SessionExpired("s", "expired"), time_ms=story.log.time_ms + 50_000)
    return story.breaks("session", at(3))


def session_overdue(name: str) -> Case:
    story = away(name, 0)
    story(Acked("p", []), time_ms=story.log.time_ms + 9_000_000)
    return story.breaks("session", at(1, 1))


def removed_by_nobody(name: str) -> Case:
    return away(name, 0)(SessionExpired("s", "removed")).breaks("session", at(3))


def removed_by_an_operator(name: str) -> Case:
    acted = OperatorActed("remove_session", "ops", "s", "s")
    return away(name, 0)(acted, SessionExpired("s", "removed")).keeps()


def kicked_by_nobody(name: str) -> Case:
    return limited(name)(closed(reason="kicked")).breaks("session", at(2))


def kicked_in_vain(name: str) -> Case:
    story = limited(name)(OperatorActed("kick", "ops", "s", "s"))
    return story(Acked("p", [])).breaks("session", at(2))


def acted_for_fun(name: str) -> Case:
    return limited(name)(OperatorActed("banana", "ops", "s", "s")).breaks("session", at(2))


def taken_over_by_nobody(name: str) -> Case:
    story = limited(name)(SessionTakenOver("s", 1), closed(reason="taken_over"))
    return story(opened(resumed=True, generation=2)).breaks("ownership", at(2, 1))


def taken_over(name: str) -> Case:
    back = opened(resumed=True, generation=2)
    return limited(name)(SessionTakenOver("s", 1), closed(reason="taken_over"), back).keeps()


def stopped_without_a_stop(name: str) -> Case:
    story = limited(name)(closed(reason="broker_stopped"))
    return story(opened(resumed=True, generation=2)).breaks("ownership", at(2))


def stopped(name: str) -> Case:
    """Or it was killed while it stopped."""
    story = limited(name)(closed(reason="broker_stopped"))
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), closed("p", reason="broker_restarted"))
    return story(opened(resumed=True, generation=2)).keeps()


def sent_again_without_a_reconnect(name: str) -> Case:
    story = limited(name)(published("t"), delivered(at(2)), payloads=1)
    return story(Redelivered("s", [1], "resumed")).breaks("acknowledgement", at(3))


def sent_again_after_a_reconnect(name: str) -> Case:
    story = limited(name)(published("t"), delivered(at(2)), payloads=1)(closed())
    return story(opened(resumed=True, generation=2), Redelivered("s", [1], "resumed")).keeps()


def sent_to_nats_before_it_was_published(name: str) -> Case:
    return limited(name)(Bridged(at(2, 1))).breaks("event", at(2), None)


def sent_to_nats(name: str) -> Case:
    return limited(name)(published("x"), payloads=1)(Bridged(at(2))).keeps()


def repeated_without_a_checkpoint(name: str) -> Case:
    story = limited(name)
    story(snapshot(story, "s"), snapshot(story, "p"))
    return story.breaks("checkpoint", at(2), None)


def carried_though_it_never_was(name: str) -> Case:
    story = limited(name)(published("x"), payloads=1)
    story(MessagesCarried([at(2, 1)], ["x"], [], 3, 0, 1), payloads=1)
    return story.breaks("checkpoint", at(3), None)


def assigned_by_another_log(name: str) -> Story:
    """A message of a shared subscription is in record 2, at QoS 0: its part here divides it."""
    other = f"{LOG_SESSION}other"
    given = {"origins": [at(7)], "share": "$share/g/x"}
    event = published("x", session=other, qos=0, **given)
    return limited(name)(opened(other), event, Followed("other", at(7), "ab" * 32), payloads=1)


def carried_for_a_shared_subscription(name: str) -> Case:
    story = assigned_by_another_log(name)
    return story(MessagesCarried([at(2, 1)], ["x"], [], 3, 0, 1), payloads=1).keeps()


def carried_for_a_shared_subscription_with_another_topic(name: str) -> Case:
    story = assigned_by_another_log(name)
    story(MessagesCarried([at(2, 1)], ["y"], [], 3, 0, 1), payloads=1)
    return story.breaks("checkpoint", at(3), None)


def carried_as_it_was(name: str) -> Case:
    story = limited(name)(published("x"), payloads=1)
    return story(MessagesCarried([at(2)], ["x"], [], 3, 0, 1), payloads=1).keeps()


def repeated_behind_a_checkpoint(name: str) -> Case:
    story = limited(name)
    both = [snapshot(story, "s"), snapshot(story, "p")]
    story(CheckpointBegun(1), *both, CheckpointCompleted(1, at(2), 2, 0))(both[0])
    return story.breaks("checkpoint", at(3), None)


def checkpoint_begun_again(name: str) -> Case:
    story = limited(name)
    both = [snapshot(story, "s"), snapshot(story, "p")]
    story(CheckpointBegun(1), *both, CheckpointCompleted(1, at(2), 2, 0))
    return story(CheckpointBegun(1)).breaks("checkpoint", at(3), None)


def repeated_by_a_checkpoint_that_was_not_completed(name: str) -> Case:
    """The broker was killed, and begins it again with the same number."""
    story = limited(name)
    story(CheckpointBegun(1))(snapshot(story, "s"))
    ends = [closed(session, reason="broker_restarted") for session in ("s", "p")]
    story(BrokerStarted("0.1"), LimitsApplied(LIMITS), *ends)
    both = [snapshot(story, "s"), snapshot(story, "p")]
    return story(CheckpointBegun(1), *both, CheckpointCompleted(1, at(5), 2, 0)).keeps()


def closed_for_fun(name: str) -> Case:
    return limited(name)(closed(reason="banana")).breaks("session", at(2))


def cleared_by_nobody(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    return story(RetainedCleared(["r"])).breaks("retained", at(3), None)


def cleared_by_an_operator(name: str) -> Case:
    story = Story(name)(published("r", retain=True), payloads=1)
    return story(OperatorActed("clear_retained", "ops", "r"), RetainedCleared(["r"])).keeps()


# ------------------------------------------------------------------------------------ queues


def stands_still(name: str) -> Case:
    story = away(name, 1)(opened(resumed=True, generation=2))
    story(Acked("p", []), time_ms=story.log.time_ms + 700_000)
    return story.breaks("progress", at(4))


def stands_still_while_others_are_acknowledged(name: str) -> Case:
    """What the client acknowledges, the last time 100 seconds before, moves no queue."""
    story = limited(name)(published("t"), delivered(at(2)), payloads=1)
    story(published("t", pid=9), queued(at(3)), payloads=1)
    story(Acked("s", [1]), time_ms=story.log.time_ms + 50_000)
    story(Acked("p", []), time_ms=story.log.time_ms + 100_000)
    return story.breaks("progress", at(3, 1))


def others_pass_the_queue(name: str) -> Case:
    """They are sent at once, and so could the message have been that waits."""
    story = limited(name)(Subscribed("s", [("u", 1)]))
    story(published("t"), queued(at(3)), payloads=1)
    for number in range(2):
        sent = delivered(at(4 + number), topic_filter="u", pid=number + 1)
        later = story.log.time_ms + 1500
        story(published("u", pid=9), sent, payloads=1, time_ms=later)
    return story.breaks("progress", at(3, 1))


def window_is_full(name: str) -> Case:
    story = limited(name)(published("t", "t", "t"), payloads=3, last=False)
    story(delivered(at(2), at(2, 1)), queued(at(2, 2)), part=1)
    return story(Acked("p", []), time_ms=story.log.time_ms + 700_000).keeps()


# ------------------------------------------------------------------------------- explanations


def delivered_before_it_was_published(name: str) -> Case:
    story = Story(name)(delivered(at(3)))(published("t"), payloads=1)
    return story.breaks("order", at(2), "s", ("undelivered", at(3), "s"))


def delivered_before_its_release(name: str) -> Case:
    story = Story(name)(published("t", qos=2), delivered(at(2), qos=2), payloads=1)
    story(Released("p", [1], [at(2)]))
    return story.breaks("order", at(2, 1), "s", ("undelivered", at(3), "s"))


BROKEN_CAUSES = (
    delivered_before_it_was_published, delivered_before_its_release,
    will_vanishes, will_vanishes_with_its_message, will_of_qos_0_vanishes_with_its_message,
    will_a_moment_before_its_delay, more_waits_than_the_limit,
    more_waits_after_the_limit_was_lowered, more_bytes_wait_than_the_limit,
    stands_still_while_others_are_acknowledged, others_pass_the_queue,
    will_comes_twice, will_fires_twice,
    will_after_disconnect, will_discarded_though_it_was_lost,
    will_discarded_by_disconnect_of_an_error, will_of_another_topic,
    will_of_another_qos, will_that_is_retained, will_with_other_bytes, will_of_nobody,
    will_does_not_wait, will_waits_for_the_connection, will_of_a_client_that_stayed_away,
    will_forgotten, will_kept_by_a_new_connection,
    will_does_not_wait_after_a_takeover, will_at_a_takeover_though_it_waits,
    will_of_a_client_that_stayed_away_after_a_takeover, will_forgotten_after_a_takeover,
    will_that_waits_for_a_client_that_ended,
    dropped_for_fun, queue_not_full, queue_not_full_of_bytes, not_unsubscribed,
    slow_reader_at_qos_1, slow_reader_that_is_away, permitted_to_all, levels_without_a_limit,
    queued_and_not_permitted_while_offline, of_another_user_without_a_bridge,
    of_another_user_after_it_waited, packet_that_just_fits,
    packet_that_just_fits_with_its_identifier, one_of_two_packets_fits, queued_packet_that_fits,
    format_not_checked, dropped_of_nobody, bytes_of_a_queue,
    retained_not_sent_before_it_expires,
    waits_too_long, retained_expires_early, retained_never_expires, session_expired_early,
    session_expired_never, session_overdue, removed_by_nobody, kicked_by_nobody, kicked_in_vain,
    closed_for_fun, cleared_by_nobody, stands_still,
    levels_within_the_limit, topic_not_reserved, unread_topic_of_another_filter,
    denied_for_no_reason, denied_though_all_is_permitted, acted_for_fun, taken_over_by_nobody,
    stopped_without_a_stop, sent_again_without_a_reconnect, sent_to_nats_before_it_was_published,
    checkpoint_begun_again,
    repeated_without_a_checkpoint, repeated_behind_a_checkpoint, carried_though_it_never_was,
    carried_for_a_shared_subscription_with_another_topic,
)  # fmt: skip
KEPT_CAUSES = (
    retained_expired_before_its_event,
    will_published, will_of_qos_0_published, will_of_qos_0_not_permitted,
    expired_when_the_queue_was_full, will_discarded, will_with_disconnect_code,
    will_with_disconnect_of_an_error, will_waits,
    will_of_a_client_that_came_back, will_of_a_session_taken_over, will_not_permitted,
    will_waits_after_a_takeover, will_of_a_clean_session_waits_after_a_shutdown,
    will_of_a_client_that_came_back_after_a_takeover,
    queue_full, queue_full_of_bytes, limits_of_a_reload, unsubscribed, slow_reader, not_permitted,
    queued_and_not_permitted, of_another_user, packet_too_large,
    packet_too_large_with_its_identifier, queued_packet_is_too_large,
    session_expired, removed_by_an_operator, cleared_by_an_operator, window_is_full,
    too_many_levels, topic_reserved, unread_topic, denied_by_the_permissions, taken_over, stopped,
    sent_again_after_a_reconnect, sent_to_nats, repeated_by_a_checkpoint_that_was_not_completed,
    carried_for_a_shared_subscription, carried_as_it_was,
)  # fmt: skip
