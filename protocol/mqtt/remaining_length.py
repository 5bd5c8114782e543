"""The Remaining Length field: seven bits a byte, least significant first (section 2.2.3)."""

from protocol.mqtt.protocol_error import ProtocolError

MAX_REMAINING_LENGTH = 268_435_455


def encode_length(length: int) -> bytes:
    """Encode a Remaining Length in as few bytes as possible, one to four.

    Raises ``ValueError`` above ``MAX_REMAINING_LENGTH``.
    """
    if length < 128:
        return bytes((length,))
    if length > MAX_REMAINING_LENGTH:
        raise ValueError(f"a packet of {length} bytes cannot be encoded")
    encoded = bytearray()
    while length > 127:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def read_length(data: bytes, at: int) -> tuple[int, int] | None:
    """Read the Remaining Length that begins at ``at``: (its value, the offset where it ends).

    None when ``data`` ends before it does; ``ProtocolError`` when it is longer than four bytes.
    """
    if at < len(data) and data[at] < 0x80:  # the most common case first
        return data[at], at + 1
    value = 0
    for index, byte in enumerate(data[at : at + 4]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    if len(data) - at >= 4:
        raise ProtocolError("Remaining Length is longer than four bytes", "MQTT-4.8.0-1")
    return None
