"""Sessions on the web page: their order, their waiting messages, and huge names."""

import re
from collections.abc import Callable

import pytest
from harness import packets
from harness.broker import Broker
from harness.fixtures import EXTERNAL, Clients
from harness.packets import Pubrec
from harness.waiting import until

from e2e.tools import run
from e2e.webclient import served

pytestmark = [
    pytest.mark.skipif(bool(EXTERNAL), reason="needs to start its own foldmq"),
    pytest.mark.timeout(180),
]

ON = ("--web", "127.0.0.1:0")
LONG = 60_000


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


def test_two_moments_are_compared_with_the_index(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("", *ON)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    data = ("--data-dir", str(broker.data_dir))
    clients.connect("early", clean=False)
    writer = clients.connect("writer", clean=False)
    writer.publish("hall/lamp", b"on", 1, retain=True)
    before = run("log", *data, "--json", "-n", "1").objects[0]["position"].partition(".")[0]
    writer.publish("hall/lamp", b"off", 1, retain=True)
    clients.connect("late", clean=False).disconnect()
    run("log", "index", *data)
    page = served(broker)
    until(
        lambda: "Difference from A to B" in page.good("/time", a=before, b="now").shown,
        "the difference",
    )
    shown = page.good("/time", a=before, b="now").shown
    assert "sessions: 1 added" in shown
    assert "+ session late" in shown
    assert "session early" not in shown
    assert "retained messages: 1 set" in shown
    assert "* retained hall/lamp, 3 B, set between the moments" in shown
    clients.close()


def test_sessions_are_sorted(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("session_expiry = '1h'", *ON)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    for name in ("delta", "alpha", "charlie"):
        clients.connect(name, clean=False).disconnect()
    clients.connect("bravo", clean=False)
    page = served(broker)
    (head,) = re.findall(r"<thead>(.*?)</thead>", page.good("/sessions").text, re.DOTALL)
    assert re.search(r'aria-sort="ascending"><a [^>]*>Client &uarr;', head)
    for row, (name, state) in zip(
        page.good("/sessions").columns(0, 1),
        [("alpha", "off"), ("bravo", "on"), ("charlie", "off"), ("delta", "off")],
        strict=True,
    ):
        assert row[0] == name
        time = r"20\d\d-[-0-9]+ [:.0-9]+"
        shown = (
            rf"offline(?:, frozen)? since ({time}) expires ({time})"
            if state == "off"
            else "connected()()"
        )
        found = re.fullmatch(shown, row[1])
        assert found is not None, row
        assert state == "on" or found[1] < found[2]
    by_age = [one for (one,) in page.good("/sessions", sort="offline").columns(0)]
    assert by_age == ["delta", "alpha", "charlie", "bravo"]
    assert "the highest are shown" not in page.good("/sessions", sort="client").shown
    assert "the highest are shown" in page.good("/sessions", sort="queued").shown
    clients.close()


def test_a_session_with_huge_names_is_shown_in_small_parts(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker("", *ON)
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    client = clients.connect("huge", clean=False)
    for number in range(24):
        client.subscribe((f"{number:02}/{'x' * LONG}", 1))
    page = served(broker)
    got = page.good("/session", client="huge")
    assert "Subscriptions 24" in got.shown
    rows = re.findall(r'<th scope="row"><bdi class="name"[^>]*>(\d\d)/<wbr>x', got.text)
    shown = len(rows)
    assert 1 <= shown < 24
    while (links := re.findall(r'href="([^"]*)">Next &rarr;', got.text)) != []:
        got = page.ask("GET", links[0].replace("&amp;", "&"))
        assert got.status == 200
        rows += re.findall(r'<th scope="row"><bdi class="name"[^>]*>(\d\d)/<wbr>x', got.text)
    assert rows == [f"{number:02}" for number in range(24)]
    for path in ("/", "/sessions", "/actors", "/sessions?sort=subscriptions"):
        page.good(path)
    actors = [one for (one,) in page.good("/actors", client="huge").columns(0)]
    for one in [one for one in actors if one.startswith("session:")]:
        page.good("/actor", id=one)
    clients.close()
