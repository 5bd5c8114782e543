"""The ports of tests are theirs, beside other programs."""

import socket
from pathlib import Path

import pytest

from harness.broker import Broker, free_port

pytestmark = pytest.mark.system


def test_a_port_is_not_free_for_others_and_can_be_listened_on_again_and_again() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    for _ in range(3):
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_broker_whose_port_was_taken_gets_another_one(tmp_path: Path) -> None:
    broker = Broker(tmp_path, forked=True)
    web = free_port()
    broker.configure(f"web = '127.0.0.1:{web}'\n")
    taken = broker.port
    try:
        with (
            socket.create_server(("127.0.0.1", taken)),
            socket.create_server(("127.0.0.1", web)),
        ):
            broker.start()
        assert set(broker.moved) == {taken, web}
        assert broker.port == broker.moved[taken]
        assert f":{broker.moved[web]}" in broker.config_file.read_text()
        broker.stop()
    finally:
        broker.clean_up()
