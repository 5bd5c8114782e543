"""Section 1.5.3: UTF-8 encoded strings."""

import pytest
from harness.fixtures import Clients


@pytest.mark.mqtt("MQTT-1.5.3-3", "MQTT-4.7.3-4")
def test_zero_width_no_break_space_is_kept(clients: Clients, topic: str) -> None:
    marked = f"\ufeff{topic}/a\ufeffb\ufeff"
    plain = f"{topic}/ab"
    subscriber = clients.connect()
    assert subscriber.subscribe((marked, 0), (plain, 0)) == (0, 0)
    publisher = clients.connect()
    publisher.publish(marked, b"marked")
    publisher.publish(plain, b"plain")
    subscriber.expect_publish(marked, b"marked")
    subscriber.expect_publish(plain, b"plain")


@pytest.mark.mqtt("MQTT-1.5.3-1", "MQTT-4.7.3-4")
def test_characters_of_every_length_pass_unchanged(clients: Clients, topic: str) -> None:
    name = f"{topic}/a é ߿ \u0800 \ud7ff \ue000 ￼ 😀 \U0010fffd"
    subscriber = clients.subscribed(name)
    clients.connect().publish(name, name.encode())
    subscriber.expect_publish(name, name.encode())
