"""Digests of states, for comparisons: short hashes of sessions and of retained messages.

Two states are the same when the texts of their snapshots are the same. A digest has 16 hexadecimal
digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from eventstore.format.sealing import SealedBytes, filler, first_sealed
from projections.state.retained import RetainedMessage
from projections.state.session_table import text_of
from projections.state.snapshot import encode_session

if TYPE_CHECKING:
    from projections.state.node_state import NodeState

_DIGITS = 16
NO_DIGEST = "0" * _DIGITS
"""The digest of an unknown state."""


def digest(texts: Iterable[bytes], pending: Iterable[RetainedMessage] = ()) -> str:
    """Return the digest of a session: a hash of the JSON of its snapshot's parts.

    ``pending`` are the retained messages that it sent at QoS 2 and has not released.
    """
    hashed = hashlib.sha256(b"\n".join(texts))
    for message in sorted(pending, key=lambda message_of: message_of.ref):
        hashed.update(b"\n" + message.topic.encode())
        hashed.update(retained_digest(message).encode())
    return hashed.hexdigest()[:_DIGITS]


def retained_digest(message: RetainedMessage) -> str:
    """Return the digest of a retained message: a hash of everything except its topic.

    Of a sealed message it does not include the content: it is the same without the key.
    """
    block = _comparable(message.block, first_sealed(message.block))
    payload = _comparable(message.payload, 0)
    head = f"{message.qos} {message.ref}\n".encode()
    if block:
        head = f"{message.qos} {message.ref} {message.expires} {len(block)}\n".encode()
        head += block
    return hashlib.sha256(head + payload).hexdigest()[:_DIGITS]


def _comparable(content: bytes, begin: int) -> bytes:
    """Return content; what is sealed of it, from ``begin`` on, as readers without the key do."""
    if not isinstance(content, SealedBytes):
        return content
    return content[:begin] + filler(len(content) - begin, content.key)


def session_texts(node: NodeState, name: str) -> list[bytes] | None:
    """Return a session's snapshot as JSON, one text for each part; None when there is none.

    A frozen session is not thawed: its frozen form is the same text.
    """
    frozen = node.sessions.frozen(name)
    if frozen is not None:
        return [text_of(frozen)]
    state = node.sessions.live.get(name)
    return None if state is None else [orjson.dumps(part) for part in encode_session(state)]


def session_digest(node: NodeState, name: str, *, pending: bool = True) -> str | None:
    """Return the digest of a session, None when there is no such session."""
    texts = session_texts(node, name)
    if texts is None:
        return None
    return digest(texts, node.retained.pending(name) if pending else ())


def pending_of(node: NodeState, name: str) -> list[Any]:
    """Return number and digest of a session's unreleased retained QoS 2 messages."""
    pending = node.retained.pending(name)
    return [len(pending), digest((), pending)]


def digest_number(text: str) -> int:
    """Return a hexadecimal digest as a number, which takes less memory."""
    return int(text, 16)
