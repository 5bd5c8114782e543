"""Users with password hashes in a file.

The file has one ``user:hash`` per line; blank lines and lines that begin with ``#`` are comments.
A hash begins with ``$``, so a user name may contain colons.
``foldmq passwd`` writes it with argon2 hashes; Mosquitto's hashes are supported as well. The keys
for SCRAM-SHA-256 may follow the hash, after another colon.
"""

from __future__ import annotations

import base64
import binascii
import collections
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import argon2
import structlog
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.fair_queue import SingleFlight
from actors.access.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_SIZE,
    DummyKeys,
    ScramKeys,
    parse_scram_keys,
    render_keys,
    saslprep,
)
from actors.access.verdict_cache import VerdictCache
from actors.access.workers import Workers
from eventstore.display import NAME_LIMIT, escaped
from eventstore.edited_files import read_text
from protocol.errors import FoldmqError

VERIFIER_THREADS: Final = max(1, min(2, (os.cpu_count() or 1) - 1))
"""Number of hashes computed concurrently. Each occupies a core; one is left for the event loop."""

HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
"""Creates new hashes: argon2id at the cost that OWASP's Password Storage Cheat Sheet recommends.

About 20 ms of one core. The default parameters of the library (and of RFC 9106) cost five times as
much, on four cores at the same time: a fleet of clients, each with its own password, would take
that much longer to connect, and password guessing would delay other clients that much more.
"""
REMEMBERED_CREDENTIALS: Final = 10_000

# Bytes, RFC 9106 section 3.1; the reference implementation refuses less.
_MIN_SALT = 8
_MIN_DIGEST = 4
# A hash that costs more than this for each login is assumed to be a mistake.
_MAX_MEMORY_KIB = 4 << 20
_MAX_PASSES = 1000
_MAX_LANES = 255
_MAX_WORK = 64 << 20
"""Maximum of KiB times passes: about a minute."""
_HASH = re.compile(
    r"\$argon2(?:id|i|d)\$(?:v=(?:16|19)\$)?"
    r"m=([1-9][0-9]{0,7}),t=([1-9][0-9]{0,7}),p=([1-9][0-9]{0,7})"
    r"\$([^$]+)\$([^$]+)"
)

_EXAMPLE: Final = render_keys(ScramKeys(MIN_ITERATIONS, bytes(SALT_SIZE), bytes(32), bytes(32)))
_NO_USER = Verdict(AuthResult.NOT_AUTHORISED, reason="no user name")
_NO_PASSWORD = Verdict(AuthResult.BAD_CREDENTIALS, reason="no password")
_WRONG = Verdict(AuthResult.BAD_CREDENTIALS, reason="wrong user name or password")

log = structlog.get_logger("foldmq")


class PasswordFileError(FoldmqError):
    """A password file that cannot be read or has an invalid line."""

    exit_code = 78  # EX_CONFIG of sysexits.h, as in eventstore.errors


class ScramUser(NamedTuple):
    """The SCRAM-SHA-256 keys of a user."""

    name: str
    keys: ScramKeys
    proof: int
    """Digest of the user's line in the file."""


