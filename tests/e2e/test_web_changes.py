"""Changes on the web page: opt-in, for operators, confirmed, logged with the token's name."""

import html
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from harness.broker import Broker
from harness.fixtures import Clients
from harness.waiting import until

from e2e.tools import run
from e2e.webclient import Page, served


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("changes")
    with Broker(directory, args=("--web", "127.0.0.1:0", "--web-operate"), forked=True) as made:
        yield made
        made.stop()


@pytest.fixture
def page(broker: Broker) -> Page:
    return served(broker)


@pytest.fixture
def clients(broker: Broker) -> Iterator[Clients]:
    made = Clients("127.0.0.1", broker.port)
    yield made
    made.close()


def fields(text: str) -> dict[str, str]:
    """The hidden fields of a form."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text)
    return {key: html.unescape(value) for key, value in found}


def post(page: Page, path: str, values: dict[str, str]) -> Any:
    return page.ask("POST", path, urlencode(values))


def asked_twice(page: Page, **given: str) -> dict[str, str]:
    """Answer the first question; return the form of the second."""
    first = page.good("/change", **given)
    assert "?" in first.shown
    second = post(page, "/change", fields(first.text))
    assert second.status == 200, second.shown
    assert "To confirm, type" in second.shown
    return fields(second.text)


def acted(broker: Broker) -> list[tuple[str, str]]:
    """What operators did, and by whom, as the log says."""
    found = run("log", "--json", "--type", "OperatorActed", "--data-dir", str(broker.data_dir))
    return [(one["action"], one["by"]) for one in found.objects]


def test_a_client_is_disconnected(broker: Broker, page: Page, clients: Clients) -> None:
    victim = clients.connect("victim", clean=False)
    assert "Disconnect..." in page.good("/session", client="victim").shown
    number = asked_twice(page, do="kick", client="victim")
    victim.expect_alive()
    wrong = post(page, "/change/confirmed", {**number, "typed": "someone"})
    assert (wrong.status, "nothing was changed" in wrong.shown) == (400, True)
    victim.expect_alive()
    done = post(page, "/change/confirmed", {**number, "typed": "victim"})
    assert "1 disconnected" in done.shown
    victim.expect_closed()
    assert acted(broker)[-1] == ("kick", "web.token (web page, from 127.0.0.1)")
    again = post(page, "/change/confirmed", {**number, "typed": "victim"})
    assert (again.status, "answered already" in again.shown) == (400, True)
    assert page.get("/change", do="kick", client="victim").status == 400


def test_sessions_are_removed(broker: Broker, page: Page, clients: Clients) -> None:
    for name in ("gone-1", "gone-2", "kept"):
        clients.connect(name, clean=False).disconnect()
    until(lambda: page.good("/sessions", state="offline").shown.count("gone-") >= 2, "offline")
    number = asked_twice(page, do="remove_session", client="kept")
    assert "1 removed" in post(page, "/change/confirmed", {**number, "typed": "kept"}).shown
    assert page.get("/session", client="kept").status == 404

    assert "Offline for at least" in page.good("/change", do="purge").shown
    assert page.get("/change", do="purge", older_than="7d").status == 400
    assert page.get("/change", do="purge", older_than="soon").status == 400
    number = asked_twice(page, do="purge", match="gone-*")
    # The one that connects meanwhile stays.
    back = clients.connect("gone-2", clean=False, session_present=True)
    shown = post(page, "/change/confirmed", {**number, "typed": "2"}).shown
    assert "1 removed" in shown
    assert "gone-2:" in shown
    back.expect_alive()
    assert page.get("/session", client="gone-1").status == 404


@pytest.mark.parametrize("role", ["view", "view-all"])
def test_other_roles_change_nothing(
    broker: Broker, page: Page, clients: Clients, role: str
) -> None:
    victim = clients.connect(f"victim-{role}", clean=False)
    where = ("--data-dir", str(broker.data_dir))
    token = run("web-token", "add", f"t-{role}", "--role", role, *where).out.strip()
    other = Page(page.port, broker.data_dir)
    answer = other.ask("POST", "/login", f"token={token}&next=/")
    other.cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
    assert "Disconnect..." not in other.good("/session", client=f"victim-{role}").shown
    assert other.get("/change", do="kick", client=f"victim-{role}").status == 403
    number = asked_twice(page, do="kick", client=f"victim-{role}")
    confirmed = {**number, "typed": f"victim-{role}"}
    for path, values in (("/change", {"do": "purge"}), ("/change/confirmed", confirmed)):
        assert post(other, path, values).status == 403
    victim.expect_alive()


def test_another_token_cannot_confirm_a_change(
    broker: Broker, page: Page, clients: Clients
) -> None:
    victim = clients.connect("contested", clean=False)
    where = ("--data-dir", str(broker.data_dir))
    token = run("web-token", "add", "bob", "--role", "operate", *where).out.strip()
    other = Page(page.port, broker.data_dir)
    answer = other.ask("POST", "/login", f"token={token}&next=/")
    other.cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
    number = asked_twice(page, do="kick", client="contested")
    assert post(other, "/change/confirmed", {**number, "typed": "contested"}).status == 400
    victim.expect_alive()
    number = asked_twice(other, do="kick", client="contested")
    assert "1 disc" in post(other, "/change/confirmed", {**number, "typed": "contested"}).shown
    assert acted(broker)[-1] == ("kick", "bob (web page, from 127.0.0.1)")


@pytest.mark.parametrize(
    "given", [{}, {"do": "nothing"}, {"do": "kick"}, {"do": "kick", "client": "?"}]
)
def test_invalid_changes_are_refused(page: Page, given: dict[str, str]) -> None:
    got = page.get("/change", **given)
    assert got.status == 400
    assert 'role="alert"' in got.text
    assert post(page, "/change", given).status == 400
    assert post(page, "/change/confirmed", given).status == 400


def test_names_are_text_in_the_questions(page: Page, clients: Clients) -> None:
    evil = "<img src=x onerror=alert(1)>\u202e"
    clients.connect(evil, clean=False)
    number = asked_twice(page, do="kick", client=evil)
    for got in (page.good("/change", do="kick", client=evil),):
        assert "<img" not in got.text
        assert "\u202e" not in re.sub(r'<input [^>]*value="[^"]*"', "", got.text)
    done = post(page, "/change/confirmed", {**number, "typed": "yes"})
    assert "1 disconnected" in done.shown
    assert "<img" not in done.text


def test_changes_are_disabled_by_default(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker("", "--web", "127.0.0.1:0")
    broker.start()
    page = served(broker)
    clients = Clients("127.0.0.1", broker.port)
    clients.connect("victim")
    assert "Disconnect..." not in page.good("/session", client="victim").shown
    assert page.get("/change", do="kick", client="victim").status == 404
    assert post(page, "/change/confirmed", {"number": "1", "typed": "victim"}).status == 404
    clients.close()
