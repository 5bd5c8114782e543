"""Finds the CONNACK that accepts a client in the bytes that the leader sends it."""

from __future__ import annotations

from typing import Final

_CONNACK: Final = 0x20
_MAX_HEAD: Final = 5


class ConnackWatch:
    """Follows the packets before CONNACK, which are AUTH packets only."""

    __slots__ = ("_head", "_skip")

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0

    def sees(self, data: bytes) -> bool | None:
        """Return whether the client was accepted; None: not known yet."""
        data = self._head + data
        self._head = b""
        while True:
            if self._skip >= len(data):
                self._skip -= len(data)
                return None
            data, self._skip = data[self._skip :], 0
            size, at, shift = 0, 1, 0
            while at < len(data):
                size |= (data[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not data[at - 1] & 0x80:
                    break
                if at >= _MAX_HEAD:
                    return False
            else:
                self._head = data
                return None
            if data[0] == _CONNACK:
                if len(data) < at + 2:
                    self._head = data
                    return None
                return data[at + 1] == 0
            self._skip = at + size
