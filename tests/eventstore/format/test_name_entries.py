"""Entries of names: what they have, and what two of them under one key tell."""

from __future__ import annotations

import base64
import secrets

import pytest

from eventstore.format.name_entries import (
    CLIENT,
    LONGEST_NAME,
    USER,
    is_token,
    name_in,
    new_entry,
    parts_of,
)

KEY = bytes(range(32))
EARLIER = "$+client/~4g6f5rz4wsccacsb/PyzhR1ul7wiyPqmoPJB4VCZMBV6pYJcSLepb-pSDlV4="
"""An entry as commit 04e2b028 wrote it."""


def is_any(_token: str) -> bool:
    """Tokens of all logs will do."""
    return True


@pytest.mark.parametrize("name", ["a", "phone-alice", "x" * 30, "x" * 31, "é" * 50, "\udc80"])
@pytest.mark.parametrize("kind", [CLIENT, USER])
def test_an_entry_has_its_name(name: str, kind: str) -> None:
    entry = parts_of(new_entry(kind, name, is_any, KEY))
    assert entry is not None
    assert entry.kind == kind
    assert is_token(entry.token)
    assert name_in(entry, KEY) == name
    assert name.encode("utf-8", "surrogatepass") not in base64.urlsafe_b64decode(entry.sealed) or (
        len(name) == 1
    )


def test_an_entry_is_no_longer_than_a_topic() -> None:
    entry = new_entry(CLIENT, "x" * LONGEST_NAME, is_any, KEY)
    assert len(entry) <= 65_535
    parts = parts_of(entry)
    assert parts is not None
    assert name_in(parts, KEY) == "x" * LONGEST_NAME


def test_an_earlier_entry_is_opened() -> None:
    entry = parts_of(EARLIER)
    assert entry is not None
    assert name_in(entry, KEY) == "phone-alice"


def test_two_names_under_one_key_tell_nothing_about_each_other() -> None:
    """An older image of a log hands out keys again that a later one, now elsewhere, has used."""
    key = secrets.token_bytes(32)
    one, two = (
        parts_of(new_entry(CLIENT, name, is_any, key)) for name in ("phone-alice", "phone-bob")
    )
    assert one is not None
    assert two is not None
    assert one.token != two.token
    streams = []
    for entry, name in ((one, b"phone-alice"), (two, b"phone-bob")):
        plain = (len(name).to_bytes(2, "big") + name).ljust(32, b"\0")
        sealed = base64.urlsafe_b64decode(entry.sealed)[-32:]
        streams.append(bytes(a ^ b for a, b in zip(plain, sealed, strict=True)))
    assert streams[0] != streams[1]
