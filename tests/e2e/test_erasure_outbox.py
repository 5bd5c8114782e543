"""Erased contents leave no broker: what waits for sinks, other brokers and NATS is given up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.packets import Publish
from harness.rawclient import RawClient
from harness.waiting import until
from harness.webhooks import Post, Webhooks

from e2e.mqtt_bridges import connection
from e2e.outbox_process import kill_outbox
from e2e.test_erasure import ERASED, KEPT, PLAIN, readable_in
from e2e.tools import run

pytestmark = pytest.mark.timeout(240)
SENT, REFUSED, *WAITING = ERASED


def say(broker: Broker, *messages: tuple[str, str], qos: int = 1) -> None:
    with RawClient(broker.port) as client:
        client.connect("writer")
        for topic, text in messages:
            client.publish(topic, text.encode(), qos)
        client.disconnect()


def hear(listener: RawClient, *texts: str) -> None:
    """Wait until a client has got these messages, and no others."""
    heard: list[str] = []

    def all_came() -> bool:
        for packet in listener.receive_all(0.2):
            if isinstance(packet, Publish):
                listener.acknowledge(packet)
                heard.append(packet.payload.decode())
        return len(heard) >= len(texts)

    until(all_came, f"{len(texts)} messages")
    assert heard == [*texts]


def sealed(tmp_path: Path, config: str) -> str:
    keys = tmp_path / "keys"
    return f'personal_topics = ["home/+/#"]\npersonal_key_file = "{keys}"\n{config}'


@pytest.mark.parametrize("killed", [False, True])
def test_a_sink_gets_nothing_that_is_erased(
    make_broker: Callable[..., Broker], tmp_path: Path, *, killed: bool
) -> None:
    state = "up"

    def answer(post: Post) -> int:
        if REFUSED.encode() in post.body:
            return 422
        return 204 if state == "up" else 503

    with Webhooks() as hooks:
        hooks.answer = answer
        broker = make_broker(
            sealed(
                tmp_path,
                f'[sink.erp]\nkind = "http"\nurl = "{hooks.url}"\nfilters = ["#"]\n'
                'retry = "50ms 200ms"\n',
            )
        )
        broker.start()
        data = ("--data-dir", str(broker.data_dir))
        say(broker, ("home/alice/kept", SENT), ("home/alice/x", REFUSED), ("home/bob/x", KEPT))
        until(lambda: hooks.payloads == [SENT, KEPT], "what is not erased")
        until(lambda: run("outbox", "ls", *data, "--json").objects[0]["refused"] == 1, "refusal")
        state = "down"
        for text in WAITING:
            say(broker, ("home/alice/x", text), ("home/bob/x", KEPT), ("news", PLAIN), qos=2)
        until(lambda: any(WAITING[0].encode() in post.body for post in hooks.posts), "attempts")
        done = run("erase", "--topic", "home/alice/#", "--yes", *data)
        assert "what was sent to these destinations before is not erased there: erp" in done.out
        if killed:
            kill_outbox(broker)
            broker.kill_all()
            broker.start()
        count = len(hooks.posts)
        state = "up"
        expected = [SENT, KEPT, *([KEPT, PLAIN] * len(WAITING))]
        until(lambda: len(hooks.payloads) >= len(expected), "what is left")
        assert hooks.payloads == expected
        assert not any(
            text.encode() in post.body for post in hooks.posts[count:] for text in ERASED
        )
        until(lambda: "erased" in run("log", "--type", "ForwardLost", *data).out, "the event")
        assert [
            row["reason"] for row in run("outbox", "refused", "erp", *data, "--json").objects
        ] == ["erased"]
        run("outbox", "retry", "erp", *data)
        until(lambda: run("outbox", "ls", *data, "--json").objects[0]["refused"] == 0, "retry")
        (row,) = run("outbox", "ls", *data, "--json").objects
        assert row["losses"] == 0
        why = run("why", "--topic", "home/alice/x", *data).out
        assert "erased before it was sent to erp" in why
        assert "kept:" in run("audit", *data).out
        broker.stop()
        assert readable_in(broker.data_dir, tmp_path / "keys") == {PLAIN}
        assert not any(text in broker.log for text in ERASED)


@pytest.mark.parametrize("killed", [False, True])
def test_another_broker_gets_nothing_that_is_erased(
    make_broker: Callable[..., Broker], tmp_path: Path, *, killed: bool
) -> None:
    peer = make_broker()
    peer.start()
    broker = make_broker(sealed(tmp_path, connection(peer.port, "# out 2")))
    broker.start()
    data = ("--data-dir", str(broker.data_dir))
    with RawClient(peer.port) as listener:
        listener.connect("listener", clean=False)
        listener.subscribe(("#", 1))
        say(broker, ("home/alice/x", SENT), qos=2)
        hear(listener, SENT)
        listener.disconnect()
    peer.stop()
    for text in (REFUSED, *WAITING):
        say(broker, ("home/alice/x", text), ("home/bob/x", KEPT), ("news", PLAIN), qos=2)
    done = run("erase", "--topic", "home/alice/#", "--yes", *data)
    assert "is not erased there: plant2" in done.out
    if killed:
        broker.kill_all()
        broker.start()
    peer.start()
    with RawClient(peer.port) as listener:
        listener.connect("listener", clean=False)
        hear(listener, *([KEPT, PLAIN] * 3))
    until(lambda: "erased" in run("log", "--type", "ForwardLost", *data).out, "the event")
    broker.stop()
    assert "intact" in run("log", "verify", *data).out
    assert readable_in(broker.data_dir, tmp_path / "keys") == {PLAIN}
