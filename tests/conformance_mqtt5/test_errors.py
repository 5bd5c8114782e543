"""Section 4.13: a violation ends its connection, with its reason."""

import pytest
from harness.catalogue_v5 import BAD5, CONNECT5, Bad5
from harness.mqtt5_rawclient import Clients5


def expects_reason(entry: Bad5) -> bool:
    """Whether a broker with default settings takes it for this violation, too."""
    return not entry.name.endswith(("too large", "the maximum")) and entry.after in {b"", CONNECT5}


@pytest.mark.mqtt5(
    "MQTT-1.5.4-2", "MQTT-1.5.5-1", "MQTT-3.1.2-3", "MQTT-3.1.2-11", "MQTT-3.1.2-12",
    "MQTT-3.1.2-13", "MQTT-3.1.2-18", "MQTT-3.1.3-4", "MQTT-3.1.3-11", "MQTT-3.1.3-12",
    "MQTT-3.3.1-2", "MQTT-3.3.1-4", "MQTT-3.3.2-1", "MQTT-3.3.2-2", "MQTT-3.3.2-8",
    "MQTT-3.3.2-13", "MQTT-3.3.2-14", "MQTT-3.3.2-19", "MQTT-3.6.1-1", "MQTT-3.8.1-1",
    "MQTT-3.8.3-1", "MQTT-3.8.3-2", "MQTT-3.8.3-5", "MQTT-3.10.1-1", "MQTT-3.10.2-1",
    "MQTT-3.10.2-2", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-3.14.0-1",
    "MQTT-4.13.1-1", "MQTT-4.13.2-1",
)  # fmt: skip
@pytest.mark.parametrize(
    "entry", [pytest.param(one, id=one.name) for one in BAD5 if expects_reason(one)]
)
def test_each_violation_ends_its_connection_with_its_reason(clients: Clients5, entry: Bad5) -> None:
    if entry.after:
        client = clients.five()
        client.send(entry.raw)
        client.expect_ended(entry.reason)
    else:
        client = clients.raw5()
        client.send(entry.raw)
        client.expect_refused(entry.reason)
