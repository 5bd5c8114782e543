"""Clients of the HTTP API of a broker."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.web.api.operations import BASE
from e2e.tools import run
from e2e.webclient import served

if TYPE_CHECKING:
    from harness.broker import Broker

FORMS = {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Api:
    """A client of the API of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.port = served(broker).port
        self.data = ("--data-dir", str(broker.data_dir))
        self._tokens: dict[str, str] = {}

    def token(self, role: str) -> str:
        if role not in self._tokens:
            added = run("web-token", "add", f"t-{role}", "--role", role, *self.data)
            self._tokens[role] = added.out.strip()
        return self._tokens[role]

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        role: str = "view-all",
        **headers: str,
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if role:
            sent["Authorization"] = f"Bearer {self.token(role)}"
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        ) as c:
            c.request(method, BASE + path, body, sent)
            answer = c.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def get(self, path: str, role: str = "view-all", **headers: str) -> Answer:
        """A GET; one over the rate of the token is sent again."""
        while True:
            answer = self.ask("GET", path, None, role, **headers)
            if answer.status != 429:
                return answer
            time.sleep(float(answer.headers["Retry-After"]) / 4)

    def good(self, path: str, role: str = "view-all", **headers: str) -> Answer:
        answer = self.get(path, role, **headers)
        assert answer.status == 200, answer.body
        return answer

    def publish(self, body: object, role: str = "publish", **headers: str) -> Answer:
        sent = {"Content_Type": "application/json"} | headers
        return self.ask("POST", "/messages", json.dumps(body).encode(), role, **sent)


class Stream:
    """A reader of server-sent events, as EventSource is one."""

    def __init__(
        self, api: Api, path: str, last: str | None = None, form: str = "sse", token: str = ""
    ) -> None:
        token = token or api.token("view-all")
        headers = {"Authorization": f"Bearer {token}", "Accept": FORMS[form]}
        if last is not None:
            headers["Last-Event-ID"] = last
        self.last = last
        while True:
            self.connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=20)
            self.connection.request("GET", BASE + path, headers=headers)
            self.answer = self.connection.getresponse()
            if self.answer.status != 429 or self.answer.headers["Retry-After"] != "1":
                break  # the rate of the token was not exceeded
            self.close()
            time.sleep(0.2)

    def next(self) -> tuple[str, Any]:
        """The next event: its name and data."""
        event, data = "", None
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            key, _, value = line.partition(": ")
            if key == "event":
                event = value
            elif key == "data":
                data = json.loads(value)
            elif key == "id":
                self.last = value
            elif not line and event:
                return event, data

    def until(self, wanted: str) -> list[Any]:
        """The data of all messages up to another event."""
        found = []
        while True:
            event, data = self.next()
            if event == wanted:
                return found
            assert event == "message", (event, data)
            found.append(data)

    def close(self) -> None:
        self.answer.close()
        self.connection.close()
