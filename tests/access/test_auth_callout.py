"""The auth callout: requests, answers, and logins without an answer."""

import asyncio
import json
from typing import Any

import orjson
import pytest
from harness.checkservice import NOW_MS, Clock, Service

from actors.access.callout import (
    MAX_REPLY,
    MAX_REQUEST,
    BadAnswer,
    Callout,
    CalloutOptions,
    read_answer,
    render_request,
)
from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.rules import Rule
from eventstore.nats.request_client import UnansweredError

ANN = Credentials("ann", b"secret", "sensor 7", "192.0.2.1", "tls")
YES = b'{"allow": true}'
NO = b'{"allow": false}'


def callout(service: Service, clock: Clock | None = None, **options: Any) -> Callout:
    return Callout(CalloutOptions(**options), service, clock or Clock())


def answer(**fields: Any) -> Verdict:
    """What is made of an answer about ann."""
    return read_answer(json.dumps(fields).encode(), ANN, NOW_MS).verdict


# --- the question


def test_the_question() -> None:
    assert orjson.loads(render_request(ANN, "node-1")) == {
        "version": 1,
        "node": "node-1",
        "client": "sensor 7",
        "user": "ann",
        "password": "secret",
        "address": "192.0.2.1",
        "listener": "tls",
        "certificate_user": None,
    }
    shown = Credentials(None, None, "c", certificate_user="cn")
    question = orjson.loads(render_request(shown, ""))
    assert (question["user"], question["password"], question["certificate_user"]) == (
        None,
        None,
        "cn",
    )


def test_a_password_that_is_no_text() -> None:
    question = orjson.loads(render_request(ANN._replace(password=b"\xff\0"), ""))
    assert (question["password"], question["password_base64"]) == (None, "/wA=")


# --- the answer


def test_a_plain_yes_and_a_plain_no() -> None:
    assert answer(allow=True) == Verdict(AuthResult.ACCEPTED, "ann")
    verdict = answer(allow=False)
    assert verdict.result is AuthResult.BAD_CREDENTIALS
    assert verdict.reason == "refused by the auth callout"
    assert answer(allow=False, reason="locked").reason == "locked"


def test_all_that_an_answer_may_say() -> None:
    verdict = answer(
        allow=True,
        user="ann smith",
        groups=["ops"],
        publish={"allow": ["a/%u/#"], "deny": ["a/x"]},
        subscribe=["#"],
        expires=NOW_MS / 1000 + 60.5,
        cache=10,
        reason="",
    )
    where = "auth callout"
    assert verdict == Verdict(
        AuthResult.ACCEPTED,
        "ann smith",
        ("ops",),
        (
            Rule(True, True, False, "a/%u/#", where=where),
            Rule(False, True, False, "a/x", where=where),
            Rule(True, False, True, "#", where=where),
        ),
        NOW_MS + 60_500,
    )


def test_whose_login_it_was() -> None:
    certified = ANN._replace(certificate_user="cn")
    assert read_answer(YES, certified, NOW_MS).verdict.user == "cn"
    assert read_answer(YES, Credentials(None, None), NOW_MS).verdict.user is None


def test_permissions_without_anything_in_them_allow_nothing() -> None:
    for fields in ({"publish": []}, {"subscribe": {}}, {"publish": {"deny": []}}):
        (rule,) = answer(allow=True, **fields).rules or ()
        assert rule.allow is False
    assert answer(allow=True, publish=None).rules is None


