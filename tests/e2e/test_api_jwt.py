"""JSON Web Tokens in the HTTP API: users read the messages of the past that their rules permit."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from harness.broker import Broker
from harness.fixtures import Clients
from harness.waiting import until

from cli.web.api.jwt_users import OPERATIONS as OF_USERS
from cli.web.api.operations import OPERATIONS
from e2e.apiclient import Answer, Api, Stream
from e2e.tools import run

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
RULES = """
[[allow]]
users = ["ann"]
subscribe = ["hall/#", "cellar/#"]
history = ["hall/#"]

[[allow]]
groups = ["guards"]
subscribe = ["#"]
history = ["#"]

[[deny]]
history = ["hall/secret"]

[[allow]]
users = ["*"]
publish = ["#"]
"""


def token(user: str, key: Any = KEY, seconds: float = 600, **more: Any) -> str:
    return jwt.encode({"sub": user, "exp": time.time() + seconds, **more}, key, "ES256")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory = tmp_path_factory.mktemp("jwt")
    keys, rules = directory / "keys.pem", directory / "rules.toml"
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    keys.write_bytes(KEY.public_key().public_bytes(serialization.Encoding.PEM, kind))
    rules.write_text(RULES)
    config = f'jwt_keys = "{keys}"\npermissions = "{rules}"\nweb_api_jwt = true\n'
    config += 'web_api_jwt_roles = ["desk=view", "board=view-all", "gate=publish"]\n'
    with (
        Broker(directory, args=("--web", "127.0.0.1:0"), config=config, forked=True) as broker,
        contextlib.closing(Clients("127.0.0.1", broker.port)) as clients,
    ):
        sender = clients.connect("sender", username="ann", password=token("ann").encode())
        for number, topic in enumerate(["hall/a", "hall/secret", "cellar/a", "hall/b", "hall/a"]):
            sender.publish(topic, b"%d" % number, 1)
        yield Api(broker)


def ask(api: Api, path: str, shown: str, method: str = "GET", **headers: str) -> Answer:
    return api.ask(method, path, None, "", Authorization=f"Bearer {shown}", **headers)


def payloads(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [one["payload"] for one in answer.json["items"]]


def test_a_user_reads_what_the_rules_permit(api: Api) -> None:
    ann, guard = token("ann"), token("bob", groups=["guards"])
    assert payloads(ask(api, "/history?filter=hall/%23", ann)) == ["0", "3", "4"]
    assert payloads(ask(api, "/last?filter=hall/%2B", ann)) == ["4", "3"]
    assert payloads(ask(api, "/history", guard)) == ["0", "2", "3", "4"]
    first = ask(api, "/history?filter=hall/%23&limit=1", ann).json
    rest = ask(api, f"/history?filter=hall/%23&next={first['next']}", ann)
    assert payloads(rest) == ["3", "4"]
    newest = ask(api, "/history?filter=hall/%23&order=newest", ann)
    assert payloads(newest) == ["4", "3", "0"]
    for topic_filter in ("%23", "cellar/a", "%2B/a"):
        for path in ("/history", "/last"):
            assert ask(api, f"{path}?filter={topic_filter}", ann).status == 403
    assert ask(api, "/history?filter=hall/%23", token("eve")).status == 403
    assert ask(api, "/history?filter=a/%23/b", ann).status == 400


def test_a_message_that_may_not_be_read_is_not_found(api: Api) -> None:
    everything = api.good("/history").json["items"]  # with a token of the page
    at = {one["payload"]: one["position"] for one in everything}
    ann = token("ann")
    assert ask(api, f"/messages/{at['0']}", ann).json["payload"] == "0"
    for payload in ("1", "2"):
        hidden = ask(api, f"/messages/{at[payload]}", ann)
        assert hidden.status == 404
        assert hidden.json["detail"] == f"no message took effect at position {at[payload]}"


def test_other_operations_are_refused(api: Api) -> None:
    guard = token("bob", groups=["guards"])
    for operation in OPERATIONS:
        if operation.name in OF_USERS:
            continue
        path = operation.path.replace("{id}", "x").replace("{topic}", "t")
        path = path.replace("{position}", "2.0")
        until(
            lambda path=path, method=operation.method: (  # type: ignore[misc]
                ask(api, path, guard, method).status == 403
            ),
            f"{operation.name} is refused, once the rate permits the request",
        )


MAY = {"desk": {"view"}, "board": {"view", "view-all"}, "gate": {"publish"}, "others": set()}
"""Group of a token -> the roles of the operations that it may use."""
FILLED = {"id": "sender", "topic": "hall/a", "from": "2"}
"""A value of each parameter that an operation requires: a new one without a value fails."""


@pytest.mark.parametrize("group", [*MAY])
def test_the_role_of_a_group_permits_what_the_document_says(api: Api, group: str) -> None:
    """Of all operations of the document; that of another group counts nothing."""
    user = f"user-of-{group}"
    shown = token(user, groups=["x", group])
    given = {**FILLED, "position": api.good("/history?filter=hall/b").json["items"][0]["position"]}
    for path, methods in api.good("/openapi.json").json["paths"].items():
        for method, operation in methods.items():
            required = [one for one in operation["parameters"] if one["required"]]
            query = [one["name"] for one in required if one["in"] == "query"]
            filled = path + "?" + "&".join(f"{name}={quote(given[name])}" for name in query)
            for name, value in given.items():
                filled = filled.replace(f"{{{name}}}", quote(value, safe=""))
            if method == "post":
                answer = api.ask(
                    "POST", path, b'{"topic": "gate/a"}', "",
                    Authorization=f"Bearer {shown}", Content_Type="application/json",
                )  # fmt: skip
            else:
                answer = ask(api, filled, shown, method.upper())
            if group == "others" and operation["operationId"] in OF_USERS:
                continue
            what = group, method, path, answer.body
            may = operation["x-role"] in MAY[group]
            assert (answer.status != 403) == may, what
            if may:
                assert answer.status in (200, 201, 404), what
    found = [one["publisher"] for one in api.good("/history?filter=gate/a").json["items"]]
    assert (f"$api/jwt:{user}" in found) == (group == "gate")


def test_a_role_without_payloads_shows_none(api: Api) -> None:
    at = api.good("/history?filter=hall/b").json["items"][0]["position"]
    desk, board = (token("bob", groups=[group]) for group in ("desk", "board"))
    assert "payload" not in ask(api, f"/messages/{at}", desk).json
    assert ask(api, f"/messages/{at}", board).json["payload"] == "3"
    assert payloads(ask(api, "/history?filter=hall/secret", board)) == ["1"]


def test_bad_tokens(api: Api) -> None:
    for shown in (
        token("ann", OTHER),
        token("ann", seconds=-1),
        token("ann", aud="others"),
        jwt.encode({"sub": "ann"}, KEY, "ES256"),
        jwt.encode({"sub": "ann", "exp": time.time() + 60}, None, "none"),
    ):
        assert ask(api, "/history?filter=hall/%23", shown).status == 401
    assert "eyJ" not in api.broker.log


def test_a_stream_ends_with_the_token(api: Api) -> None:
    path = "/history?filter=hall/%23&follow=true"
    with (
        contextlib.closing(Stream(api, path, token=token("ann", seconds=4))) as stream,
        contextlib.closing(Clients("127.0.0.1", api.broker.port)) as clients,
    ):
        assert [one["payload"] for one in stream.until("live")] == ["0", "3", "4"]
        time.sleep(4)
        sender = clients.connect(username="ann", password=token("ann").encode())
        sender.publish("hall/c", b"late", 1)
        event, data = stream.next()
        assert (event, data["status"]) == ("error", 401)


@pytest.mark.parametrize(
    ("path", "claims"),
    [("/history?filter=hall/%23&follow=true", {}), ("/events?follow=true", {"groups": ["desk"]})],
)
def test_a_stream_with_nothing_to_send_ends_with_the_token(
    api: Api, path: str, claims: dict[str, Any]
) -> None:
    shown = token("ann", seconds=6, **claims)
    with contextlib.closing(Stream(api, path, token=shown)) as stream:
        stream.until("live")
        event, data = stream.next()
        assert (event, data["status"]) == ("error", 401)
        assert stream.next()[0] == "end"


def test_a_stream_ends_when_its_token_is_removed(api: Api) -> None:
    """With the next message: none of it is shown."""
    where = ("--data-dir", str(api.broker.data_dir))
    shown = run("web-token", "add", "gone", "--role", "view-all", *where).out.strip()
    with (
        contextlib.closing(Stream(api, "/history?filter=gone&follow=true", token=shown)) as stream,
        contextlib.closing(Clients("127.0.0.1", api.broker.port)) as clients,
    ):
        assert stream.until("live") == []
        sender = clients.connect(username="ann", password=token("ann").encode())
        sender.publish("gone", b"before", 1)
        assert stream.next()[1]["payload"] == "before"
        run("web-token", "rm", "gone", *where)
        time.sleep(1.1)  # the file is looked at each second
        sender.publish("gone", b"after", 1)
        event, data = stream.next()
        assert (event, data["status"]) == ("error", 401)


def test_changed_permissions_apply_to_open_streams(api: Api) -> None:
    path = "/history?filter=hall/%23&follow=true"
    rules = api.broker.data_dir.parent / "rules.toml"
    with (
        contextlib.closing(Stream(api, path, token=token("ann"))) as stream,
        contextlib.closing(Clients("127.0.0.1", api.broker.port)) as clients,
    ):
        stream.until("live")
        sender = clients.connect(username="ann", password=token("ann").encode())
        rules.write_text(RULES.replace('["hall/secret"]', '["hall/secret", "hall/d"]'))
        time.sleep(1.1)  # the files are looked at each second
        sender.publish("hall/d", b"hidden", 1)
        sender.publish("hall/e", b"shown", 1)
        assert stream.next()[1]["payload"] == "shown"
        assert ask(api, "/history?filter=hall/d", token("ann")).status == 403
