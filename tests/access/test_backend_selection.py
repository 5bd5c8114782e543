"""Selection of the backend that decides on a login, and the effect on the login backoff."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from harness.manual_clock import ManualClock

from actors.access.backend_selection import LOCKED_OUT, BackendSelection
from actors.access.backends import make_backends
from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.login_backoff import BackoffOptions, LoginBackoff
from actors.access.passwords import PasswordFile

HERE = "192.0.2.1"
TOKEN = b"eyJhbGciOiJub25lIn0.e30.x"
WRONG = Verdict(AuthResult.BAD_CREDENTIALS, reason="wrong")
AWAY = Verdict(AuthResult.UNAVAILABLE, reason="away")


def made(
    *,
    backoff: LoginBackoff | None = None,
    counts: Counter[tuple[str, str]] | None = None,
    **wanted: Any,
) -> BackendSelection:
    """A chain of the backends that are wanted."""
    return BackendSelection(make_backends(**wanted), backoff=backoff, counts=counts)


class Source:
    """A source that knows some users and takes the password "right"."""

    def __init__(self, name: str, *users: str, at_once: bool = False) -> None:
        self.name = name
        self.users = users
        self.handles: dict[bytes, str] = {}
        self.at_once = at_once
        self.asked: list[str | None] = []
        self.remembered: set[tuple[str | None, bytes | None]] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = False
        self.closed = False
        self.begun = False
        self.good: set[int | None] = set()

    def knows(self, username: str) -> bool:
        return username in self.users

    def verifying(self, shown: Credentials) -> bool:
        return self.begun

    def holds(self, verdict: Verdict) -> bool:
        return verdict.proof in self.good

    def check_now(self, shown: Credentials) -> Verdict | None:
        if (shown.username, shown.password) in self.remembered:
            return Verdict(AuthResult.ACCEPTED, f"{self.name}:{shown.username}")
        return self._verdict(shown) if self.at_once else None

    async def check(self, shown: Credentials) -> Verdict:
        self.asked.append(shown.username)
        await self.gate.wait()
        return self._verdict(shown)

    def _verdict(self, shown: Credentials) -> Verdict:
        if self.down:
            return AWAY
        if shown.username in self.users and shown.password in (b"right", TOKEN):
            return Verdict(AuthResult.ACCEPTED, f"{self.name}:{shown.username}")
        return WRONG

    def claimed_user(self, token: bytes) -> str:
        return self.handles.get(token, "")

    def close(self) -> None:
        self.closed = True


def login(username: str | None, password: bytes | None = b"right", **more: Any) -> Credentials:
    return Credentials(username, password, **{"address": HERE, **more})


def backoff(clock: ManualClock | None = None) -> LoginBackoff:
    return LoginBackoff(BackoffOptions(failures=3, address_failures=10), clock or ManualClock())


async def decided(chain: BackendSelection, shown: Credentials) -> Verdict:
    """The verdict, as a connection comes to it."""
    return chain.check_now(shown) or await chain.check(shown)


async def test_each_login_is_decided_by_one_backend() -> None:
    tokens, passwords, callout = (
        Source("token", "ann"),
        Source("file", "ann", "bob"),
        Source("call", "ann", "carl"),
    )
    chain = made(tokens=tokens, passwords=passwords, callout=callout)
    for username, password, user in (
        ("ann", TOKEN, "token:ann"),
        ("bob", TOKEN, None),
        ("ann", b"right", "file:ann"),
        ("bob", b"right", "file:bob"),
        ("carl", b"right", "call:carl"),
        ("ann", b"wrong", None),
        ("eve", b"right", None),
        ("bob", None, None),
    ):
        verdict = await decided(chain, login(username, password))
        assert (verdict.user, verdict.accepted) == (user, user is not None)
    assert tokens.asked == ["ann", "bob"]
    assert passwords.asked == ["ann", "bob", "ann", "bob"]
    assert callout.asked == ["carl", "eve"]
    assert chain.counts == Counter(
        {
            ("token", "accepted"): 1,
            ("token", "refused"): 1,
            ("password", "accepted"): 2,
            ("password", "refused"): 2,
            ("callout", "accepted"): 1,
            ("callout", "refused"): 1,
        }
    )
    chain.close()
    assert tokens.closed
    assert passwords.closed
    assert callout.closed


async def test_tokens_alone_take_no_other_password() -> None:
    chain = made(tokens=Source("token", "ann"))
    verdict = await decided(chain, login("ann", b"right", allow_anonymous=True))
    assert verdict.result is AuthResult.BAD_CREDENTIALS


async def test_without_tokens_a_password_may_look_like_one() -> None:
    passwords = Source("file", "ann")
    assert (await decided(made(passwords=passwords), login("ann", TOKEN))).user == "file:ann"


async def test_a_certificate_is_enough() -> None:
    passwords = Source("file", "ann")
    chain = made(passwords=passwords, callout=Source("call"))
    verdict = chain.check_now(login("ann", b"wrong", certificate_user="sensor 7"))
    assert verdict == Verdict(AuthResult.ACCEPTED, "sensor 7")
    assert chain.counts["certificate", "accepted"] == 1


async def test_users_from_certificates_can_be_checked_by_the_callout() -> None:
    callout = Source("call")
    chain = made(callout=callout, ask_certified=True)
    shown = login(None, None, certificate_user="sensor 7")
    assert chain.check_now(shown) is None
    assert not (await chain.check(shown)).accepted
    assert callout.asked == [None]
    # Without anybody to ask, the certificate decides.
    assert made(ask_certified=True).check_now(shown) == Verdict(AuthResult.ACCEPTED, "sensor 7")


@pytest.mark.parametrize("source", [None, "file"])
async def test_anonymous_clients_need_a_listener_that_allows_them(source: str | None) -> None:
    chain = made(passwords=Source("file", "ann") if source else None)
    nobody = Credentials(None, None)
    verdict = chain.check_now(nobody)
    assert verdict is not None
    assert verdict.result is AuthResult.NOT_AUTHORISED
    verdict = chain.check_now(nobody._replace(allow_anonymous=True))
    assert verdict == Verdict(AuthResult.ACCEPTED, None)


async def test_wrong_credentials_do_not_become_anonymous() -> None:
    chain = made(passwords=Source("file", "ann"), callout=Source("call"))
    for username, password in (("ann", b"wrong"), ("eve", b"x"), ("eve", None)):
        verdict = await decided(chain, login(username, password, allow_anonymous=True))
        assert verdict.result is AuthResult.BAD_CREDENTIALS


@pytest.mark.parametrize("password", [None, b"", b"right"])
@pytest.mark.parametrize("source", [None, "file", "callout"])
async def test_an_empty_user_name_is_none_where_anonymous_clients_are_allowed(
    source: str | None, password: bytes | None
) -> None:
    for claimed in (False, True):
        chain = made(
            passwords=Source("file", "ann") if source == "file" else None,
            callout=Source("call", "") if source == "callout" else None,
            tokens=Source("token", "ann"),
            claimed_names=claimed,
        )
        verdict = await decided(chain, login("", password, allow_anonymous=True))
        assert (verdict.accepted, verdict.user) == (True, None)
    refused = await decided(made(passwords=Source("file", "ann")), login("", password))
    assert not refused.accepted


async def test_a_token_with_an_empty_user_name_is_verified() -> None:
    tokens = Source("token", "")
    chain = made(tokens=tokens)
    assert (await decided(chain, login("", TOKEN, allow_anonymous=True))).user == "token:"
    chain = made(passwords=Source("file", "ann"))
    assert (await decided(chain, login("", TOKEN, allow_anonymous=True))).user is None


@pytest.mark.parametrize(
    ("anonymous", "claimed", "expected"),
    [
        (True, False, Verdict(AuthResult.ACCEPTED, None)),
        (True, True, Verdict(AuthResult.ACCEPTED, "ann", claimed=True)),
        (False, True, None),
        (False, False, None),
    ],
)
def test_a_user_name_that_no_backend_could_check(
    anonymous: bool, claimed: bool, expected: Verdict | None
) -> None:
    chain = made(claimed_names=claimed)
    verdict = chain.check_now(login("ann", allow_anonymous=anonymous))
    assert verdict is not None
    if expected is None:
        assert verdict.result is AuthResult.NOT_AUTHORISED
    else:
        assert verdict == expected


async def test_failures_slow_a_user_but_cached_credentials_pass() -> None:
    clock, passwords = ManualClock(), Source("file", "ann", "bob")
    guard = backoff(clock)
    chain = made(passwords=passwords, backoff=guard)
    for _ in range(3):
        assert await decided(chain, login("ann", b"wrong")) == WRONG
    waits = [guard.reserve(HERE, "ann") for _ in range(40)]
    assert waits[:3] == [0.0, 0.25, 0.5]
    assert waits[-1] is None
    asked = len(passwords.asked)
    assert chain.check_now(login("ann", b"right")) is None
    assert await chain.check(login("ann", b"right")) == LOCKED_OUT, "too many wait before it"
    assert len(passwords.asked) == asked
    assert guard.refused == chain.counts["password", "backoff"] == 1
    # The same answer as to a wrong password.
    assert LOCKED_OUT.result is WRONG.result
    passwords.remembered.add(("ann", b"right"))
    assert chain.check_now(login("ann", b"right")) == Verdict(AuthResult.ACCEPTED, "file:ann")
    assert (await decided(chain, login("bob"))).accepted
    assert (await decided(chain, login("ann", b"right", address="198.51.100.7"))).accepted
    clock.now += 300
    assert (await decided(chain, login("ann"))).accepted


async def test_a_right_password_gets_in_after_many_wrong_ones() -> None:
    passwords, guard = Source("file", "ann", "bob"), backoff()
    chain = made(passwords=passwords, backoff=guard)
    for number in range(20):
        guard.failed(HERE, f"user {number}")
    assert guard.answers_late(HERE)
    assert (await decided(chain, login("ann"))).accepted
    for _ in range(3):
        guard.failed(HERE, "bob")
    assert guard.holds(HERE, "bob")
    assert (await decided(chain, login("bob"))).accepted
    assert not guard.holds(HERE, "bob")


async def test_a_client_that_leaves_gives_its_turn_back() -> None:
    passwords, guard = Source("file", "ann"), backoff()
    chain = made(passwords=passwords, backoff=guard)
    for _ in range(3):
        guard.failed(HERE, "ann")
    guard.reserve(HERE, "ann")
    tasks = [asyncio.create_task(chain.check(login("ann", b"%d" % n))) for n in range(20)]
    await settle()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert guard.reserve(HERE, "ann") == 0.25
    assert not passwords.asked


async def test_bad_tokens_without_a_user_name_are_held_against_the_user_they_claim() -> None:
    tokens, guard = Source("token", ""), backoff()
    chain = made(tokens=tokens, backoff=guard)
    forged, nameless = TOKEN + b"forged", TOKEN + b"nameless"
    tokens.handles = {forged: "eve", TOKEN: "ann"}
    for _ in range(3):
        assert await decided(chain, login("", forged)) == WRONG
    assert guard.holds(HERE, "eve")
    assert not guard.holds(HERE, "")
    assert (await decided(chain, login("", TOKEN))).accepted
    # Tokens without a user are slowed together.
    for _ in range(3):
        assert await decided(chain, login("", nameless)) == WRONG
    assert guard.holds(HERE, "")
    assert (await decided(chain, login("", TOKEN))).accepted


async def test_a_lockout_outlives_a_reload() -> None:
    guard, counts = backoff(), Counter[tuple[str, str]]()
    chain = made(passwords=Source("file", "ann"), backoff=guard, counts=counts)
    for _ in range(3):
        await decided(chain, login("ann", b"wrong"))
    chain = made(passwords=Source("file", "ann"), backoff=guard, counts=counts)
    for _ in range(40):
        guard.reserve(HERE, "ann")
    assert await chain.check(login("ann")) == LOCKED_OUT
    assert counts == {("password", "refused"): 3, ("password", "backoff"): 1}


async def test_success_forgets_the_failures_before_it() -> None:
    chain = made(passwords=Source("file", "ann"), backoff=backoff())
    for _ in range(3):
        for password in (b"wrong", b"wrong", b"right"):
            await decided(chain, login("ann", password))
    assert (await decided(chain, login("ann", b"wrong"))) == WRONG


async def test_a_check_that_could_not_be_made_is_no_failure() -> None:
    callout = Source("call", "ann")
    callout.down = True
    chain = made(callout=callout, backoff=backoff())
    for _ in range(20):
        assert await decided(chain, login("ann")) == AWAY
    callout.down = False
    assert (await decided(chain, login("ann"))).accepted
    assert chain.counts["callout", "unavailable"] == 20


async def test_refusals_that_are_remembered_count_as_well() -> None:
    chain = made(callout=Source("call", at_once=True), backoff=backoff())
    for _ in range(3):
        assert chain.check_now(login("eve")) == WRONG
    assert chain.counts["callout", "refused"] == 3


async def test_waiting_checks_of_a_user_are_cancelled_when_it_is_slowed() -> None:
    passwords = Source("file", "ann")
    passwords.gate.clear()
    chain = made(passwords=passwords, backoff=backoff())
    storm = [asyncio.create_task(chain.check(login(f"user {number}", b"x"))) for number in range(9)]
    other = asyncio.create_task(chain.check(login("ann", address="198.51.100.7")))
    first = [asyncio.create_task(chain.check(login("bob", b"x"))) for _ in range(3)]
    while len(passwords.asked) < 13:  # noqa: ASYNC110 - each of them is a task that has to begin
        await asyncio.sleep(0)
    chain._give_up(login("bob"), "bob")
    assert await asyncio.gather(*first) == [LOCKED_OUT] * 3
    passwords.gate.set()
    assert (await other).accepted
    assert await asyncio.gather(*storm) == [WRONG] * 9
    assert not chain._attempts


async def test_a_storm_ends_with_the_last_failure_that_counts() -> None:
    passwords = Source("file", "ann")
    passwords.gate.clear()
    chain = made(passwords=passwords, backoff=backoff())
    turn = asyncio.Semaphore(1)

    async def check(shown: Credentials) -> Verdict:
        async with turn:
            await passwords.gate.wait()
            passwords.asked.append(shown.username)
            await asyncio.sleep(0)
            return WRONG

    passwords.check = check  # type: ignore[method-assign]
    storm = [asyncio.create_task(chain.check(login("ann", b"%d" % n))) for n in range(100)]
    await asyncio.sleep(0)
    passwords.gate.set()
    verdicts = await asyncio.gather(*storm)
    # One more may have been on its way when the third failed.
    assert verdicts.count(WRONG) in (3, 4)
    assert verdicts.count(WRONG) + verdicts.count(LOCKED_OUT) == 100
    assert len(passwords.asked) <= 4


async def test_a_check_is_cancelled_when_its_client_leaves() -> None:
    passwords = Source("file", "ann")
    passwords.gate.clear()
    chain = made(passwords=passwords, backoff=backoff())
    task = asyncio.create_task(chain.check(login("ann")))
    while not passwords.asked:  # noqa: ASYNC110 - a task that has to begin
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not chain._attempts
    assert not chain.counts


async def leave_early(chain: BackendSelection, passwords: Source, *logins: Credentials) -> None:
    """Begin logins, and leave before they are decided."""
    wanted = len(passwords.asked) + len(logins)
    tasks = [asyncio.create_task(chain.check(shown)) for shown in logins]
    while len(passwords.asked) < wanted:  # noqa: ASYNC110 - tasks that have to begin
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_client_that_leaves_before_the_answer_has_still_guessed() -> None:
    passwords, guard = Source("file", "ann"), backoff()
    passwords.gate.clear()
    passwords.begun = True
    chain = made(passwords=passwords, backoff=guard)
    await leave_early(chain, passwords, *[login("ann", b"%d" % number) for number in range(3)])
    assert not chain.counts, "nothing is known yet"
    passwords.gate.set()
    await settle()
    assert chain.counts == {("password", "refused"): 3}
    assert guard.lockouts == 1
    assert guard.holds(HERE, "ann")
    assert not chain._attempts
    assert not chain._abandoned


async def test_a_correct_login_that_leaves_before_the_answer_is_not_counted() -> None:
    passwords, guard = Source("file", "ann"), backoff()
    chain = made(passwords=passwords, backoff=guard)
    for _ in range(2):
        await decided(chain, login("ann", b"wrong"))
    passwords.gate.clear()
    passwords.begun = True
    await leave_early(chain, passwords, login("ann"))
    passwords.gate.set()
    await settle()
    assert chain.counts == {("password", "refused"): 2}
    await decided(chain, login("ann", b"wrong"))
    assert guard.lockouts == 1, "nothing was forgiven"


async def test_checks_without_a_client_are_bounded_and_end_with_the_lockout() -> None:
    passwords, guard = Source("file", "ann"), backoff()
    passwords.gate.clear()
    passwords.begun = True
    chain = made(passwords=passwords, backoff=guard)
    await leave_early(chain, passwords, *[login("ann", b"same")] * 150)
    (alone,) = chain._attempts.values()
    assert len(alone) == chain._abandoned == 100
    passwords.gate.set()
    await settle()
    assert guard.lockouts == 2, "the user there, and then the address"
    assert not chain._attempts
    assert not chain._abandoned


async def test_a_lockout_cancels_checks_without_a_client() -> None:
    passwords = Source("file", "ann")
    passwords.gate.clear()
    passwords.begun = True
    chain = made(passwords=passwords, backoff=backoff())
    await leave_early(chain, passwords, login("ann", b"x"))
    chain._give_up(login("ann"), "ann")
    await settle()
    assert not chain._attempts
    assert not chain._abandoned
    assert not chain.counts


async def test_a_hash_that_is_being_computed_counts_and_one_that_waits_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, release = threading.Semaphore(0), threading.Event()
    verified: list[bytes] = []

    def verify(self: PasswordFile, stored: str, password: bytes) -> bool:
        begun.release()
        release.wait(30)
        verified.append(password)
        return False

    monkeypatch.setattr(PasswordFile, "_verify", verify)
    file, guard = PasswordFile({}, threads=1), backoff()
    chain = made(passwords=file, backoff=guard)
    first = asyncio.create_task(chain.check(login("ann", b"first")))
    await asyncio.to_thread(begun.acquire)
    others = [asyncio.create_task(chain.check(login("ann", b"%d" % n))) for n in range(20)]
    while file.waiting < len(others):  # noqa: ASYNC110 - tasks that have to begin
        await asyncio.sleep(0)
    for task in (first, *others):
        task.cancel()
    await asyncio.gather(first, *others, return_exceptions=True)
    assert file.waiting == 0
    release.set()
    async with asyncio.timeout(10):
        while chain._attempts:  # noqa: ASYNC110 - a thread that has to end
            await asyncio.sleep(0.001)
    assert verified == [b"first"]
    assert chain.counts == {("password", "refused"): 1}
    assert len(guard) == 2, "the user there, and the address"
    assert not file.verifying(login("ann", b"first"))
    assert not file._single_flight._running
    chain.close()


def test_the_state_after_a_reload() -> None:
    passwords = Source("file")
    passwords.good = {7}
    there, gone = made(passwords=passwords), made()
    for proof, chain, expected in (
        (7, there, True),
        (8, there, False),
        (7, gone, False),
        (None, there, True),
        (None, gone, True),
    ):
        assert chain.holds(Verdict(AuthResult.ACCEPTED, "ann", proof=proof)) is expected


async def test_a_failing_check_is_a_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    passwords = Source("file", "ann")

    async def check(shown: Credentials) -> Verdict:
        raise LookupError(f"{shown.password!r}")

    passwords.check = check  # type: ignore[method-assign]
    verdict = await made(passwords=passwords).check(login("ann", b"secret"))
    assert verdict.result is AuthResult.UNAVAILABLE
    out = capsys.readouterr().out
    assert "LookupError" in out
    assert "secret" not in out
