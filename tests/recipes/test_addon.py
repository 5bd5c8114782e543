"""The add-on for Home Assistant: its program, with a stand-in for the Supervisor."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from harness.broker import environment, foldmq, free_port
from harness.packets import Connack
from harness.rawclient import RawClient
from harness.waiting import until

from recipes.natsservers import reachable
from recipes.recipefiles import RECIPES, ROOT

ADDON = RECIPES / "home-assistant" / "addon"


class Supervisor(BaseHTTPRequestHandler):
    """Keeps what an add-on sends."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        received = self.path, self.headers["Authorization"], body
        self.server.received.append(received)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def supervisor() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Supervisor)
    server.received = []
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def login(port: int, user: str, password: str) -> Connack:
    with RawClient(port) as client:
        return client.connect(user, username=user, password=password.encode())


def test_the_program_of_the_addon(tmp_path: Path, supervisor: Any) -> None:
    options = {"logins": [{"username": "plug", "password": "one"}]}
    (tmp_path / "options.json").write_text(json.dumps(options))
    port = free_port()
    variables = {
        "ADDON_DATA": str(tmp_path),
        "SUPERVISOR_URL": f"http://127.0.0.1:{supervisor.server_port}",
        "SUPERVISOR_TOKEN": "token",
        "FOLDMQ_LISTEN": f"127.0.0.1:{port}",
        "PATH": f"{Path(foldmq()).parent}:/usr/bin:/bin",
    }
    process = subprocess.Popen(
        [sys.executable, str(ADDON / "run.py")], env={**environment(), **variables}
    )
    try:
        until(lambda: process.poll() is not None or reachable("127.0.0.1", port), "the broker")
        (path, token, service), (other, _, discovery) = supervisor.received
        assert (path, other, token) == ("/services/mqtt", "/discovery", "Bearer token")
        assert discovery == {"service": "mqtt", "config": service}
        assert login(port, "plug", "one").code == 0
        assert login(port, service["username"], service["password"]).code == 0
        assert login(port, "plug", "two").code != 0
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_the_files_of_the_addon_fit() -> None:
    config = yaml.safe_load((ADDON / "config.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert config["version"] == project["version"]
    assert set(config["options"]) == set(config["schema"]) == {"logins"}
    (fields,) = config["schema"]["logins"]
    assert set(fields) == {"username", "password"}
    assert config["services"] == ["mqtt:provide"]
    dockerfile = (ADDON / "Dockerfile").read_text("utf-8")
    (base,) = re.findall(r"(?m)^FROM (.+)$", dockerfile)
    assert re.fullmatch(r"python:3\.1[1-4]-slim", base)
    for name in re.findall(r"(?m)^COPY ([\w.]+\.py) ", dockerfile):
        assert (ADDON / name).is_file()


def test_the_compose_file_follows_the_specification() -> None:
    command = Path(sys.executable).with_name("check-jsonschema")
    file = RECIPES / "home-assistant" / "compose.yaml"
    done = subprocess.run(
        [command, "--builtin-schema=vendor.compose-spec", str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
