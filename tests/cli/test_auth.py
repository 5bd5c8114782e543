"""Password files and the authenticator."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import argon2
import pytest

from actors import auth
from actors.auth import Anonymous, AuthResult, PasswordFile, PasswordFileError

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


def hashed(password: bytes) -> str:
    return CHEAP.hash(password)


@pytest.fixture
def users() -> Iterator[PasswordFile]:
    file = PasswordFile({"ann": hashed(b"right"), "bob": hashed(b"\x00\xff")})
    yield file
    file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


async def test_anonymous_lets_everybody_in_at_once() -> None:
    anonymous = Anonymous()
    assert anonymous.check_now(None, None) is AuthResult.ACCEPTED
    assert anonymous.check_now("who", b"ever") is AuthResult.ACCEPTED
    assert await anonymous.check("who", None) is AuthResult.ACCEPTED


@pytest.mark.parametrize(
    ("username", "password", "result"),
    [
        ("ann", b"right", AuthResult.ACCEPTED),
        ("bob", b"\x00\xff", AuthResult.ACCEPTED),
        ("ann", b"wrong", AuthResult.BAD_CREDENTIALS),
        ("ann", b"", AuthResult.BAD_CREDENTIALS),
        ("ann", None, AuthResult.BAD_CREDENTIALS),
        ("eve", b"right", AuthResult.BAD_CREDENTIALS),
        ("", b"right", AuthResult.BAD_CREDENTIALS),
        (None, None, AuthResult.NOT_AUTHORISED),
        (None, b"right", AuthResult.NOT_AUTHORISED),
    ],
)
async def test_check(
    users: PasswordFile, username: str | None, password: bytes | None, result: AuthResult
) -> None:
    assert await users.check(username, password) is result


async def test_users_and_anonymous() -> None:
    users = PasswordFile({"ann": hashed(b"right")}, allow_anonymous=True)
    assert users.check_now(None, None) is AuthResult.ACCEPTED
    assert await users.check("ann", b"wrong") is AuthResult.BAD_CREDENTIALS


async def test_right_credentials_are_remembered_and_wrong_ones_are_not(
    users: PasswordFile,
) -> None:
    assert users.check_now("ann", b"right") is None
    await users.check("ann", b"right")
    assert users.check_now("ann", b"right") is AuthResult.ACCEPTED
    assert users.check_now("bob", b"right") is None
    await users.check("ann", b"wrong")
    assert users.check_now("ann", b"wrong") is None


async def test_user_name_and_password_cannot_be_shifted_into_each_other(
    users: PasswordFile,
) -> None:
    await users.check("ann", b"right")
    assert users.check_now("annr", b"ight") is None
    assert users.check_now("an", b"nright") is None


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_CREDENTIALS", 2)
    users = PasswordFile({name: hashed(b"right") for name in ("a", "b", "c")})
    await users.check("a", b"right")
    await users.check("b", b"right")
    assert users.check_now("a", b"right") is AuthResult.ACCEPTED
    await users.check("c", b"right")
    assert users.check_now("b", b"right") is None
    assert users.check_now("a", b"right") is AuthResult.ACCEPTED


async def test_an_unknown_user_costs_a_verification_too(
    users: PasswordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []

    def verify(self: PasswordFile, stored: str, password: bytes) -> bool:
        verified.append(stored)
        return True

    monkeypatch.setattr(PasswordFile, "_verify", verify)
    assert await users.check("eve", b"x") is AuthResult.BAD_CREDENTIALS
    (decoy,) = verified
    # The same parameters as the users' hashes, hence the same time.
    assert decoy.rsplit("$", 2)[0] == hashed(b"x").rsplit("$", 2)[0]


async def test_the_same_credentials_at_once_are_verified_once(
    users: PasswordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, release = threading.Semaphore(0), threading.Event()

    def verify(self: PasswordFile, stored: str, password: bytes) -> bool:
        started.release()
        release.wait(10)
        return True

    monkeypatch.setattr(PasswordFile, "_verify", verify)
    checks = [asyncio.create_task(users.check("ann", b"right")) for _ in range(100)]
    await asyncio.to_thread(started.acquire)
    # One that leaves does not end it for the others.
    checks[0].cancel()
    await asyncio.sleep(0)
    release.set()
    results = await asyncio.gather(*checks[1:])
    assert set(results) == {AuthResult.ACCEPTED}
    assert not started.acquire(blocking=False)


async def test_a_check_nobody_waits_for_is_given_up(
    users: PasswordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    verified: list[bytes] = []

    def verify(self: PasswordFile, stored: str, password: bytes) -> bool:
        release.wait(10)
        verified.append(password)
        return False

    monkeypatch.setattr(PasswordFile, "_verify", verify)
    busy = [
        asyncio.create_task(users.check("ann", b"busy %d" % number))
        for number in range(auth.VERIFIER_THREADS)
    ]
    left = [asyncio.create_task(users.check("ann", b"left %d" % number)) for number in range(50)]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    release.set()
    await asyncio.gather(*busy)
    assert await users.check("ann", b"last") is AuthResult.BAD_CREDENTIALS
    assert sorted(verified) == [b"busy 0", b"busy 1", b"last"]


def test_file_with_comments_and_blank_lines(path: Path) -> None:
    path.write_text(f"# users\n\nann:{hashed(b'a')}\r\n   \nbob:{hashed(b'b')}")
    assert list(auth.parse(path, auth.read(path))) == ["ann", "bob"]


GOOD = hashed(b"x")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("ann", 1, "no colon"),
        (f"\n# c\n:{GOOD}", 3, "user name is empty"),
        (f"ann:{GOOD}\nbob:{GOOD}\nann:{GOOD}", 3, "'ann' appears twice"),
        ("ann:", 1, "not argon2"),
        ("ann:secret", 1, "not argon2"),
        ("ann:$2b$12$abcdefghijklmnopqrstuv", 1, "not argon2"),
        ("ann:$7$101$salt$hash", 1, "not argon2"),
        (f"ann:{GOOD[:-30]}$", 1, "not argon2"),
        (f"ann:{GOOD}:more", 1, "not argon2"),
        (f"ann:{GOOD}\nbob:{GOOD.replace('argon2id', 'argon3')}", 2, "not argon2"),
    ],
    ids=range(10),  # the salt of GOOD is another one in each process
)
def test_bad_line_is_named(path: Path, text: str, line: int, problem: str) -> None:
    path.write_text(text)
    with pytest.raises(PasswordFileError) as caught:
        PasswordFile.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert problem in str(caught.value)
    assert GOOD not in str(caught.value)


def test_file_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(PasswordFileError, match="cannot read password file: No such file"):
        PasswordFile.load(path)
    path.write_bytes(b"# fine\nann\xff:x\n")
    with pytest.raises(PasswordFileError) as caught:
        PasswordFile.load(path)
    assert str(caught.value) == f"{path}:2: not UTF-8 text"


@pytest.mark.parametrize("kind", list(argon2.Type))
def test_every_argon2_variant_is_taken(kind: argon2.Type) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1, type=kind)
    assert auth.is_argon2(hasher.hash(b"x"))
