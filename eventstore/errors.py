"""The errors of the log and of the NATS server that stores it.

Each error is one line for the operator: the problem, the place, and the remedy. The exit codes are
those of BSD's ``sysexits.h``, which service managers and scripts already distinguish:

====  ===========================================================================
code  meaning
====  ===========================================================================
1     the answer is no: the requested object does not exist, or a check failed
2     the request is invalid, or invalid for this log
65    the log itself is damaged
66    there is no log to read, or the requested part was cut off
69    a service that is needed (NATS) is not available or too old
73    the data directory cannot be created or written, or belongs to another user
74    reading or writing failed: the disk is full
75    try again later: another process uses a resource that is needed
78    the configuration guarantees less than requested, or is wrong
====  ===========================================================================
"""

# ruff: noqa: N818 - named for the condition that is found, as a person would say it

import contextlib
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import FoldmqError


class EventStoreError(FoldmqError):
    """The log cannot be kept with its guarantees."""

    exit_code = 70


class DataDirError(EventStoreError):
    """The data directory cannot be used: not a directory, not writable, another user's, damaged."""

    exit_code = 73

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"data directory {path}: {what}")


class DataDirBusy(EventStoreError):
    """Another process uses the data directory.

    ``pid`` is None when the process id of the lock's holder is not known.
    """

    exit_code = 75

    def __init__(self, path: Path, pid: int | None, holder: str = "another foldmq broker") -> None:
        process = f" (process {pid})" if pid is not None else ""
        super().__init__(
            f"data directory {path} is in use by {holder}{process}: "
            "stop it or choose another --data-dir"
        )
        self.pid = pid


class DiskFull(EventStoreError):
    """The disk has no room for the log. No acknowledged message is lost."""

    exit_code = 74

    def __init__(self, where: Path | str) -> None:
        super().__init__(
            f"no space left for the log in {where}: free some; "
            "nothing is acknowledged until it can be written"
        )


class DiskFailed(EventStoreError):
    """A write or sync of the disk failed: data that is only in memory may appear to be stored."""

    exit_code = 74

    def __init__(self, where: object, what: str) -> None:
        super().__init__(f"the disk of {where} fails: {what}; check the disk, then start again")


class NatsUnavailable(EventStoreError):
    """The NATS server cannot be started or reached, or refuses a request."""

    exit_code = 69


class LogUnavailable(NatsUnavailable):
    """JetStream does not answer, or answers with an error."""


class NatsTooOld(NatsUnavailable):
    """The NATS server, or the nats-server program, is too old for the guarantees of the log."""

    def __init__(
        self, where: str, version: str, minimum: str, why: str, advice: str = "upgrade it"
    ) -> None:
        super().__init__(
            f"{where} is version {version or 'unknown'}, at least {minimum} is needed ({why}): "
            f"{advice}"
        )


class BadNatsOptions(EventStoreError):
    """A file or a setting for the connection to NATS is invalid."""

    exit_code = 78


class WeakDurability(EventStoreError):
    """A stream or server guarantees less than the configuration requires.

    ``setting`` is the name of the setting in JetStream's configuration.
    """

    exit_code = 78

    def __init__(self, where: str, setting: str, value: object, needed: str) -> None:
        super().__init__(
            f"{where}: {setting} is {value}, the log needs {needed}: "
            "change it there or use another stream"
        )


class TooManyReplicas(EventStoreError):
    """The NATS servers cannot hold as many replicas of the log as are configured."""

    exit_code = 78

    def __init__(self, replicas: int, what: str) -> None:
        super().__init__(
            f"nats_replicas = {replicas}: the NATS cluster cannot hold that many ({what}): set it "
            "to at most the number of JetStream servers, or start those that are down"
        )


class UnknownLogFormat(EventStoreError):
    """The log was written by a later foldmq in a format that this one cannot read."""

    exit_code = 78


class EventTooLarge(EventStoreError):
    """An event does not fit into a record of the log: it was not recorded."""

    exit_code = 69

    def __init__(self, kind: str, size: int, limit: int) -> None:
        super().__init__(
            f"a {kind} event of {size} bytes does not fit into a record of the log, which has room "
            f"for {limit}: raise max_payload of the NATS server or lower max_packet_size"
        )