def test_a_reason_cannot_break_out_of_its_line() -> None:
    assert answer(allow=False, reason="a\n\x1b[31mb").reason == "a\\n\\u001b[31mb"
    assert len(answer(allow=False, reason="x" * 5000).reason) < 200


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"yes",
        b"[]",
        b"true",
        b"{}",
        b'{"allow": 1}',
        b'{"allow": "true"}',
        b'{"allow": null}',
        b'{"allow": true, "alow_publish": []}',
        b'{"allow": true, "user": ""}',
        b'{"allow": true, "user": 7}',
        b'{"allow": true, "user": "a\\u0000b"}',
        b'{"allow": true, "groups": "ops"}',
        b'{"allow": true, "groups": [""]}',
        b'{"allow": true, "groups": [["a"]]}',
        b'{"allow": true, "publish": "a"}',
        b'{"allow": true, "publish": {"alow": []}}',
        b'{"allow": true, "publish": {"allow": "a"}}',
        b'{"allow": true, "publish": [""]}',
        b'{"allow": true, "publish": ["a/#/b"]}',
        b'{"allow": true, "publish": [7]}',
        b'{"allow": true, "publish": [null]}',
        b'{"allow": true, "subscribe": ["%x"]}',
        b'{"allow": true, "expires": "soon"}',
        b'{"allow": true, "expires": true}',
        b'{"allow": true, "expires": -1}',
        b'{"allow": true, "expires": 0}',
        b'{"allow": true, "expires": 1700000000}',
        b'{"allow": true, "expires": NaN}',
        b'{"allow": true, "cache": []}',
        b'{"allow": false, "reason": 7}',
        b'{"allow": true, "\\u001b[31m": 7}',
        b"[" * 5000,
        b'{"allow": true}' + b" " * MAX_REPLY,
        json.dumps({"allow": True, "groups": ["a"] * 501}).encode(),
        json.dumps({"allow": True, "publish": ["a"] * 501}).encode(),
        json.dumps({"allow": True, "publish": ["a"] * 251, "subscribe": ["a"] * 250}).encode(),
    ],
)
async def test_an_invalid_answer_is_a_refusal(reply: bytes) -> None:
    with pytest.raises(BadAnswer) as caught:
        read_answer(reply, ANN, NOW_MS)
    assert str(caught.value).isprintable()
    asked = callout(Service(reply))
    verdict = await asked.check(ANN)
    assert verdict.result is AuthResult.UNAVAILABLE
    assert asked.check_now(ANN) is None
    assert (asked.asked, asked.unanswered) == (1, 1)


# --- asking


async def test_decisions_are_cached_for_the_same_credentials() -> None:
    service, clock = Service(YES), Clock()
    asked = callout(service, clock)
    assert asked.check_now(ANN) is None
    verdict = await asked.check(ANN)
    assert asked.check_now(ANN) == verdict == await asked.check(ANN)
    for other in (
        ANN._replace(username="bob"),
        ANN._replace(password=b"secre"),
        ANN._replace(password=None),
        ANN._replace(client_id="sensor 8"),
        ANN._replace(address="192.0.2.2"),
        ANN._replace(listener="tcp"),
        ANN._replace(certificate_user="ann"),
    ):
        assert asked.check_now(other) is None
    clock.ms += 59_999
    assert asked.check_now(ANN) == verdict
    clock.ms += 1
    assert asked.check_now(ANN) is None
    assert len(service.requests) == 1


async def test_a_no_is_remembered_for_a_shorter_time() -> None:
    clock = Clock()
    asked = callout(Service(NO), clock)
    verdict = await asked.check(ANN)
    clock.ms += 4999
    assert asked.check_now(ANN) == verdict
    clock.ms += 1
    assert asked.check_now(ANN) is None


@pytest.mark.parametrize("groups", [{}, [], "", None, 0])
def test_empty_groups_of_any_form_are_none(groups: object) -> None:
    answer = read_answer(json.dumps({"allow": True, "groups": groups}).encode(), ANN, NOW_MS)
    assert (answer.verdict.result, answer.verdict.groups) == (AuthResult.ACCEPTED, ())


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"allow": True, "cache": 7}, 7),
        ({"allow": False, "cache": 7}, 7),
        ({"allow": True, "cache": 0}, 0),
        ({"allow": True, "cache": 1e12}, 86_400),
        ({"allow": True, "cache": 100, "expires": NOW_MS / 1000 + 30}, 30),
    ],
)
async def test_the_answer_sets_the_cache_time(fields: dict[str, Any], seconds: int) -> None:
    clock = Clock()
    asked = callout(Service(json.dumps(fields).encode()), clock)
    verdict = await asked.check(ANN)
    clock.ms += 1000 * seconds - 1
    assert asked.check_now(ANN) == (verdict if seconds else None)
    clock.ms += 1
    assert asked.check_now(ANN) is None


