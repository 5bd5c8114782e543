"""Batch clients over real servers: everything written arrives, in batches."""

import asyncio
import inspect
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from harness.broker import free_port
from harness.waiting import happens
from linked import TIMEOUT, Linked, Nats, Network, render_hpub, restarted
from nats.aio.client import Client
from nats.aio.transport import Transport

from eventstore.errors import BadNatsOptions, NatsUnavailable
from eventstore.nats.batch_client import BatchClient, encode_pub
from eventstore.nats.batch_transport import BatchConnection, NatsMessage
from eventstore.nats.connection import ConnectionOptions

pytestmark = pytest.mark.system


async def test_messages_with_and_without_headers_and_reply(here: Linked, there: Linked) -> None:
    sid = there.link.subscribe(b"a.>")
    await there.settled()
    block = b"NATS/1.0\r\nName: value\r\n\r\n"
    assert here.link.write(
        [
            encode_pub(b"a.b", b"1"),
            render_hpub(b"a.b", b"back", block, b"2"),
            render_hpub(b"a.b", b"", block, b""),
            render_hpub(b"a.b", b"back", b"", b"\r\nMSG a.b 1 0\r\n"),
        ]
    )
    await there.came(4)
    assert there.messages == [
        NatsMessage(sid, b"a.b", b"", b"", b"1"),
        NatsMessage(sid, b"a.b", b"back", block, b"2"),
        NatsMessage(sid, b"a.b", b"", block, b""),
        NatsMessage(sid, b"a.b", b"back", b"", b"\r\nMSG a.b 1 0\r\n"),
    ]


async def test_many_messages_arrive_in_order_and_in_few_batches(
    here: Linked, there: Linked
) -> None:
    there.link.subscribe(b"a")
    await there.settled()
    sent = [b"%d" % number for number in range(20_000)]
    here.link.write([encode_pub(b"a", payload) for payload in sent])
    await there.came(len(sent))
    assert there.payloads == sent
    assert len(there.batches) < len(sent) / 10


async def test_a_link_does_not_receive_its_own_messages(here: Linked, there: Linked) -> None:
    for linked in (here, there):
        linked.link.subscribe(b"a")
        await linked.settled()
    here.link.write(encode_pub(b"a", b"not for me"))
    await there.came(1)
    await here.settled()
    assert here.messages == []


async def test_inbox_gets_answers(here: Linked, there: Linked) -> None:
    there.link.subscribe(b"question")
    await there.settled()
    assert here.link.inbox.startswith(b"_INBOX.")
    assert here.link.inbox != there.link.inbox
    here.link.write(render_hpub(b"question", here.link.inbox + b"1", b"", b"?"))
    await there.came(1)
    there.link.write(encode_pub(there.messages[0].reply, b"!"))
    await here.came(1)
    assert here.messages == [
        NatsMessage(here.link.inbox_sid, here.link.inbox + b"1", b"", b"", b"!")
    ]


async def test_a_request_without_responders_is_answered_by_the_server(here: Linked) -> None:
    here.link.write(render_hpub(b"nobody", here.link.inbox + b"1", b"", b""))
    await here.came(1)
    assert here.messages[0].headers.startswith(b"NATS/1.0 503")


