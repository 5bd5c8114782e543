"""Messages of QoS 0 from broker to broker: batches of bytes, in the order of publication.

A batch consists of frames; each has a JSON header with columns and the raw bytes of the blocks of
properties and of the payloads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import orjson

from eventstore.format.stored_properties import block_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD = struct.Struct(">II")
"""Sizes in bytes of the header and of the rest of a frame."""


class Qos0Messages(NamedTuple):
    """Messages of QoS 0; either all were published with RETAIN 1, or none."""

    topics: Sequence[bytes]
    payloads: Sequence[bytes]
    blocks: Sequence[bytes]
    """The properties of each; empty when none has any."""
    retain: bool
    log: str = ""
    share: str = ""
    """The only log and shared subscription that get them; empty: all matching ones do."""
    epoch: int = 0
    """Epoch of the leader that sends them; 0: there is no cluster."""


def encode_frame(messages: Qos0Messages) -> bytes:
    """Return the bytes of a frame."""
    topics, payloads, blocks, retain, log, share, epoch = messages
    distinct = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    own, sizes, block_of = block_columns(blocks)
    header = orjson.dumps(
        (
            [topic.decode() for topic in distinct],
            [distinct[topic] for topic in topics],
            list(map(len, payloads)),
            sizes,
            block_of,
            retain,
            log,
            share,
            epoch,
        )
    )
    rest = b"".join((*own, *payloads))
    return _HEAD.pack(len(header), len(rest)) + header + rest


def split_frames(data: bytes) -> list[bytes]:
    """Return the frames of a batch of complete ones."""
    frames = []
    at = 0
    while at < len(data):
        head, rest = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + head + rest
        frames.append(data[at:end])
        at = end
    return frames


def decode_frames(data: bytes) -> Iterator[Qos0Messages]:
    """Yield the messages of a batch; raises ValueError for one that is damaged."""
    at = 0
    while at < len(data):
        try:
            head, rest = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            header = orjson.loads(data[at : at + head])
            names, which, sizes, own, block_of, retain, log, share, epoch = header
            area = at + head
            at = area + rest
            blocks = [b""]
            for size in own:
                blocks.append(data[area : area + size])
                area += size
            payloads = []
            for size in sizes:
                payloads.append(data[area : area + size])
                area += size
            topics = [name.encode() for name in names]
            spread: list[bytes] = []
            if own:
                spread = [blocks[number] for number in block_of or [1] * len(which)]
            if area != at or len(sizes) != len(which):
                raise ValueError("its columns are inconsistent")
            chosen = [topics[one] for one in which]
            yield Qos0Messages(chosen, payloads, spread, bool(retain), log, share, int(epoch))
        except (struct.error, TypeError, IndexError, AttributeError) as error:
            raise ValueError(str(error)) from None