class RecordTooLarge(EventStoreError):
    """JetStream no longer accepts a record, because a limit was lowered: it is not stored.

    ``size`` is the size of the record with its headers, in bytes.
    """

    exit_code = 69

    def __init__(self, stream: str, size: int, what: str) -> None:
        super().__init__(
            f"a record of {size} bytes cannot be stored in {stream}: {what}; max_payload of the "
            "NATS server or max_msg_size of the stream is lower than it was"
        )
        self.size = size


class StoreKeyError(EventStoreError):
    """The key of encryption at rest is missing, or is not the one of the files."""

    exit_code = 78


SALVAGE = "foldmq salvage --data-dir DIR --to NEWDIR (of one log, while no broker runs)"
"""The remedy; for several logs, or one on an external server, it is a backup."""


class CorruptLog(EventStoreError):
    """A record of the log is damaged, missing or out of place.

    ``sequence`` is the stream sequence of the first record that cannot be trusted.
    """

    exit_code = 65

    def __init__(self, sequence: int, what: str) -> None:
        super().__init__(
            f"the log is damaged: record {sequence} {what}; records up to {sequence - 1} are "
            f"intact; restore a backup, or continue with the intact records: {SALVAGE}"
            if sequence > 1
            else f"the log is damaged: record {sequence} {what}; no record before it; "
            "restore a backup, or begin with another --data-dir"
        )
        self.sequence = sequence
        self.what = what


class CorruptStore(EventStoreError):
    """The key files of an encrypted store are damaged. Nothing was changed."""

    exit_code = 65


class LostLog(EventStoreError):
    """A log that existed before is missing, or was not recovered. Nothing was changed."""

    exit_code = 65

    def __init__(self, stream: str, *, stored: bool = True) -> None:
        super().__init__(
            f"the log is damaged: stream {stream} is in the store but the NATS server did not "
            f"recover it; nothing was changed, the reason is in the server's log; restore a "
            f"backup, or continue with what can be read: {SALVAGE}"
            if stored
            else f"the log is lost: stream {stream} existed before and is missing: were its "
            "files removed, or is this another NATS server? Restore a backup, or begin with "
            "another --data-dir"
        )


class StoreGone(EventStoreError):
    """Files of the log were removed, replaced or cut short while the broker ran."""

    exit_code = 65

    def __init__(self, what: str) -> None:
        super().__init__(f"the log is lost: {what}")


class NodeBusy(EventStoreError):
    """Another running broker has the same node id on the same NATS server."""

    exit_code = 75

    def __init__(self, node: str, where: str, who: str) -> None:
        super().__init__(
            f"node {node} already runs on {where} ({who}): stop that broker, or give this one its "
            "own data directory"
        )


class ClusterBusy(EventStoreError):
    """The log of that name does not belong to this cluster."""

    exit_code = 75

    def __init__(self, cluster: str, where: str, what: str) -> None:
        super().__init__(
            f"cluster {cluster} on {where} is a different cluster: {what}; choose another name for "
            "this cluster, or give the node that cluster's key (cluster_key_file)"
        )


class Fenced(EventStoreError):
    """Another broker writes to this broker's log: this one must stop immediately."""

    exit_code = 75

    def __init__(self, stream: str, expected: int, end: int | None) -> None:
        at = f" and is now at {end}" if end is not None else ""
        super().__init__(
            f"another broker writes to log {stream}: it was expected to end at record "
            f"{expected}{at}; stop the other broker, then start this one again"
        )


class NoLog(FoldmqError):
    """There is no log to read."""

    exit_code = 66


class CutOff(NoLog):
    """The requested point or object is in a part of the log that was cut off."""


class CutMeanwhile(FoldmqError):
    """The broker cut off the part of the log that was being read.

    ``first`` is the current first record of the log, ``recovery`` the advice to the user.
    """

    exit_code = 75

    def __init__(self, first: int, log: str = "the log", recovery: str = "ask again") -> None:
        super().__init__(
            f"{log} was cut while it was read, it begins with record {first} now: {recovery}"
        )


class NotFound(FoldmqError):
    """The requested session, message or token does not exist."""

    exit_code = 1


class UsageError(FoldmqError):
    """The request is invalid, or invalid for this log."""

    exit_code = 2


@contextlib.contextmanager
def naming_log(log: str) -> Iterator[None]:
    """Put the name of a log before the messages of errors, unless it is empty: the only log."""
    try:
        yield
    except FoldmqError as error:
        if log:
            error.args = (f"log {log}: {error}",)
        raise
