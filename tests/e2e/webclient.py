"""An HTTP client for the web page of a broker."""

import contextlib
import html
import http.client
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from harness.broker import Broker, environment, foldmq, free_port
from harness.waiting import TIMEOUT, until


@dataclass(frozen=True, slots=True)
class Got:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        """The page as it came."""
        return self.body.decode()

    @property
    def shown(self) -> str:
        """What a person reads: no tags, blanks in a row as one."""
        return " ".join(
            html.unescape(re.sub(r"<[^>]*>", " ", self.text.replace("<wbr>", ""))).split()
        )

    def columns(self, *numbers: int) -> list[tuple[str, ...]]:
        """The text of some columns of all tables' bodies."""
        found = []
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", self.text, re.DOTALL):
            cells = re.findall(r"<(?:td|th scope=\"row\")[^>]*>(.*?)</t[dh]>", row, re.DOTALL)
            texts = [
                " ".join(html.unescape(re.sub(r"<[^>]*>", "", cell)).split()) for cell in cells
            ]
            if len(texts) > max(numbers):
                found.append(tuple(texts[number] for number in numbers))
        return found

    @property
    def elements(self) -> list[tuple[str, dict[str, str | None]]]:
        """The elements as a browser finds them: tag and attributes."""
        parser = _Elements()
        parser.feed(self.text)
        parser.close()
        return parser.found

    @property
    def suggested(self) -> set[str]:
        """The next commands of the problems."""
        return {html.unescape(one) for one in re.findall(r"<p><code>(.*?)</code></p>", self.text)}

    def link(self, rel: str) -> str | None:
        """Where the link to another page leads."""
        found = re.search(rf'<a [^>]*rel="{rel}"[^>]*href="([^"]*)"', self.text)
        return html.unescape(found[1]) if found else None


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


class Page:
    """One visitor of the page at `port`; `log_in` shows the token of `data_dir`."""

    def __init__(self, port: int, data_dir: Path) -> None:
        self.port = port
        self.token_file = data_dir / "web.token"
        self.cookie: str | None = None

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Got:
        sent = dict(headers)
        if self.cookie is not None:
            sent["Cookie"] = self.cookie
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        ) as c:
            c.request(method, path, body, sent)
            answer = c.getresponse()
            return Got(answer.status, answer.headers, answer.read())

    def get(self, path: str, **query: Any) -> Got:
        """A page; `from_` stands for `from`."""
        given = {key.rstrip("_"): value for key, value in query.items()}
        return self.ask("GET", path + (f"?{urlencode(given, doseq=True)}" if given else ""))

    def good(self, path: str, **query: Any) -> Got:
        found = self.get(path, **query)
        assert found.status == 200, found.shown
        return found

    def log_in(self) -> None:
        answer = self.ask("GET", f"/?token={self.token}")
        assert answer.status == 303, answer.text
        self.cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]


def served(broker: Broker) -> Page:
    """A visitor of a broker's own page, logged in."""
    said = r"http://127\.0\.0\.1:(\d+)/ \(asks for the token"
    until(lambda: re.search(said, broker.log), "the banner names the page")
    port = re.findall(said, broker.log)[-1]
    page = Page(int(port), broker.data_dir)
    page.log_in()
    return page


@contextlib.contextmanager
def web(data_dir: Path, *arguments: str) -> Iterator[tuple[Page, subprocess.Popen[str]]]:
    """`foldmq web` beside a broker, not logged in; ended by SIGTERM with exit code 0."""
    port = free_port()
    command = [foldmq(), "web", "--listen", f"127.0.0.1:{port}", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    page = Page(port, data_dir)

    def answers() -> bool:
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(OSError):
            return page.get("/login").status == 200
        return False

    try:
        until(answers, "an answer of foldmq web")
        yield page, process
        process.terminate()
        assert process.wait(TIMEOUT) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