async def test_large_messages(nats: Nats, here: Linked, there: Linked) -> None:
    there.link.subscribe(b"large")
    await there.settled()
    payload = bytes(range(256)) * (here.link.max_payload // 256)
    here.link.write([encode_pub(b"large", payload), encode_pub(b"large", b"small")])
    await there.came(2)
    assert there.payloads == [payload, b"small"]
    assert here.link.max_payload == 1 << 20


async def test_fences_come_in_order_and_are_not_nats_pys_pings(here: Linked) -> None:
    passed: list[str] = []
    for round_ in range(3):
        here.link.fence(lambda name=f"first {round_}": passed.append(name))
        flushing = asyncio.create_task(here.link._client.flush())
        flushing.add_done_callback(lambda _task, name=f"nats-py {round_}": passed.append(name))
        await asyncio.sleep(0)
        here.link.fence(lambda name=f"second {round_}": passed.append(name))
        await asyncio.wait_for(flushing, TIMEOUT)
        await here.settled()
    fences = [name for name in passed if not name.startswith("nats-py")]
    assert fences == [f"{which} {n}" for n in range(3) for which in ("first", "second")]
    assert len(passed) == 9


async def test_a_fence_follows_the_messages_that_were_there_before(
    here: Linked, there: Linked
) -> None:
    """A message that the server had before the fence is passed on before it is confirmed."""
    here.link.subscribe(b"a")
    await here.settled()
    for count in range(1, 200):
        there.link.write(encode_pub(b"a", b""))
        await there.settled()
        await here.settled()
        assert len(here.messages) == count


async def test_unsubscribing_loses_nothing_that_was_published_before(
    here: Linked, there: Linked
) -> None:
    sent = [b"%d" % number for number in range(20_000)]
    for turn in range(1, 4):
        sid = there.link.subscribe(b"a")
        await there.settled()
        here.link.write([encode_pub(b"a", payload) for payload in sent])
        await here.settled()
        there.link.unsubscribe(sid)
        await there.settled()
        assert there.payloads == sent * turn
        here.link.write(encode_pub(b"a", b"too late"))
        await here.settled()
        await there.settled()
        assert len(there.messages) == turn * len(sent)
    assert set(there.link._subjects) == {there.link.inbox_sid}


async def test_unsubscribing_twice_or_an_unknown_subject(here: Linked) -> None:
    sid = here.link.subscribe(b"a")
    for _ in range(2):
        here.link.unsubscribe(sid)
    here.link.unsubscribe(4711)
    await here.settled()
    here.link.unsubscribe(sid)
    await here.settled()
    assert here.link.subscribe(b"a") == sid + 1
    assert here.problems == []


async def test_messages_of_a_subscription_that_is_gone_are_not_passed_on(here: Linked) -> None:
    """A server may have been about to send one when it confirmed the UNSUB."""
    sid = here.link.subscribe(b"a")
    here.link.arrived(
        [NatsMessage(sid, b"a", b"", b"", b"1"), NatsMessage(99, b"a", b"", b"", b"2")]
    )
    here.link.arrived([NatsMessage(99, b"a", b"", b"", b"3")])
    assert here.payloads == [b"1"]
    assert here.batches == [1]


async def test_many_subscriptions_cost_little_and_survive_a_restart(
    nats: Nats, here: Linked, there: Linked
) -> None:
    count = 100_000
    subjects = [b"s.%d" % number for number in range(count)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    sids = [there.link.subscribe(subject) for subject in subjects]
    await there.settled()
    cost = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert cost / count < 300
    assert len(set(sids)) == count
    chosen = range(0, count, 1000)
    wanted = {(sids[number], subjects[number]) for number in chosen}
    for _ in range(2):
        here.link.write([encode_pub(subjects[number], b"") for number in chosen])
        await there.came(len(chosen))
        assert {(message.sid, message.subject) for message in there.messages} == wanted
        there.messages.clear()
        await restarted(nats, here, there)


async def test_a_server_that_is_killed_and_started(nats: Nats, here: Linked, there: Linked) -> None:
    stays, goes = there.link.subscribe(b"stays"), there.link.subscribe(b"goes")
    await there.settled()
    passed: list[str] = []
    for _ in range(3):
        nats.kill()
        here.link.fence(lambda: passed.append("a fence of the dead"))
        await happens(lambda: not here.link.connected and not there.link.connected)
        assert not here.link.write(encode_pub(b"stays", b"nobody takes it"))
        assert here.link.unsent == 0
        here.link.fence(lambda: passed.append("a fence while down"))
        there.link.unsubscribe(goes)
        comes = there.link.subscribe(b"comes")
        await nats.start()
        await happens(lambda: here.link.connected and there.link.connected)
        await there.settled()
        here.link.write([encode_pub(subject, b"") for subject in (b"stays", b"goes", b"comes")])
        await here.settled()
        await there.settled()
        assert [(message.sid, message.subject) for message in there.messages] == [
            (stays, b"stays"),
            (comes, b"comes"),
        ]
        there.messages.clear()
        goes = comes
    assert passed == []
    for one in (here, there):
        assert one.notices == ["down", "up"] * 3
        assert all("\n" not in line for line in one.problems)


async def test_unsubscribed_but_not_confirmed_when_the_connection_was_lost(
    nats: Nats, here: Linked, there: Linked
) -> None:
    sid = there.link.subscribe(b"a")
    await there.settled()
    nats.kill()
    there.link.unsubscribe(sid)
    await happens(lambda: not here.link.connected and not there.link.connected)
    await nats.start()
    await happens(lambda: here.link.connected and there.link.connected)
    here.link.write(encode_pub(b"a", b""))
    await here.settled()
    await there.settled()
    assert there.messages == []
    assert set(there.link._subjects) == {there.link.inbox_sid}


async def test_reading_is_paused(here: Linked, there: Linked) -> None:
    sid = there.link.subscribe(b"paused")
    await there.settled()
    for _ in range(2):
        there.link.pause_reading()
    here.link.write([encode_pub(b"paused", b"%d" % number) for number in range(1000)])
    await here.settled()
    for _ in range(20):
        await asyncio.sleep(0)
    assert there.messages == []
    for _ in range(2):
        there.link.resume_reading()
    await there.came(1000)
    assert there.payloads == [b"%d" % number for number in range(1000)]
    there.messages.clear()
    there.link.unsubscribe(sid)


async def test_a_new_connection_is_not_paused(nats: Nats, here: Linked, there: Linked) -> None:
    there.link.subscribe(b"a")
    await there.settled()
    there.link.pause_reading()
    nats.kill()
    # a paused socket learns of its end by writing
    await happens(lambda: not there.link.write(encode_pub(b"b", b"")) and here.notices == ["down"])
    assert there.notices == ["down"]
    there.link.pause_reading()
    there.link.resume_reading()
    await nats.start()
    await happens(lambda: here.link.connected and there.link.connected)
    await there.settled()
    here.link.write(encode_pub(b"a", b""))
    await there.came(1)


async def test_closing_sends_written_data(nats: Nats, there: Linked) -> None:
    there.link.subscribe(b"a")
    await there.settled()
    here = await Linked.to(nats.url)
    here.link.write([encode_pub(b"a", bytes(1000)) for _ in range(5000)])
    await here.link.close()
    await there.came(5000)
    assert here.notices == []
    assert not here.link.connected
    assert not here.link.write(b"PING\r\n")
    await here.link.close()


async def test_closing_leaves_nothing_running(nats: Nats) -> None:
    before = asyncio.all_tasks()
    here = await Linked.to(nats.url)
    await here.link.close()
    assert asyncio.all_tasks() == before
    here = await Linked.to(nats.url)
    nats.kill()
    await happens(lambda: here.notices)
    await here.link.close()
    await happens(lambda: asyncio.all_tasks() == before)
    assert here.notices == ["down"]


async def test_an_error_of_a_callback_ends_the_connection_not_the_link(
    nats: Nats, here: Linked, there: Linked
) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
    there.link.subscribe(b"a")
    await there.settled()
    take = there.link._on_messages

    def fail(_messages: list[NatsMessage]) -> None:
        raise RuntimeError("a defect")

    there.link._on_messages = fail
    here.link.write(encode_pub(b"a", b"1"))
    await happens(lambda: there.notices == ["down", "up"])
    there.link._on_messages = take
    here.link.write(encode_pub(b"a", b"2"))
    await there.came(1)
    assert there.payloads == [b"2"]
    assert [str(context["exception"]) for context in raised] == ["a defect"]


async def test_no_server() -> None:
    options = ConnectionOptions(urls=(f"nats://127.0.0.1:{free_port()}",))
    before = asyncio.all_tasks()
    with pytest.raises(NatsUnavailable, match="connection refused; check the address"):
        await opened(options)
    assert asyncio.all_tasks() == before


async def opened(options: ConnectionOptions) -> BatchClient:
    return await BatchClient.open(
        options,
        on_messages=lambda _messages: None,
        on_up=lambda: None,
        on_down=lambda: None,
        on_error=lambda text: pytest.fail(text),
        timeout=0.3,
    )


async def test_websocket_is_refused() -> None:
    with pytest.raises(BadNatsOptions, match="use nats:// or tls://") as caught:
        await opened(ConnectionOptions(urls=("ws://name:secret@127.0.0.1:1",)))
    assert "secret" not in str(caught.value)


def test_nats_py_is_as_this_needs_it() -> None:
    """What the batch client touches or replaces in nats-py; see batch_client._Client."""
    advice = (
        "nats-py has changed: read eventstore/nats/batch_client.py and batch_transport.py again"
    )
    assert list(inspect.signature(Client._connect_to_server).parameters) == ["self", "s"], advice
    assert "_transport" in vars(Client()), advice
    ours = {name for name in vars(BatchConnection) if not name.startswith("_")} | {"__bool__"}
    assert Transport.__abstractmethods__ <= ours, advice
    for name in Transport.__abstractmethods__:
        wanted = list(inspect.signature(getattr(Transport, name)).parameters)
        assert list(inspect.signature(getattr(BatchConnection, name)).parameters) == wanted, advice


async def test_nats_py_uses_our_transport(here: Linked) -> None:
    assert here.link._client._transport is here.link._connection


def test_on_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    network = Network(tmp_path)

    async def main() -> None:
        try:
            nats = await network.server()
            here, there = await network.link(nats.url), await network.link(nats.url)
            there.link.subscribe(b"a")
            sent = [b"%d" % number for number in range(5000)]
            for _ in range(2):
                await there.settled()
                here.link.write([encode_pub(b"a", payload) for payload in sent])
                await there.came(len(sent))
                assert there.payloads == sent
                there.messages.clear()
                await test_reading_is_paused(here, there)
                await restarted(nats, here, there)
        finally:
            await network.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
