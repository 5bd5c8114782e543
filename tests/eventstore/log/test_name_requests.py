"""Requests to erase a name, in files beside the keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eventstore import durable_files
from eventstore.log.key_file import KeyFileError
from eventstore.log.name_requests import NameRequest, store_request, stored_requests

REQUEST = NameRequest.of("client", "phone-alice", "ann")


def test_a_request_that_cannot_be_stored_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable_files.os, "fsync", full)
    with pytest.raises(KeyFileError, match="cannot be written: No space left"):
        store_request(REQUEST, tmp_path / "keys")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_broker_left_is_removed(tmp_path: Path) -> None:
    key_file = tmp_path / "keys"
    store_request(REQUEST, key_file)
    left, fresh, other = (tmp_path / name for name in ("keys.erase-1.new", "keys.erase-2.new", "x"))
    for file in (left, fresh, other):
        file.write_bytes(b"{}")
    for file in (left, other):
        os.utime(file, (1, 1))
    assert len(stored_requests(key_file)) == 1
    assert not left.exists()
    assert fresh.exists()  # its broker is writing it
    assert other.exists()
