"""Sessions on the web page: their order, their waiting messages, and huge names."""

import re
from collections.abc import Callable

from harness import packets
from harness.broker import Broker
from harness.fixtures import Clients
from harness.packets import Pubrec

from e2e.tools import run
from e2e.webclient import served

ON = ("--web", "127.0.0.1:0")


def test_queued_messages_are_shown_with_their_age(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("", *ON)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    waits = clients.connect("waits", clean=False)
    waits.subscribe(("hall/#", 1))
    waits.disconnect()
    reader = clients.connect("reader", clean=False)
    reader.subscribe(("hall/#", 1))
    writer = clients.connect("writer", clean=False)
    writer.publish("hall/first", b"", 1)
    reader.expect_publish("hall/first", b"", 1)
    writer.publish("hall/second", b"", 1)
    reader.expect_publish("hall/second", b"", 1)
    writer.send(packets.publish("hall/third", b"", 2, 77))
    writer.expect(Pubrec(77))
    log = run("log", "--data-dir", str(broker.data_dir), "--json", "--type", "MessagePublished")
    times = {one["messages"][0]["topic"]: one["time"] for one in log.objects}
    page = served(broker)
    last = log.objects[-1]["position"].partition(".")[0]

    for more in ({}, {"at": last}):
        got = page.good("/session", client="waits", **more)
        assert "offline since" in got.shown
        assert re.search(r"Oldest queued hall/first \S+ waiting since \S+ \S+ , \d+ m?s", got.shown)
        assert f'waiting since <time datetime="{times["hall/first"]}"' in got.text

        got = page.good("/session", client="reader", **more)
        assert "For Published Last sent" in got.shown
        for topic in ("hall/first", "hall/second"):
            (row,) = re.findall(
                rf"<tr[^>]*><td class=\"n\" [^>]*>\d+</td>.*{topic}.*</tr>",
                got.text.replace("<wbr>", ""),
            )
            assert re.findall(r'datetime="([^"]*)"', row)[0] == times[topic]
            assert re.search(r"\d+ m?s ago", row)

        got = page.good("/session", client="writer", **more)
        assert "waiting for PUBREL 1 Packet Message Published 77 hall/third" in got.shown
        assert f'datetime="{times["hall/third"]}"' in got.text
    clients.close()
