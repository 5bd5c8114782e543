"""``foldmq history`` as a user runs it, over a broker with known traffic, running and stopped."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.broker import Broker, environment, foldmq
from harness.fixtures import Clients

from e2e.log_scenarios import events, play
from e2e.tools import HOSTILE_PAYLOAD, HOSTILE_TOPIC, refused, run


@pytest.fixture(scope="module", params=["running", "stopped"])
def data(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    config = "max_queued_messages = 3\nack_wait = 0\n"
    with contextlib.ExitStack() as stack:
        made = Broker(tmp_path_factory.mktemp("history"), config=config, forked=True)
        broker = stack.enter_context(made)
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            play(clients)
        if request.param == "stopped":
            stack.close()
        yield "--data-dir", str(broker.data_dir)


def history(data: tuple[str, str], *more: str) -> list[dict[str, Any]]:
    return run("history", *data, "--json", *more).objects


def effective(data: tuple[str, str]) -> list[str]:
    """The positions at which the messages take effect that ``foldmq log`` lists."""
    found = []
    for event in events(data):
        count = len(event.get("messages", ()))
        later = event["type"] == "MessagePublished" and event["qos"] == 2 and not event.get("will")
        if event["type"] == "Released" or (event["type"] == "MessagePublished" and not later):
            record, _, index = event["position"].partition(".")
            found += [f"{record}.{int(index) + at}" for at in range(count)]
    return found


def test_history_is_what_took_effect(data: tuple[str, str]) -> None:
    """The messages of the log, where they took effect, with their content."""
    messages = history(data, "#")
    assert [one["position"] for one in messages] == effective(data)
    door = next(one for one in messages if one["topic"] == "hall/door")
    assert door["payload"] == "open"
    assert (door["qos"], door["retain"], door["publisher"], door["size"]) == (1, False, "sensor", 4)
    window = next(one for one in messages if one["topic"] == "hall/window")
    assert window["qos"] == 2
    released = events(data, "--topic", "hall/window", "--type", "Released")
    assert window["position"] == released[0]["position"]
    assert history(data, "+/door") == [one for one in messages if one["topic"] == "hall/door"]


def test_bounds_of_a_history(data: tuple[str, str]) -> None:
    messages = history(data, "#")
    assert history(data, "#", "-n", "2") == messages[-2:]
    middle = messages[len(messages) // 2]
    after = history(data, "#", "--from", middle["position"])
    assert after == messages[len(messages) // 2 + 1 :]
    assert history(data, "#", "--from", middle["position"], "-n", "1") == after[:1]
    until = history(data, "#", "--to", middle["position"])
    assert until == messages[: len(messages) // 2 + 1]
    since = history(data, "#", "--from", middle["at"])
    assert since == [one for one in messages if one["at"] >= middle["at"]]
    assert history(data, "#", "--from", "7d") == messages
    assert history(data, "#", "--from", "all") == messages
    last = {one["topic"]: one for one in messages}
    expected = [last[topic] for topic in sorted(last)]
    assert history(data, "#", "--last") == history(data, "#", "--from", "last") == expected


def test_history_as_text(data: tuple[str, str]) -> None:
    messages = history(data, "#")
    ran = run("history", *data, "#")
    assert len(ran.lines) == len(messages)
    assert 'hall/door  QoS 1, 4 B, from sensor: "open"' in ran.out
    assert '"open"' not in run("history", *data, "#", "--no-payloads").out
    assert not [one for one in history(data, "#", "--no-payloads") if "payload" in one]
    ran = run("history", *data, "nothing/here")
    assert ran.out == ""
    assert "no message on nothing/here" in ran.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["a/#/b"], "'#' is not a whole level"),
        (["a", "--from", "yesterday"], 'not a moment: "yesterday"; expected all, new or last'),
        (["a", "--from", "9999"], "position 9999 is beyond the end of the log"),
        (["a", "--from", "5m", "--to", "10m"], "--from is later than --to"),
        (["a", "--from", "5m", "--last"], "--last and --from cannot be combined"),
        (["a", "--to", "new"], "--to: all, new and last are beginnings"),
        (["a", "--from", "new"], "--from new needs -f"),
        (["a", "-f", "--to", "5m"], "-f and --to cannot be combined"),
        (["a", "-n", "1", "--last"], "-n and the last message of each topic"),
        (["a", "--from", "p0:1,p1:2"], "positions in several logs are given"),
    ],
)
def test_refused_questions(data: tuple[str, str], arguments: list[str], reason: str) -> None:
    assert reason in refused("history", *data, *arguments, code=2)


def test_history_follows(tmp_path: Path) -> None:
    """What comes while it is printed, hostile names and payloads included."""
    topic = HOSTILE_TOPIC.replace("/", "-")
    with (
        Broker(tmp_path, forked=True) as broker,
        contextlib.closing(Clients("127.0.0.1", broker.port)) as clients,
    ):
        client = clients.connect("one")
        client.publish("a", b"1", 1)
        where = "--data-dir", str(broker.data_dir)
        command = [foldmq(), "history", "#", "-f", *where]
        with subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, text=True, encoding="utf-8"
        ) as follower:
            assert follower.stdout is not None
            first = follower.stdout.readline()
            client.publish(topic, HOSTILE_PAYLOAD, 1)
            second = follower.stdout.readline().rstrip("\n")
            follower.terminate()
        assert 'a  QoS 1, 1 B, from one: "1"' in first
        assert "u001b" in second
        assert second.isprintable()
    said = refused("history", *where, "a", "-f", code=2)
    assert said.startswith("cannot follow the log: no broker is running")
