"""Incidents in a factory: what doctor, status, why and a preview say is what happened."""

from collections.abc import Callable

from harness import packets as p
from harness.broker import Broker
from harness.packets import Connack
from harness.rawclient import RawClient

from e2e.tools import run

LARGEST = 65_536


def leave(port: int, name: str, *filters: tuple[str, int]) -> None:
    """Subscribe with a persistent session, and disconnect."""
    with RawClient(port) as client:
        client.connect(name, clean=False)
        client.subscribe(*filters)
        client.disconnect()


def test_a_camera_whose_pictures_are_too_large(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(f"max_packet_size = {LARGEST}\n")
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    for _ in range(5):
        with RawClient(broker.port) as camera:
            camera.connect("camera", clean=False)
            camera.send(p.publish("pictures/door", bytes(LARGEST), 1, 1))
            camera.expect_closed()
    flapping, refused = run("doctor", *where, "--json").objects
    if flapping["subject"] != "camera":  # past already, on a busy machine
        flapping, refused = refused, flapping
    assert (flapping["subject"], "again and again" in flapping["title"]) == ("camera", True)
    assert "the client violated the protocol" in flapping["evidence"]
    assert flapping["cause"].startswith("the broker ends its connections")
    assert f"at most {LARGEST} are accepted" in refused["evidence"]
    assert "max_packet_size" in refused["cause"]
    told = run("why", "--topic", "pictures/door", *where, code=1).err
    assert "the log records no message on pictures/door" in told
    broker.stop()


def test_an_alarm_that_the_panel_did_not_show(make_broker: Callable[..., Broker]) -> None:
    """One panel was off, the other one asked for another topic; one alarm was sent at QoS 0."""
    broker = make_broker()
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    leave(broker.port, "panel", ("alarm/#", 1))
    leave(broker.port, "wall", ("Alarm/#", 1))
    with RawClient(broker.port) as plc:
        plc.connect("plc")
        plc.publish("alarm/oven", b"warm", 0)
        plc.publish("alarm/oven", b"hot", 1)
    (row,) = [
        one for one in run("subscriptions", "--topic", "alarm/oven", *where).lines if "panel" in one
    ]
    assert "queued: offline" in row
    story = run("why", "--topic", "alarm/oven", *where).out
    assert "still queued" in story
    assert "wall" not in story
    wall = run("why", "--topic", "alarm/oven", "--client", "wall", *where).out
    assert "Alarm/#" in wall, "the filter that nearly matches is named"
    status = run("status", *where).out
    assert "2 messages (QoS 0 / 1 / 2: 1 / 1 / 0)" in status
    assert "1 message queued" in status
    assert run("doctor", *where).lines[0].startswith("no problems found")
    broker.stop()


def test_a_dashboard_that_lost_its_last_value(make_broker: Callable[..., Broker]) -> None:
    """A program published an empty retained message by mistake."""
    broker = make_broker()
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    with RawClient(broker.port) as plc:
        plc.connect("plc")
        plc.publish("state/oven", b"on", 1, retain=True)
    with RawClient(broker.port) as other:
        other.connect("script")
        other.publish("state/oven", b"", 1, retain=True)
    story = run("why", "--topic", "state/oven", *where).out
    assert "which removed the retained message on the topic" in story
    assert "published by script" in story
    assert "no retained message" in run("subscriptions", "--topic", "state/oven", *where).out
    broker.stop()


def test_a_gateway_whose_network_swallows_its_packets(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    for _ in range(4):
        with RawClient(broker.port) as gateway:
            gateway.send(p.connect("gateway", clean=False, keepalive=1))
            gateway.expect_a(Connack)
            gateway.expect_closed()  # it sends nothing more
    (one,) = run("doctor", *where, "--json").objects
    assert (one["subject"], "again and again" in one["title"]) == ("gateway", True)
    assert "one and a half times its keep alive" in one["evidence"]
    assert "its network" in one["cause"]
    broker.stop()
