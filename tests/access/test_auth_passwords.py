"""Password files: admitted users, the cost of a check, and refused lines."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import argon2
import pytest

from actors.access import passwords
from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.passwords import PasswordFile, PasswordFileError

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)

# Made by mosquitto_passwd 2.0.11 with -H sha512-pbkdf2 and -H sha512.
SECRET = "secret ä".encode()
PBKDF2 = (
    "$7$101$8FmDYHfjXpgBt6XL$smiDWt+CpW+OhOtvaVmC/Uf3yRX/+ZErAynofgBlPZ4D2/g7QfwDm8Rlkyk7O7LWXIcj"
    "sHPVpo8S9nG8iXcXFA=="
)
SHA512 = (
    "$6$5Dh1Cm/QZclTN1Aj$1swV0QvaE9VPtQ2cJT2cdcX6Woq08bHMOl05rQWE1XKxCyPbQ9uH6lrBN415rOgMbxFcQksNm"
    "eSXfceRQcPTaw=="
)


def hashed(password: bytes) -> str:
    return CHEAP.hash(password)


def login(username: str | None, password: bytes | None, address: str = "192.0.2.1") -> Credentials:
    return Credentials(username, password, address=address)


@pytest.fixture
def users() -> Iterator[PasswordFile]:
    file = PasswordFile({"ann": hashed(b"right"), "bob": hashed(b"\x00\xff")})
    yield file
    file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


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
    verdict = await users.check(login(username, password))
    assert verdict.result is result
    assert verdict.user == (username if result is AuthResult.ACCEPTED else None)
    assert bool(verdict.reason) is (result is not AuthResult.ACCEPTED)


async def test_hashes_of_mosquitto() -> None:
    users = PasswordFile({"new": PBKDF2, "old": SHA512, "ann": hashed(b"right")})
    for user in ("new", "old"):
        assert (await users.check(login(user, SECRET))).accepted
        for wrong in (SECRET + b"\0", SECRET[:-1], b"", b"right"):
            assert not (await users.check(login(user, wrong))).accepted
    assert (await users.check(login("ann", b"right"))).accepted
    users.close()


async def test_right_credentials_are_remembered_and_wrong_ones_are_not(
    users: PasswordFile,
) -> None:
    assert users.check_now(login("ann", b"right")) is None
    accepted = await users.check(login("ann", b"right"))
    assert accepted == Verdict(AuthResult.ACCEPTED, "ann", proof=accepted.proof)
    assert users.check_now(login("ann", b"right")) == accepted
    assert users.check_now(login("ann", b"right", "198.51.100.7")) == accepted
    assert users.check_now(login("bob", b"right")) is None
    await users.check(login("ann", b"wrong"))
    assert users.check_now(login("ann", b"wrong")) is None


async def test_user_name_and_password_cannot_be_shifted_into_each_other(
    users: PasswordFile,
) -> None:
    await users.check(login("ann", b"right"))
    assert users.check_now(login("annr", b"ight")) is None
    assert users.check_now(login("an", b"nright")) is None


async def test_a_verified_password_is_cached_while_its_hash_exists() -> None:
    hashes = {name: hashed(b"right") for name in ("ann", "bob", "carl")}
    before = PasswordFile(hashes)
    verdicts = {name: await before.check(login(name, b"right")) for name in hashes}
    assert None not in {verdict.proof for verdict in verdicts.values()}
    assert all(map(before.holds, verdicts.values()))
    after = PasswordFile({"ann": hashes["ann"], "bob": hashed(b"right")})
    assert {name: after.holds(verdict) for name, verdict in verdicts.items()} == {
        "ann": True,
        "bob": False,
        "carl": False,
    }
    assert not after.holds(verdicts["carl"]._replace(user="ann")), "the proof is of another hash"
    for file in (before, after):
        file.close()


async def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "REMEMBERED_CREDENTIALS", 2)
    users = PasswordFile({name: hashed(b"right") for name in ("a", "b", "c")})
    await users.check(login("a", b"right"))
    await users.check(login("b", b"right"))
    assert users.check_now(login("a", b"right"))
    await users.check(login("c", b"right"))
    assert users.check_now(login("b", b"right")) is None
    assert users.check_now(login("a", b"right"))
    users.close()


@pytest.mark.parametrize("kind", [hashed(b"x"), PBKDF2, SHA512], ids=["argon2", "7", "6"])
async def test_an_unknown_user_costs_a_verification_too(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []

    def verify(self: PasswordFile, stored: str, password: bytes) -> bool:
        verified.append(stored)
        return True

    monkeypatch.setattr(PasswordFile, "_verify", verify)
    users = PasswordFile({"ann": kind, "bob": kind})
    assert (await users.check(login("eve", b"x"))).result is AuthResult.BAD_CREDENTIALS
    (decoy,) = verified
    # The same parameters as the users' hashes, hence the same time.
    assert decoy.rsplit("$", 2)[0] == kind.rsplit("$", 2)[0]
    assert passwords.is_password_hash(decoy)
    assert len(decoy) == len(kind)
    users.close()


async def test_no_users_at_all() -> None:
    users = PasswordFile({})
    assert not (await users.check(login("eve", b"x"))).accepted
    assert (users.user_count, users.knows("eve")) == (0, False)
    users.close()


class Verifying:
    """Verifications, which fail, wait until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.release = threading.Semaphore(0), threading.Event()
        self.verified: list[bytes] = []
        monkeypatch.setattr(PasswordFile, "_verify", lambda _, *about: self.verify(*about))

    def verify(self, _stored: str, password: bytes) -> bool:
        self.begun.release()
        self.release.wait(30)
        self.verified.append(password)
        return password == b"right"


