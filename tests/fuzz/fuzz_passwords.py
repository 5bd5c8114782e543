"""Password files: a file is refused in one line, or each of its hashes can be verified."""

import contextlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import argon2

from actors.access import passwords
from actors.access.scram import parse_scram_keys
from cli.users import line_files, passwd
from eventstore.edited_files import decode_text

FILE = Path("users")
CHEAP = 100_000
"""KiB times passes, and rounds, that are tried; more takes longer, and nothing else."""


def one(data: bytes) -> None:
    """Read a file and look at every user in it; raises AssertionError for what is wrong."""
    try:
        text = decode_text(FILE, data, passwords.PasswordFileError)
        users = passwords.parse_users(FILE, text)
    except passwords.PasswordFileError as error:
        message = str(error)
        assert message.isprintable(), "an error is one line without anything that a terminal obeys"
        assert len(message) < 2000
        assert message.startswith(f"{FILE}:")
        return
    lines = line_files.lines_of(text)
    for user, stored in users.items():
        assert user
        assert passwords.hash_kind(stored).isprintable()
        named = [line for line in lines if passwd._names(line, user)]
        assert len(named) == 1, "a user is changed or deleted by one line"
        assert named[0].rstrip("\r") == f"{user}:{stored}"
        _verify(stored)


def _verify(stored: str) -> None:
    keys = passwords.scram_part(stored)
    assert not keys or parse_scram_keys(keys) is not None, "keys that were read can be used"
    stored = passwords.hash_part(stored)
    if passwords.is_mosquitto_hash(stored):
        assert not passwords.is_argon2(stored)
        parts = stored.split("$")
        if parts[1] == "6" or int(parts[2]) <= CHEAP:
            assert passwords.verify_mosquitto_hash(stored, b"x") in (True, False)
            assert passwords.hash_parameters(
                passwords.dummy_mosquitto_hash(stored)
            ) == passwords.hash_parameters(stored)
        return
    found = argon2.extract_parameters(stored)
    if found.memory_cost * found.time_cost <= CHEAP:
        with contextlib.suppress(argon2.exceptions.VerifyMismatchError):
            argon2.PasswordHasher().verify(stored, b"x")
