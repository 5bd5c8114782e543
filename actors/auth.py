"""Who may connect: anonymous access, or users in a password file with argon2 hashes.

A password file has one ``user:hash`` per line; blank lines and lines that begin with ``#`` are
comments. ``foldmq passwd`` writes it.
"""

import asyncio
import base64
import binascii
import collections
import enum
import hashlib
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import argon2
import structlog
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from protocol.errors import FoldmqError

# One verification takes tens of milliseconds of a core and 64 MiB (RFC 9106, section 4): more at
# once than this would take both from the broker.
VERIFIER_THREADS = 2
REMEMBERED_CREDENTIALS = 10_000

# Bytes, RFC 9106 section 3.1; the reference implementation refuses less.
_MIN_SALT = 8
_MIN_DIGEST = 4
_HASH = re.compile(r"\$argon2(?:id|i|d)\$(?:v=\d+\$)?m=\d+,t=\d+,p=\d+\$([^$]+)\$([^$]+)")

log = structlog.get_logger("foldmq")


class AuthResult(enum.IntEnum):
    """The outcome as the CONNACK return code that tells it (MQTT 3.1.1, table 3.1)."""

    ACCEPTED = 0x00
    BAD_CREDENTIALS = 0x04
    NOT_AUTHORISED = 0x05


class Authenticator(Protocol):
    """Decides on the user name and password of a CONNECT; both are None when it carries none."""

    def check_now(self, username: str | None, password: bytes | None) -> AuthResult | None:
        """Give the result if it is known without work, else None: ``check`` must be awaited."""

    async def check(self, username: str | None, password: bytes | None) -> AuthResult:
        """Give the result; may take tens of milliseconds, during which the event loop is free."""

    def close(self) -> None:
        """Let the threads end once the checks that have begun are done."""


class Anonymous:
    """Everybody may connect; a user name and password are accepted unseen."""

    def check_now(self, username: str | None, password: bytes | None) -> AuthResult | None:
        """Accept."""
        del username, password
        return AuthResult.ACCEPTED

    async def check(self, username: str | None, password: bytes | None) -> AuthResult:
        """Accept."""
        del username, password
        return AuthResult.ACCEPTED

    def close(self) -> None:
        """Do nothing: there are no threads."""


class PasswordFileError(FoldmqError):
    """A password file that cannot be read or has a bad line."""

    exit_code = 78  # EX_CONFIG of sysexits.h, as in eventstore.errors


class PasswordFile:
    """Users with argon2 hashes, verified in a few threads beside the event loop.

    An unknown user costs the same work as a wrong password, so that the time of the answer does
    not tell which users exist. Credentials that were right once are remembered under a keyed hash
    (in memory, the least recently used forgotten first), so that a reconnecting fleet is not
    verified one by one; a new password file means a new object, which remembers nothing.
    """

    def __init__(self, users: Mapping[str, str], *, allow_anonymous: bool = False) -> None:
        """Take ``users`` as user name to argon2 hash; the hashes must be well formed."""
        self._users = dict(users)
        self._without_username = (
            AuthResult.ACCEPTED if allow_anonymous else AuthResult.NOT_AUTHORISED
        )
        self._hasher = argon2.PasswordHasher()
        self._decoy = self._make_decoy()
        self._key = os.urandom(32)
        self._remembered: collections.OrderedDict[bytes, None] = collections.OrderedDict()
        self._running: dict[bytes, _Verification] = {}
        self._threads = ThreadPoolExecutor(VERIFIER_THREADS, thread_name_prefix="foldmq-auth")

    @classmethod
    def load(cls, path: Path, *, allow_anonymous: bool = False) -> "PasswordFile":
        """Read the password file at ``path``.

        Raises PasswordFileError naming file and line for a duplicate user, a missing colon and
        a hash that is not argon2, and naming the file when it cannot be read.
        """
        return cls(parse(path, read(path)), allow_anonymous=allow_anonymous)

    @property
    def user_count(self) -> int:
        """The number of users."""
        return len(self._users)

    def check_now(self, username: str | None, password: bytes | None) -> AuthResult | None:
        """Answer for clients without a user name or password and for remembered credentials."""
        if username is None:
            return self._without_username
        if password is None:
            return AuthResult.BAD_CREDENTIALS
        return AuthResult.ACCEPTED if self._recall(self._digest(username, password)) else None

    async def check(self, username: str | None, password: bytes | None) -> AuthResult:
        """Verify in a thread; the same credentials presented at the same time share one thread."""
        if username is None:
            return self._without_username
        if password is None:
            return AuthResult.BAD_CREDENTIALS
        digest = self._digest(username, password)
        if self._recall(digest):
            return AuthResult.ACCEPTED
        matches = await self._verified_once(digest, username, password)
        if not (matches and username in self._users):
            return AuthResult.BAD_CREDENTIALS
        self._remember(digest)
        return AuthResult.ACCEPTED

    def close(self) -> None:
        """Let the threads end once the checks that have begun are done."""
        self._threads.shutdown(wait=False)

    async def _verified_once(self, digest: bytes, username: str, password: bytes) -> bool:
        verification = self._running.get(digest)
        if verification is None:
            stored = self._users.get(username, self._decoy)
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._threads, self._verify, stored, password)
            verification = self._running[digest] = _Verification(future)
        try:
            return await verification.wait()
        finally:
            if verification.over and self._running.get(digest) is verification:
                del self._running[digest]

    def _verify(self, stored: str, password: bytes) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError) as error:
            log.warning("stored password hash cannot be verified", error=str(error))
            return False

    def _digest(self, username: str, password: bytes) -> bytes:
        name = username.encode("utf-8", "surrogatepass")
        prefix = len(name).to_bytes(4, "big")
        return hashlib.blake2b(prefix + name + password, key=self._key).digest()

    def _recall(self, digest: bytes) -> bool:
        if digest not in self._remembered:
            return False
        self._remembered.move_to_end(digest)
        return True

    def _remember(self, digest: bytes) -> None:
        self._remembered[digest] = None
        while len(self._remembered) > REMEMBERED_CREDENTIALS:
            self._remembered.popitem(last=False)

    def _make_decoy(self) -> str:
        """Hash a random password with the parameters that most users' hashes have."""
        example = {_parameters(stored): stored for stored in self._users.values()}
        counted = collections.Counter(_parameters(stored) for stored in self._users.values())
        hasher = self._hasher
        for commonest, _ in counted.most_common(1):
            found = argon2.extract_parameters(example[commonest])
            hasher = argon2.PasswordHasher.from_parameters(found)
        return hasher.hash(os.urandom(16))