class PasswordFile:
    """Users with hashes, verified in a few threads beside the event loop.

    An unknown user costs the same work as a wrong password, so that the response time does not
    reveal which users exist (in a file with several kinds of hashes: the work of the most common
    kind). Valid credentials are cached, so that a reconnecting fleet is not verified again. A new
    password file is a new object with an empty cache.
    """

    def __init__(
        self,
        users: Mapping[str, str],
        *,
        threads: int = VERIFIER_THREADS,
        decoy_secret: bytes = b"",
    ) -> None:
        """``users`` maps user names to valid hashes with or without keys (:func:`is_stored`).

        ``decoy_secret`` determines the salts that SCRAM shows for users without keys; empty: a
        random one.
        """
        self._users = dict(users)
        self._dummy_hash = self._make_dummy_hash()
        self._prepared = _prepared(self._users)
        self._dummy_keys = _dummy_keys(self._users, decoy_secret or os.urandom(32))
        self._verdicts = VerdictCache(REMEMBERED_CREDENTIALS)
        self._single_flight: SingleFlight[bool] = SingleFlight()
        self._workers = Workers(threads)
        self._verifying: set[bytes] = set()
        """Keys of the credentials being verified in a thread."""

    @classmethod
    def load(
        cls, path: Path, *, threads: int = VERIFIER_THREADS, decoy_secret: bytes = b""
    ) -> PasswordFile:
        """Read the password file at ``path``.

        Raises PasswordFileError with file and line for a duplicate user, a missing colon or an
        invalid hash, and with the file if it cannot be read.
        """
        return cls(parse_users(path, read(path)), threads=threads, decoy_secret=decoy_secret)

    @property
    def user_count(self) -> int:
        """The number of users."""
        return len(self._users)

    @property
    def waiting(self) -> int:
        """Number of logins waiting for a thread."""
        return self._workers.waiting

    def knows(self, username: str) -> bool:
        """Return whether the file has this user."""
        return username in self._users

    def scram_user(self, name: str) -> ScramUser:
        """Return the keys of a user; if unknown or without keys, keys that match no password.

        Both take the same time.
        """
        prepared = _prepare(name)
        decoy = self._dummy_keys.keys(prepared)
        user = name if name in self._users else self._prepared.get(prepared, prepared)
        stored = self._users.get(user, "")
        text = scram_part(stored)
        parsed = parse_scram_keys(text or _EXAMPLE)  # the same work for all users
        return ScramUser(user, parsed if text and parsed else decoy, _proof(stored))

    def holds(self, verdict: Verdict) -> bool:
        """Return whether the user is in the file with the hash that accepted a login."""
        stored = self._users.get(verdict.user) if verdict.user is not None else None
        return stored is not None and _proof(stored) == verdict.proof

    def verifying(self, credentials: Credentials) -> bool:
        """Return whether a thread is verifying these credentials, for any client."""
        if not self._verifying or credentials.username is None or credentials.password is None:
            return False
        return self._verdicts.key(credentials.username, credentials.password) in self._verifying

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict for missing credentials and for cached ones."""
        if credentials.username is None:
            return _NO_USER
        if credentials.password is None:
            return _NO_PASSWORD
        return self._verdicts.get(self._verdicts.key(credentials.username, credentials.password))

    async def check(self, credentials: Credentials) -> Verdict:
        """Verify in a thread; simultaneous logins with the same credentials share one thread."""
        username, password = credentials.username, credentials.password
        if username is None or password is None:
            return _NO_USER if username is None else _NO_PASSWORD
        key = self._verdicts.key(username, password)
        cached = self._verdicts.get(key)
        if cached is not None:
            return cached
        stored = self._users.get(username, self._dummy_hash)
        matches = await self._single_flight.do(
            key, lambda: self._matches(key, credentials, stored, password)
        )
        if not (matches and username in self._users):
            return _WRONG
        verdict = Verdict(AuthResult.ACCEPTED, username, proof=_proof(stored))
        self._verdicts.put(key, verdict)
        return verdict

    def close(self) -> None:
        """End the threads once the running checks are done."""
        self._workers.close()

    async def _matches(
        self, key: bytes, credentials: Credentials, stored: str, password: bytes
    ) -> bool:
        try:
            return await self._workers.run(
                credentials.address,
                self._verify,
                stored,
                password,
                begun=lambda: self._verifying.add(key),
                rank=credentials.rank,
            )
        finally:
            self._verifying.discard(key)

    def _verify(self, stored: str, password: bytes) -> bool:
        stored = hash_part(stored)
        if is_mosquitto_hash(stored):
            return verify_mosquitto_hash(stored, password)
        try:
            return HASHER.verify(stored, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError, MemoryError) as error:
            log.warning("stored password hash cannot be verified", error=str(error))
            return False

    def _make_dummy_hash(self) -> str:
        """Hash a random password with the parameters that most users' hashes have."""
        hashes = [hash_part(stored) for stored in self._users.values()]
        example = {hash_parameters(stored): stored for stored in hashes}
        counted = collections.Counter(map(hash_parameters, hashes))
        hasher = HASHER
        for commonest, _ in counted.most_common(1):
            stored = example[commonest]
            if is_mosquitto_hash(stored):
                return dummy_mosquitto_hash(stored)
            hasher = argon2.PasswordHasher.from_parameters(argon2.extract_parameters(stored))
        return hasher.hash(os.urandom(16))


