"""Methods of enhanced authentication: decisions, the login backoff, the auth callout."""

import asyncio
import base64
import json
from collections import Counter
from typing import Any

import pytest
from harness.checkservice import NOW_MS, Clock, Service
from harness.manual_clock import ManualClock
from harness.scram import ScramClient

from actors.access.backend_selection import LOCKED_OUT, BackendSelection
from actors.access.callout import MAX_REPLY, MAX_STATE, Callout, CalloutMethod, CalloutOptions
from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.enhanced import Challenge, Exchange, Outcome, Step, make_methods
from actors.access.login_backoff import BackoffOptions, LoginBackoff
from actors.access.passwords import PasswordFile
from actors.access.rules import Rule
from actors.access.scram import SCRAM_SHA_256, derive_keys, render_keys
from eventstore.nats.request_client import UnansweredError

HERE, THERE = "192.0.2.1", "198.51.100.7"
HASH = "$argon2id$v=19$m=64,t=1,p=1$MTIzNDU2Nzg$MTIzNDU2Nzg5MDEyMzQ1Ng"
LINE = f"{HASH}:{render_keys(derive_keys(b'right', 4096))}"


def users(**more: str) -> PasswordFile:
    return PasswordFile({"ann": LINE, "bob": LINE, "old": HASH, **more}, decoy_secret=b"s")


def chain_of(
    file: PasswordFile | None = None, failures: int = 3, external: Any = None
) -> BackendSelection:
    options = BackoffOptions(failures=failures, address_failures=20)
    backoff = LoginBackoff(options, ManualClock(1000.0))
    return BackendSelection([], methods=make_methods(file, external), backoff=backoff)


def begun(chain: BackendSelection, **about: Any) -> Exchange:
    shown = {"username": None, "password": None, "address": HERE, **about}
    exchange = chain.begin_exchange(SCRAM_SHA_256, Credentials(**shown))
    assert exchange is not None
    return exchange


async def last_step(chain: BackendSelection, exchange: Exchange, data: bytes | None) -> Outcome:
    step = await chain.step(exchange, data)
    assert isinstance(step, Outcome)
    return step


async def log_in(
    chain: BackendSelection, user: str, secret: str, **about: Any
) -> tuple[Outcome, ScramClient]:
    """A whole login."""
    client, exchange = ScramClient(user, secret), begun(chain, **about)
    step = await chain.step(exchange, client.first)
    if isinstance(step, Challenge):
        step = await last_step(chain, exchange, client.final(step.data or b""))
    return step, client


async def test_scram_out_of_the_password_file() -> None:
    file = users()
    chain = chain_of(file)
    (verdict, data), client = await log_in(chain, "ann", "right")
    assert (verdict.result, verdict.user) == (AuthResult.ACCEPTED, "ann")
    assert client.trusts(data)
    assert file.holds(verdict)
    assert not users(ann=HASH).holds(verdict), "its line is another one"
    for user, password in (("ann", "wrong"), ("old", "right"), ("eve", "right")):
        (verdict, data), _ = await log_in(chain, user, password)
        assert (verdict.result, data) == (AuthResult.BAD_CREDENTIALS, None)
        assert verdict.reason == "wrong user name or password"
    assert chain.counts == Counter({("scram", "accepted"): 1, ("scram", "refused"): 3})


async def test_methods_that_are_not_there() -> None:
    assert chain_of(None).begin_exchange(SCRAM_SHA_256, Credentials(None, None)) is None
    assert chain_of(users()).begin_exchange("SCRAM-SHA-1", Credentials(None, None)) is None
    # A reload took it away between two steps.
    exchange = begun(chain_of(users()))
    step = await last_step(chain_of(None), exchange, b"x")
    assert step.verdict.result is AuthResult.UNAVAILABLE


async def test_a_reload_between_two_steps() -> None:
    client, before = ScramClient("ann", "right"), chain_of(users())
    exchange = begun(before)
    step = await before.step(exchange, client.first)
    before.close()
    assert isinstance(step, Challenge)
    step = await last_step(chain_of(users()), exchange, client.final(step.data or b""))
    assert step.verdict.accepted