def _parameters(stored: str) -> str:
    """Give an encoded hash without its salt and digest."""
    return stored.rsplit("$", 2)[0]


class _Verification:
    """One running verification and how many wait for it; it is given up with the last of them."""

    __slots__ = ("_future", "_waiting")

    def __init__(self, future: asyncio.Future[bool]) -> None:
        self._future = future
        self._waiting = 0

    @property
    def over(self) -> bool:
        return self._future.done()

    async def wait(self) -> bool:
        self._waiting += 1
        try:
            return await asyncio.shield(self._future)
        finally:
            self._waiting -= 1
            if not self._waiting:
                # Else connections that left would fill the queue of the threads.
                self._future.cancel()


def read(path: Path) -> str:
    """Give the text of a password file; raises PasswordFileError when it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise PasswordFileError(f"{path}: cannot read password file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise PasswordFileError(f"{path}:{line}: not UTF-8 text") from None


def parse(path: Path, text: str) -> dict[str, str]:
    """Give user name to hash from a password file's text; ``path`` is for the error only.

    Raises PasswordFileError naming file and line for the first line that is not right.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.rstrip("\r")
        if not entry.strip() or entry.startswith("#"):
            continue
        user, colon, stored = entry.partition(":")
        problem = None
        if not colon:
            problem = 'expected "user:hash", found no colon'
        elif not user:
            problem = "the user name is empty"
        elif user in users:
            problem = f"user {user!r} appears twice"
        elif not is_argon2(stored):
            problem = (
                f"the hash of user {user!r} is not argon2 (make it with: foldmq passwd FILE USER)"
            )
        if problem:
            raise PasswordFileError(f"{path}:{number}: {problem}")
        users[user] = stored
    return users


def is_argon2(text: str) -> bool:
    """Tell whether ``text`` is an encoded argon2 hash (PHC string format)."""
    match = _HASH.fullmatch(text)
    if match is None:
        return False
    try:
        salt, digest = (_unpadded(part) for part in match.groups())
    except (binascii.Error, ValueError):
        return False
    return len(salt) >= _MIN_SALT and len(digest) >= _MIN_DIGEST


def _unpadded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def user_name_problem(user: str) -> str | None:
    """Say why ``user`` cannot stand in a password file; None when it can."""
    if not user:
        return "the user name is empty"
    if ":" in user or user.startswith("#") or not user.isprintable():
        return "a user name has no colon, no control character and no # at its beginning"
    return None