def _prepare(name: str) -> str:
    """Return a name as SCRAM compares it; unchanged if SASLprep does not allow it."""
    try:
        return name if name.isascii() else saslprep(name)
    except ValueError:
        return name


def _prepared(users: Mapping[str, str]) -> dict[str, str]:
    """Return the users whose names SASLprep changes, by their prepared names."""
    users_of: dict[str, str] = {}
    for user in users:
        if user.isascii():
            continue
        try:
            name = saslprep(user)
        except ValueError:
            continue
        if name not in users:
            users_of.setdefault(name, user)
    return users_of


def _dummy_keys(users: Mapping[str, str], secret: bytes) -> DummyKeys:
    """Return decoys with the parameters that most users' keys have."""
    all_keys = [parse_scram_keys(scram_part(stored)) for stored in users.values()]
    counted = collections.Counter((keys.iterations, len(keys.salt)) for keys in all_keys if keys)
    for (iterations, salt_size), _ in counted.most_common(1):
        return DummyKeys(secret, iterations, salt_size)
    return DummyKeys(secret)


def _proof(stored: str) -> int:
    """Return a digest that identifies a hash in this process only."""
    # Keyed, 64 bits, and cached with the text: a reload checks thousands in one turn.
    return hash(stored)


def read(path: Path) -> str:
    """Return the text of a password file; raises PasswordFileError if it cannot be read."""
    return read_text(path, "password file", PasswordFileError)


def parse_users(
    path: Path, text: str, advice: str = "create it with: foldmq passwd FILE USER"
) -> dict[str, str]:
    """Return the hashes, with SCRAM keys if there are any, by user name from a file's text.

    Raises PasswordFileError with file and line of all invalid lines, with ``advice`` for an
    invalid hash.
    """
    users: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.rstrip("\r")
        if not entry.strip() or entry.startswith("#"):
            continue
        user, colon, stored = split_entry(entry)
        quoted = f"'{escaped(user, NAME_LIMIT)}'"
        problem = None
        if not colon:
            problem = 'expected "user:hash", found no colon'
        elif not user:
            problem = "the user name is empty"
        elif user in users:
            problem = f"user {quoted} appears twice"
        elif not is_password_hash(hash_part(stored)):
            problem = (
                f"the hash of user {quoted} is neither argon2 nor a hash of Mosquitto ({advice})"
            )
        elif not is_stored(stored):
            problem = f"the SCRAM keys of user {quoted} are invalid ({advice})"
        if problem:
            problems.append(f"{path}:{number}: {problem}")
        users[user] = stored
    if problems:
        raise PasswordFileError(*problems)
    return users


def split_entry(entry: str) -> tuple[str, str, str]:
    """Return the user name of a line, the colon ("" if there is none), and the text that follows.

    A name may contain colons: the hash begins at the last ``:$``. Without a valid hash there, the
    name ends at the first colon, so that errors do not quote what may be a password.
    """
    user, mark, hash_text = entry.rpartition(":$")
    if mark and is_password_hash(hash_part("$" + hash_text)):
        return user, ":", "$" + hash_text
    return entry.partition(":")


def hash_part(stored: str) -> str:
    """Return the hash in the text that follows a user name."""
    return stored.partition(":")[0]


def scram_part(stored: str) -> str:
    """Return the SCRAM keys in the text that follows a user name; empty if there are none."""
    return stored.partition(":")[2]


def is_stored(stored: str) -> bool:
    """Return whether ``stored`` is a supported hash, alone or with valid SCRAM keys."""
    hashed, colon, keys = stored.partition(":")
    return is_password_hash(hashed) and (not colon or parse_scram_keys(keys) is not None)


def hash_kind(stored: str) -> str:
    """Return the algorithm of a hash, and that of the SCRAM keys if there are any."""
    kind = mosquitto_hash_kind(hash_part(stored)) or stored.split("$")[1]
    keys = parse_scram_keys(scram_part(stored))
    return kind if keys is None else f"{kind}, scram-sha-256 ({keys.iterations} iterations)"


def is_password_hash(text: str) -> bool:
    """Return whether ``text`` is a supported hash."""
    return is_argon2(text) or is_mosquitto_hash(text)


