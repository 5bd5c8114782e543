"""Users with JSON Web Tokens in the HTTP API, without a broker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from actors.access.rules_file import PermissionFileError
from cli.settings.settings import load_settings
from cli.web.api import jwt_users
from cli.web.api.endpoints import _entries
from cli.web.api.jwt_users import JwtGrant, JwtUsers
from cli.web.api.message_answers import HistoryParams
from cli.web.api.operation import Call, Item, StreamMark
from cli.web.api.operations import OPERATIONS
from cli.web.api.page_tokens import continued, page_token
from cli.web.api.problem_types import Unauthorized

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KEY, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
RULES = """
[[allow]]
users = ["ann"]
groups = ["guards"]
subscribe = ["hall/#", "cellar/#"]
history = ["hall/#"]

[[deny]]
history = ["hall/secret"]
"""


def token(user: str = "ann", key: Any = KEY, seconds: float = 600, **more: Any) -> str:
    return jwt.encode({"sub": user, "exp": time.time() + seconds, **more}, key, "ES256")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    return file


@pytest.fixture
def users(tmp_path: Path, rules: Path) -> JwtUsers:
    keys, kind = tmp_path / "keys.pem", serialization.PublicFormat.SubjectPublicKeyInfo
    keys.write_bytes(KEY.public_key().public_bytes(serialization.Encoding.PEM, kind))
    given = {"jwt_keys": str(keys), "permissions": str(rules), "web_api_jwt": "true"}
    return JwtUsers(load_settings(given, {}))


async def user(users: JwtUsers, shown: str) -> JwtGrant:
    grant = await users.grant(shown, "192.0.2.1")
    assert grant is not None
    return grant


async def test_a_user_reads_what_the_rules_permit(users: JwtUsers) -> None:
    for found in (
        await user(users, token("ann")),
        await user(users, token("bob", groups=["guards"])),
    ):
        topics = ["hall/a", "hall/secret", "cellar/a", "x"]
        assert [found.may_read(topic) for topic in topics] == [True, False, False, False]
        filters = ["hall/#", "hall/+", "hall/secret", "cellar/a", "#", "+/a"]
        asked = [found.may_ask(topic_filter) for topic_filter in filters]
        assert asked == [True, True, False, False, False, False]
    assert not (await user(users, token("eve"))).may_ask("hall/a")


async def test_bad_tokens(users: JwtUsers) -> None:
    for shown in (
        token(key=OTHER),
        token(seconds=-1),
        token(aud="others"),
        jwt.encode({"sub": "ann"}, KEY, "ES256"),
        jwt.encode({"sub": "ann", "exp": time.time() + 60}, "", "none"),
    ):
        assert users.is_token(shown)
        assert await users.grant(shown, "192.0.2.1") is None
    assert not users.is_token("abcdefgh")
    assert not users.is_token("a\udc80.b.c")


async def test_the_rights_end_with_the_token(users: JwtUsers) -> None:
    found = await user(users, token(seconds=60))
    assert found.may_read("hall/a")
    later = users.now() + 61
    users.now = lambda: later
    with pytest.raises(Unauthorized, match="expired"):
        found.may_read("hall/a")


def test_a_changed_file_applies(
    users: JwtUsers, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_users, "_LOOK_SECONDS", 0.0)
    users._look_at = 0.0
    found = asyncio.run(user(users, token()))
    rules.write_text(RULES.replace("hall/secret", "hall/a"))
    assert [found.may_read(topic) for topic in ("hall/a", "hall/secret")] == [False, True]
    rules.write_text("[[allow]")
    for _ in range(2):
        with pytest.raises(PermissionFileError):
            found.may_read("hall/secret")
    rules.unlink()
    with pytest.raises(PermissionFileError):
        found.may_read("hall/secret")
    rules.write_text(RULES)
    assert found.may_read("hall/a")


async def _found(_call: Call, _params: object) -> AsyncIterator[Item | StreamMark]:
    for topic in ("a", "b", "a"):
        yield Item({"topic": topic}, "")
    yield StreamMark("live", {})


async def test_lists_and_their_next_pages_are_of_what_is_permitted() -> None:
    operation = next(one for one in OPERATIONS if one.name == "history")
    params = HistoryParams()
    call = Call(cast("Any", None), cast("Any", None), True, lambda topic: topic == "a")
    given = page_token({"place": "1.0", "about": "x", "moments": {}})
    following, _ = continued(call, operation, params, given, "x")
    assert following.start == "1.0"
    for each in (call, following):
        async with _entries(replace(operation, function=_found), each, params) as entries:
            found = [entry async for entry in entries]
        assert found == [Item({"topic": "a"}, "")] * 2 + [StreamMark("live", {})]


def test_only_operations_about_messages_are_permitted() -> None:
    assert {"history", "last", "message"} == jwt_users.OPERATIONS
    of_topics = {one.name for one in OPERATIONS if "topic" in one.view.model_fields}
    assert of_topics >= jwt_users.OPERATIONS
