"""Roles and tokens of the web page of a real broker, and their record in the log."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness.broker import Broker
from harness.fixtures import Clients
from harness.waiting import until

from e2e.tools import run
from e2e.webclient import Page, served

SECRET = "what-is-in-the-payload"
ROLES = ("view", "view-all", "operate")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("roles")
    made = Broker(directory, args=("--web", "127.0.0.1:0"), forked=True)
    made.start()
    clients = Clients("127.0.0.1", made.port)
    try:
        away = clients.connect("away", clean=False)
        away.subscribe(("hall/#", 1))
        away.disconnect()
        sender = clients.connect("sender")
        sender.publish("hall/lamp", SECRET.encode(), 1, retain=True)
        sender.publish("hall/large", (SECRET * 20_000).encode(), 1, retain=True)
        yield made
        clients.close()
        made.stop()
    finally:
        made.clean_up()


@pytest.fixture(scope="module")
def port(broker: Broker) -> int:
    return served(broker).port


def new_token(broker: Broker, name: str, role: str, expires: str = "1h") -> str:
    where = ("--data-dir", str(broker.data_dir))
    flags = ("--role", role, "--expires", expires)
    return run("web-token", "add", name, *flags, *where).out.strip()


def visitor(broker: Broker, port: int, token: str) -> Page:
    page = Page(port, broker.data_dir)
    answer = page.ask("POST", "/login", f"token={token}&next=/")
    assert answer.status == 303, answer.shown
    page.cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
    return page


def accesses(broker: Broker) -> list[dict[str, Any]]:
    flags = ("--json", "--type", "WebAccessed", "--data-dir", str(broker.data_dir))
    return [json.loads(line) for line in run("log", *flags).out.splitlines()]


def of(broker: Broker, outcome: str, **more: Any) -> list[dict[str, Any]]:
    wanted = {"outcome": outcome, **more}.items()
    return [one for one in accesses(broker) if wanted <= one.items()]


@pytest.mark.parametrize("role", ROLES)
def test_payloads_are_for_some_roles_only(broker: Broker, port: int, role: str) -> None:
    page = visitor(broker, port, new_token(broker, f"payloads-{role}", role))
    pages = [
        page.good("/"),
        page.good("/log", payload=1, order="oldest"),
        page.good("/retained"),
        page.good("/retained", topic="hall/lamp"),
        page.good("/retained", topic="hall/large"),
        page.good("/session", client="away"),
        page.good("/session", client="away", at="now"),
        page.good("/session/past", client="away", at="now"),
        page.good("/subscriptions", topic="hall/lamp"),
        page.good("/actors"),
        page.good("/time"),
        page.good("/time", at="now", a="1", b="now"),
        page.good("/topics", under="hall"),
    ]
    shown = {number for number, one in enumerate(pages) if SECRET in one.text}
    assert shown == (set() if role == "view" else {1, 3, 4})
    withheld = f"shown to tokens with the role {role}"
    assert [number for number, one in enumerate(pages) if withheld in one.shown] == (
        [1, 3, 4] if role == "view" else []
    )
    assert f"token payloads-{role}, role {role}, which expires 2" in pages[0].shown
    assert ('name="payload"' in pages[1].text) == (role != "view")


@pytest.mark.parametrize("role", ROLES)
def test_the_live_tail_has_payloads_for_some_roles_only(
    broker: Broker, port: int, role: str
) -> None:
    page = visitor(broker, port, new_token(broker, f"tail-{role}", role))
    topic = f"tail/{role}"
    assert "No message yet." in page.good("/topics/tail", topic=topic).shown
    clients = Clients("127.0.0.1", broker.port)
    sender = clients.connect(f"sender-{role}")

    def rows() -> list[tuple[str, ...]]:
        sender.publish(topic, SECRET.encode(), 0)
        return page.good("/topics/tail", topic=topic, part="live").columns(1)

    until(rows, "a line of the tail")
    assert (topic,) in rows()
    shown = page.good("/topics/tail", topic=topic)
    assert (SECRET in shown.text) == (role != "view")
    assert ("Payloads are not shown to tokens" in shown.shown) == (role == "view")
    clients.close()


@pytest.mark.parametrize("role", ROLES)
def test_only_operators_may_request_a_change(broker: Broker, port: int, role: str) -> None:
    name = f"changes-{role}"
    page = visitor(broker, port, new_token(broker, name, role))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        got = page.ask(method, "/retained")
        # There is nothing yet that could be changed.
        assert got.status == (405 if role == "operate" else 403)
    if role == "operate":
        assert not of(broker, "denied", name=name)
        return
    assert f"with the role {role} cannot make changes" in got.shown
    until(lambda: of(broker, "denied", name=name), "the event")
    (event,) = of(broker, "denied", name=name)
    assert (event["role"], event["reason"], event["address"]) == (role, "role", "127.0.0.1")


def test_a_login_is_in_the_log_before_the_page_is_shown(broker: Broker, port: int) -> None:
    token = new_token(broker, "ann", "view-all")
    for _ in range(3):
        visitor(broker, port, token)
    (event,) = of(broker, "login", name="ann")
    del event["position"], event["time"], event["first_ms"]
    assert event == {
        "type": "WebAccessed",
        "outcome": "login",
        "address": "127.0.0.1",
        "name": "ann",
        "role": "view-all",
        "reason": "",
        "count": 1,
        "expires": "",
    }
    said = run("log", "--type", "WebAccessed", "--data-dir", str(broker.data_dir)).out
    assert "web page: login from 127.0.0.1, token ann, role view-all" in said
    # The page's own token has a name as well.
    assert of(broker, "login", name="web.token", role="operate")


def test_tokens_that_are_made_and_removed_are_in_the_log(broker: Broker, port: int) -> None:
    assert port
    token = new_token(broker, "cid", "operate")
    until(lambda: of(broker, "token_added", name="cid"), "the event")
    run("web-token", "rm", "cid", "--data-dir", str(broker.data_dir))
    until(lambda: of(broker, "token_removed", name="cid"), "the event")
    for outcome in ("token_added", "token_removed"):
        (event,) = of(broker, outcome, name="cid")
        assert event["role"] == "operate"
        assert event["expires"].endswith("Z")
    assert token not in json.dumps(accesses(broker))
    recorded = (broker.data_dir / "web.tokens.recorded").read_text()
    assert "cid" not in recorded
    assert token not in recorded


def test_refused_logins_are_counted_and_secrets_kept(broker: Broker, port: int) -> None:
    page = Page(port, broker.data_dir)
    guesses = [f"guess-of-a-token-{number}" for number in range(50)]
    for guess in guesses:
        assert page.ask("POST", "/login", f"token={guess}").status == 401
        assert page.get("/", token=guess).status == 401
    until(lambda: of(broker, "refused", reason="wrong_token"), "the event")
    # A hundred of them in ten minutes are one event now, and one when these are over.
    assert len(of(broker, "refused", reason="wrong_token")) == 1
    token = new_token(broker, "kept", "view")
    known = visitor(broker, port, token)
    assert known.cookie is not None
    said = json.dumps(accesses(broker)) + broker.log
    for secret in (*guesses, token, known.cookie.partition("=")[2], page.token):
        assert secret not in said


def test_a_removed_or_expired_token_is_refused(broker: Broker, port: int) -> None:
    page = visitor(broker, port, new_token(broker, "gone", "view"))
    assert page.get("/").status == 200
    run("web-token", "rm", "gone", "--data-dir", str(broker.data_dir))
    got = page.get("/")
    assert got.status == 401
    # The browser forgets the cookie: a page that asks again and again is refused once.
    assert "Max-Age=0" in (got.headers["Set-Cookie"] or "")
    until(lambda: of(broker, "refused", reason="wrong_cookie"), "the event")

    page = visitor(broker, port, token := new_token(broker, "short", "view", "1h"))
    tokens = broker.data_dir / "web.tokens"
    lines = tokens.read_text().splitlines()
    past = [
        f"short view 2020-01-01T00:00:00Z {line.split()[3]}" for line in lines if "short" in line
    ]
    tokens.write_text("\n".join(past) + "\n")
    assert (page.get("/").status, "has expired" in page.get("/").shown) == (401, True)
    answer = page.ask("POST", "/login", f"token={token}")
    assert (answer.status, "has expired" in answer.shown) == (401, True)
    until(lambda: of(broker, "refused", reason="expired", name="short"), "the event")


def test_a_cookie_ends_with_its_token(broker: Broker, port: int) -> None:
    token = new_token(broker, "brief", "view", "10m")
    answer = Page(port, broker.data_dir).ask("GET", f"/?token={token}")
    cookie = answer.headers["Set-Cookie"] or ""
    age = int(cookie.partition("Max-Age=")[2].partition(";")[0])
    assert 0 < age <= 600


def test_the_log_is_whole_and_its_fold_is_the_brokers(broker: Broker, port: int) -> None:
    assert accesses(broker)
    assert run("verify", "--data-dir", str(broker.data_dir)).code == 0
    assert run("log", "verify", "--data-dir", str(broker.data_dir)).code == 0
