"""``foldmq mcp`` with the client of the protocol's SDK, over both transports."""

import asyncio
import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness.broker import Broker, environment, foldmq, free_port
from harness.waiting import TIMEOUT
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from cli.mcp.tool_answers import MAX_BYTES, MAX_ROWS, harmless
from e2e.log_scenarios import events, serving
from e2e.tools import HOSTILE_ID, HOSTILE_TOPIC, refused, run

Ask = Callable[..., Any]
MESSAGES = 120


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("mcp")) as (broker, clients):
        counter = clients.connect("counter")
        for number in range(MESSAGES):
            counter.publish("count", b"%d" % number, 1)
        counter.publish("large", b"x" * 5000, 1)
        yield broker


@contextlib.asynccontextmanager
async def over_stdio(broker: Broker, *flags: str) -> AsyncIterator[Client]:
    arguments = ["mcp", "--data-dir", str(broker.data_dir), *flags]
    server = StdioServerParameters(command=str(foldmq()), args=arguments, env=dict(environment()))
    async with Client(server) as client:
        yield client


@contextlib.contextmanager
def http_server(broker: Broker, *flags: str) -> Iterator[str]:
    place = f"127.0.0.1:{free_port()}"
    command = [foldmq(), "mcp", "--data-dir", str(broker.data_dir), "--listen", place, *flags]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        assert said == (
            f"foldmq: the MCP server is at http://{place}/mcp (asks for a token of the web page)\n"
        )
        try:
            yield f"http://{place}/mcp"
        finally:
            process.terminate()
            assert process.wait(TIMEOUT) in (0, -15)


def token_of(broker: Broker, role: str = "view") -> str:
    made = run("web-token", "add", role, "--role", role, "--data-dir", str(broker.data_dir))
    return made.out.split()[-1]


def asked(client: Client) -> Ask:
    async def ask(tool: str, **arguments: Any) -> dict[str, Any]:
        result = await client.call_tool(tool, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent)
        assert json.loads(content.text) == result.structured_content
        assert content.text.isprintable()
        assert len(content.text) <= MAX_BYTES
        found = dict(result.structured_content)
        assert ("error" in found) == bool(result.is_error)
        return found

    return ask


def test_tools_over_standard_input(running: Broker) -> None:
    async def check() -> None:
        async with over_stdio(running, "--payloads") as client:
            tools = (await client.list_tools()).tools
            assert len(tools) == 11
            hints = [tool.annotations for tool in tools if tool.annotations is not None]
            assert len(hints) == len(tools)
            assert all(each.read_only_hint and not each.open_world_hint for each in hints)
            ask = asked(client)
            await _check_answers(ask)
            (row,) = (await ask("last_value", filter="large"))["rows"]
            assert (row["payload"], row["payload_cut"], row["size"]) == ("x" * 256, True, 5000)

    asyncio.run(check())


async def _check_answers(ask: Ask) -> None:
    rows = (await ask("history", filter="hall/#"))["rows"]
    assert [row["topic"] for row in rows].count("hall/door") == 3
    assert rows[0]["at"] > rows[-1]["at"]
    await _check_pages(ask)
    (story,) = (await ask("why", topic="hall/window", client="screen"))["rows"]
    assert story["topic"] == "hall/window"
    (told,) = (await ask("message_story", position=story["position"]))["rows"]
    assert told["position"] == story["position"]
    (session,) = (await ask("state_at", client="archive"))["rows"]
    assert session["session"] == "archive"
    totals = (await ask("state_at"))["rows"][0]
    assert totals["sessions"] >= 3
    assert (await ask("diff", **{"from": "1"}))["rows"]
    counts = {row["topic"]: row["messages"] for row in (await ask("topics"))["rows"]}
    assert counts["count"] == MESSAGES
    assert (await ask("silent_clients"))["rows"] == []
    assert (await ask("gaps"))["rows"] == []
    assert "rows" in await ask("doctor")
    readers = (await ask("who_could_read", topic="hall/door"))["rows"]
    assert {row.get("client") for row in readers} == {"archive", "screen", None}
    assert readers[-1]["note"].startswith("of the rules at present")
    for tool, arguments, reason in (
        ("history", {"filter": "a/#/b"}, "is not a whole level"),
        ("history", {"from": "later"}, "from: not a moment"),
        ("history", {"unknown": 1}, "unknown: extra inputs"),
        ("message_story", {"position": "999999.0"}, "beyond the log"),
        ("nothing", {}, "there is no tool nothing"),
        ("history", {"next": "x"}, "next: is not that of the page before"),
    ):
        assert reason in (await ask(tool, **arguments))["error"]


async def _check_pages(ask: Ask) -> None:
    found, following = list[str](), dict[str, str]()
    while True:
        page = await ask("history", filter="count", **following)
        assert len(page["rows"]) <= MAX_ROWS
        found += (
            [row["payload"] for row in page["rows"]]
            if "payload" in page["rows"][0]
            else [row["position"] for row in page["rows"]]
        )
        if page["next"] is None:
            break
        following = {"next": page["next"]}
    assert len(found) == len(set(found)) == MESSAGES


def test_hostile_names_stay_in_their_fields(running: Broker) -> None:
    async def check() -> None:
        async with over_stdio(running, "--payloads") as client:
            ask = asked(client)
            topic = harmless(HOSTILE_TOPIC)
            (row,) = (await ask("last_value", filter=topic))["rows"]
            assert (row["topic"], row["publisher"]) == (topic, harmless(HOSTILE_ID))
            for tool, order in (("history", {"order": "oldest"}), ("topics", {}), ("state_at", {})):
                rows = (await ask(tool, **order))["rows"]
                assert topic in [row.get("topic") for row in rows]
            (story,) = (await ask("why", topic=topic))["rows"]
            assert story["session"] == harmless(HOSTILE_ID)

    asyncio.run(check())


def test_tools_over_http(running: Broker) -> None:
    token = token_of(running)
    where = "--data-dir", str(running.data_dir)

    async def check(url: str) -> None:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"})
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            ask = asked(client)
            await _check_answers(ask)
            (row,) = (await ask("last_value", filter="large"))["rows"]
            assert "payload" not in row  # the role view does not see payloads

    with http_server(running, "--payloads") as url:
        asyncio.run(check(url))
        for headers, code in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": f"Bearer {token}", "Host": "evil.example"}, 403),
            ({"Authorization": f"Bearer {token}", "Origin": "https://evil.example"}, 403),
        ):
            request = urllib.request.Request(url, b"{}", headers)
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request, timeout=TIMEOUT)
            assert error.value.code == code
            error.value.close()
    outcomes = [one["outcome"] for one in events(where, "--type", "WebAccessed")]
    assert {*outcomes} == {"login", "refused"}


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    """Tools say so; over HTTP the server needs its tokens."""

    async def check() -> None:
        arguments = ["mcp", "--data-dir", str(tmp_path / "none")]
        server = StdioServerParameters(
            command=str(foldmq()), args=arguments, env=dict(environment())
        )
        async with Client(server) as client:
            error = (await asked(client)("history"))["error"]
            assert "does not exist" in error or "no broker" in error

    asyncio.run(check())
    where = "--data-dir", str(tmp_path / "none")
    assert "does not exist" in refused("mcp", *where, "--listen", "127.0.0.1:0", code=66)
    assert "--listen" in refused("mcp", *where, "--listen", "nowhere", code=2)