@pytest.fixture
def verifying(monkeypatch: pytest.MonkeyPatch) -> Verifying:
    return Verifying(monkeypatch)


async def test_the_same_credentials_at_once_are_verified_once(
    users: PasswordFile, verifying: Verifying
) -> None:
    checks = [
        asyncio.create_task(users.check(login("ann", b"right", f"192.0.2.{number}")))
        for number in range(100)
    ]
    await asyncio.to_thread(verifying.begun.acquire)
    # One that leaves does not end it for the others.
    checks[0].cancel()
    await asyncio.sleep(0)
    verifying.release.set()
    results = await asyncio.gather(*checks[1:])
    assert all(verdict.accepted for verdict in results)
    assert not verifying.begun.acquire(blocking=False)


async def test_a_check_is_cancelled_when_no_client_waits(
    users: PasswordFile, verifying: Verifying
) -> None:
    busy = [
        asyncio.create_task(users.check(login("ann", b"busy %d" % number)))
        for number in range(passwords.VERIFIER_THREADS)
    ]
    left = [
        asyncio.create_task(users.check(login("ann", b"left %d" % number))) for number in range(50)
    ]
    while users.waiting < len(left):  # noqa: ASYNC110 - each of them is a task that has to begin
        await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    verifying.release.set()
    await asyncio.gather(*busy)
    assert not (await users.check(login("ann", b"last"))).accepted
    assert verifying.verified[-1:] == [b"last"]
    assert len(verifying.verified) == passwords.VERIFIER_THREADS + 1


async def test_a_storm_from_one_address_does_not_delay_another(
    users: PasswordFile, verifying: Verifying
) -> None:
    storm = [
        asyncio.create_task(users.check(login("ann", b"wrong %d" % number))) for number in range(50)
    ]
    while users.waiting < len(storm) - passwords.VERIFIER_THREADS:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    other = asyncio.create_task(users.check(login("bob", b"other", "198.51.100.7")))
    while users.waiting <= len(storm) - passwords.VERIFIER_THREADS:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    verifying.release.set()
    await asyncio.gather(*storm, other)
    assert verifying.verified.index(b"other") <= 2 * passwords.VERIFIER_THREADS


