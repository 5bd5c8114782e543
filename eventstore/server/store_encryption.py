"""The encrypted store of a NATS server: whether a key opens it, and its files without the server.

With ``encryption_key``, NATS Server 2.15 seals the description of each stream with AES-256-GCM and
encrypts each block of messages with AES-256-CTR. Every stream and every block has a random key, in
a file beside it that is sealed under the configured one. The cipher is always AES, whatever the
processor prefers: a directory can then move between machines.

The server must never find a plain block, or one that its key does not open, in a store that it is
told to encrypt: it would rewrite the block in place, which a crash interrupts, or take the bytes
for messages and cut the block off. So the key files are checked before it starts.
"""

import hashlib
import hmac
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from eventstore.datadir import DataDir
from eventstore.encryption import StoreKey
from eventstore.errors import SALVAGE, CorruptStore, StoreKeyError

CIPHER: Final = "aes"
_NONCE_BYTES: Final = 16
_ACCOUNT: Final = b"$G"
"""The account of all streams: the NATS servers of foldmq have no other one."""
_PROJECTIONS: Final = "FOLDMQ_STATE_"
_STREAM_KEY: Final = "meta.key"
_DESCRIPTION: Final = "meta.inf"


def usable_key(
    datadir: DataDir, key: StoreKey | None, *, remedy: str | None = None
) -> StoreKey | None:
    """Return the key that the server of a data directory needs; None: its store is plain.

    With ``remedy``, for a server that writes, a plain store is an error if there is a key; the
    remedy says how to encrypt it. Raises StoreKeyError.
    """
    streams = [path for path in datadir.jetstream.glob("jetstream/*/streams/*") if path.is_dir()]
    sealed = list(filter(_is_sealed, streams))
    if key is None:
        if sealed:
            raise StoreKeyError(
                f"data directory {datadir.path} is encrypted: set encryption_key_file to the file "
                "with its key"
            )
        return None
    if any((path / _DESCRIPTION).exists() for path in streams if path not in sealed):
        if sealed:
            raise StoreKeyError(
                f"data directory {datadir.path} is encrypted only in part: without its key, a "
                "server of another program wrote to it; restore a backup"
            )
        if remedy is not None:
            raise StoreKeyError(
                f"encryption_key_file is set, but data directory {datadir.path} is not encrypted: "
                f"{remedy}"
            )
        return None
    if sealed and not any(_is_of(path, key) for path in sealed):
        raise StoreKeyError(
            f"encryption_key_file = {key.file}: this is not the key of data directory "
            f"{datadir.path}, or all key files in that are damaged"
        )
    return key


def check_blocks(datadir: DataDir, key: StoreKey, note: Callable[[str], object]) -> None:
    """Raise CorruptStore if the key of a stream or a block is damaged; no server may be running.

    Projections are not synced, so a power cut may damage them: they are removed, and ``note`` is
    called with a line. The broker creates them again from the log.
    """
    for stream in sorted(datadir.jetstream.glob("jetstream/*/streams/*")):
        damaged = "" if _opens_stream(stream, key) else _STREAM_KEY
        for block in () if damaged else _blocks(stream):
            if block_key(block, key) is None and block.stat().st_size:
                damaged = f"msgs/{block.stem}.key"
                break
        if not damaged or not (stream / _DESCRIPTION).exists():
            continue
        if stream.name.startswith(_PROJECTIONS):
            shutil.rmtree(stream)
            note(f"stream {stream.name} is damaged ({damaged}) and is created again")
        else:
            raise CorruptStore(
                f"stream {stream.name} in {datadir.path} is damaged: {damaged} is missing or "
                f"cannot be opened; restore a backup, or copy what is left: {SALVAGE}"
            )


def block_key(block: Path, key: StoreKey) -> tuple[bytes, bytes] | None:
    """Return key and nonce of a block; None if the file with them is missing or damaged."""
    stream = block.parent.parent.name
    return _opened(block.with_suffix(".key"), f"{stream}:{block.stem}", key)


def read_block(block: Path, key: StoreKey | None, size: int = -1) -> bytes:
    """Return the messages in a block, or its first bytes. Raises OSError.

    They are as stored if there is no key, or if that of the block is missing or damaged.
    """
    with block.open("rb") as stream:
        data = stream.read(size)
    opened = block_key(block, key) if key is not None else None
    if opened is None:
        return data
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(opened[0]), modes.CTR(opened[1])).decryptor().update(data)


def _blocks(stream: Path) -> Iterator[Path]:
    blocks = (path for path in (stream / "msgs").glob("*.blk") if path.stem.isdecimal())
    yield from sorted(blocks, key=lambda path: int(path.stem))


def _is_sealed(stream: Path) -> bool:
    return (stream / _STREAM_KEY).exists() or any((stream / "msgs").glob("*.key"))


def _is_of(stream: Path, key: StoreKey) -> bool:
    """Return whether the key opens anything of a stream."""
    return _opens_stream(stream, key) or any(block_key(block, key) for block in _blocks(stream))


def _opens_stream(stream: Path, key: StoreKey) -> bool:
    return _opened(stream / _STREAM_KEY, stream.name, key) is not None


def _opened(file: Path, name: str, key: StoreKey) -> tuple[bytes, bytes] | None:
    """Return the key and the nonce in a key file of a name; None if they cannot be read."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    outer = hmac.digest(key.of_streams.encode(), _ACCOUNT + name.encode(), hashlib.sha256)
    try:
        data = file.read_bytes()
        nonce = data[:_NONCE_BYTES]
        return AESGCM(outer).decrypt(nonce, data[_NONCE_BYTES:], None), nonce
    except (OSError, InvalidTag, ValueError):
        return None
