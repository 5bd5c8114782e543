"""Lists of NATS servers, and the choice of the next one."""

from urllib.parse import urlparse

import pytest
from nats.aio.client import Server

from eventstore.nats.server_urls import ServerChoice, split_urls, url_problem


@pytest.mark.parametrize(
    "text",
    [
        "nats://a",
        "a, b:4223 ,tls://c:1",
        "nats://ann:se,same@a:1",
        "nats://[::1]:4222,nats://[::2]:4222",
        "ws://a:80/path,wss://b",
    ],
)
def test_lists_that_can_be_used(text: str) -> None:
    if "@" not in text:
        assert url_problem(text) == ""
    assert split_urls(text)[0] == text.split(",")[0].strip()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": no server is named"),
        (" , ", ": no server is named"),
        ("nats://a,,nats://b", ": an address is missing beside a comma"),
        ("nats://a,", ": an address is missing beside a comma"),
        ("nats://a:1,http://b:1", " = http://b:1: not the URL of a NATS server"),
        ("nats://a:1,b:x", " = b:x: not a valid URL"),
        ("nats://a:70000", " = nats://a:70000: not a valid URL"),
        ("nats://a:1,nats://:4222", " = nats://:4222: host or port is missing"),
        ("nats://a:0", " = nats://a:0: host or port is missing"),
        ("nats://a:1 nats://b:1", " = nats://a:1 nats://b:1: not a valid URL"),
        ("a b", " = a b: contains a space"),
        ("nats://a,b,a:4222", " = a:4222: named twice"),
        ("nats://a,ws://b", ": addresses of WebSocket (ws, wss) and others"),
        ("nats://ann:sesame@a:x", ": not a valid URL"),
    ],
)
def test_lists_that_cannot_be_used(text: str, problem: str) -> None:
    told = url_problem(text)
    assert told.startswith(problem)
    assert "sesame" not in told


def test_the_server_that_was_not_tried_for_longest_comes_next() -> None:
    servers = [Server(urlparse(f"nats://{name}:4222")) for name in "abc"]
    choice = ServerChoice(0.25)
    choice.connected("a:4222")
    chosen = [choice(servers, {}) for _ in range(4)]
    assert [one.uri.hostname for one, _ in chosen] == ["b", "c", "a", "b"]
    waits = [wait for _, wait in chosen]
    assert waits[:2] == [0, 0]
    assert all(0 < wait <= 0.5 for wait in waits[2:])


def test_a_server_that_could_not_be_reached_comes_after_the_others() -> None:
    """It is suspended; the connection changes between the others meanwhile."""
    servers = [Server(urlparse(f"nats://{name}:4222")) for name in "abc"]
    choice = ServerChoice(0.25)
    choice.connected("a:4222")
    chosen = []
    for _ in range(4):
        while (name := choice(servers, {})[0].uri.hostname) == "b":
            chosen.append(name)
        chosen.append(name)
        choice.connected(f"{name}:4222")
    assert chosen == ["b", "c", "a", "c", "a"]