@pytest.mark.parametrize(
    ("about", "accepted"),
    [
        ({"username": "ann"}, True),
        ({"username": ""}, True),
        ({"username": "bob"}, False),
        ({"certificate_user": "ann"}, True),
        ({"certificate_user": "bob"}, False),
        ({"password": b"not looked at"}, True),
    ],
)
async def test_connect_and_certificate_must_name_the_same_user(
    about: dict[str, Any], *, accepted: bool
) -> None:
    (verdict, _), _ = await log_in(chain_of(users()), "ann", "right", **about)
    assert verdict.accepted == accepted


async def test_failures_slow_a_user_and_the_right_password_gets_in() -> None:
    chain = chain_of(users())
    for user in ("ann", "nobody"):
        for _ in range(3):
            (verdict, _), _ = await log_in(chain, user, "wrong")
            assert verdict.reason == "wrong user name or password"
    assert chain._backoff is not None
    assert chain._backoff.holds(HERE, "ann")
    assert (await log_in(chain, "bob", "right"))[0].verdict.accepted
    assert (await log_in(chain, "ann", "right"))[0].verdict.accepted
    assert not chain._backoff.holds(HERE, "ann")


async def test_a_connected_client_is_not_locked_out_by_others_at_its_address() -> None:
    chain = chain_of(users())

    async def again(user: str, secret: str) -> Verdict:
        client = ScramClient(user, secret)
        shown = Credentials("ann", None, address=HERE)
        exchange = chain.begin_exchange(SCRAM_SHA_256, shown, reauthenticates=True)
        assert exchange is not None
        step = await chain.step(exchange, client.first)
        if isinstance(step, Challenge):
            step = await last_step(chain, exchange, client.final(step.data or b""))
        return step.verdict

    for user in ("ann", "bob"):
        for _ in range(3):
            await log_in(chain, user, "wrong")
    assert chain._backoff is not None
    for _ in range(200):
        chain._backoff.reserve(HERE, "bob")
        chain._backoff.reserve(HERE, "ann")
    assert await again("bob", "right") is LOCKED_OUT, "it cannot guess for others"
    assert (await again("ann", "right")).user == "ann"
    assert (await log_in(chain, "ann", "right"))[0].verdict.accepted
    # Its own failures count.
    for _ in range(3):
        assert not (await again("ann", "wrong")).accepted
    assert chain._backoff.holds(HERE, "ann")


async def test_many_exchanges_at_once_are_no_more_guesses() -> None:
    chain = chain_of(users())
    clients = [ScramClient("ann", "right" if n == 19 else f"wrong {n}") for n in range(20)]
    exchanges = [begun(chain) for _ in clients]
    steps = [
        await chain.step(exchange, client.first)
        for exchange, client in zip(exchanges, clients, strict=True)
    ]
    answers = [
        client.final(step.data or b"")
        for client, step in zip(clients, steps, strict=True)
        if isinstance(step, Challenge)
    ]
    ends = await asyncio.gather(
        *(chain.step(exchange, data) for exchange, data in zip(exchanges, answers, strict=True))
    )
    verdicts = [end.verdict for end in ends if isinstance(end, Outcome)]
    assert [verdict is LOCKED_OUT for verdict in verdicts] == [False] * 3 + [True] * 17


async def test_a_failing_method_is_a_refusal() -> None:
    class Broken:
        label = "callout"

        async def step(self, exchange: Exchange, data: bytes | None) -> Step:
            raise RuntimeError("secret")

    chain = chain_of(external=("BROKEN", Broken()))
    exchange = chain.begin_exchange("BROKEN", Credentials("ann", None))
    assert exchange is not None
    step = await last_step(chain, exchange, None)
    assert step.verdict.result is AuthResult.UNAVAILABLE


# --- the auth callout


def asking(*answers: dict[str, Any] | bytes | Exception, **options: Any) -> tuple[Any, Service]:
    service = Service(
        *(json.dumps(one).encode() if isinstance(one, dict) else one for one in answers)
    )
    callout = Callout(CalloutOptions(node="node-1", **options), service, Clock())
    return chain_of(external=("EXAMPLE", CalloutMethod(callout))), service


