"""The stream that holds the log: how it is made, and what its acknowledgements promise.

What a client can learn about a server's promise is checked before the first record is written.
What it cannot learn (when a foreign server syncs its files) is part of ``StreamState.promise``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import LostLog, UnknownLogFormat, WeakDurability
from eventstore.format import LEAST_RECORD
from eventstore.nats.jetstream import NO_STREAM, require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nats.aio.client import Client

LOG_FORMAT: Final = 1
"""The version of the log's layout, kept in the stream's metadata."""
FORMAT_KEY: Final = "foldmq.log"


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream that may hold the log: its bounds, and what its acknowledgements promise."""

    first_seq: int
    last_seq: int
    created: bool
    promise: str
    max_msg_size: int
    """Bytes of the largest message that the stream takes, -1: it has no bound of its own."""


async def ensure_stream(
    client: Client,
    name: str,
    subjects: Sequence[str],
    *,
    replicas: int = 1,
    sync: str | float | None = None,
    must_exist: bool = False,
) -> StreamState:
    """Return the state of the log's stream, made if it is missing.

    ``sync`` is the embedded server's setting, None when a foreign one does not tell it.
    ``must_exist`` says that a log was there before: a missing stream is then damage. (Without
    it, NATS fills the stream that is made with what it finds of the old one: a way to repair.)

    Raises WeakDurability with the setting that promises less, UnknownLogFormat for a log of a
    later foldmq, LostLog when a log that must exist is gone, NatsUnavailable or DiskFull when
    the stream cannot be made.
    """
    reply = await require(client, f"STREAM.INFO.{name}", accept=(NO_STREAM,))
    created = "error" in reply
    if created:
        if must_exist:
            raise LostLog(name)
        wanted = _stream_config(name, subjects, replicas)
        reply = await require(client, f"STREAM.CREATE.{name}", wanted)
    config = reply["config"]
    check_stream(config, subjects=subjects, replicas=replicas)
    state = reply["state"]
    promise = durability_promise(config["num_replicas"], sync)
    most = config.get("max_msg_size") or -1
    return StreamState(state["first_seq"], state["last_seq"], created, promise, most)


def check_stream(config: Mapping[str, Any], *, subjects: Sequence[str], replicas: int) -> None:
    """Raise WeakDurability, or UnknownLogFormat, unless a stream so configured can hold the log.

    ``config`` is the ``config`` object of JetStream's stream info.
    """
    where = f"stream {config.get('name')}"
    for setting, allowed, needed in _NEEDED:
        if (value := config.get(setting)) not in allowed:
            raise WeakDurability(where, setting, _shown(value), needed)
    for setting in ("max_msgs", "max_bytes"):
        if (config.get(setting) or -1) > 0 and config.get("discard") != "new":
            value = f"{config[setting]} with discard old"
            raise WeakDurability(where, setting, value, "-1: old records must stay")
    if 0 < (size := config.get("max_msg_size") or -1) < LEAST_RECORD:
        raise WeakDurability(
            where, "max_msg_size", size, f"{LEAST_RECORD} at least, or -1: no bound"
        )
    if config.get("num_replicas", 1) < replicas:
        raise WeakDurability(where, "num_replicas", config.get("num_replicas"), f"{replicas}")
    present = config.get("subjects") or []
    if not set(subjects) <= set(present):
        raise WeakDurability(where, "subjects", _shown(present), ", ".join(subjects))
    version = (config.get("metadata") or {}).get(FORMAT_KEY, str(LOG_FORMAT))
    if version != str(LOG_FORMAT):
        raise UnknownLogFormat(
            f"{where} holds a log of format {version}, this foldmq reads format {LOG_FORMAT}: "
            "use the foldmq that wrote it, or a later one"
        )


_NOTHING: Final[tuple[object, ...]] = (None, 0, -1, False, "", [], {})
_NEEDED: Final[tuple[tuple[str, tuple[object, ...], str], ...]] = (
    ("storage", ("file",), "file: memory does not survive a restart"),
    ("retention", ("limits",), "limits: others remove records once they are read"),
    ("persist_mode", (None, "", "default"), "default: async acknowledges before writing"),
    ("no_ack", _NOTHING, "false: without acknowledgements nothing is promised"),
    ("max_age", _NOTHING, "0: old records must stay"),
    ("max_msgs_per_subject", _NOTHING, "-1: old records must stay"),
    ("sealed", _NOTHING, "false: a sealed stream takes no records"),
    ("mirror", _NOTHING, "none: a mirror takes no records"),
    ("sources", _NOTHING, "none: one broker writes a log"),
    ("subject_transform", _NOTHING, "none: records keep their subject"),
    ("allow_direct", (True,), "true: records are read directly"),
)
"""(setting, the values that are fine, what is needed and why)"""


def durability_promise(replicas: int, sync: str | float | None) -> str:
    """Return what an acknowledgement of such a stream means, for the banner."""
    copies = "on one server" if replicas == 1 else f"on a majority of {replicas} servers"
    if sync == "always":
        return f"acknowledged messages are on disk {copies} (synced before each acknowledgement)"
    if sync is not None:
        return (
            f"acknowledged messages are written {copies}, synced every {sync} s: "
            f"they survive a crash of the programs, a power failure may undo the last {sync} s"
        )
    return (
        f"acknowledged messages are written {copies}; when they are synced to disk is the NATS "
        "server's sync_interval, which clients cannot see: its default, 2 minutes, lets a power "
        "failure undo that much; 'always' does not"
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _stream_config(name: str, subjects: Sequence[str], replicas: int) -> dict[str, object]:
    return {
        "name": name,
        "description": "foldmq's event log: written by one broker, never trimmed by NATS",
        "subjects": list(subjects),
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "num_replicas": replicas,
        "compression": "none",
        "allow_direct": True,
        "deny_delete": False,
        "deny_purge": False,
        # appends are made unique by the expected sequence; the least that the server accepts
        "duplicate_window": 100_000_000,
        "metadata": {FORMAT_KEY: str(LOG_FORMAT)},
    }
