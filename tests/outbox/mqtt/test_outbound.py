"""Messages on their way to a peer, over lost connections, lost sessions and restarts."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_peer import FoldmqWorld, World, run

from outbox.mqtt.outbound import (
    MAX_WINDOW,
    Outbound,
    Outgoing,
    PeerBusyError,
    PeerLimits,
    PeerViolationError,
    Refusal,
    SessionConflictError,
    packet_identifier,
)
from protocol.mqtt.client_packet_encoder import encode_connect, encode_publish
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.decoder_v5 import PacketDecoderV5
from protocol.mqtt.encoder import encode_acks
from protocol.mqtt.origin_properties import Origin, split_origin, with_origin
from protocol.mqtt.packets import Connect, PacketType, Publishes
from protocol.mqtt.property_codec import MAX_PROPERTIES, encode_property
from protocol.mqtt.property_table import USER_PROPERTY

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
V4 = PeerLimits(4)


def message(number: int, qos: int = 1, payload: bytes = b"x") -> Outgoing:
    return Outgoing(number, number * 10, b"t", payload, qos)


def sent(number: int, qos: int = 1, *, dup: bool = False) -> bytes:
    return encode_publish(b"t", b"x", qos, packet_identifier(number), dup=dup)


def released(*numbers: int) -> bytes:
    return encode_acks(PacketType.PUBREL, [packet_identifier(number) for number in numbers])


def online(state: Outbound, limits: PeerLimits = V4, *, present: bool = False) -> Outbound:
    state.connected(limits, session_present=present)
    return state


def acknowledge(state: Outbound, kind: PacketType, *numbers: int, reason: int = 0) -> None:
    ids = [packet_identifier(number) for number in numbers]
    state.acknowledged(kind, ids, [reason] * len(ids) if reason else ())


def test_a_foldmq_gets_no_more_properties_than_it_takes() -> None:
    full = encode_property(USER_PROPERTY, ("k", "v")) * MAX_PROPERTIES
    most = PeerLimits(5, takes_origins=True)
    for qos in (1, 2):
        state = online(Outbound(0, 0, 1), most, present=True)
        blocks = [full[7:], full, full + full[:7]]
        state.offer(
            Outgoing(number, number * 10, b"t", b"x", qos, block=block, origin=Origin(1, 1, 1))
            for number, block in enumerate(blocks, 1)
        )
        packets = state.packets()
        decoder = Decoder(1 << 20, v5=partial(PacketDecoderV5, 0))
        decoder.feed(encode_connect(Connect(5, "a", True, 0)))
        taken: list[bytes] = []
        for each in decoder.feed(packets):
            assert isinstance(each, Publishes)
            taken += each.blocks or ()
        while decoder.more:
            for each in decoder.feed(b""):
                assert isinstance(each, Publishes)
                taken += each.blocks or ()
        assert decoder.error is None
        assert [len(split_origin(each)[1]) for each in taken] == [len(full) - 7, len(full)]
        assert state.take_refusals() == [Refusal(30, 0x95)]


# --- random worlds -----------------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_nothing_is_lost_and_qos_2_is_taken_once(seed: int) -> None:
    run(seed)


@given(st.integers(0, 2**32))
def test_a_foldmq_takes_messages_at_qos_1_once_too(seed: int) -> None:
    run(seed, world=FoldmqWorld)


class NoOrigins(Outbound):
    """Does not say where messages come from."""

    def connected(self, limits: PeerLimits, *, session_present: bool) -> None:
        super().connected(limits._replace(takes_origins=False), session_present=session_present)


def test_messages_without_an_origin_are_found() -> None:
    assert _fails(lambda seed: run(seed, NoOrigins, world=FoldmqWorld))


class ReleasesEarly(Outbound):
    """Sends PUBREL before ``received`` is on disk."""

    __slots__ = ()

    def packets(self) -> bytes:
        position = self.to_record()
        if position:
            self.recorded(position)
        return super().packets()


class ForgetsLostSession(Outbound):
    """Leaves ``received`` on disk although the session that it is about is lost."""

    __slots__ = ()

    def to_record(self) -> int | None:
        position = super().to_record()
        if self._reset and position is not None:
            self.recorded(position)
            return super().to_record()
        return position


class IgnoresReceived(Outbound):
    """Sends PUBLISH again although its PUBREC was recorded."""

    __slots__ = ()

    def __init__(self, number: int, through: int, received: int = 0) -> None:
        super().__init__(number, through, min(received, 1))


class CursorBeforeAck(World):
    """Records the cursor when the messages are sent."""

    def work(self) -> None:
        if self._batch and not self._to_peer and self._online:
            self.through, self._batch = self._batch[-1], []
        super().work()


@pytest.mark.parametrize("mutant", [ReleasesEarly, ForgetsLostSession, IgnoresReceived])
def test_mutants_are_found(mutant: type[Outbound]) -> None:
    assert _fails(lambda seed: run(seed, mutant))


def test_a_cursor_before_the_acknowledgement_is_found() -> None:
    assert _fails(lambda seed: run(seed, world=CursorBeforeAck))


def _fails(attempt: Callable[[int], object]) -> bool:
    for seed in range(3000):
        try:
            attempt(seed)
        except (AssertionError, PeerViolationError):
            return True
    return False


# --- one thing at a time -----------------------------------------------------------------------


def test_the_window_is_the_lower_one_and_grows_as_the_first_messages_are_acknowledged() -> None:
    state = online(Outbound(0, 0, qos2=False), PeerLimits(4, 2))
    state.offer(map(message, range(1, 5)))
    assert state.packets() == sent(1) + sent(2)
    assert state.packets() == b""
    acknowledge(state, PUBACK, 2)
    assert state.packets() == b""  # the first one still counts
    acknowledge(state, PUBACK, 1)
    assert (state.number, state.packets()) == (2, sent(3) + sent(4))
    acknowledge(state, PUBACK, 3, 4)
    assert (state.number, state.is_settled) == (4, True)


def test_pubrel_waits_until_the_pubrecs_are_on_disk_one_out_of_order_too() -> None:
    state = Outbound(0, 0)
    assert state.needs_clean_session
    online(state)
    state.offer(message(number, 2) for number in (1, 2, 3))
    assert state.packets() == b""  # the new session is not recorded yet
    assert state.to_record() == 1
    state.recorded(1)
    assert not state.needs_clean_session
    assert state.packets() == sent(1, 2) + sent(2, 2) + sent(3, 2)
    acknowledge(state, PUBREC, 2)
    assert (state.to_record(), state.packets()) == (None, b"")
    acknowledge(state, PUBREC, 1)
    assert (state.to_record(), state.packets()) == (20, b"")
    state.recorded(20)
    assert state.packets() == released(1, 2)
    acknowledge(state, PUBREC, 3)
    acknowledge(state, PUBCOMP, 2, 1)
    assert (state.number, state.to_record()) == (2, 30)


def test_a_restart_releases_what_is_received_and_sends_the_rest_again() -> None:
    state = online(Outbound(5, 50, 70), present=True)
    assert not state.needs_clean_session
    state.offer(message(number, 2) for number in (6, 7, 8))
    assert state.packets() == released(6, 7) + sent(8, 2, dup=True)
    acknowledge(state, PUBCOMP, 6, 7, reason=0x92)
    assert (state.number, state.to_record()) == (7, None)


def test_after_a_lost_session_everything_is_sent_as_new() -> None:
    state = online(Outbound(5, 50, 70), present=False)
    state.offer(message(number, 2) for number in (6, 7, 8))
    assert (state.packets(), state.to_record()) == (b"", 50)
    state.recorded(70)  # too late: it is about the lost session
    assert state.packets() == b""
    state.recorded(50)
    assert state.packets() == sent(6, 2) + sent(7, 2) + sent(8, 2)


def test_a_lost_connection_repeats_publish_or_pubrel() -> None:
    state = online(Outbound(5, 50, 50), present=True)
    state.offer([message(6, 2), message(7, 1), message(8, 2)])
    assert state.packets() == sent(6, 2, dup=True) + sent(7, dup=True) + sent(8, 2, dup=True)
    acknowledge(state, PUBREC, 6)
    state.recorded(60)
    assert state.packets() == released(6)
    state.disconnected()
    assert state.packets() == b""
    online(state, present=True)
    assert state.packets() == released(6) + sent(7, dup=True) + sent(8, 2, dup=True)


def test_the_identifier_of_an_expired_message_is_released() -> None:
    state = online(Outbound(5, 50, 50), present=True)
    state.offer([message(7, 2)])
    assert state.packets() == released(6) + sent(7, 2, dup=True)
    acknowledge(state, PUBCOMP, 6, reason=0x92)
    assert state.number == 6


def test_a_foldmq_gets_the_origins_of_messages_at_qos_1_unless_they_were_refused_before() -> None:
    origin = Origin(10, 10, 99)

    def packets(limits: PeerLimits, qos: int, *, again: bool = False) -> bytes:
        state = online(Outbound(0, 0), limits, present=True)
        given = message(1, qos)._replace(origin=origin)
        if again:
            state.offer_again(given)
        else:
            state.offer([given])
        return state.packets()

    foldmq = PeerLimits(5, takes_origins=True)
    assert with_origin(b"", origin) in packets(foldmq, 1)
    for limits, qos, again in ((PeerLimits(5), 1, False), (foldmq, 2, False), (foldmq, 1, True)):
        sent_packets = packets(limits, qos, again=again)
        assert sent_packets.endswith(b"x")
        assert b"foldmq-origin" not in sent_packets


def test_a_message_for_which_only_its_origin_is_too_large_is_sent_without_it() -> None:
    plain = encode_publish(b"t", b"x", 1, packet_identifier(1), block=b"")
    for limit, packet in ((len(plain), plain), (len(plain) - 1, b"")):
        limits = PeerLimits(5, maximum_packet_size=limit, takes_origins=True)
        state = online(Outbound(0, 0, qos2=False), limits)
        state.offer([message(1)._replace(origin=Origin(10, 10, 99))])
        assert state.packets() == packet


def test_no_client_says_where_a_message_comes_from() -> None:
    forged = with_origin(b"", Origin(10**17, 1, 10**17))
    limits = PeerLimits(5, takes_origins=True)
    state = online(Outbound(0, 0), limits, present=True)
    state.offer_again(message(1)._replace(block=forged, origin=Origin(10, 10, 99)))
    assert b"foldmq-origin" not in state.packets()


def test_messages_that_are_not_sent_take_no_memory() -> None:
    state = online(Outbound(0, 0, qos2=False))
    far = 10_000_000
    state.offer([message(1), message(far)])
    assert state.packets() == sent(1)
    acknowledge(state, PUBACK, 1)
    assert state.packets() == sent(far)
    acknowledge(state, PUBACK, far)
    assert (state.number, state.is_settled) == (far, True)


def test_a_batch_that_is_offered_again_is_not_sent_again() -> None:
    state = online(Outbound(0, 0, qos2=False))
    state.offer([message(1), message(2)])
    assert state.packets() == sent(1) + sent(2)
    acknowledge(state, PUBACK, 1)
    state.offer([message(1), message(2), message(3)])
    assert state.packets() == sent(3)


@pytest.mark.parametrize(("kind", "qos"), [(PUBACK, 1), (PUBREC, 2)])
def test_a_refused_message_ends_the_batch(kind: PacketType, qos: int) -> None:
    state = online(Outbound(5, 50, 50), PeerLimits(4, 3), present=True)
    state.offer(message(number, qos) for number in range(6, 11))
    state.packets()
    acknowledge(state, kind, 6, reason=0x87)
    assert not state.is_settled
    acknowledge(state, kind, 7, 8)
    assert state.packets() == b""
    assert state.is_settled
    assert state.to_record() is None  # what is behind the refused message waits for its report
    assert state.take_refusals() == [Refusal(60, 0x87)]
    assert state.take_refusals() == []
    state.offer(message(number, qos) for number in range(7, 11))
    assert sent(9, qos, dup=True) in state.packets()
    assert state.to_record() == (80 if qos == 2 else None)


def test_a_message_above_the_maximum_packet_size_is_refused() -> None:
    state = online(Outbound(0, 0, qos2=False), PeerLimits(4, maximum_packet_size=20))
    state.offer([message(1, payload=b"x" * 20), message(2)])
    assert state.packets() == b""
    assert state.take_refusals() == [Refusal(10, 0x95)]
    assert state.packets() == sent(2)


def test_refusals_are_taken_by_their_reasons() -> None:
    state = online(Outbound(0, 0, qos2=False))
    state.offer([message(1), message(2), message(3), message(4)._replace(topic=b"")])
    state.packets()
    acknowledge(state, PUBACK, 1, 3, reason=0x87)
    acknowledge(state, PUBACK, 2)
    assert state.take_refusals() == [Refusal(40, 0x90)]
    assert state.take_refusals() == [Refusal(10, 0x87), Refusal(30, 0x87)]
    assert (state.take_refusals(), state.number) == ([], 4)


@pytest.mark.parametrize("reason", [0, 0x87])
def test_a_refused_message_is_sent_again_apart_from_the_others(reason: int) -> None:
    state = online(Outbound(5, 50, 50), present=True)
    state.offer_again(message(0, 2))
    assert not state.is_settled
    far = 6 + 16_384
    assert state.packets() == sent(far)
    state.disconnected()
    online(state, present=True)
    assert state.packets() == sent(far)
    acknowledge(state, PUBACK, far, reason=reason)
    assert (state.is_settled, state.number) == (True, 5)
    assert state.take_refusals() == ([Refusal(0, 0x87)] if reason else [])
    state.offer([message(6, 2)])
    assert state.packets() == sent(6, 2, dup=True)


def test_limits_of_the_peer() -> None:
    limits = PeerLimits(maximum_qos=1, retain_available=False)
    state = online(Outbound(0, 0, qos2=False), limits)
    block = b"\x26\0\1k\0\1v"
    state.offer([Outgoing(1, 10, b"t", b"x", 2, retain=True, block=block)])
    assert state.packets() == encode_publish(b"t", b"x", 1, 2, block=block)


def test_messages_that_are_not_in_the_log_are_sent_while_there_is_a_connection() -> None:
    state = Outbound(0, 0)
    live = message(0, 0)
    assert state.live_packet(live) == b""
    online(state, PeerLimits(4, maximum_packet_size=9), present=True)
    assert state.live_packet(live) == encode_publish(b"t", b"x")
    assert state.live_packet(message(0, 0, bytes(9))) == b""
    assert state.live_packet(live._replace(topic=b"")) == b""
    state.disconnected()
    assert state.live_packet(live) == b""
    assert state.is_settled


def test_qos_0_needs_no_answer() -> None:
    state = online(Outbound(0, 0, qos2=False))
    state.offer([message(1, 0), message(2, 0)])
    assert state.packets() == encode_publish(b"t", b"x") * 2
    assert (state.number, state.is_settled) == (2, True)


@pytest.mark.parametrize(
    ("kind", "qos", "reason", "error"),
    [
        (PUBREC, 1, 0, PeerViolationError),
        (PUBCOMP, 1, 0, PeerViolationError),
        (PUBCOMP, 2, 0, PeerViolationError),
        (PUBACK, 1, 0x97, PeerBusyError),
        (PUBREC, 2, 0x97, PeerBusyError),
        (PUBREC, 2, 0x91, SessionConflictError),
    ],
)
def test_answers_that_end_the_connection(
    kind: PacketType, qos: int, reason: int, error: type[Exception]
) -> None:
    state = online(Outbound(0, 0, 1))
    state.recorded(1)
    state.offer([message(1, qos)])
    assert state.packets() == sent(1, qos)
    with pytest.raises(error):
        acknowledge(state, kind, 1, reason=reason)
    state.disconnected()
    assert state.needs_clean_session is (error is SessionConflictError)
    online(state, present=True)
    assert state.packets() == sent(1, qos, dup=True)
    assert not state.needs_clean_session


def test_an_identifier_in_use_is_a_pubrec_where_the_message_was_sent_before() -> None:
    state = online(Outbound(5, 50, 50), present=True)
    state.offer([message(6, 2)])
    state.packets()
    acknowledge(state, PUBREC, 6, reason=0x91)  # EMQX
    assert state.to_record() == 60


def test_a_puback_is_taken_for_a_message_at_qos_2() -> None:
    state = online(Outbound(5, 50, 50), present=True)
    state.offer([message(6, 2)])
    state.packets()
    acknowledge(state, PUBACK, 6)
    assert (state.number, state.is_settled) == (6, True)


def test_acknowledgements_of_nothing_change_nothing() -> None:
    state = online(Outbound(5, 50, 50), PeerLimits(4, 1), present=True)
    state.offer([message(6, 2), message(7, 1)])
    state.packets()
    acknowledge(state, PUBACK, 7, 8, 5)
    acknowledge(state, PUBREC, 6)
    acknowledge(state, PUBREC, 6)
    acknowledge(state, PUBACK, 6)
    assert (state.to_record(), state.number) == (60, 5)


def test_identifiers_never_are_0_and_the_same_after_65535_messages() -> None:
    assert [packet_identifier(number) for number in (1, 65_534, 65_535)] == [2, 65_535, 1]
    state = online(Outbound(65_533, 655_330, 655_330), present=True)
    numbers = range(65_534, 65_538)
    state.offer(message(number) for number in numbers)
    state.packets()
    acknowledge(state, PUBACK, *numbers)
    assert state.number == 65_537


def test_messages_in_pubrec_share_a_record() -> None:
    """It waits for those that are about to come, but not for many."""
    state = online(Outbound(0, 0), PeerLimits(4, 400))
    state.recorded(state.to_record() or 0)
    state.offer(message(number, 2) for number in range(1, 501))
    while state.packets():
        pass
    assert not state.to_record()
    acknowledge(state, PUBREC, 1, 2)
    assert (state.to_record(), state.may_record_later) == (20, True)
    acknowledge(state, PUBREC, *range(3, 251))
    assert (state.to_record(), state.may_record_later) == (2500, False)
    state.recorded(2500)
    assert (state.to_record(), state.may_record_later) == (None, True)
    acknowledge(state, PUBREC, *range(251, 400))
    assert (state.to_record(), state.may_record_later) == (3990, True)
    acknowledge(state, PUBREC, 400)
    assert (state.to_record(), state.may_record_later) == (4000, False)  # the window is full
    state.disconnected()
    online(state, PeerLimits(4, 400), present=True)
    assert (state.to_record(), state.may_record_later) == (4000, False)


def test_packets_come_some_at_a_time() -> None:
    state = online(Outbound(0, 0, qos2=False), PeerLimits(4, MAX_WINDOW))
    state.offer(message(number, payload=bytes(4096)) for number in range(1, 200))
    first = state.packets()
    assert len(first) < 100 * 4096
    assert state.packets() != b""


def erasing(*keys: int, qos2: bool = True) -> tuple[Outbound, set[int]]:
    """Messages on their way, and the keys that are destroyed."""
    erased = {*keys}
    return Outbound(0, 0, 1, qos2=qos2, is_erased=erased.__contains__), erased


def under(key: int, number: int, qos: int = 1) -> Outgoing:
    return message(number, qos)._replace(key=key)


def test_what_was_erased_before_it_was_sent_is_refused() -> None:
    state, _ = erasing(7, qos2=False)
    online(state).offer([message(1), under(7, 2), under(8, 3)])
    assert state.packets() == sent(1)
    acknowledge(state, PUBACK, 1)
    assert state.is_settled
    assert state.take_refusals() == [Refusal(20, 0x80)]
    assert state.packets() == sent(3)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_erased_is_not_sent_again(qos: int) -> None:
    state, erased = erasing(qos2=qos == 2)
    online(state, present=True).offer([under(7, 1, qos), message(2, qos)])
    before = state.packets()
    assert before.count(b"x") == 2
    state.disconnected()
    erased.add(7)
    online(state, present=True)
    again = state.packets()
    assert sent(2, qos, dup=True) in again
    assert again.count(b"x") == 1
    assert (released(1) in again) == (qos == 2)  # its identifier is free again at the peer
    acknowledge(state, PUBCOMP if qos == 2 else PUBACK, *((1,) if qos == 2 else (2,)))
    assert state.take_refusals() == []
    if qos == 1:
        assert state.is_settled


def test_a_refused_message_is_not_sent_again_if_it_is_erased() -> None:
    state, _ = erasing(7, qos2=False)
    online(state).offer_again(under(7, 0))
    assert state.packets() == b""
    assert state.take_refusals() == [Refusal(0, 0x80)]
    assert state.is_settled
