"""`foldmq verify`: real brokers that equal their log, and brokers that were made to differ."""

import json
import os
import re
import signal
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from harness import packets as p
from harness.broker import Broker
from harness.drill import ROUNDS, Drill
from harness.fixtures import Clients
from harness.nats import PASSWORD, USER, Nats
from harness.waiting import until

from actors.maintenance.state_digests import subject_of
from e2e.log_scenarios import events, play
from e2e.tools import HOSTILE_ID, refused, run
from projections.state.format import SESSION, decode_entry, key_of

DEBUG_BUILD = """
import asyncio, pathlib, signal
from actors.connection.admission import Admission
from cli.main import main

order = pathlib.Path(__file__).with_name("tamper.py")
listen = Admission.listen

def listen_to_the_test(admission, options, sockets, *clients):
    def obey():
        exec(order.read_text(), {"node": admission._node, "answer": order.with_name("answer")})
        order.unlink()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, obey)
    return listen(admission, options, sockets, *clients)

Admission.listen = listen_to_the_test
main()
"""


class DebugBroker(Broker):
    """A broker in whose memory a test can do what it likes."""

    def command(self) -> list[str]:
        script = self.directory / "debug.py"
        script.write_text(DEBUG_BUILD)
        return [sys.executable, str(script), *super().command()[1:]]

    def tamper(self, code: str) -> None:
        order = self.directory / "tamper.py"
        order.write_text(code)
        os.kill(self.pid, signal.SIGUSR1)
        until(lambda: not order.exists(), "tampering")


@pytest.fixture
def debug(tmp_path: Path) -> Iterator[DebugBroker]:
    broker = DebugBroker(tmp_path)
    broker.start()
    yield broker
    broker.clean_up()


@pytest.fixture
def clients_of(debug: DebugBroker) -> Iterator[Clients]:
    made = Clients("127.0.0.1", debug.port)
    yield made
    made.close()


def data_of(broker: Broker) -> tuple[str, str]:
    return "--data-dir", str(broker.data_dir)


def verified(*arguments: str, code: int = 0) -> dict[str, Any]:
    (found,) = run("verify", *arguments, "--json", code=code).objects
    assert found["equal"] is (code == 0)
    result: dict[str, Any] = found
    return result


def difference(found: dict[str, Any], name: str, where: str = "broker") -> dict[str, Any]:
    (one,) = (one for one in found["differences"] if (one["name"], one["where"]) == (name, where))
    result: dict[str, Any] = one
    return result


def position(data: tuple[str, ...], kind: str, session: str, number: int = -1) -> str:
    return str(events(data, "--type", kind, "--session", session)[number]["position"])  # type: ignore[arg-type]


def is_written(data: tuple[str, ...], sessions: int) -> bool:
    """Whether the projections reflect all that is in the log, which does not grow."""
    found = verified(*data, "--stored")["projections"]
    last = int(events(data)[-1]["position"].partition(".")[0])  # type: ignore[arg-type]
    return bool(found["as_of"] == last and found["sessions"] == sessions)


# -------------------------------------------------------------------------------- equal