def asked(chain: BackendSelection, *, again: bool = False, **about: Any) -> Exchange:
    shown = Credentials(
        **{"username": None, "password": None, "client_id": "c", "address": HERE, **about}
    )
    exchange = chain.begin_exchange("EXAMPLE", shown, reauthenticates=again)
    assert exchange is not None
    return exchange


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_steps_of_an_external_method() -> None:
    chain, service = asking(
        {"continue": True, "data_base64": base64_of(b"riddle"), "state": "s1", "reason": "solve"},
        {"continue": True, "state": "s2"},
        {
            "allow": True,
            "user": "ann",
            "groups": ["g"],
            "publish": ["a/#"],
            "expires": NOW_MS / 1000 + 60,
            "data_base64": base64_of(b"welcome"),
        },
    )
    exchange = asked(chain, username="x", password=b"p")
    assert await chain.step(exchange, b"\xff") == Challenge(b"riddle", "solve")
    assert await chain.step(exchange, None) == Challenge(None, None)
    step = await last_step(chain, exchange, b"")
    assert step.data == b"welcome"
    verdict = step.verdict
    assert (verdict.user, verdict.groups, verdict.expires_ms) == ("ann", ("g",), NOW_MS + 60_000)
    rule = Rule(allow=True, publish=True, subscribe=False, filter="a/#", where="auth callout")
    assert verdict.rules == (rule,)
    first = service.requests[0]
    assert first == {
        "version": 1,
        "node": "node-1",
        "client": "c",
        "user": "x",
        "password": "p",
        "address": HERE,
        "listener": "",
        "certificate_user": None,
        "method": "EXAMPLE",
        "data_base64": "/w==",
        "exchange": first["exchange"],
        "step": 1,
        "state": None,
        "reauthentication": False,
    }
    assert [one["step"] for one in service.requests] == [1, 2, 3]
    assert [one["state"] for one in service.requests] == [None, "s1", "s2"]
    assert [one["data_base64"] for one in service.requests] == ["/w==", None, ""]
    assert len({one["exchange"] for one in service.requests}) == 1
    assert chain.counts == Counter({("callout", "accepted"): 1})


async def test_nothing_is_cached_and_exchanges_have_names_of_their_own() -> None:
    chain, service = asking({"allow": True, "cache": 60})
    for again in (False, False, True):
        step = await last_step(chain, asked(chain, username="ann", again=again), b"same")
        assert step.verdict == Verdict(AuthResult.ACCEPTED, "ann")
    assert len({one["exchange"] for one in service.requests}) == 3
    assert [one["reauthentication"] for one in service.requests] == [False, False, True]


async def test_denied_by_an_external_method_counts_as_a_wrong_password() -> None:
    chain, service = asking({"allow": False, "reason": "wrong answer"})
    for _ in range(3):
        step = await last_step(chain, asked(chain, username="ann"), b"x")
        assert step.verdict == Verdict(AuthResult.BAD_CREDENTIALS, reason="wrong answer")
    assert chain._backoff is not None
    for _ in range(40):
        chain._backoff.reserve(HERE, "ann")
    step = await last_step(chain, asked(chain, username="ann"), b"x")
    assert step.verdict is LOCKED_OUT
    assert len(service.requests) == 3, "no request is made while too many wait"


@pytest.mark.parametrize(
    "reply",
    [
        UnansweredError("no answer on foldmq.auth"),
        b"",
        b"[]",
        b"x" * (MAX_REPLY + 1),
        {},
        {"allow": "yes"},
        {"allow": True},
        {"allow": True, "user": ""},
        {"allow": True, "user": "ann", "continue": True},
        {"allow": True, "user": "ann", "state": "s"},
        {"continue": False},
        {"continue": True, "user": "ann"},
        {"continue": True, "data_base64": "?"},
        {"continue": True, "data_base64": 7},
        {"continue": True, "data_base64": base64_of(bytes(65_536))},
        {"continue": True, "state": 7},
        {"continue": True, "state": "x" * (MAX_STATE + 1)},
        {"continue": True, "reason": 7},
        {"continue": True, "reason": "a\0b"},
        {"continue": True, "reason": "x" * 1025},
        {"continue": True, "unknown": 1},
    ],
    ids=lambda reply: repr(reply)[:40],
)
async def test_an_invalid_answer_is_a_refusal(reply: Any) -> None:
    chain, _ = asking(reply)
    step = await last_step(chain, asked(chain), b"x")
    assert step.verdict.result is AuthResult.UNAVAILABLE
    assert chain.counts == Counter({("callout", "unavailable"): 1})


async def test_a_client_that_leaves_ends_the_question() -> None:
    chain, service = asking({"allow": True, "user": "ann"})
    service.gate.clear()
    task = asyncio.create_task(chain.step(asked(chain), b"x"))
    await service.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await service.given_up.wait()
    assert not chain._attempts
