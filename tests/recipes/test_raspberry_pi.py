"""The recipe for small computers: what it sets holds, and an idle broker runs two processes."""

from pathlib import Path

from e2e.tools import run
from harness.broker import children_of, free_port
from harness.packets import Publish
from harness.rawclient import RawClient

from recipes.recipefiles import PASSWORD, broker_of


def test_the_profile_serves_with_few_writes_and_processes(tmp_path: Path) -> None:
    port = free_port()
    changes = {"0.0.0.0:1883": f"127.0.0.1:{port}", "/var/lib/foldmq": str(tmp_path / "data")}
    broker = broker_of(tmp_path, "raspberry-pi", changes, ("homeassistant",), port=port)
    try:
        broker.start()
        panel, lamp = RawClient(port), RawClient(port)
        for client, name in ((panel, "panel"), (lamp, "lamp")):
            client.connect(name, username="homeassistant", password=PASSWORD.encode())
        panel.subscribe(("hall/#", 1))
        for number in range(20):
            lamp.publish("hall/lamp", str(number).encode(), qos=1)
        got = [panel.expect_a(Publish).payload for _ in range(20)]
        assert got == [str(number).encode() for number in range(20)]
        panel.close()
        lamp.close()
        assert len(children_of(broker.pid)) == 1  # the NATS server: no index, and no page yet
        (status,) = run("status", "--data-dir", str(tmp_path / "data"), "--json").objects
        assert (status["log"]["limit"], status["log"]["commit_delay"]) == (2 * 1024**3, 0.02)
    finally:
        broker.clean_up()
