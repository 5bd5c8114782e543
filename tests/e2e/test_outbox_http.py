"""The sink http with a real web server: order, retries, refusals, kill -9 of each side."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.broker import Broker
from harness.rawclient import RawClient
from harness.waiting import until
from harness.webhooks import Post, Webhooks, is_signed

from e2e.outbox_process import outbox_of, strike
from e2e.tools import run

pytestmark = pytest.mark.timeout(180)
SECRETS = ["whsec_" + base64.b64encode(bytes([seed]) * 32).decode() for seed in (1, 2)]


@pytest.fixture
def hooks() -> Iterator[Webhooks]:
    with Webhooks() as server:
        yield server


def sink(hooks: Webhooks, more: str = "") -> str:
    """The table of a destination `erp` with short pauses between attempts."""
    return (
        f'[sink.erp]\nkind = "http"\nurl = "{hooks.url}"\nfilters = ["orders/#"]\n'
        f'retry = "50ms 200ms"\n{more}'
    )


def publish(broker: Broker, *payloads: object, qos: int = 1, topic: str = "orders/1") -> None:
    with RawClient(broker.port) as client:
        client.connect("p")
        for payload in payloads:
            client.publish(topic, str(payload).encode(), qos)
        client.disconnect()


def test_messages_come_in_order_signed_and_once(
    make_broker: Callable[..., Broker], hooks: Webhooks, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("\n".join(SECRETS))
    broker = make_broker(sink(hooks, f'signing_secret_file = "{secret}"\n'))
    broker.start()
    publish(broker, *range(20))
    publish(broker, "two", qos=2)
    publish(broker, "none", qos=0)
    publish(broker, "other", topic="elsewhere")
    until(lambda: len(hooks.stored) == 21, "all messages")
    assert hooks.payloads == [*range(20), "two"]
    first = hooks.stored[0]
    node = first["source"].rpartition(":")[2]
    assert (first["type"], first["subject"]) == ("foldmq.message.published", "orders/1")
    assert first["id"].startswith(f"{node}/")
    assert (first["mqttqos"], first["mqttclient"], first["mqttretain"]) == (1, "p", False)
    assert all(is_signed(post, secret) for post in hooks.posts for secret in SECRETS)
    where = ("--data-dir", str(broker.data_dir))
    until(lambda: "record" in run("outbox", "show", "erp", *where).out, "the cursor")
    assert run("outbox", "ls", *where, "--json").objects[0]["refused"] == 0
    publish(broker, "last")
    until(lambda: len(hooks.stored) == 22, "the last message")
    # A stop records the cursor: nothing comes twice.
    broker.restart()
    publish(broker, "next")
    until(lambda: len(hooks.stored) >= 23, "the next message")
    assert hooks.payloads == [*range(20), "two", "last", "next"]
    broker.stop()


@pytest.mark.parametrize("victim", ["broker", "outbox", "everything", "server"])
def test_nothing_is_lost_after_a_kill(
    make_broker: Callable[..., Broker], hooks: Webhooks, victim: str
) -> None:
    broker = make_broker(sink(hooks))
    broker.start()
    publish(broker, *range(10))
    until(lambda: hooks.stored, "the first message")
    strike(broker, victim, hooks.stop)
    publish(broker, *range(10, 20))
    if victim == "server":
        hooks.start()
    until(lambda: set(hooks.payloads) >= {*range(20)}, "all messages")
    # What came twice has the same identifiers, and first came in order.
    assert list(dict.fromkeys(hooks.payloads)) == [*range(20)]
    assert len({event["id"] for event in hooks.stored}) == 20
    broker.stop()


def test_an_answer_that_is_lost_repeats_the_batch_under_its_identifier(
    make_broker: Callable[..., Broker], hooks: Webhooks
) -> None:
    broker = make_broker(sink(hooks))
    hooks.answer = lambda _post: 0 if not hooks.posts else 204
    broker.start()
    publish(broker, *range(3))
    until(lambda: hooks.payloads == [0, 1, 2], "all messages")
    assert hooks.posts[0].webhook == hooks.posts[1].webhook
    assert hooks.posts[0].events == hooks.posts[1].events
    broker.stop()


def test_a_server_that_cannot_now_gets_everything_later(
    make_broker: Callable[..., Broker], hooks: Webhooks
) -> None:
    broker = make_broker(sink(hooks))
    hooks.retry_after = "0"
    codes = iter((429, 503, 401))
    hooks.answer = lambda _post: next(codes, 200)
    broker.start()
    publish(broker, *range(5))
    until(lambda: hooks.payloads == [*range(5)], "all messages")
    broker.stop()


def test_a_poison_message_is_refused_by_its_position(
    make_broker: Callable[..., Broker], hooks: Webhooks
) -> None:
    broker = make_broker(sink(hooks, 'batch_wait = "1s"\n'))

    def answer(post: Post) -> int:
        return 422 if any(event["data"] == "poison" for event in post.events) else 200

    hooks.answer = answer
    broker.start()
    publish(broker, 0, 1, "poison", 2, 3)
    until(lambda: hooks.payloads == [0, 1, 2, 3], "the others")
    where = ("--data-dir", str(broker.data_dir))
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 1, "the refusal")
    (row,) = run("outbox", "refused", "erp", *where, "--json").objects
    assert (row["code"], row["reason"]) == (422, "Unprocessable Entity")
    (event,) = run("log", *where, "--json", "--type", "MessagePublished").objects[2:3]
    assert row["position"] == event["position"]

    def outcomes() -> list[str]:
        stories = run("why", "--topic", "orders/1", "--last", "5", *where, "--json").objects
        return [one["outcome"] for story in stories for one in story.get("destinations", ())]

    until(lambda: sorted(outcomes()) == ["refused", *["sent"] * 4], "the outcomes")
    said = run("why", "--position", row["position"], *where).out
    assert "refused by erp: 422 Unprocessable Entity" in said
    assert "has not refused 1.0" in run("outbox", "retry", "erp", "1.0", *where, code=1).err
    hooks.answer = lambda _post: 503
    again = run("outbox", "retry", "erp", *where)
    assert again.lines == ["erp: 1 message will be sent again"]
    wanted = "Unprocessable Entity; an operator wants it to be sent again"
    until(lambda: wanted in run("why", "--position", row["position"], *where).out, "the wish")
    broker.restart()  # the wish is in the log
    hooks.answer = lambda _post: 200
    until(lambda: hooks.payloads == [0, 1, 2, 3, "poison"], "the refused message")
    until(lambda: run("outbox", "ls", *where, "--json").objects[0]["refused"] == 0, "the count")
    assert run("outbox", "refused", "erp", *where, "--json").objects == []
    assert "no messages" in run("outbox", "retry", "erp", *where, code=1).err
    until(lambda: outcomes() == ["sent"] * 5, "the outcomes")
    said = run("why", "--position", row["position"], *where).out
    assert "sent to erp by then, after it was refused: 422 Unprocessable Entity" in said
    broker.stop()


def test_a_paused_destination_gets_its_messages_when_it_is_resumed(
    make_broker: Callable[..., Broker], hooks: Webhooks
) -> None:
    broker = make_broker(sink(hooks))
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    publish(broker, 0)
    until(lambda: hooks.payloads == [0], "the first message")
    assert run("outbox", "pause", "erp", *where).lines == ["erp: paused"]
    assert "already paused" in run("outbox", "pause", "erp", *where, code=1).err
    assert "not there" in run("outbox", "pause", "'not there'", *where, code=1).err

    def paused() -> bool:
        (row,) = run("outbox", "ls", *where, "--json").objects
        return bool(row["state"] == "paused")

    until(paused, "the pause")
    # It is paused for its process, too, when that has reported.
    broker.restart(kill=True)
    publish(broker, 1)
    assert paused()
    assert hooks.payloads == [0]
    assert run("outbox", "skip", "erp", *where).code == 0
    publish(broker, 2)
    run("outbox", "resume", "erp", *where)
    until(lambda: hooks.payloads == [0, 2], "what was not skipped")
    assert "not sent to erp: skip" in run("log", *where, "--type", "ForwardLost").out
    broker.stop()


def test_a_broker_without_destinations_has_no_process_and_no_event(
    make_broker: Callable[..., Broker], hooks: Webhooks
) -> None:
    broker = make_broker(sink(hooks))
    broker.start()
    until(lambda: outbox_of(broker), "the process")
    broker.stop()
    broker.configure("")
    broker.start()
    where = ("--data-dir", str(broker.data_dir))
    assert outbox_of(broker) == 0
    assert run("outbox", "ls", *where, "--json").objects == []
    assert "destination erp closed: removed" in run("log", *where, "-n", "20").out
    broker.stop()