def test_file_with_comments_and_blank_lines(path: Path) -> None:
    path.write_text(f"# users\n\nann:{hashed(b'a')}\r\n   \nbob:{PBKDF2}\nold:{SHA512}")
    assert list(passwords.parse_users(path, passwords.read(path))) == ["ann", "bob", "old"]
    file = PasswordFile.load(path)
    assert (file.user_count, file.knows("bob")) == (3, True)
    file.close()


GOOD = hashed(b"x")


def test_a_byte_order_mark_is_skipped(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + f"ann:{GOOD}\n".encode())
    assert list(passwords.parse_users(path, passwords.read(path))) == ["ann"]


def test_a_password_in_the_place_of_a_hash_is_not_quoted(path: Path) -> None:
    path.write_text("ann:pass:$word\n")
    with pytest.raises(PasswordFileError, match="user 'ann' is neither") as caught:
        passwords.parse_users(path, passwords.read(path))
    assert "pass:" not in str(caught.value)


NO_HASH = "neither argon2 nor a hash of Mosquitto"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("ann", 1, "no colon"),
        (f"\n# c\n:{GOOD}", 3, "user name is empty"),
        (f"ann:{GOOD}\nbob:{GOOD}\nann:{GOOD}", 3, "'ann' appears twice"),
        ("ann:", 1, NO_HASH),
        ("ann:secret", 1, NO_HASH),
        ("ann:$2b$12$abcdefghijklmnopqrstuv", 1, NO_HASH),
        ("ann:$7$101$salt$hash", 1, NO_HASH),
        (f"ann:{PBKDF2.replace('$101$', '$0$')}", 1, NO_HASH),
        (f"ann:{PBKDF2.replace('$101$', '$999999999$')}", 1, NO_HASH),
        (f"ann:{PBKDF2[:-4]}", 1, NO_HASH),
        (f"ann:{SHA512[:-2]}", 1, NO_HASH),
        (f"ann:{SHA512.replace('$6$', '$5$')}", 1, NO_HASH),
        ("ann:$6$rounds=5000$usesomesalt$" + "a" * 86, 1, NO_HASH),  # of crypt(3)
        (f"ann:{GOOD[:-30]}$", 1, NO_HASH),
        (f"ann:{GOOD}:more", 1, "the SCRAM keys of user 'ann' are invalid"),
        (f"ann:{GOOD.replace('m=64', 'm=99999999')}", 1, NO_HASH),
        (f"ann:{GOOD.replace('t=1', 't=99999999')}", 1, NO_HASH),
        (f"ann:{GOOD.replace('p=1', 'p=0')}", 1, NO_HASH),
        (f"ann:{GOOD}\nbob:{GOOD.replace('argon2id', 'argon3')}", 2, NO_HASH),
        ("a\x1b[31m\u202en:secret", 1, "user 'a\\u001b[31m\\u202en' is neither"),
    ],
    ids=range(20),  # the salt of GOOD is another one in each process
)
def test_bad_line_is_named(path: Path, text: str, line: int, problem: str) -> None:
    path.write_text(text)
    with pytest.raises(PasswordFileError) as caught:
        PasswordFile.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert problem in str(caught.value)
    assert GOOD not in str(caught.value)
    assert "secret" not in str(caught.value)


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
    assert passwords.is_argon2(hasher.hash(b"x"))


def test_every_accepted_hash_can_be_verified() -> None:
    # Salt and hash as short as they may be.
    short = "$argon2id$v=19$m=8,t=1,p=1$MTIzNDU2Nzg$MTIzNA"
    assert passwords.is_argon2(short)
    file = PasswordFile({"ann": short})
    assert file._verify(short, b"x") is False
    file.close()
    assert passwords.verify_mosquitto_hash("$7$x", b"x") is False
