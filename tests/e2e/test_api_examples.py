"""The examples of clients in docs/api.md run as they stand there, but for address and token."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker import Broker, environment
from harness.fixtures import EXTERNAL, Clients
from harness.waiting import TIMEOUT, until

from e2e.apiclient import Api

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs to start its own foldmq")


def block(language: str) -> str:
    """The only example in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def curl(what: str) -> str:
    """A command of the page, with its continued lines."""
    lines = PAGE.replace("\\\n", " ").splitlines()
    (found,) = [
        line.strip().removeprefix("$ ")
        for line in lines
        if line.strip().startswith("$ curl") and what in line
    ]
    return found


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    path = tmp_path_factory.mktemp("examples")
    with Broker(path, args=("--web", "127.0.0.1:0"), forked=True) as broker:
        with contextlib.closing(Clients("127.0.0.1", broker.port)) as clients:
            client = clients.connect("pump-7", clean=False)
            client.publish("hall/door", b"open", 1)
            client.disconnect()
        made = Api(broker)
        for role in ("view-all", "publish"):
            made.token(role)
        until(lambda: made.get("/status").status == 200, "the token is known")
        yield made


def here(text: str, api: Api) -> str:
    return text.replace("127.0.0.1:18830", f"127.0.0.1:{api.port}").replace("at=1h", "at=0s")


def output(command: list[str], api: Api, role: str = "view-all") -> str:
    done = subprocess.run(
        command,
        env=environment() | {"TOKEN": api.token(role)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_reads(api: Api) -> None:
    answer = json.loads(output(["sh", "-c", here(curl("/history?"), api)], api))
    assert [item["payload"] for item in answer["items"]] == ["open"]


def test_curl_publishes(api: Api) -> None:
    answer = output(["sh", "-c", here(curl("/messages"), api)], api, "publish")
    assert answer.startswith("HTTP/1.1 201 ")
    assert json.loads(answer.splitlines()[-1])["position"]


def test_python(api: Api) -> None:
    script = f"import os\ntoken = os.environ['TOKEN']\n{here(block('python'), api)}"
    ended = script.replace("&follow=true", "")
    assert ended != script
    assert output([sys.executable, "-c", ended], api).splitlines()[0] == "hall/door"


def test_javascript(api: Api) -> None:
    script = f"const token = process.env.TOKEN;\n{here(block('javascript'), api)}"
    command = ["node", "--input-type=module", "-e", script]
    assert output(command, api).strip() == "0"
