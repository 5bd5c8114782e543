"""Fast parser of the most common WebSocket frames, many at a time.

Most clients send every packet in a separate frame that is final, binary, masked and short. The
``websockets`` library needs four microseconds for each, more than the broker needs for the packet;
this parser needs a fraction of one. All other frames are left to the library.
"""

from __future__ import annotations

from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # the library was built without a compiler
    from websockets.utils import apply_mask

_PLAIN: Final = 0x82
"""First byte of a final binary frame (RFC 6455, 5.2)."""
_MASKED: Final = 0x80


def plain_frames(data: bytes, at: int, longest: int, parts: list[bytes]) -> int:
    """Read complete plain frames of ``data``, from ``at`` on; return their end.

    Their content is appended to ``parts``. A plain frame is final, binary, masked, not empty, no
    longer than ``longest`` bytes, shorter than 64 KiB, and has its length in as few bytes as
    possible. RFC 6455, section 5.2.
    """
    end = len(data)
    while end - at >= 6 and data[at] == _PLAIN:
        size = data[at + 1] - _MASKED
        body = at + 6
        if size >= 126:
            if size == 127 or end - at < 8:
                break
            size = (data[at + 2] << 8) | data[at + 3]
            if size < 126:
                break
            body = at + 8
        after = body + size
        if size < 1 or size > longest or after > end:
            break
        parts.append(apply_mask(data[body:after], data[body - 4 : body]))
        at = after
    return at


def frame_size(data: bytes, at: int) -> int:
    """Return the length of the frame at ``at`` with its header; 0 if the header is incomplete."""
    if len(data) - at < 2:
        return 0
    size = data[at + 1] & 0x7F
    head = 6 if data[at + 1] & _MASKED else 2
    if size >= 126:
        wide = 2 if size == 126 else 8
        if len(data) - at < 2 + wide:
            return 0
        size = int.from_bytes(data[at + 2 : at + 2 + wide], "big")
        head += wide
    return head + size


def is_minimal(data: bytes, at: int) -> bool:
    """Return whether the length of the frame at ``at``, with a complete header, is minimal.

    "The minimal number of bytes MUST be used to encode the length" (RFC 6455, section 5.2).
    Otherwise one frame could be encoded in three ways, and an intermediary could interpret it
    differently from the broker.
    """
    size = data[at + 1] & 0x7F
    if size < 126:
        return True
    if size == 126:
        return int.from_bytes(data[at + 2 : at + 4], "big") >= 126
    return int.from_bytes(data[at + 2 : at + 10], "big") >= 1 << 16