@pytest.mark.drill
def test_equal_under_load_and_after_kill(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    data = data_of(broker)
    drill = Drill(broker, 77)
    drill.start()
    try:
        for _ in range(min(2, ROUNDS)):
            time.sleep(1)
            assert verified(*data)["broker"]["sessions"] > 5
            drill.strike(lambda: broker.restart(kill=True))
        found = verified(*data)
        assert found["differences"] == []
        drill.judge()
    finally:
        drill.abandon()
    assert verified(*data)["projections"]["useless"] is None
    broker.kill()
    assert verified(*data, "--stored")["broker"] is None


def test_output_when_all_is_equal(debug: DebugBroker, clients_of: Clients) -> None:
    play(clients_of)
    data = data_of(debug)
    until(lambda: is_written(data, 3), "the projections")
    before = events(data)
    last = int(before[-1]["position"].partition(".")[0])
    (whole,) = run("log", "verify", *data).lines
    holds = f"this holds for the log {whole[whole.index('from ') :]}\n"
    assert run("verify", *data).out == (
        f"equal: 3 sessions and 2 retained messages in the broker, as of {last + 1}.0\n"
        f"equal: 3 sessions and 2 retained messages in the projections, as of record {last}\n"
        + holds
    )
    assert run("verify", *data, "--session", "screen").out == (
        f"equal: session screen is in the broker, as of {last + 1}.0\n"
        f"equal: session screen is in the projections, as of record {last}\n" + holds
    )
    assert refused("verify", *data, "--session", "nobody", code=1) == "no session nobody"
    assert events(data) == before


def test_frozen_sessions_stay_frozen(debug: DebugBroker, clients_of: Clients) -> None:
    away = clients_of.connect("away", clean=False)
    away.subscribe(("a/#", 2), ("b/+", 1))
    away.disconnect()
    other = clients_of.connect("other")
    for number in range(5):
        other.publish(f"a/{number}", b"queued", 2, retain=True)
    debug.tamper("node.directory.freeze('away')")
    assert verified(*data_of(debug))["broker"]["sessions"] == 2
    verified(*data_of(debug), "--session", "away")
    debug.tamper("answer.write_text(str(node.state.sessions.frozen('away') is not None))")
    assert (debug.directory / "answer").read_text() == "True"


# ------------------------------------------------------------------- unequal on purpose


def test_memory_that_went_its_own_way(debug: DebugBroker, clients_of: Clients) -> None:
    play(clients_of)
    data = data_of(debug)
    debug.tamper(
        "node.state.sessions.live['screen'].inflight.clear()\n"
        "node.state.sessions.discard('archive')\n"
        "node.state.retained._messages.of('lamp').pop('lamp')\n"
        "from projections.state.session import SessionState\n"
        "node.state.sessions['ghost\\x1b[2J'] = SessionState('ghost\\x1b[2J')\n"
    )
    found = verified(*data, code=1)
    screen = difference(found, "screen")
    (field,) = screen["fields"]
    assert field["field"] == "in flight"
    assert field["broker"] == []
    assert field["log"][0].startswith("packet 3: message ")
    third = position(data, "Delivered", "screen", 2)
    assert (screen["what"], screen["parts_at"]) == ("differs", third)
    archive = difference(found, "archive")
    assert archive["what"] == "missing"
    assert archive["parts_at"] == position(data, "SessionOpened", "archive")
    lamp = difference(found, "lamp")
    (published,) = events(data, "--type", "MessagePublished", "--topic", "lamp")
    assert (lamp["kind"], lamp["parts_at"]) == ("retained", published["position"])
    ghost = difference(found, "ghost\x1b[2J")
    assert (ghost["what"], ghost["parts_at"]) == ("extra", None)
    assert found["first"] == archive["parts_at"]
    out = run("verify", *data, code=1).out
    assert f"session archive: missing in the broker, as of {archive['as_of']}\n" in out
    assert f"\n  in flight, from {third} on:\n    only in the log: packet 3: message " in out
    assert "session ghost\\u001b[2J: in the broker but not in the log" in out
    assert re.search(
        rf"^different: \d differences, the first at {archive['parts_at']}$", out, re.MULTILINE
    )
    only = verified(*data, "--session", "screen", code=1)
    assert difference(only, "screen")["parts_at"] == third


def test_memory_that_missed_an_event(debug: DebugBroker, clients_of: Clients) -> None:
    """Later changes are equal: the field shows the difference."""
    client = clients_of.connect(HOSTILE_ID, clean=False)
    client.subscribe(("kept", 1), ("left", 1))
    client.send(p.unsubscribe(7, "left"))
    client.expect(p.Unsuback(7))
    debug.tamper(
        "from projections.state.session import SubscriptionState\n"
        f"state = node.state.sessions.live[{HOSTILE_ID!r}]\n"
        "state.subscriptions['left'] = SubscriptionState('left', 1)\n"
    )
    client.publish("kept", b"later", 1)
    client.acknowledge(client.expect_publish("kept", b"later", 1))
    data = data_of(debug)
    one = difference(verified(*data, code=1), HOSTILE_ID)
    assert [field["field"] for field in one["fields"]] == ["subscriptions"]
    assert one["fields"][0]["broker"] == ["left QoS 1"]
    assert one["parts_at"] == position(data, "Unsubscribed", HOSTILE_ID)
    assert one["equal_up_to"] == position(data, "Subscribed", HOSTILE_ID)
    assert "left QoS 1" in run("verify", *data, code=1).out


# -------------------------------------------------------------------------- projections


def access(server: Nats) -> tuple[str, ...]:
    return "--nats-url", server.url, "--nats-user", USER, "--nats-password", PASSWORD


def latest(server: Nats, key: str) -> tuple[int, bytes]:
    """Sequence and bytes of the last message of a key."""
    answer = server.api(
        "STREAM.MSG.GET.FOLDMQ_STATE_n1", {"last_by_subj": f"foldmq.state.n1.{key}"}
    )
    return answer["message"]["seq"], b64decode(answer["message"]["data"])


def overwrite(server: Nats, key: str, data: bytes) -> None:
    async def store(client: Any) -> None:
        await client.jetstream().publish(f"foldmq.state.n1.{key}", data)

    server.do(store)


@pytest.fixture
def stopped(external: Nats, on_external: Callable[..., Broker]) -> tuple[str, ...]:
    """The log and projections of a broker that has ended; `wanted` subscribed twice."""
    broker = on_external()
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    wanted = clients.connect("wanted", clean=False)
    wanted.subscribe(("first", 1))
    wanted.subscribe(("second", 1))
    clients.connect("other", clean=False).publish("lamp", b"on", 1, retain=True)
    clients.close()
    broker.stop()
    return access(external)


def test_a_foreign_nats_without_a_broker(stopped: tuple[str, ...]) -> None:
    assert refused("verify", *stopped, code=69) == (
        "no broker answers for node n1 (it is not running, or hangs): start it, or give --stored "
        "to check the stored projections"
    )
    found = verified(*stopped, "--stored")
    assert (found["broker"], found["projections"]["sessions"]) == (None, 2)
    assert found["projections"]["retained"] == 1
    assert (
        "session wanted is in the projections"
        in run("verify", *stopped, "--stored", "--session", "wanted").out
    )


def test_an_overwritten_projection(external: Nats, stopped: tuple[str, ...]) -> None:
    """With right checksums and digests: a broker that starts would believe it."""
    key = key_of(SESSION, "wanted")
    _, data = latest(external, key)
    _, mark = latest(external, "mark")
    entry = decode_entry(data)
    state = json.loads(entry.body)
    assert len(state["subscriptions"]) == 2
    del state["subscriptions"][1]
    entry.body = json.dumps(state, separators=(",", ":")).encode()
    entry.digest = decode_entry(mark).digest
    overwrite(external, key, entry.encode())
    found = verified(*stopped, "--stored", code=1)
    one = difference(found, "wanted", "projections")
    (field,) = one["fields"]
    assert (field["field"], field["log"]) == ("subscriptions", ["second QoS 1"])
    second = position(stopped, "Subscribed", "wanted")
    assert found["first"] == one["parts_at"] == second
    assert found["projections"]["useless"] is None
    assert (
        "session wanted: differs between the projections and the log"
        in run("verify", *stopped, "--stored", code=1).out
    )
    verified(*stopped, "--stored", "--session", "wanted", code=1)
    verified(*stopped, "--stored", "--session", "other")


def test_projections_of_another_log(external: Nats, stopped: tuple[str, ...]) -> None:
    _, data = latest(external, "mark")
    entry = decode_entry(data)
    mark = json.loads(entry.body)
    for change, first, said in (
        ({"link": "00" * 32}, f"{mark['sequence']}.0", "belong to another log"),
        ({"sequence": 10**6}, f"{mark['sequence'] + 1}.0", "are newer than the log"),
        ({"sequence": "all"}, None, "cannot be read"),
    ):
        entry.body = json.dumps({**mark, **change}).encode()
        overwrite(external, "mark", entry.encode())
        assert verified(*stopped, "--stored", code=1)["first"] == first
        assert said in run("verify", *stopped, "--stored", code=1).out


def test_no_projections_at_all(external: Nats, stopped: tuple[str, ...]) -> None:
    external.api("STREAM.DELETE.FOLDMQ_STATE_n1")
    first, *scope = run("verify", *stopped, "--stored").out.splitlines()
    assert first == "a start would ignore the projections and read the whole log: there are none"
    assert scope[0].startswith("this holds for the log from ")


def test_a_stopped_broker(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    play(clients)
    clients.close()
    broker.stop()
    data = data_of(broker)
    assert refused("verify", *data, code=69).endswith(
        f"(no broker is running on {broker.data_dir}): start it, or give --stored "
        "to check the stored projections"
    )
    assert verified(*data, "--stored")["projections"]["sessions"] == 2


# ------------------------------------------------------------------- what the broker answers


def test_hostile_requests(external: Nats, on_external: Callable[..., Broker]) -> None:
    broker = on_external()
    broker.start()
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("c", clean=False).publish("t", b"x", 1, retain=True)

    async def ask(client: Any) -> None:
        async def answer(request: object) -> Any:
            data = request if isinstance(request, bytes) else json.dumps(request).encode()
            return json.loads((await client.request(subject_of("n1"), data, timeout=10)).data)

        begun = await answer({})
        key = begun["id"]
        hostile: list[object] = [
            b"",
            b"\xff\x00",
            b"[" * 100_000,
            b" " * 600_000,
            [],
            1,
            None,
            {"id": 1, "page": 1},
            {"id": key, "page": True},
            {"id": key, "page": "1"},
            {"id": key, "page": 2},
            {"id": key, "page": -1},
            {"id": key, "page": 10**30},
            {"id": "unknown", "page": 1},
            {"session": {"$ne": 1}},
            {"session": "c", "retained": "t"},
            {"retained": None},
            {"more": 1},
        ]
        for request in hostile:
            said = await answer(request)
            assert set(said) == {"broker", "error"}, request
        page = await answer({"id": key, "page": 1})
        assert [name for name, _ in page["sessions"]] == ["c"]
        assert page["more"] is False
        assert await answer({"id": key, "page": 1}) == page
        assert "error" in await answer({"id": key, "page": 2})
        told = await answer({"session": "c"})
        assert told["digest"] == page["sessions"][0][1]
        assert (await answer({"session": "nobody"}))["parts"] is None
        assert (await answer({"retained": "t"}))["message"]["size"] == 1
        open_ones = [await answer({}) for _ in range(6)]
        assert [("error" in one) for one in open_ones] == [False] * 4 + [True] * 2

    external.do(ask)
    assert "error" not in broker.log
    clients.close()


def test_other_accounts_cannot_request_the_state(
    external: Nats, on_external: Callable[..., Broker]
) -> None:
    on_external().start()
    said = refused("verify", *access(external)[:4], "--nats-password", "wrong", code=69)
    assert "rejects our credentials" in said
    with pytest.raises(nats.errors.NoRespondersError):
        external.do(lambda client: client.request(subject_of("other"), b"{}", timeout=5))