async def test_a_missing_answer_is_a_refusal_and_is_not_cached() -> None:
    service = Service(UnansweredError("no answer on x"), YES)
    asked = callout(service)
    verdict = await asked.check(ANN)
    assert verdict.result is AuthResult.UNAVAILABLE
    assert "no answer on x" in verdict.reason
    assert (await asked.check(ANN)).accepted


async def test_a_problem_is_logged_once_until_it_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = UnansweredError("no answer in time")
    asked = callout(Service(away, away, away, NO, away), cache_denied=0)
    for _ in range(5):
        await asked.check(ANN)
    out = capsys.readouterr().out
    assert out.count("auth callout failed") == 2
    assert "secret" not in out


async def test_the_same_login_at_once_is_one_question() -> None:
    service = Service(YES)
    service.gate.clear()
    asked = callout(service)
    tasks = [asyncio.create_task(asked.check(ANN)) for _ in range(50)]
    while not service.requests:  # noqa: ASYNC110 - a task that has to begin
        await asyncio.sleep(0)
    service.gate.set()
    assert all(verdict.accepted for verdict in await asyncio.gather(*tasks))
    assert len(service.requests) == 1


async def test_questions_at_once_are_bounded() -> None:
    service = Service(YES)
    service.gate.clear()
    asked = callout(service, at_once=3)
    logins = [ANN._replace(client_id=f"{number}") for number in range(20)]
    tasks = [asyncio.create_task(asked.check(shown)) for shown in logins]
    while asked.waiting < 17:  # noqa: ASYNC110 - each of them is a task that has to begin
        await asyncio.sleep(0)
    service.gate.set()
    assert all(verdict.accepted for verdict in await asyncio.gather(*tasks))
    assert service.most == 3


async def test_waiting_for_a_turn_counts_as_well() -> None:
    service = Service(YES)
    service.gate.clear()
    asked = callout(service, at_once=1, timeout=0.05)
    first = asyncio.create_task(asked.check(ANN))
    while not service.requests:  # noqa: ASYNC110 - a task that has to begin
        await asyncio.sleep(0)
    verdict = await asked.check(ANN._replace(client_id="other"))
    assert verdict.result is AuthResult.UNAVAILABLE
    assert "too many" in verdict.reason
    service.gate.set()
    assert (await first).accepted
    assert (await asked.check(ANN._replace(client_id="other"))).accepted


async def test_a_login_too_long_to_ask_about() -> None:
    service = Service(YES)
    verdict = await callout(service).check(ANN._replace(password=b"\x01" * (MAX_REQUEST // 6)))
    assert verdict.result is AuthResult.BAD_CREDENTIALS
    assert not service.requests


async def test_the_cache_is_bounded() -> None:
    rules = {"publish": ["level/" + "x" * 100] * 450}
    service = Service(json.dumps({"allow": True, **rules}).encode())
    asked = callout(service)
    for number in range(400):
        await asked.check(ANN._replace(client_id=f"{number}"))
    assert asked.check_now(ANN._replace(client_id="399"))
    assert asked.check_now(ANN._replace(client_id="0")) is None


async def test_equal_permissions_are_one_object() -> None:
    """So that they are made ready for use once, not for each client."""
    asked = callout(Service(b'{"allow": true, "publish": ["a/%c"], "subscribe": []}'))
    first, second = [await asked.check(ANN._replace(client_id=client)) for client in ("one", "two")]
    assert first.rules
    assert first.rules is second.rules


def test_closing() -> None:
    service = Service(YES)
    callout(service).close()
    assert service.closed
