"""Deliveries to clients at level 5: identifiers, RETAIN, and their bounds."""

import random
from collections.abc import Sequence

import pytest

from actors.session.delivery_encoder import DeliveryEncoder, remaining_properties
from eventstore.format.events import Subscribed, Unsubscribed
from eventstore.log.message_store import Message
from projections.state.session import SessionState, evolve
from protocol.mqtt.packets import ConnectProperties
from protocol.mqtt.publish_encoder_v5 import AliasNumbers, PacketVariant, prepare_publishes
from protocol.mqtt.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED


def subscribe(
    state: SessionState, topic_filter: str, options: int = 0, identifier: int = 0
) -> None:
    event = Subscribed(state.session, [(topic_filter, 1)], options=[options])
    event.identifier = identifier
    evolve(state, event, 1, 0)


def encoder_of(state: SessionState, limit: int = 0) -> DeliveryEncoder:
    return DeliveryEncoder(state, ConnectProperties(maximum_packet_size=limit), AliasNumbers(0))


def complete(encoder: DeliveryEncoder, most: int = 100) -> int:
    """Index all filters; return in how many parts."""
    parts = 1
    while encoder.complete(most):
        parts += 1
    return parts


def test_many_filters_are_indexed_in_parts() -> None:
    state = SessionState("c")
    for number in range(1000):
        subscribe(state, f"a/{number}", identifier=number + 1)
    encoder = encoder_of(state)
    assert complete(encoder) == 10
    assert encoder.identifiers(b"a/7") == (8,)


def test_filters_are_not_indexed_without_subscription_options() -> None:
    state = SessionState("c")
    for number in range(1000):
        subscribe(state, f"a/{number}", NO_LOCAL)
    encoder = encoder_of(state)
    assert complete(encoder) == 1
    subscribe(state, "a/#", RETAIN_AS_PUBLISHED, 3)
    encoder.subscriptions_changed(["a/#"])
    assert encoder.identifiers(b"a/7") == (3,)  # at once
    assert complete(encoder) == 11
    assert encoder.is_as_published(b"other/7") is False


@pytest.mark.parametrize("seed", range(20))
def test_the_index_agrees_with_the_subscription_options(seed: int) -> None:
    chance, state = random.Random(seed), SessionState("c")
    encoder = encoder_of(state)
    filters = ["a/#", "a/+", "a/b", "#", "b/#"]
    for _ in range(30):
        chosen = chance.choice(filters)
        if chance.random() < 0.6:
            subscribe(state, chosen, chance.choice([0, NO_LOCAL]), chance.choice([0, 1, 2]))
        else:
            evolve(state, Unsubscribed("c", [chosen]), 1, 0)
        encoder.subscriptions_changed([chosen])
        if chance.random() < 0.3:
            encoder = encoder_of(state)
        complete(encoder, chance.choice([1, 100]))
        matching = [one for one in state.active() if one.filter in ("a/#", "a/+", "a/b", "#")]
        numbers = [one.identifier for one in matching if one.identifier]
        assert encoder.identifiers(b"a/b") == tuple(sorted(numbers))
        others = [one for one in matching if not one.options & NO_LOCAL]
        own = [one.identifier for one in others if one.identifier]
        assert encoder.identifiers(b"a/b", own=True) == tuple(sorted(own))


@pytest.mark.parametrize("identifiers", [(), (1,), (1, 300, 100_000)])
@pytest.mark.parametrize("block", [b"", b"\x01\x01"])
def test_the_size_of_a_packet_is_compared_exactly(
    block: bytes, identifiers: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = SessionState("c")
    for topic_filter, one in zip(("#", "t/#", "+"), identifiers, strict=False):
        subscribe(state, topic_filter, 0, one)
    message = Message(b"t", b"x" * 200, block)
    found = encoder_of(state, 1)
    complete(found)
    variant = PacketVariant(1, identifiers=found.identifiers(b"t"))
    size = len(
        prepare_publishes([b"t"], [message.payload], [block] if block else (), variant).render([1])
    )
    for limit in range(size - 5, size + 40):
        encoder = DeliveryEncoder(
            state, ConnectProperties(maximum_packet_size=limit), AliasNumbers(0)
        )
        complete(encoder)
        assert encoder.is_too_large(message, (1, False), 0) is (size > limit)
    encoder = DeliveryEncoder(
        state, ConnectProperties(maximum_packet_size=size + 100), AliasNumbers(0)
    )
    complete(encoder)
    monkeypatch.setattr("actors.session.delivery_encoder.prepare_publishes", None)
    assert not encoder.is_too_large(message, (1, False), 0)  # without encoding it


@pytest.mark.parametrize(
    ("interval", "waited_ms", "sent"),
    [(1, 20, 1), (1, 450, 1), (3, 1_100, 1), (3, 2_400, 1), (3, 20, 2), (0, 0, 0)],
)
def test_an_expiry_that_is_sent_is_at_least_a_second(
    interval: int, waited_ms: int, sent: int
) -> None:
    """The second of publication is nearly over: see ``expired_until``."""
    published_ms = 1_700_000_000_990
    block = b"\2" + interval.to_bytes(4, "big")
    message = Message(b"t", b"", block, published_ms // 1000 + interval)
    (found,) = remaining_properties([message], published_ms + waited_ms)
    assert found == b"\2" + sent.to_bytes(4, "big")