def is_argon2(text: str) -> bool:
    """Return whether ``text`` is an encoded argon2 hash (PHC string format) of acceptable cost."""
    match = _HASH.fullmatch(text)
    if match is None:
        return False
    memory, passes, lanes = map(int, match.groups()[:3])
    if not (1 <= lanes <= _MAX_LANES and 8 * lanes <= memory <= _MAX_MEMORY_KIB):
        return False
    if not 1 <= passes <= _MAX_PASSES or memory * passes > _MAX_WORK:
        return False
    try:
        salt, digest = (_unpadded(part) for part in match.groups()[3:])
    except (binascii.Error, ValueError):
        return False
    return len(salt) >= _MIN_SALT and len(digest) >= _MIN_DIGEST


def _unpadded(text: str) -> bytes:
    """Decode Base64 as the argon2 library does: it accepts one encoding of each value."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    if base64.b64encode(data).rstrip(b"=").decode("ascii") != text:
        raise ValueError("not the canonical encoding")
    return data


def user_name_problem(user: str) -> str | None:
    """Return why ``user`` is not valid in a password file, or None."""
    if not user:
        return "the user name is empty"
    if user.startswith("#") or not user.isprintable():
        return "a user name must not contain a control character, or begin with #"
    return None


_DIGEST = 64
_SALTS = range(8, 129)
_SHA512 = re.compile(r"\$6\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)", re.ASCII)
_PBKDF2 = re.compile(r"\$7\$([1-9][0-9]{0,8})\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)", re.ASCII)


class _MosquittoHash(NamedTuple):
    """A hash in Mosquitto's password file.

    Mosquitto writes ``$6$SALT$HASH`` (SHA-512 of password and salt, version 1),
    ``$7$ITERATIONS$SALT$HASH`` (PBKDF2 with HMAC-SHA-512, version 2.0) and argon2 (version 2.1),
    salt and hash of the first two in Base64.
    """

    iterations: int
    """0: one SHA-512."""
    salt: bytes
    digest: bytes


def is_mosquitto_hash(text: str) -> bool:
    """Return whether ``text`` is a hash in Mosquitto's format, other than argon2."""
    return _parsed(text) is not None


def mosquitto_hash_kind(text: str) -> str:
    """Return the algorithm of a hash; empty if it is not in Mosquitto's format."""
    parsed = _parsed(text)
    if parsed is None:
        return ""
    return f"pbkdf2-sha512, {parsed.iterations} rounds" if parsed.iterations else "sha512"


def verify_mosquitto_hash(stored: str, password: bytes) -> bool:
    """Return whether ``stored`` is the hash of ``password``; see :func:`is_mosquitto_hash`."""
    parsed = _parsed(stored)
    if parsed is None:
        return False
    digest = _mosquitto_digest(password, parsed.salt, parsed.iterations)
    same = hmac.compare_digest(digest, parsed.digest)
    # HMAC pads its key with zeros: "secret" and "secret\0" would be the same password.
    return same and not (parsed.iterations and password.endswith(b"\0"))


def hash_parameters(stored: str) -> str:
    """Return kind and cost of a hash: hashes with equal ones take the same time."""
    return stored.rsplit("$", 2)[0]


def dummy_mosquitto_hash(stored: str) -> str:
    """Return a hash of a random password that takes the same time as ``stored``."""
    parsed = _parsed(stored)
    iterations, size = (parsed.iterations, len(parsed.salt)) if parsed is not None else (0, 12)
    salt = os.urandom(size)
    digest = _mosquitto_digest(os.urandom(16), salt, iterations)
    parts = (hash_parameters(stored), *(base64.b64encode(part).decode() for part in (salt, digest)))
    return "$".join(parts)


def _mosquitto_digest(password: bytes, salt: bytes, iterations: int) -> bytes:
    if iterations:
        return hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
    return hashlib.sha512(password + salt).digest()


def _parsed(text: str) -> _MosquittoHash | None:
    match = _SHA512.fullmatch(text) or _PBKDF2.fullmatch(text)
    if match is None:
        return None
    *count, salt_text, digest_text = match.groups()
    iterations = int(count[0]) if count else 0
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in (salt_text, digest_text))
    except binascii.Error:
        return None
    fits = len(salt) in _SALTS and len(digest) == _DIGEST and iterations <= MAX_ITERATIONS
    return _MosquittoHash(iterations, salt, digest) if fits else None
